//! What an attempt can come to, each through the real binary, from the row to the row.

use outboxd_test_support::receiver::{Answer, Receiver};
use serde_json::Value;

use crate::stage::{Stage, on_every_database};

on_every_database! {
    success_is_delivered,
    a_retry_is_tried_again_until_its_attempts_are_spent,
    a_retry_that_asks_for_a_delay_waits_and_then_succeeds,
    a_cancel_is_dead_at_once,
    a_panic_on_a_version_that_has_worked_is_retried_and_its_message_is_kept,
    a_trap_ends_dead_with_reason_trap,
    an_endless_loop_ends_with_reason_cpu,
    a_call_that_never_ends_ends_with_reason_deadline,
    too_much_memory_ends_with_reason_memory,
    a_request_to_a_host_that_is_not_granted_is_refused,
    a_message_past_its_expiry_is_dead_and_never_delivered,
    what_the_target_answered_stands_in_the_history,
}

const LIMITS: &str = "cpu = \"200ms\"\ndeadline = \"1s\"\nmemory = \"16MiB\"";

/// One message that succeeds, so that the version has worked, then `payload`; answers how it ended.
fn end_of(stage: &Stage, payload: &str, state: &str) -> Value {
    stage.install_verbs(LIMITS);
    let first = stage.publish("verbs", r#"{"do":"succeed"}"#);
    let _relay = stage.relay();
    stage.wait_until(&first, "delivered");

    let id = stage.publish("verbs", payload);
    stage.wait_until(&id, state)
}

fn results(message: &Value) -> Vec<&str> {
    let history = message["history"].as_array().expect("a history");
    history.iter().map(|entry| entry["result"].as_str().expect("a result")).collect()
}

fn success_is_delivered(stage: Stage) {
    let message = end_of(&stage, r#"{"do":"succeed"}"#, "delivered");

    assert_eq!(message["attempts"], 1);
    assert_eq!(results(&message), ["delivered"]);
    assert_eq!(message["history"][0]["digest"].as_str().map(str::len), Some(64), "{message:#}");
}

fn a_retry_is_tried_again_until_its_attempts_are_spent(stage: Stage) {
    let message = end_of(&stage, r#"{"do":"retry","reason":"the target is busy"}"#, "dead");

    assert_eq!(message["attempts"], 3);
    assert_eq!(message["reason"], "retry");
    assert_eq!(message["last_error"], "the target is busy");
    assert_eq!(results(&message), ["retry", "retry", "dead"]);
}

fn a_retry_that_asks_for_a_delay_waits_and_then_succeeds(stage: Stage) {
    let message = end_of(&stage, r#"{"do":"fail-first","times":1,"ms":150}"#, "delivered");

    assert_eq!(results(&message), ["retry", "delivered"]);
    let at = |index: usize| message["history"][index]["at_ms"].as_i64().expect("a time");
    assert!(at(1) - at(0) >= 150, "{message:#}");
}

fn a_cancel_is_dead_at_once(stage: Stage) {
    let message = end_of(&stage, r#"{"do":"cancel","reason":"the order is void"}"#, "dead");

    assert_eq!(message["attempts"], 1);
    assert_eq!(message["reason"], "cancelled");
    assert_eq!(message["last_error"], "the order is void");
}

fn a_panic_on_a_version_that_has_worked_is_retried_and_its_message_is_kept(stage: Stage) {
    let message = end_of(&stage, r#"{"do":"panic","reason":"left is not right"}"#, "dead");

    assert_eq!(message["attempts"], 3);
    assert_eq!(message["reason"], "trap");
    let error = message["last_error"].as_str().expect("an error");
    assert!(error.contains("left is not right"), "{error}");
}

fn a_trap_ends_dead_with_reason_trap(stage: Stage) {
    assert_eq!(end_of(&stage, r#"{"do":"trap"}"#, "dead")["reason"], "trap");
}

fn an_endless_loop_ends_with_reason_cpu(stage: Stage) {
    assert_eq!(end_of(&stage, r#"{"do":"spin"}"#, "dead")["reason"], "cpu");
}

fn a_call_that_never_ends_ends_with_reason_deadline(stage: Stage) {
    assert_eq!(end_of(&stage, r#"{"do":"sleep","ms":600000}"#, "dead")["reason"], "deadline");
}

fn too_much_memory_ends_with_reason_memory(stage: Stage) {
    assert_eq!(end_of(&stage, r#"{"do":"hoard"}"#, "dead")["reason"], "memory");
}

fn a_request_to_a_host_that_is_not_granted_is_refused(stage: Stage) {
    let message = end_of(&stage, r#"{"do":"echo-http","url":"https://example.com/"}"#, "dead");

    let error = message["last_error"].as_str().expect("an error");
    assert!(error.contains("example.com") && error.to_lowercase().contains("denied"), "{error}");
}

fn a_message_past_its_expiry_is_dead_and_never_delivered(stage: Stage) {
    stage.install_verbs(LIMITS);
    let args = ["publish", "verbs", "--payload", r#"{"do":"succeed"}"#, "--delay", "300ms", "--expires", "1ms"];
    let id = stage.outboxd(&args).ok().trim().to_owned();
    let _relay = stage.relay();

    let message = stage.wait_until(&id, "dead");

    assert_eq!(message["reason"], "expired");
}

fn what_the_target_answered_stands_in_the_history(stage: Stage) {
    let receiver = Receiver::start();
    receiver.script([Answer::status(503).body("come back later")]);

    let payload = format!(r#"{{"do":"http","url":"{}"}}"#, receiver.url("/"));
    let message = end_of(&stage, &payload, "delivered");

    assert_eq!(message["history"][0]["http_status"], 503, "{message:#}");
    assert_eq!(message["history"][0]["response"], "come back later", "{message:#}");
    assert_eq!(message["history"][1]["http_status"], 200, "{message:#}");
}
