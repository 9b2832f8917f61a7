//! Nothing is lost, nothing comes from a rollback, a stop causes no duplicate.

use std::collections::BTreeMap;
use std::time::Duration;

use outboxd_test_support::receiver::{Answer, Receiver};
use outboxd_test_support::wait_for;

use crate::stage::{CONCURRENCY, PATIENCE, Stage, on_every_database};

on_every_database! {
    sigterm_under_load_causes_no_duplicate,
    sigkill_loses_nothing,
    a_call_longer_than_the_grace_is_interrupted_and_its_attempt_given_back,
    a_plugin_that_fails_on_everything_spends_no_attempt_and_its_panic_can_be_read,
}

/// A receiver that takes a little while, and `count` messages for it.
fn load(stage: &Stage, count: usize) -> (Receiver, Vec<String>) {
    let receiver = Receiver::start();
    receiver.answer(|_| Answer::status(200).after(Duration::from_millis(20)));
    stage.install_verbs("concurrency = 16");
    let payload = format!(r#"{{"do":"http","url":"{}"}}"#, receiver.url("/"));
    let ids = stage.publish_lines("verbs", &vec![payload; count]);
    assert_eq!(ids.len(), count);
    (receiver, ids)
}

/// How often each message came.
fn deliveries(receiver: &Receiver) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for received in receiver.received() {
        *times.entry(String::from_utf8_lossy(&received.body).into_owned()).or_default() += 1;
    }
    times
}

fn wait_for_all(receiver: &Receiver, ids: &[String]) {
    let all = wait_for(PATIENCE, || {
        let times = deliveries(receiver);
        ids.iter().all(|id| times.contains_key(id))
    });
    assert!(all, "only {} of {} messages came", deliveries(receiver).len(), ids.len());
}

fn sigterm_under_load_causes_no_duplicate(stage: Stage) {
    let (receiver, ids) = load(&stage, 600);

    for stop_after in [50, 150, 300] {
        let relay = stage.relay();
        assert!(wait_for(PATIENCE, || receiver.count() >= stop_after), "{}", relay.log());
        let log = relay.log();
        let (status, took) = relay.terminate();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
    let _relay = stage.relay();
    wait_for_all(&receiver, &ids);

    for id in &ids {
        stage_delivered(&stage, id, &ids);
    }
    let twice: Vec<_> = deliveries(&receiver).into_iter().filter(|(_, times)| *times != 1).collect();
    assert_eq!(twice, []);
}

/// Looks at the first and the last only: each look is a process.
fn stage_delivered(stage: &Stage, id: &String, ids: &[String]) {
    if Some(id) == ids.first() || Some(id) == ids.last() {
        stage.wait_until(id, "delivered");
    }
}

fn sigkill_loses_nothing(stage: Stage) {
    let (receiver, ids) = load(&stage, 600);

    for kill_after in [50, 150, 300] {
        let relay = stage.relay();
        assert!(wait_for(PATIENCE, || receiver.count() >= kill_after), "{}", relay.log());
        relay.kill();
    }
    let _relay = stage.relay();
    wait_for_all(&receiver, &ids);

    // Calls, and results that are not written yet. A relay may have sixteen times its concurrency; with calls like these not four.
    let under_way_max = 3 * 4 * CONCURRENCY;
    let duplicates: usize = deliveries(&receiver).values().map(|times| times - 1).sum();
    assert!(duplicates <= under_way_max, "{duplicates} duplicates, more than were under way at three kills");
    let drained = wait_for(PATIENCE, || {
        let stats: serde_json::Value = serde_json::from_str(&stage.outboxd(&["stats", "--json"]).ok()).expect("JSON");
        stats[0]["delivered"] == 600
    });
    assert!(drained, "{}", stage.outboxd(&["stats"]).ok());
}

fn a_call_longer_than_the_grace_is_interrupted_and_its_attempt_given_back(stage: Stage) {
    let receiver = Receiver::start();
    receiver.answer(|_| Answer::status(200).after(Duration::from_secs(60)));
    stage.configure("");
    let config = std::fs::read_to_string(stage.config()).expect("the configuration").replace("\"10s\"", "\"300ms\"");
    std::fs::write(stage.config(), config).expect("written");
    stage.install_verbs("deadline = \"60s\"");
    let id = stage.publish("verbs", &format!(r#"{{"do":"http","url":"{}"}}"#, receiver.url("/")));
    let relay = stage.relay();
    assert!(wait_for(PATIENCE, || receiver.count() == 1), "{}", relay.log());

    let (status, _) = relay.terminate();

    assert_eq!(status.code(), Some(1), "the exit code says that a call was interrupted");
    let message = stage.show(&id);
    assert_eq!(message["state"], "pending", "{message:#}");
    assert_eq!(message["attempts"], 0, "{message:#}");
    assert_eq!(message["history"][0]["reason"], "interrupted", "{message:#}");
}

fn a_plugin_that_fails_on_everything_spends_no_attempt_and_its_panic_can_be_read(stage: Stage) {
    stage.install_verbs("");
    let ids = stage.publish_lines("verbs", &vec![r#"{"do":"panic","reason":"no such table"}"#.to_owned(); 3]);
    let relay = stage.relay();
    relay.wait_for_log("no such table");
    assert!(wait_for(PATIENCE, || stage.outboxd(&["stats"]).ok().contains("no such table")), "{}", relay.log());

    for id in &ids {
        let message = stage.show(id);
        assert_eq!(message["attempts"].as_u64().map(|attempts| attempts <= 1), Some(true), "{message:#}");
        assert_ne!(message["state"], "dead", "{message:#}");
    }
    // A good version resumes the topic at once: here the same file, told to succeed by new messages.
    drop(relay);
    let id = stage.publish("verbs", r#"{"do":"succeed"}"#);
    let relay = stage.relay();
    stage.wait_until(&id, "delivered");
    drop(relay);
}
