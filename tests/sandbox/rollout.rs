use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outboxd::handler::{CallControl, Handled};
use outboxd::plugin::{PluginHost, PluginOptions};
use outboxd_core::{Blame, Outcome};
use tokio_util::sync::CancellationToken;

use crate::guest::build;
use crate::harness::{blame, claim, options, word};

const OLD: &str =
    "(data (i32.const 1024) \"old\") (func $main (result i32) (call $cancel (i32.const 1024) (i32.const 3)))";
const NEW: &str =
    "(data (i32.const 1024) \"new\") (func $main (result i32) (call $cancel (i32.const 1024) (i32.const 3)))";
const BROKEN: &str = "(func $main (result i32) unreachable)";
const MANIFEST: &str = "[rollout]\ncanary = 0.5\ncalls = 30";

fn start(dir: &Path, kept: &Path) -> Arc<PluginHost> {
    let options =
        PluginOptions { dir: dir.into(), cache_dir: Some(kept.into()), sandbox: options(), ..PluginOptions::default() };
    PluginHost::start(options).unwrap()
}

async fn deliver(host: &PluginHost) -> Handled {
    let handler = host.handlers().route("orders").expect("served").handler;
    handler.handle(&claim("{}"), CallControl { stop: CancellationToken::new() }).await
}

async fn with_old_version() -> (tempfile::TempDir, tempfile::TempDir, Arc<PluginHost>) {
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(dir.path().join("orders.wasm"), build(OLD)).unwrap();
    std::fs::write(dir.path().join("orders.toml"), MANIFEST).unwrap();
    let host = start(dir.path(), kept.path());
    host.scan_once().await;
    (dir, kept, host)
}

fn state(host: &PluginHost) -> &'static str {
    host.list()[0].state
}

/// Delivers until the trial is over, and answers what came.
async fn deliver_until_decided(host: &PluginHost) -> Vec<Handled> {
    let mut came = vec![];
    for _ in 0..2000 {
        if state(host) != "canary" {
            return came;
        }
        came.push(deliver(host).await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("no decision after {} messages", came.len());
}

fn old() -> Outcome {
    Outcome::Cancel { error: "old".into() }
}

fn new() -> Outcome {
    Outcome::Cancel { error: "new".into() }
}

#[tokio::test]
async fn a_new_version_gets_a_share_at_first_and_then_takes_over() {
    let (dir, _kept, host) = with_old_version().await;
    std::fs::write(dir.path().join("orders.wasm"), build(NEW)).unwrap();
    host.scan_once().await;
    assert_eq!(state(&host), "canary");

    let came = deliver_until_decided(&host).await;

    let of_new = came.iter().filter(|handled| handled.outcome == new()).count();
    assert!(of_new >= 30 && of_new < came.len(), "{of_new} of {}", came.len());
    assert_eq!(state(&host), "live");
    assert_eq!(deliver(&host).await.outcome, new());
}

#[tokio::test]
async fn a_new_version_that_fails_is_rolled_back_and_no_message_pays() {
    let (dir, kept, host) = with_old_version().await;
    let good = host.list()[0].digest.clone();
    std::fs::write(dir.path().join("orders.wasm"), build(BROKEN)).unwrap();
    host.scan_once().await;

    let came = deliver_until_decided(&host).await;

    let failed: Vec<&Handled> = came.iter().filter(|handled| handled.outcome != old()).collect();
    assert!(failed.len() >= 3 && failed.len() < 10, "{} failed", failed.len());
    assert!(
        failed.iter().all(|handled| word(&handled.outcome) == "trap" && blame(&handled.outcome) == Some(Blame::Plugin))
    );
    let entry = &host.list()[0];
    assert_eq!((entry.state, &entry.digest), ("live", &good));
    assert!(entry.error.as_ref().is_some_and(|error| error.contains("rolled back")), "{entry:?}");
    // Looked at again, and after a restart, it stays out until its file changes.
    std::fs::write(dir.path().join("orders.wasm"), build(BROKEN)).unwrap();
    host.scan_once().await;
    assert_eq!(deliver(&host).await.outcome, old());
    let restarted = start(dir.path(), kept.path());
    restarted.scan_once().await;
    assert_eq!(deliver(&restarted).await.outcome, old());
    std::fs::write(dir.path().join("orders.wasm"), build(NEW)).unwrap();
    host.scan_once().await;
    assert_eq!(state(&host), "canary");
}

#[tokio::test]
async fn without_a_canary_a_new_version_takes_over_at_once() {
    let (dir, _kept, host) = with_old_version().await;
    std::fs::write(dir.path().join("orders.toml"), "").unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(NEW)).unwrap();

    host.scan_once().await;

    assert_eq!(deliver(&host).await.outcome, new());
}

#[tokio::test]
async fn a_file_that_is_put_back_ends_the_trial() {
    let (dir, _kept, host) = with_old_version().await;
    std::fs::write(dir.path().join("orders.wasm"), build(NEW)).unwrap();
    host.scan_once().await;
    assert_eq!(state(&host), "canary");

    std::fs::write(dir.path().join("orders.wasm"), build(OLD)).unwrap();
    host.scan_once().await;

    assert_eq!(state(&host), "live");
    for _ in 0..100 {
        assert_eq!(deliver(&host).await.outcome, old());
    }
}
