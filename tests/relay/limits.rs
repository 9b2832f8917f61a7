//! Limits by key and keys that rest, with the real binary; docs/keys.md.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use outboxd_test_support::receiver::{Answer, Receiver};
use outboxd_test_support::{guests, wait_for};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage, on_every_database};

on_every_database! {
    a_key_whose_target_asks_for_rest_gets_it_though_its_plugin_says_nothing,
    a_key_whose_target_fails_five_times_in_a_row_rests_until_one_call_succeeds,
    no_more_calls_of_a_key_than_its_limit_are_under_way,
    calls_of_a_key_are_spaced,
    once_ends_no_sooner_where_calls_are_hardly_spaced,
    a_plugin_is_called_no_more_often_than_its_rate,
    a_key_rests_while_its_calls_are_spaced_and_a_person_may_end_it,
    once_goes_on_as_its_rate_allows_while_a_call_hangs,
    once_waits_for_no_rate_where_nothing_is_due,
    once_waits_for_no_rest_that_was_asked_for,
    a_key_rests_whose_target_does_not_end_its_answers,
    a_key_rests_whose_target_keeps_calls_until_their_deadline,
    the_webhook_plugin_asks_for_rest_where_its_target_does_and_leaves_failures_to_the_host,
}

fn install(stage: &Stage, more: &str) {
    let grants = "[grants]\nhosts = [\"http://127.0.0.1:*\"]\nprivate_networks = [\"127.0.0.0/8\"]\n";
    stage.install("verbs", &guests::guest("verbs"), &format!("topics = [\"verbs\"]\n{grants}{more}"));
}

fn publish(stage: &Stage, key: &str, payload: &Value) -> String {
    stage.outboxd(&["publish", "verbs", "--key", key, "--payload", &payload.to_string()]).ok().trim().to_owned()
}

fn paused(stage: &Stage) -> Vec<Value> {
    serde_json::from_str(&stage.outboxd(&["keys", "--state", "paused", "--json"]).ok()).expect("JSON")
}

fn wait_until_paused(stage: &Stage) -> Value {
    let mut keys = Vec::new();
    let rests = || {
        keys = paused(stage);
        !keys.is_empty()
    };
    assert!(wait_for(PATIENCE, rests), "no key rests");
    keys.remove(0)
}

