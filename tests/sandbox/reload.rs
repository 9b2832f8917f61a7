use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outboxd::handler::CallControl;
use outboxd::plugin::{PluginHost, PluginInfo, PluginOptions, Watch};
use outboxd_core::{Admission, Outcome};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::guest::build;
use crate::harness::{cache, claim, options, word};

const OK: &str = "(func $main (result i32) (call $ok))";

/// A guest that is told apart by what it answers.
fn cancels(text: &str) -> String {
    format!(
        "(data (i32.const 1024) \"{text}\") (func $main (result i32) (call $cancel (i32.const 1024) (i32.const {})))",
        text.len()
    )
}

fn start(dir: &Path) -> Arc<PluginHost> {
    PluginHost::start(PluginOptions {
        dir: dir.into(),
        cache_dir: Some(cache().into()),
        sandbox: options(),
        ..PluginOptions::default()
    })
    .unwrap()
}

async fn deliver(host: &PluginHost, topic: &str) -> Option<Outcome> {
    let route = host.handlers().route(topic)?;
    let control = CallControl { stop: CancellationToken::new() };
    Some(route.handler.handle(&claim("{}"), control).await.outcome)
}

fn entry(host: &PluginHost, name: &str) -> PluginInfo {
    host.list().into_iter().find(|info| info.name == name).unwrap_or_else(|| panic!("{name} is not listed"))
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(15);
    while !condition().await {
        assert!(Instant::now() < end, "{what}: not within 15 s");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_file_in_the_folder_serves_the_topic_of_its_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();
    let host = start(dir.path());

    host.scan_once().await;

    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));
    assert!(host.handlers().route("other").is_none());
    assert_eq!(entry(&host, "orders").state, "live");
}

#[tokio::test]
async fn a_bad_file_never_replaces_a_good_one_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("orders.wasm");
    std::fs::write(&file, build(OK)).unwrap();
    let host = start(dir.path());
    host.scan_once().await;
    let good = entry(&host, "orders").digest;

    for (bad, words) in [
        (b"".to_vec(), "empty"),
        (b"(component)".to_vec(), "text"),
        (wat::parse_str("(module)").unwrap(), "core WebAssembly module"),
        (wat::parse_str("(component)").unwrap(), "exports nothing"),
        (build(OK)[..400].to_vec(), "cannot be compiled"),
        (build("(func $main (result i32) (call $ok)) (func $s unreachable) (start $s)"), "cannot be started"),
    ] {
        std::fs::write(&file, bad).unwrap();
        host.scan_once().await;

        let entry = entry(&host, "orders");
        assert!(entry.error.as_ref().is_some_and(|error| error.contains(words)), "{words}: {entry:?}");
        assert_eq!((entry.state, &entry.digest), ("live", &good));
        assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));
    }
}

#[tokio::test]
async fn a_manifest_that_goes_beyond_the_ceiling_is_refused_by_file_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();
    std::fs::write(dir.path().join("orders.toml"), "[limits]\nmemory = \"4GiB\"\n").unwrap();
    let host = start(dir.path());

    host.scan_once().await;

    let entry = entry(&host, "orders");
    assert_eq!(entry.state, "bad");
    assert!(entry.error.unwrap().starts_with("orders.toml:2: limits.memory: "));
}

#[tokio::test]
async fn two_plugins_of_one_topic_are_both_named_and_the_running_set_stays() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.wasm"), build(OK)).unwrap();
    std::fs::write(dir.path().join("a.toml"), "topics = [\"orders.*\"]").unwrap();
    let host = start(dir.path());
    host.scan_once().await;

    std::fs::write(dir.path().join("b.wasm"), build(&cancels("from b"))).unwrap();
    std::fs::write(dir.path().join("b.toml"), "topics = [\"orders.paid\"]").unwrap();
    host.scan_once().await;

    assert_eq!(deliver(&host, "orders.paid").await, Some(Outcome::Success));
    let error = entry(&host, "b").error.unwrap();
    assert!(error.contains("a.wasm") && error.contains("b.wasm") && error.contains("orders.paid"), "{error}");
}

#[tokio::test]
async fn a_new_version_is_live_soon_after_it_is_written_and_a_removed_one_goes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("orders.wasm");
    let host = start(dir.path());
    let shutdown = CancellationToken::new();
    let watching = tokio::spawn({
        let (host, shutdown) = (host.clone(), shutdown.clone());
        async move { host.watch(shutdown).await }
    });

    for answer in ["one", "two"] {
        std::fs::write(&file, build(&cancels(answer))).unwrap();
        until(answer, async || deliver(&host, "orders").await == Some(Outcome::Cancel { error: answer.into() })).await;
    }
    std::fs::remove_file(&file).unwrap();
    until("removed", async || host.handlers().route("orders").is_none()).await;

    shutdown.cancel();
    watching.await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_fails_by_itself_is_parked_and_a_good_file_resumes_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("orders.wasm");
    std::fs::write(&file, build("(func $main (result i32) unreachable)")).unwrap();
    let host = start(dir.path());
    host.scan_once().await;

    let outcome = deliver(&host, "orders").await.unwrap();
    assert_eq!(word(&outcome), "trap");
    assert_eq!(entry(&host, "orders").state, "parked");
    assert!(matches!(host.handlers().route("orders").unwrap().admission, Admission::Parked { .. }));

    std::fs::write(&file, build(OK)).unwrap();
    host.scan_once().await;

    assert_eq!(host.handlers().route("orders").unwrap().admission, Admission::Open);
    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));
}

#[tokio::test]
async fn what_is_no_plain_file_is_skipped_and_never_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("folder.wasm")).unwrap();
    std::os::unix::fs::symlink("/nowhere", dir.path().join("dangling.wasm")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("device.wasm")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket.wasm")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(dir.path().join("pipe.wasm")).status().unwrap().success());
    std::fs::File::create(dir.path().join("huge.wasm")).unwrap().set_len(4 << 30).unwrap();
    std::fs::write(dir.path().join("or*.wasm"), build(OK)).unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();
    let host = start(dir.path());

    tokio::time::timeout(Duration::from_secs(10), host.scan_once()).await.expect("a scan that ends");

    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));
    for name in ["folder", "dangling", "device", "socket", "pipe", "huge", "or*"] {
        assert_eq!(entry(&host, name).state, "bad", "{name}");
    }
}

#[tokio::test]
async fn without_watching_only_a_scan_sees_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let host = PluginHost::start(PluginOptions {
        dir: dir.path().into(),
        watch: Watch::Off,
        sandbox: options(),
        ..PluginOptions::default()
    })
    .unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();

    tokio::time::timeout(Duration::from_secs(5), host.watch(CancellationToken::new())).await.expect("returns at once");

    assert!(host.handlers().route("orders").is_none());
}
