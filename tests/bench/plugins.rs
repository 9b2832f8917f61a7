use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use outboxd::handler::{CallControl, Handled, Handler, Handlers, Route};
use outboxd::plugin::{PluginHost, PluginOptions};
use outboxd_core::{Admission, Claim, MessageId, Order, Outcome, RetryPolicy};
use outboxd_test_support::guests;
use tempfile::TempDir;
use tokio::runtime::Handle;

/// The concurrency that a manifest has by default.
pub const CONCURRENCY: usize = 16;

/// A Rust component that reads its message as JSON and succeeds, a fresh instance for every message; for every topic.
pub struct Component {
    host: Arc<PluginHost>,
    _folder: TempDir,
}

impl Component {
    pub async fn load() -> Component {
        let folder = tempfile::tempdir().expect("a temporary folder");
        install(folder.path());
        let options = PluginOptions {
            dir: folder.path().to_path_buf(),
            default_concurrency: CONCURRENCY,
            ..PluginOptions::default()
        };
        let host = PluginHost::start(options).expect("the plugin host starts");
        host.scan_once().await;
        assert!(host.handlers().route("t0").is_some(), "the component does not load: {:?}", host.list()[0].error);
        Component { host, _folder: folder }
    }

    pub fn handlers(&self) -> Arc<dyn Handlers> {
        self.host.handlers()
    }
}

/// Puts the component into a plugins folder.
pub fn install(folder: &std::path::Path) {
    std::fs::copy(guests::guest("parse"), folder.join("parse.wasm")).expect("the component is copied");
    std::fs::write(folder.join("parse.toml"), "topics = [\"*\"]\n").expect("the manifest is written");
}

/// Succeeds at once, in the host's own code: what is left when there is no sandbox.
pub struct Native;

impl Handlers for Native {
    fn route(&self, _topic: &str) -> Option<Route> {
        Some(Route {
            plugin: "native".into(),
            handler: Arc::new(Native),
            policy: Arc::new(RetryPolicy::default()),
            concurrency: CONCURRENCY,
            order: Order::None,
            spacing: std::time::Duration::ZERO,
            rate: None,
            admission: Admission::Open,
        })
    }

    fn plugins(&self) -> usize {
        1
    }
}

#[async_trait]
impl Handler for Native {
    async fn handle(&self, _claim: &Claim, _call: CallControl) -> Handled {
        Handled::new(Outcome::Success)
    }
}

/// Handlers that note when a message reaches them.
#[derive(Clone)]
pub struct Noted {
    inner: Arc<dyn Handlers>,
    pub arrivals: Arc<Mutex<HashMap<MessageId, Instant>>>,
}

impl Noted {
    pub fn new(inner: Arc<dyn Handlers>) -> Noted {
        Noted { inner, arrivals: Arc::default() }
    }
}

impl Handlers for Noted {
    fn route(&self, topic: &str) -> Option<Route> {
        let route = self.inner.route(topic)?;
        let handler = NotedHandler { inner: route.handler, arrivals: self.arrivals.clone() };
        Some(Route { handler: Arc::new(handler), ..route })
    }

    fn plugins(&self) -> usize {
        self.inner.plugins()
    }
}

struct NotedHandler {
    inner: Arc<dyn Handler>,
    arrivals: Arc<Mutex<HashMap<MessageId, Instant>>>,
}

#[async_trait]
impl Handler for NotedHandler {
    async fn handle(&self, claim: &Claim, call: CallControl) -> Handled {
        let now = Instant::now();
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).insert(claim.message.id, now);
        self.inner.handle(claim, call).await
    }

    fn threads(&self) -> Option<Handle> {
        self.inner.threads()
    }
}
