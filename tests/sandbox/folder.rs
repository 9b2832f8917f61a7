//! A folder of plugins, and a host that looks at it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outboxd::handler::CallControl;
use outboxd::plugin::{PluginHost, PluginInfo, PluginOptions};
use outboxd_core::Outcome;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::guest::build;
use crate::harness::{cache, claim, options};

/// A guest that succeeds.
pub(crate) const OK: &str = "(func $main (result i32) (call $ok))";

/// A guest that is told apart by what it answers.
pub(crate) fn cancels(text: &str) -> String {
    format!(
        "(data (i32.const 1024) \"{text}\") (func $main (result i32) (call $cancel (i32.const 1024) (i32.const {})))",
        text.len()
    )
}

pub(crate) fn start(dir: &Path) -> Arc<PluginHost> {
    start_with(options_of(dir))
}

pub(crate) fn start_with(options: PluginOptions) -> Arc<PluginHost> {
    PluginHost::start(options).unwrap()
}

pub(crate) fn options_of(dir: &Path) -> PluginOptions {
    PluginOptions { dir: dir.into(), cache_dir: Some(cache().into()), sandbox: options(), ..PluginOptions::default() }
}

pub(crate) async fn deliver(host: &PluginHost, topic: &str) -> Option<Outcome> {
    let route = host.handlers().route(topic)?;
    let control = CallControl { stop: CancellationToken::new() };
    Some(route.handler.handle(&claim("{}"), control).await.outcome)
}

pub(crate) fn entry(host: &PluginHost, name: &str) -> PluginInfo {
    host.list().into_iter().find(|info| info.name == name).unwrap_or_else(|| panic!("{name} is not listed"))
}

pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(15);
    while !condition().await {
        assert!(Instant::now() < end, "{what}: not within 15 s");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A host that watches its folder until it is dropped.
pub(crate) struct Watching {
    pub(crate) host: Arc<PluginHost>,
    pub(crate) _end: tokio_util::sync::DropGuard,
}

pub(crate) fn watching(dir: &Path) -> Watching {
    watching_with(options_of(dir))
}

pub(crate) fn watching_with(options: PluginOptions) -> Watching {
    let host = start_with(options);
    let shutdown = CancellationToken::new();
    tokio::spawn({
        let (host, shutdown) = (host.clone(), shutdown.clone());
        async move { host.watch(shutdown).await }
    });
    Watching { host, _end: shutdown.drop_guard() }
}

pub(crate) async fn until_answers(host: &PluginHost, answer: &str) {
    until(answer, async || deliver(host, "orders").await == Some(Outcome::Cancel { error: answer.into() })).await;
}

/// A component of a good size.
pub(crate) fn large(answer: &str) -> Vec<u8> {
    build(&format!("{} (data $unused \"{}\")", cancels(answer), "x".repeat(120_000)))
}
