//! What a relay tells over HTTP: health, readiness, metrics, a page for people, and as JSON what the command line shows.
//!
//! On loopback by default. Off loopback everything but health and metrics needs the token. Requests that a browser sends for
//! another site are refused: by Host (DNS rebinding) and by Sec-Fetch-Site and Origin.

mod actions;
mod api;
mod error;
mod guard;
mod guesses;
mod pages;
mod query;
mod server;
mod topics;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use outboxd_store::OutboxAdmin;
use secrecy::SecretString;
use serde::Serialize;
use tokio::time::timeout;

use crate::handler::Handlers;
use crate::metrics::{Recent, Snapshot};
use crate::plugin::PluginInfo;

use guard::Refusal;
use guesses::Guesses;
pub use server::{Peer, serve};

/// The largest request body. Bytes.
const BODY_BYTES_MAX: usize = 256 << 10;

/// How long a body may take to come.
const BODY_WITHIN: Duration = Duration::from_secs(10);

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

/// Which relay this is.
#[derive(Clone, Debug, Serialize)]
pub struct RelayInfo {
    pub version: &'static str,
    /// Without its password.
    pub database: String,
    pub table: String,
}

/// What the admin address serves from.
#[derive(Clone)]
pub struct Admin {
    pub address: SocketAddr,
    /// Required where there is one; may be replaced at any time.
    pub token: Arc<ArcSwapOption<SecretString>>,
    pub relay: RelayInfo,
    pub metrics: PrometheusHandle,
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub recent: Arc<Recent>,
    pub store: Arc<dyn OutboxAdmin>,
    pub handlers: Arc<dyn Handlers>,
    /// Asks for the plugins as they are now.
    pub plugins: Arc<dyn Fn() -> Vec<PluginInfo> + Send + Sync>,
}

/// What is served until the database has answered and the plugins are loaded.
pub fn starting(metrics: PrometheusHandle) -> Router {
    const NOT_YET: &str = "not ready: starting; the database has not answered yet, or plugins are being loaded\n";
    Router::new()
        .route("/healthz", get(healthy))
        .route("/metrics", get(|| async move { rendered(&metrics) }))
        .fallback(|| async { (StatusCode::SERVICE_UNAVAILABLE, NOT_YET) })
}

/// Everything that is served.
pub fn router(admin: Admin) -> Router {
    let guard = Guard { address: admin.address, token: admin.token.clone(), guesses: Arc::default() };
    let guarded = Router::new().merge(pages::router()).merge(api::router()).layer(from_fn_with_state(guard, guarded));
    Router::new()
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(guarded)
        .with_state(admin)
}

/// What stands before page and API.
#[derive(Clone)]
struct Guard {
    address: SocketAddr,
    token: Arc<ArcSwapOption<SecretString>>,
    guesses: Arc<Guesses>,
}

impl Guard {
    /// The request with its body read, which extractors then cannot wait for.
    async fn admit(&self, request: Request) -> Result<Request, Refusal> {
        let peer = request.extensions().get().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Peer(peer)| *peer);
        let token = self.token.load_full();
        let guesses = token.is_some() && request.headers().contains_key(AUTHORIZATION);
        if guesses && !self.guesses.may(peer) {
            return Err(Refusal::GuessedTooOften);
        }
        let checked = guard::check(request.method(), request.headers(), self.address, token.as_deref());
        if guesses && checked == Err(Refusal::Unauthorized) {
            self.guesses.wrong(peer);
        }
        checked?;
        let (head, body) = request.into_parts();
        match timeout(BODY_WITHIN, to_bytes(body, BODY_BYTES_MAX)).await {
            Ok(Ok(body)) => Ok(Request::from_parts(head, Body::from(body))),
            Ok(Err(_)) => Err(Refusal::TooLarge),
            Err(_) => Err(Refusal::TooSlow),
        }
    }
}

async fn guarded(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let mut response = match guard.admit(request).await {
        Ok(request) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in SAFE_HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

async fn healthy() -> &'static str {
    "ok\n"
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    if !admin.snapshot.load().answers() {
        return (StatusCode::SERVICE_UNAVAILABLE, "not ready: the database does not answer\n");
    }
    if admin.handlers.plugins() == 0 {
        return (StatusCode::SERVICE_UNAVAILABLE, "not ready: no plugin is loaded, so nothing can be claimed\n");
    }
    (StatusCode::OK, "ready\n")
}

async fn metrics(State(admin): State<Admin>) -> String {
    rendered(&admin.metrics)
}

fn rendered(metrics: &PrometheusHandle) -> String {
    metrics.run_upkeep();
    metrics.render()
}
