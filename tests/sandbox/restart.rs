//! What a restart finds, and what serves after it.

use std::path::Path;
use std::sync::Arc;

use outboxd::plugin::{PluginHost, PluginOptions, Trust};
use outboxd_core::Outcome;

use crate::folder::{cancels, deliver, entry, options_of};
use crate::guest::build;

/// A host that keeps what it needs for the next one in `kept`.
fn start(dir: &Path, kept: &Path) -> Arc<PluginHost> {
    PluginHost::start(PluginOptions { cache_dir: Some(kept.into()), ..options_of(dir) }).unwrap()
}

const GOLDEN: &str = r#"{ "message": { "topic": "orders" }, "expect": { "outcome": "success" } }"#;

#[tokio::test]
async fn the_last_good_version_serves_after_a_restart_beside_a_bad_file() {
    for (what, file, bytes) in [
        ("half a component", "orders.wasm", "half a file"),
        ("nothing at all", "orders.wasm", ""),
        ("a manifest that is none", "orders.toml", "topics = ["),
        // It belongs to the next version, which is not there yet.
        ("a golden message that it does not pass", "orders.tests/succeeds.json", GOLDEN),
    ] {
        let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(dir.path().join("orders.tests")).unwrap();
        std::fs::write(dir.path().join("orders.wasm"), build(&cancels("good"))).unwrap();
        start(dir.path(), kept.path()).scan_once().await;
        std::fs::write(dir.path().join(file), bytes).unwrap();

        let host = start(dir.path(), kept.path());
        host.scan_once().await;

        assert_eq!(deliver(&host, "orders").await, Some(Outcome::Cancel { error: "good".into() }), "{what}");
        assert!(entry(&host, "orders").error.is_some(), "{what}");
        // And it stays so at the next look.
        host.scan_once().await;
        assert_eq!(deliver(&host, "orders").await, Some(Outcome::Cancel { error: "good".into() }), "{what}");
    }
}

#[tokio::test]
async fn what_was_removed_while_no_relay_ran_does_not_come_back() {
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = dir.path().join("orders.wasm");
    std::fs::write(&file, build(&cancels("old"))).unwrap();
    start(dir.path(), kept.path()).scan_once().await;
    std::fs::remove_file(&file).unwrap();
    let host = start(dir.path(), kept.path());
    host.scan_once().await;

    std::fs::write(&file, "half a file").unwrap();
    host.scan_once().await;

    assert!(host.handlers().route("orders").is_none());
    assert_eq!(entry(&host, "orders").state, "bad");
}

#[tokio::test]
async fn a_last_good_version_that_is_not_trusted_any_more_does_not_serve() {
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(dir.path().join("orders.wasm"), build(&cancels("good"))).unwrap();
    start(dir.path(), kept.path()).scan_once().await;

    let trust = Trust { require_pins: true, ..Trust::default() };
    let options = PluginOptions { cache_dir: Some(kept.path().into()), trust, ..options_of(dir.path()) };
    let host = PluginHost::start(options).unwrap();
    host.scan_once().await;

    assert!(host.handlers().route("orders").is_none());
}
