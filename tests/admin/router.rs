//! The whole router over a store in memory, without a socket.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, StatusCode};
use metrics_exporter_prometheus::PrometheusBuilder;
use outboxd::admin::{Admin, RelayInfo, router};
use outboxd::handler::{Handlers, Route};
use outboxd::metrics::{Recent, Snapshot};
use outboxd::plugin::PluginInfo;
use outboxd_store::{OutboxAdmin, TopicStats};
use tower::ServiceExt as _;

/// No plugin at all: every topic is unrouted.
pub struct NoHandlers;

impl Handlers for NoHandlers {
    fn route(&self, _: &str) -> Option<Route> {
        None
    }

    fn plugins(&self) -> usize {
        0
    }
}

pub struct Answer {
    pub status: StatusCode,
    pub location: String,
    pub policy: String,
    pub text: String,
}

pub fn admin(store: Arc<dyn OutboxAdmin>, topics: Vec<TopicStats>, plugins: Vec<PluginInfo>) -> Admin {
    let now = Some(tokio::time::Instant::now());
    Admin {
        address: "127.0.0.1:8787".parse().expect("an address"),
        token: Arc::default(),
        relay: RelayInfo { version: "0", database: "memory".into(), table: "outbox".into() },
        metrics: PrometheusBuilder::new().build_recorder().handle(),
        snapshot: Arc::new(ArcSwap::from_pointee(Snapshot {
            answered_at: now,
            counted_at: now,
            topics,
            ..Snapshot::default()
        })),
        recent: Arc::new(Recent::default()),
        store,
        handlers: Arc::new(NoHandlers),
        plugins: Arc::new(move || plugins.clone()),
    }
}

pub async fn get(admin: &Admin, path: &str) -> Answer {
    let request = Request::get(path).header("host", "127.0.0.1:8787").body(Body::empty()).expect("a request");
    send(admin, request).await
}

/// Posts a form as the page's own.
pub async fn submit(admin: &Admin, path: &str, fields: &str) -> Answer {
    let request = Request::post(path)
        .header("host", "127.0.0.1:8787")
        .header("origin", "http://127.0.0.1:8787")
        .header("sec-fetch-site", "same-origin")
        .header("content-type", "application/x-www-form-urlencoded");
    send(admin, request.body(fields.to_owned().into()).expect("a request")).await
}

pub async fn post_json(admin: &Admin, path: &str, body: serde_json::Value) -> Answer {
    let request = Request::post(path).header("host", "127.0.0.1:8787").header("content-type", "application/json");
    send(admin, request.body(body.to_string().into()).expect("a request")).await
}

pub async fn send(admin: &Admin, request: Request<Body>) -> Answer {
    let response: Response<Body> = router(admin.clone()).oneshot(request).await.expect("infallible");
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
    let (status, location, policy) = (response.status(), header("location"), header("content-security-policy"));
    let body = to_bytes(response.into_body(), 16 << 20).await.expect("a body");
    Answer {
        status,
        location: location.unwrap_or_default(),
        policy: policy.unwrap_or_default(),
        text: String::from_utf8(body.to_vec()).expect("UTF-8"),
    }
}
