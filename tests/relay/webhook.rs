//! What the webhook plugin makes of a target's answers, as the component that ships.

use std::collections::HashSet;
use std::sync::Mutex;

use outboxd_test_support::guests;
use outboxd_test_support::receiver::{Answer, Received, Receiver};
use serde_json::{Value, json};

use crate::stage::Stage;

/// A relay with the webhook plugin, POSTing to `/hooks` under `settings`.
fn story(settings: &str, payload: &Value, end: &str) -> (Value, Vec<Received>) {
    story_of(&format!("url = \"RECEIVER/hooks\"\n{settings}"), payload, &[], end)
}

/// A relay with the webhook plugin under `settings`, in which RECEIVER stands for the target, and one message published
/// with `options`. The receiver gives each message's first try the answer that its payload names, as in
/// `{"status": 429, "retry-after": "1"}`, and 200 after that.
fn story_of(settings: &str, payload: &Value, options: &[&str], end: &str) -> (Value, Vec<Received>) {
    let stage = Stage::sqlite();
    let receiver = Receiver::start();
    let tried = Mutex::new(HashSet::new());
    receiver.answer(move |received| {
        if !tried.lock().expect("not poisoned").insert(received.id().to_owned()) {
            return Answer::status(200);
        }
        let asked = received.json();
        let answer = Answer::status(asked["status"].as_u64().and_then(|status| status.try_into().ok()).unwrap_or(200));
        match asked["retry-after"].as_str() {
            Some(value) => answer.header("retry-after", value),
            None => answer.body("the target's words"),
        }
    });
    stage.configure("");
    let settings = settings.replace("RECEIVER", &receiver.url(""));
    let manifest = format!(
        "topics = [\"orders.*\"]\n[grants]\nhosts = [\"http://{}\"]\nprivate_networks = [\"127.0.0.0/8\"]\n\
         [retry]\nbase = \"10ms\"\nmax = \"5s\"\n[settings]\n{settings}\n",
        receiver.address(),
    );
    stage.install("webhook", &guests::plugin("webhook"), &manifest);
    let payload = payload.to_string();
    let publish = ["publish", "orders.created", "--payload", &payload];
    let id = stage.outboxd(&[&publish[..], options].concat()).ok().trim().to_owned();
    let _relay = stage.relay();
    (stage.wait_until(&id, end), receiver.received())
}

fn results(message: &Value) -> Vec<&str> {
    let history = message["history"].as_array().expect("a history");
    history.iter().map(|entry| entry["result"].as_str().expect("a result")).collect()
}

#[test]
fn a_server_error_is_tried_again_and_its_words_are_kept() {
    let (message, received) = story("", &json!({ "status": 500 }), "delivered");

    assert_eq!(results(&message), ["retry", "delivered"], "{message:#}");
    assert_eq!(message["history"][0]["error"], "answered 500: the target's words", "{message:#}");
    assert_eq!(received[0].id(), received[1].id(), "every attempt has the message's id");
}

#[test]
fn a_redirect_is_not_followed_but_tried_again() {
    let (message, received) = story("", &json!({ "status": 302 }), "delivered");

    assert_eq!(results(&message), ["retry", "delivered"], "{message:#}");
    assert!(received.iter().all(|received| received.path == "/hooks"));
}

#[test]
fn retry_after_is_waited_for() {
    for status in [429, 503] {
        let (message, _) = story("", &json!({ "status": status, "retry-after": "1" }), "delivered");

        let at = |index: usize| message["history"][index]["at_ms"].as_i64().expect("a time");
        assert!(at(1) - at(0) >= 1_000, "{message:#}");
    }
}

#[test]
fn nonsense_in_retry_after_is_passed_over() {
    let (message, _) = story("", &json!({ "status": 503, "retry-after": "soon, or -1" }), "delivered");

    let at = |index: usize| message["history"][index]["at_ms"].as_i64().expect("a time");
    assert!(at(1) - at(0) < 1_000, "{message:#}");
}

#[test]
fn gone_and_other_4xx_are_dead_at_once() {
    for status in [410, 400, 404] {
        let (message, received) = story("", &json!({ "status": status }), "dead");

        assert_eq!(message["reason"], "cancelled", "{message:#}");
        assert_eq!(message["last_error"], format!("answered {status}: the target's words"));
        assert_eq!(received.len(), 1);
    }
}

#[test]
fn a_4xx_is_tried_again_where_the_settings_say_so() {
    let (message, _) = story("on_4xx = \"retry\"", &json!({ "status": 404 }), "delivered");

    assert_eq!(results(&message), ["retry", "delivered"], "{message:#}");
}

#[test]
fn further_headers_come_from_the_settings_and_without_a_secret_nothing_is_signed() {
    let (_, received) = story("\"header.X-Shop\" = \"eu-1\"", &json!({}), "delivered");

    assert_eq!(received[0].header("x-shop"), Some("eu-1"));
    assert_eq!(received[0].header("content-type"), Some("application/json"));
    assert_eq!(received[0].header("webhook-signature"), None);
    assert!(received[0].verify("any").is_err());
}

#[test]
fn the_endpoint_and_headers_may_come_from_the_message() {
    let settings =
        "url = \"RECEIVER/{header.tenant}/hooks/{key}?topic={topic}\"\n\"header.X-Tenant\" = \"{header.tenant}\"";
    let options = ["--key", "c/77 ä", "--header", "Tenant=acme"];
    let (_, received) = story_of(settings, &json!({}), &options, "delivered");

    assert_eq!(received[0].path, "/acme/hooks/c%2F77%20%C3%A4?topic=orders.created");
    assert_eq!(received[0].header("x-tenant"), Some("acme"));
}

#[test]
fn a_whole_url_from_a_header_reaches_granted_hosts_only() {
    let settings = "url = \"{header.endpoint}\"";
    let endpoint = ["--header", "endpoint=http://127.0.0.2:9/"];
    let (message, received) = story_of(settings, &json!({}), &endpoint, "dead");

    assert!(message["last_error"].as_str().is_some_and(|error| error.starts_with("denied")), "{message:#}");
    assert_eq!(received.len(), 0);
}

#[test]
fn a_message_without_what_the_endpoint_needs_is_dead_at_once() {
    let (message, received) = story_of("url = \"RECEIVER/{key}\"", &json!({}), &[], "dead");

    assert_eq!(message["reason"], "cancelled", "{message:#}");
    assert_eq!(message["last_error"], "the message has no key, which the settings ask for");
    assert_eq!(received.len(), 0);
}

#[test]
fn a_wrong_setting_or_an_ungranted_secret_costs_no_message() {
    for (settings, complaint) in
        [("secert = \"SHOP_KEY\"", "unknown setting \"secert\""), ("secret = \"SHOP_KEY\"", "no secret \"SHOP_KEY\"")]
    {
        let (message, received) = story(settings, &json!({}), "dead");

        assert_eq!(message["reason"], "retry", "a person can redrive it: {message:#}");
        assert!(message["last_error"].as_str().is_some_and(|error| error.contains(complaint)), "{message:#}");
        assert_eq!(received.len(), 0, "nothing goes out unsigned by mistake");
    }
}