fn metrics(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the page is served");
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn a_key_whose_target_asks_for_rest_gets_it_though_its_plugin_says_nothing(stage: Stage) {
    let receiver = Receiver::start();
    receiver.script([Answer::status(429).header("retry-after", "30000")]);
    install(&stage, "[limits]\nper_key = 2\n[retry]\nbase = \"1ms\"\nmax = \"1h\"\n");
    let order = json!({ "do": "http", "url": receiver.url("/") });
    let asked = publish(&stage, "a", &order);
    let relay = stage.start(&["--admin", "127.0.0.1:0"], &[]);
    let key = wait_until_paused(&stage);
    let behind = publish(&stage, "a", &order);
    let other = publish(&stage, "b", &order);
    stage.wait_until(&other, "delivered");
    stage.wait_until(&behind, "held");
    stage.wait_until(&asked, "held");

    assert_eq!((&key["key"], &key["reason"]), (&json!("a"), &json!("retry-after")));
    let due_in_ms = key["due_in_ms"].as_u64().unwrap_or_default();
    assert!((1_000_000..=3_600_000).contains(&due_in_ms), "no longer than the longest wait between two tries: {key:?}");
    let table = stage.outboxd(&["keys", "--state", "paused"]).ok();
    assert!(table.contains("retry-after"), "{table}");
    assert_eq!(receiver.count(), 2, "its target is left alone");
    assert!(metrics(&relay.admin()).contains("outboxd_key_rests_total{topic=\"verbs\",cause=\"retry-after\"} 1"));
    let counted = || metrics(&relay.admin()).contains("outboxd_resting_keys{topic=\"verbs\"} 1");
    assert!(wait_for(PATIENCE, counted), "{}", metrics(&relay.admin()));
    assert!(stage.outboxd(&["stats"]).ok().contains("keys whose target rests: 1"));
    stage.outboxd(&["keys", "resume", "verbs", "a"]).ok();

    assert_eq!(stage.wait_until(&behind, "delivered")["attempts"], 1, "rest spends no attempt");
    assert_eq!(stage.wait_until(&asked, "delivered")["attempts"], 2);
    drop(relay);
}

fn a_key_whose_target_fails_five_times_in_a_row_rests_until_one_call_succeeds(stage: Stage) {
    let receiver = Receiver::start();
    receiver.answer(|_| Answer::status(500));
    install(&stage, "[limits]\nper_key = 1\n[retry]\nbase = \"1h\"\nmax = \"1h\"\n");
    let order = json!({ "do": "http", "url": receiver.url("/") });
    let published: Vec<String> = (0..9).map(|_| publish(&stage, "a", &order)).collect();
    let relay = stage.relay();

    let key = wait_until_paused(&stage);

    assert_eq!((&key["reason"], receiver.count()), (&json!("failures"), 5));
    let untouched = &published[5..];
    assert!(untouched.iter().all(|id| stage.show(id)["attempts"] == 0), "rest spends no attempt");
    receiver.answer(|_| Answer::status(200));
    stage.outboxd(&["keys", "resume", "verbs", "a"]).ok();
    for id in untouched {
        assert_eq!(stage.wait_until(id, "delivered")["attempts"], 1);
    }
    assert!(paused(&stage).is_empty());
    drop(relay);
}

fn no_more_calls_of_a_key_than_its_limit_are_under_way(stage: Stage) {
    install(&stage, "[limits]\nconcurrency = 8\nper_key = 2\ndeadline = \"60s\"\n");
    for _ in 0..6 {
        publish(&stage, "slow", &json!({ "do": "sleep", "ms": 60_000 }));
    }
    let last = publish(&stage, "other", &json!({ "do": "succeed" }));
    let relay = stage.relay();

    stage.wait_until(&last, "delivered");

    let stats = || serde_json::from_str::<Value>(&stage.outboxd(&["stats", "--json"]).ok()).expect("JSON");
    let settled = || {
        let stats = stats();
        (stats[0]["held"] == 4) && (stats[0]["processing"] == 2)
    };
    assert!(wait_for(PATIENCE, settled), "{:?}", stats());
    relay.kill();
}

fn calls_of_a_key_are_spaced(stage: Stage) {
    for order in ["", "ordered = true\n"] {
        let receiver = Receiver::start();
        // Further apart than two polls: 200 ms.
        install(&stage, &format!("{order}[limits]\nper_key_rate = \"2/s\"\n"));
        let published: Vec<String> =
            (0..3).map(|_| publish(&stage, "a", &json!({ "do": "http", "url": receiver.url("/") }))).collect();

        stage.outboxd(&["run", "--once"]).ok();

        assert!(published.iter().all(|id| stage.show(id)["state"] == "delivered"), "a run to the end waits for them");
        let received = receiver.received();
        let took = received[2].at - received[0].at;
        // Twice 500 ms, less what the first request needed to arrive.
        assert!(took > Duration::from_millis(700), "{order:?}: {took:?}");
    }
}

/// A spacing that is shorter than a run takes to look ends between its last look and the next.
fn once_ends_no_sooner_where_calls_are_hardly_spaced(stage: Stage) {
    install(&stage, "[limits]\nper_key_rate = \"200/s\"\n");
    let order = json!({ "do": "succeed" }).to_string();
    let published = stage.publish_lines_of_key("verbs", "a", &vec![order; 60]);

    stage.outboxd(&["run", "--once"]).ok();

    assert!(published.iter().all(|id| stage.show(id)["state"] == "delivered"), "a run to the end waits for them");
}

fn a_key_rests_while_its_calls_are_spaced_and_a_person_may_end_it(stage: Stage) {
    install(&stage, "[limits]\nper_key_rate = \"1/h\"\n");
    let published = [(); 2].map(|()| publish(&stage, "a", &json!({ "do": "succeed" })));
    let relay = stage.relay();

    let key = wait_until_paused(&stage);

    assert_eq!((&key["reason"], &key["depth"]), (&json!("rate"), &json!(1)));
    let stats: Value = serde_json::from_str(&stage.outboxd(&["stats", "--json"]).ok()).expect("JSON");
    assert_eq!(stats[0]["resting_keys"], 0, "what is spaced is not sick");
    stage.outboxd(&["keys", "resume", "verbs", "a"]).ok();
    for id in published {
        stage.wait_until(&id, "delivered");
    }
    drop(relay);
}

fn a_plugin_is_called_no_more_often_than_its_rate(stage: Stage) {
    let receiver = Receiver::start();
    install(&stage, "[limits]\nrate = \"20/s\"\n");
    let order = json!({ "do": "http", "url": receiver.url("/") }).to_string();
    let published = stage.publish_lines("verbs", &vec![order; 14]);

    stage.outboxd(&["run", "--once"]).ok();

    assert!(published.iter().all(|id| stage.show(id)["state"] == "delivered"), "a run to the end waits for them");
    let received = receiver.received();
    let took = received[13].at - received[0].at;
    // Two at once, and twelve more at 50 ms each; less what the first request needed to arrive.
    assert!(took > Duration::from_millis(400), "{took:?}");
}

fn once_goes_on_as_its_rate_allows_while_a_call_hangs(stage: Stage) {
    let receiver = Receiver::start();
    receiver.script([Answer::status(200).after(PATIENCE)]);
    install(&stage, "[limits]\nrate = \"20/s\"\ndeadline = \"5s\"\n[retry]\nmax_attempts = 1\n");
    let hangs = publish(&stage, "a", &json!({ "do": "http", "url": receiver.url("/") }));
    let others = [(); 5].map(|()| publish(&stage, "a", &json!({ "do": "succeed" })));

    stage.outboxd(&["run", "--once"]).ok();

    let ended_at = |id: &str| stage.show(id)["history"][0]["at_ms"].as_i64().expect("it has ended");
    let deadline = ended_at(&hangs);
    for id in others {
        assert!(ended_at(&id) < deadline, "it waited for the call that hangs");
    }
}

fn once_waits_for_no_rate_where_nothing_is_due(stage: Stage) {
    install(&stage, "[limits]\nrate = \"1/h\"\nper_key_rate = \"1/h\"\n");
    let published = publish(&stage, "a", &json!({ "do": "succeed" }));

    let mut run = stage.command(&["run", "--once"]).spawn().expect("outboxd starts");
    let ends = wait_for(PATIENCE, || run.try_wait().expect("it is ours").is_some());

    run.kill().expect("it is ours");
    run.wait().expect("it has ended");
    assert!(ends, "it waits until a next call is allowed");
    assert_eq!(stage.show(&published)["state"], "delivered");
}

fn once_waits_for_no_rest_that_was_asked_for(stage: Stage) {
    install(&stage, "[limits]\nper_key = 1\n[retry]\nmax = \"1h\"\n");
    let asks = publish(&stage, "a", &json!({ "do": "pause-key", "ms": 20_000 }));
    let behind = publish(&stage, "a", &json!({ "do": "succeed" }));

    // Nor does a rest that ends before the next poll count as one that is over.
    let config = std::fs::read_to_string(stage.config()).expect("the configuration");
    let config = config.replace("poll_interval = \"200ms\"", "poll_interval = \"60s\"");
    std::fs::write(stage.config(), config).expect("written");

    stage.outboxd(&["run", "--once"]).ok();

    assert_eq!([asks, behind].map(|id| stage.show(&id)["state"].clone()), [json!("delivered"), json!("held")]);
}

/// Answers each request with a head, and never with the body that it promises.
fn target_without_bodies() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("its address"));
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            // A client takes an answer that comes before it has asked for nonsense.
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && head.len() < 10_000 {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("a request");
                head.extend(byte);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").expect("the head is sent");
            kept.push(stream);
        }
    });
    url
}

