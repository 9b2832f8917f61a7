use std::path::Path;
use std::sync::Arc;

use outboxd::plugin::{Golden, PluginHost, PluginOptions};

use crate::guest::{TELL, build, sends_with};
use crate::harness::{cache, ceiling, load, options};

const MANIFEST: &str =
    "[grants]\nhosts = [\"https://hooks.example.com\"]\n[grants.secrets]\nAPI_KEY = [\"https://hooks.example.com\"]";

/// POSTs to a granted host and passes on what came.
fn posts() -> String {
    sends_with("POST", "https://hooks.example.com/orders", &[("x-key", "{{secret:API_KEY}}")], "{\"n\": 1}", TELL)
}

const GOLDEN: &str = r#"{
    "message": {"topic": "orders", "payload": {"id": 7}},
    "replies": [{"status": 422, "body": "no such order"}],
    "expect": {
        "outcome": "cancel",
        "error": "no such order",
        "requests": [{"method": "POST", "url": "https://hooks.example.com/orders", "headers": {"X-Key": "{{secret:API_KEY}}"}, "body": {"n": 1}}]
    }
}"#;

async fn plays(golden: &str) -> Result<(), String> {
    load(&posts(), MANIFEST).await.unwrap().rehearse(&Golden::parse(golden).unwrap()).await
}

#[tokio::test]
async fn a_golden_message_plays_the_targets_and_secrets_stay_placeholders() {
    assert_eq!(plays(GOLDEN).await, Ok(()));
}

#[tokio::test]
async fn what_came_instead_is_said() {
    for (from, to, says) in [
        ("\"cancel\"", "\"success\"", "expected success, came to cancel: no such order"),
        ("no such order\",\n", "other\",\n", "in the error text"),
        ("\"POST\"", "\"GET\"", "request 1: expected GET"),
        (
            "com/orders\", \"headers",
            "com/other\", \"headers",
            "request 1: expected POST https://hooks.example.com/other",
        ),
        ("{\"n\": 1}", "{\"n\": 2}", "another body"),
        ("API_KEY}}", "OTHER}}", "expected header X-Key"),
        ("[{\"status\": 422, \"body\": \"no such order\"}]", "[{\"error\": \"timeout\"}]", "came to retry: 4"),
    ] {
        assert!(GOLDEN.contains(from), "{from}");
        let error = plays(&GOLDEN.replace(from, to)).await.unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    assert!(Golden::parse("{}").is_err());
    for (from, to, says) in [
        ("422", "4290", "4290 is none from 200 to 599"),
        ("\"body\": \"no such order\"}]", "\"error\": \"timout\"}]", "\"timout\" is not one of"),
    ] {
        let error = Golden::parse(&GOLDEN.replace(from, to)).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    let slash = GOLDEN.replace("com/orders\", \"headers", "com/orders/\", \"headers");
    assert!(plays(&slash).await.unwrap_err().contains("expected POST https://hooks.example.com/orders/"), "{slash}");
    assert!(Golden::parse(&GOLDEN.replace("replies", "answers")).is_err());
}

#[tokio::test]
async fn a_version_goes_live_only_if_its_golden_messages_pass() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    write("orders.wasm", &build(&posts()));
    write("orders.toml", MANIFEST.as_bytes());
    std::fs::create_dir(dir.path().join("orders.tests")).unwrap();
    write("orders.tests/no-such-order.json", GOLDEN.as_bytes());
    let host = start(dir.path());
    host.scan_once().await;
    assert_eq!(host.list()[0].state, "live", "{:?}", host.list());
    let good = host.list()[0].digest.clone();

    write("orders.wasm", &build("(func $main (result i32) (call $ok))"));
    host.scan_once().await;

    let entry = &host.list()[0];
    assert_eq!(entry.digest, good);
    let error = entry.error.as_ref().expect("a complaint");
    assert!(error.starts_with("golden message no-such-order.json: expected cancel, came to success"), "{error}");
}

#[tokio::test]
async fn golden_messages_that_cannot_be_read_keep_a_version_from_going_live() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(&posts())).unwrap();
    std::fs::write(dir.path().join("orders.toml"), MANIFEST).unwrap();
    std::fs::write(dir.path().join("orders.tests"), "a file, not a folder").unwrap();
    let host = crate::folder::start(dir.path());

    host.scan_once().await;

    let entry = crate::folder::entry(&host, "orders");
    assert_eq!(entry.state, "bad");
    assert!(entry.error.unwrap().contains("cannot be read"));
}

#[tokio::test]
async fn new_golden_messages_count_when_the_folder_is_read_anew() {
    let dir = tempfile::tempdir().unwrap();
    let golden = dir.path().join("orders.tests/succeeds.json");
    std::fs::create_dir(dir.path().join("orders.tests")).unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build("(func $main (result i32) (call $ok))")).unwrap();
    std::fs::write(&golden, r#"{"expect": {"outcome": "retry"}}"#).unwrap();
    let host = start(dir.path());
    host.scan_once().await;
    assert_eq!(host.list()[0].state, "bad");

    std::fs::write(&golden, r#"{"expect": {"outcome": "success"}}"#).unwrap();
    host.scan_once().await;
    assert_eq!(host.list()[0].state, "bad");
    host.scan_anew().await;

    assert_eq!((host.list()[0].state, &host.list()[0].error), ("live", &None));
}

fn start(dir: &Path) -> Arc<PluginHost> {
    let options = PluginOptions {
        dir: dir.into(),
        cache_dir: Some(cache().into()),
        ceiling: ceiling(),
        sandbox: options(),
        ..PluginOptions::default()
    };
    PluginHost::start(options).unwrap()
}
