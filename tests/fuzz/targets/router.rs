use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request};
use metrics_exporter_prometheus::PrometheusBuilder;
use outboxd::admin::{Admin, RelayInfo, router};
use outboxd::handler::{Handlers, Route};
use outboxd::metrics::{Recent, Snapshot};
use outboxd_store::{MemoryMessage, MemoryStore, MessageFilter, OutboxAdmin};
use tower::ServiceExt as _;

use crate::wait;

/// A request as it stands on the wire: method and path, headers, an empty line, a body.
pub fn try_one(text: &str) {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.split('\n');
    let Some((method, path)) = lines.next().and_then(|line| line.split_once(' ')) else { return };
    let headers = lines.filter_map(|line| line.split_once(": "));
    let request =
        headers.fold(Request::builder().method(method).uri(path), |request, (name, value)| request.header(name, value));
    let Ok(request) = request.body(Body::from(body.to_owned())) else { return };
    wait(answer(request));
}

async fn answer(request: Request<Body>) {
    let store = Arc::new(MemoryStore::default());
    for topic in ["a", "b"] {
        store.put(MemoryMessage { topic: topic.into(), payload: b"[1]".to_vec(), ..MemoryMessage::default() });
    }
    let before = contents(&*store).await;
    let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned();
    let mut sites = request.headers().get_all("sec-fetch-site").iter();
    let is_foreign = !host.ends_with(":8787") || sites.any(|site| site != "same-origin" && site != "none");
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());

    let response = router(admin(store.clone())).oneshot(request).await.expect("infallible");

    assert!(!response.status().is_server_error(), "{method} {path}: {}", response.status());
    if !matches!(path.as_str(), "/healthz" | "/readyz" | "/metrics") && response.status() != 404 {
        let policy = response.headers().get("content-security-policy").map(|policy| policy.as_bytes());
        assert!(policy.is_some_and(|policy| policy.starts_with(b"default-src 'none'")), "{method} {path}");
    }
    to_bytes(response.into_body(), 16 << 20).await.expect("a body");
    if is_foreign || method == Method::GET {
        assert_eq!(contents(&*store).await, before, "{method} {path} changed something");
    }
}

async fn contents(store: &dyn OutboxAdmin) -> String {
    let rows = store.list(&MessageFilter::default(), None, 100).await.expect("the memory store answers");
    format!("{rows:?} {:?}", store.stats().await.expect("the memory store answers"))
}

/// The admin address of a relay without plugins.
pub fn admin(store: Arc<dyn OutboxAdmin>) -> Admin {
    let now = Some(tokio::time::Instant::now());
    let snapshot = Snapshot { answered_at: now, counted_at: now, ..Snapshot::default() };
    Admin {
        address: "127.0.0.1:8787".parse().expect("an address"),
        token: Arc::default(),
        relay: RelayInfo { version: "0", database: "memory".into(), table: "outbox".into() },
        metrics: PrometheusBuilder::new().build_recorder().handle(),
        snapshot: Arc::new(ArcSwap::from_pointee(snapshot)),
        recent: Arc::new(Recent::default()),
        store,
        handlers: Arc::new(NoHandlers),
        plugins: Arc::new(Vec::new),
    }
}

struct NoHandlers;

impl Handlers for NoHandlers {
    fn route(&self, _: &str) -> Option<Route> {
        None
    }

    fn plugins(&self) -> usize {
        0
    }
}