fn a_key_rests_whose_target_does_not_end_its_answers(stage: Stage) {
    install(&stage, "[limits]\nper_key = 1\n[retry]\nbase = \"1h\"\nmax = \"1h\"\n");
    let order = json!({ "do": "echo-http", "url": target_without_bodies(), "ms": 100 });
    let published: Vec<String> = (0..6).map(|_| publish(&stage, "a", &order)).collect();
    let relay = stage.relay();

    let key = wait_until_paused(&stage);

    assert_eq!((&key["reason"], &key["depth"]), (&json!("failures"), &json!(1)));
    assert!(stage.show(&published[0])["last_error"].to_string().contains("Timeout"));
    drop(relay);
}

fn a_key_rests_whose_target_keeps_calls_until_their_deadline(stage: Stage) {
    install(&stage, "[limits]\nper_key = 1\ndeadline = \"1s\"\n[retry]\nbase = \"1h\"\nmax = \"1h\"\n");
    let order = json!({ "do": "http", "url": target_without_bodies() });
    let published: Vec<String> = (0..6).map(|_| publish(&stage, "a", &order)).collect();
    let relay = stage.relay();

    let key = wait_until_paused(&stage);

    assert_eq!(key["reason"], "failures");
    assert_eq!(published.iter().map(|id| stage.show(id)["attempts"].clone()).collect::<Vec<_>>(), [1, 1, 1, 1, 1, 0]);
    assert_eq!(stage.show(&published[0])["reason"], "deadline");
    drop(relay);
}

fn the_webhook_plugin_asks_for_rest_where_its_target_does_and_leaves_failures_to_the_host(stage: Stage) {
    let receiver = Receiver::start();
    receiver.answer(|request| Answer::status(if request.path == "/busy" { 429 } else { 502 }));
    let manifest = format!(
        "topics = [\"orders\"]\n[grants]\nhosts = [\"http://127.0.0.1:*\"]\nprivate_networks = [\"127.0.0.0/8\"]\n\
         [limits]\nper_key = 1\n[retry]\nbase = \"1h\"\nmax = \"1h\"\n[settings]\nurl = \"{}\"\n",
        receiver.url("/{key}"),
    );
    stage.install("webhook", &guests::plugin("webhook"), &manifest);
    for key in ["busy", "sick", "sick", "sick", "sick", "sick"] {
        stage.outboxd(&["publish", "orders", "--key", key, "--payload", "{}"]).ok();
    }
    let relay = stage.relay();

    let mut reasons = BTreeMap::new();
    let both_rest = || {
        for key in paused(&stage) {
            reasons.insert(key["key"].as_str().unwrap_or_default().to_owned(), key["reason"].clone());
        }
        reasons.len() == 2
    };
    assert!(wait_for(PATIENCE, both_rest), "{reasons:?}");

    assert_eq!(reasons, [("busy".into(), json!("plugin")), ("sick".into(), json!("failures"))].into());
    drop(relay);
}
