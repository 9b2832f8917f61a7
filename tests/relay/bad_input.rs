//! Wrong config, wrong file, wrong payload, wrong guest: one clear line each, and nothing lost.

use outboxd_test_support::{guests, wait_for};
use serde_json::Value;

use crate::stage::{PATIENCE, Stage, on_every_database};

on_every_database! {
    a_message_without_a_plugin_waits_is_counted_and_spends_no_attempt,
    a_payload_that_is_no_json_is_refused_at_publish,
    a_nul_is_refused_at_publish_naming_the_field,
    an_oversize_payload_is_refused_at_publish,
}

fn a_message_without_a_plugin_waits_is_counted_and_spends_no_attempt(stage: Stage) {
    let id = stage.publish("nobody.listens", "{}");

    stage.outboxd(&["run", "--once"]).ok();

    let message = stage.show(&id);
    assert_eq!((&message["state"], &message["attempts"]), (&"pending".into(), &0.into()), "{message:#}");
    let stats: Value = serde_json::from_str(&stage.outboxd(&["stats", "--json"]).ok()).expect("JSON");
    assert_eq!(stats[0]["unrouted"], true, "{stats:#}");
    assert!(stage.outboxd(&["stats"]).ok().contains("unrouted"));
}

fn a_payload_that_is_no_json_is_refused_at_publish(stage: Stage) {
    let complaint = stage.outboxd(&["publish", "orders", "--payload", "{broken"]).fails(1);

    assert!(complaint.contains("payload") && complaint.contains("JSON"), "{complaint}");
    assert_eq!(stage.outboxd(&["messages", "list"]).ok(), "no messages\n");
}

fn a_nul_is_refused_at_publish_naming_the_field(stage: Stage) {
    use outboxd_client::NewMessage;
    let url = stage.database.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let plain = || NewMessage::from_json("orders", "{}");
    for (field, message) in [
        ("topic", NewMessage::from_json("or\0ders", "{}")),
        ("key", plain().key("a\0b")),
        ("header", plain().header("x\0", "y")),
        ("header", plain().header("x", "y\0")),
    ] {
        let refused = runtime.block_on(outboxd_client::standalone::publish(&url, "outbox", 1 << 20, vec![message]));

        let complaint = refused.expect_err("a NUL").to_string();
        assert!(complaint.contains(field) && complaint.contains("NUL"), "{complaint}");
    }
}

fn an_oversize_payload_is_refused_at_publish(stage: Stage) {
    let file = stage.path().join("large.json");
    std::fs::write(&file, format!("\"{}\"", "x".repeat(1 << 20))).expect("written");

    let complaint = stage.outboxd(&["publish", "orders", "--file", &file.display().to_string()]).fails(1);

    assert!(complaint.contains("1048578 bytes") && complaint.contains("1048576"), "{complaint}");
}

/// What a relay says of a file in its plugins folder, while it goes on delivering by a good one.
fn complaint_about(name: &str, content: &[u8]) -> String {
    let stage = Stage::sqlite();
    stage.install_verbs("");
    std::fs::write(stage.plugins().join(format!("{name}.wasm")), content).expect("written");
    let relay = stage.relay();
    let id = stage.publish("verbs", r#"{"do":"succeed"}"#);
    stage.wait_until(&id, "delivered");

    let mut line = String::new();
    let found = wait_for(PATIENCE, || {
        let log = relay.log();
        line = log.lines().find(|line| line.contains(&format!("{name}.wasm"))).unwrap_or_default().to_owned();
        !line.is_empty()
    });
    assert!(found, "nothing was said of {name}.wasm:\n{}", relay.log());
    line
}

#[test]
fn a_file_that_is_no_component_is_named_with_what_it_should_be() {
    let line = complaint_about("text", b"hello");

    assert!(line.contains("text, not a component"), "{line}");
}

#[test]
fn a_core_module_is_told_how_to_become_a_component() {
    let line = complaint_about("core", b"\0asm\x01\0\0\0");

    assert!(line.contains("core WebAssembly module") && line.contains("component"), "{line}");
}

#[test]
fn a_component_of_another_world_is_told_what_to_export() {
    let line = complaint_about("other", &std::fs::read(guests::guest("no-export")).expect("built"));

    assert!(line.contains("no outboxd:plugin/handler") && line.contains("wit/v1"), "{line}");
}

#[test]
fn a_component_of_another_version_is_told_both_versions() {
    let line = complaint_about("newer", &std::fs::read(guests::guest("wrong-version")).expect("built"));

    assert!(line.contains("2.0.0") && line.contains("1.0"), "{line}");
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_one() {
    let stage = Stage::sqlite();
    std::fs::write(stage.config(), "[relay]\nconcurency = 3\n").expect("written");

    let complaint = stage.outboxd(&["run", "--once"]).fails(2);

    assert!(complaint.contains("outboxd.toml:2:") && complaint.contains("\"concurrency\""), "{complaint}");
}

#[test]
fn a_database_that_is_down_is_waited_for_and_once_exits_with_1() {
    let stage = Stage::sqlite();
    let down = "postgres://nobody@127.0.0.1:1/none";

    let complaint = stage.outboxd(&["run", "--once", "--database", down]).fails(1);
    assert!(complaint.contains("database"), "{complaint}");

    let mut relay = stage.relay_with(&["--database", down]);
    relay.wait_for_log("reaching the database fails");
    assert!(relay.is_running());
    let (status, _) = relay.terminate();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn no_output_shows_the_databases_password() {
    let stage = Stage::sqlite();

    for args in [&["run", "--once"][..], &["stats"], &["migrate"], &["publish", "a", "--payload", "{}"]] {
        let args = [args, &["--database", "postgres://shop:s3cret-canary@127.0.0.1:1/none"]].concat();
        let finished = stage.outboxd(&args);
        assert!(!finished.stderr.contains("s3cret-canary") && !finished.stdout.contains("s3cret-canary"), "{args:?}");
    }
}
