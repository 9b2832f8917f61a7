//! What a relay tells over HTTP: health, readiness, metrics, a page for people, and as JSON what the command line shows.
//!
//! On loopback by default. Off loopback everything but health and metrics needs the token. Requests that a browser sends for
//! another site are refused: by Host (DNS rebinding) and by Sec-Fetch-Site and Origin.

mod actions;
mod api;
mod error;
mod guard;
mod pages;
mod query;
mod topics;

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use outboxd_store::OutboxAdmin;
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::handler::Handlers;
use crate::metrics::{Recent, Snapshot};
use crate::plugin::PluginInfo;

/// The largest request body. Bytes.
const BODY_BYTES_MAX: usize = 256 << 10;

/// Nothing but the page's own files, no inline script or style, no frames. `same-origin` keeps Origin on the page's own forms.
const SAFE_HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// What the admin address serves from.
#[derive(Clone)]
pub struct Admin {
    pub address: SocketAddr,
    pub token: Option<SecretString>,
    pub metrics: PrometheusHandle,
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub recent: Arc<Recent>,
    pub store: Arc<dyn OutboxAdmin>,
    pub handlers: Arc<dyn Handlers>,
    /// Asks for the plugins as they are now.
    pub plugins: Arc<dyn Fn() -> Vec<PluginInfo> + Send + Sync>,
}

/// Serves until `end`. Requests under way are dropped then. A statement of one goes on: it runs in a task of the store's.
pub async fn serve(listener: TcpListener, admin: Admin, end: CancellationToken) -> std::io::Result<()> {
    tokio::select! {
        served = axum::serve(listener, router(admin)) => served,
        () = end.cancelled() => Ok(()),
    }
}

/// Everything that is served.
pub fn router(admin: Admin) -> Router {
    let guarded = Router::new()
        .merge(pages::router())
        .merge(api::router())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(admin.clone(), guarded));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(guarded)
        .with_state(admin)
}

async fn guarded(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let mut response = match guard::check(request.method(), request.headers(), admin.address, admin.token.as_ref()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in SAFE_HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    match admin.snapshot.load().answers() {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready: the database does not answer\n"),
    }
}

async fn metrics(State(admin): State<Admin>) -> String {
    admin.metrics.run_upkeep();
    admin.metrics.render()
}
