//! What a relay tells over HTTP: health, readiness, metrics, and as JSON what the command line shows.
//!
//! On loopback by default. Off loopback everything but health and metrics needs the token. Requests that a browser sends for
//! another site are refused: by Host (DNS rebinding) and by Sec-Fetch-Site and Origin.

mod guard;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::Snapshot;
use crate::plugin::PluginHost;

/// A snapshot older than this means that the database is away.
const FRESH: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Admin {
    pub address: SocketAddr,
    pub token: Option<SecretString>,
    pub metrics: PrometheusHandle,
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub plugins: Arc<PluginHost>,
}

/// Serves until `end`. Requests under way are dropped then: all of them are short reads.
pub async fn serve(listener: TcpListener, admin: Admin, end: CancellationToken) -> std::io::Result<()> {
    let api = Router::new()
        .route("/api/stats", get(stats))
        .route("/api/plugins", get(plugins))
        .layer(from_fn_with_state(admin.clone(), guarded));
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(api)
        .with_state(admin);
    tokio::select! {
        served = axum::serve(listener, router) => served,
        () = end.cancelled() => Ok(()),
    }
}

async fn guarded(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    match guard::check(request.headers(), admin.address, admin.token.as_ref()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    match admin.snapshot.load().at {
        Some(at) if at.elapsed() < FRESH => (StatusCode::OK, "ready\n"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "not ready: the database does not answer\n"),
    }
}

async fn metrics(State(admin): State<Admin>) -> String {
    admin.metrics.run_upkeep();
    admin.metrics.render()
}

async fn stats(State(admin): State<Admin>) -> Response {
    Json(&admin.snapshot.load().topics).into_response()
}

async fn plugins(State(admin): State<Admin>) -> Response {
    Json(admin.plugins.list()).into_response()
}
