use std::path::Path;

use outboxd::plugin::{PluginHost, PluginOptions};
use outboxd_core::Outcome;

use crate::folder::{OK, cancels, deliver, entry, options_of, start};
use crate::guest::build;
use crate::harness::watch_logs;

/// Puts a plugin that tells its name under these topics.
fn put(dir: &Path, name: &str, topics: &str) {
    std::fs::write(dir.join(format!("{name}.toml")), format!("topics = [{topics}]")).unwrap();
    std::fs::write(dir.join(format!("{name}.wasm")), build(&cancels(name))).unwrap();
}

fn answer(name: &str) -> Option<Outcome> {
    Some(Outcome::Cancel { error: name.into() })
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
async fn a_plugin_serves_as_soon_as_its_topic_is_free() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a", "\"orders\", \"bills\"");
    let host = start(dir.path());
    host.scan_once().await;
    put(dir.path(), "b", "\"orders\"");
    host.scan_once().await;
    assert_eq!(deliver(&host, "orders").await, answer("a"));

    // As the message says: it is removed from one manifest, and nobody touches the other.
    put(dir.path(), "a", "\"bills\"");
    host.scan_once().await;

    assert_eq!(deliver(&host, "orders").await, answer("b"));
    assert_eq!(deliver(&host, "bills").await, answer("a"));
    assert_eq!((entry(&host, "a").error, entry(&host, "b").error), (None, None));
}

#[tokio::test]
async fn of_two_new_plugins_with_one_topic_neither_serves_until_one_gives_way() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a", "\"orders\"");
    put(dir.path(), "b", "\"orders\"");
    let host = start(dir.path());
    host.scan_once().await;
    assert!(host.handlers().route("orders").is_none());
    assert_eq!((entry(&host, "a").state, entry(&host, "b").state), ("bad", "bad"));

    std::fs::remove_file(dir.path().join("a.wasm")).unwrap();
    host.scan_once().await;

    assert_eq!(deliver(&host, "orders").await, answer("b"));
}

#[tokio::test]
async fn after_a_restart_the_one_that_served_before_it_serves_again() {
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = || {
        let options = PluginOptions { cache_dir: Some(kept.path().into()), ..options_of(dir.path()) };
        PluginHost::start(options).unwrap()
    };
    put(dir.path(), "b", "\"orders\"");
    start().scan_once().await;
    // The other's name comes first.
    put(dir.path(), "a", "\"orders\"");

    for _ in 0..2 {
        let host = start();
        host.scan_once().await;

        assert_eq!(deliver(&host, "orders").await, answer("b"));
        assert_eq!((entry(&host, "a").state, entry(&host, "b").state), ("bad", "live"));
    }
}

#[tokio::test]
async fn what_waited_for_its_topics_is_kept_for_the_next_start_once_it_serves() {
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = || {
        let options = PluginOptions { cache_dir: Some(kept.path().into()), ..options_of(dir.path()) };
        PluginHost::start(options).unwrap()
    };
    put(dir.path(), "a", "\"orders\"");
    let host = start();
    host.scan_once().await;
    put(dir.path(), "b", "\"orders\"");
    host.scan_once().await;
    put(dir.path(), "a", "\"bills\"");
    host.scan_once().await;
    assert_eq!(deliver(&host, "orders").await, answer("b"));

    std::fs::write(dir.path().join("b.wasm"), "half a file").unwrap();
    let next = start();
    next.scan_once().await;

    assert_eq!(deliver(&next, "orders").await, answer("b"));
}

#[tokio::test]
async fn what_is_wrong_is_said_once_for_each_content() {
    let logs = watch_logs();
    let dir = tempfile::tempdir().unwrap();
    let refused =
        || logs.marked().iter().filter(|line| line.contains("plugin mark-refused.wasm is not loaded")).count();
    put(dir.path(), "a", "\"orders\"");
    put(dir.path(), "mark-refused", "\"orders\"");
    let host = start(dir.path());
    for _ in 0..3 {
        host.scan_once().await;
    }
    assert_eq!(refused(), 1);

    let file = dir.path().join("mark-refused.wasm");
    std::fs::write(&file, "half a file").unwrap();
    for _ in 0..3 {
        // Newly written each time, with the same content.
        std::fs::write(&file, "half a file").unwrap();
        host.scan_once().await;
    }
    assert_eq!(refused(), 2);
}
