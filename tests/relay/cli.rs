//! The commands, as people and scripts use them.

use outboxd_test_support::wait_for;
use serde_json::Value;

use crate::stage::{PATIENCE, Stage, on_every_database};

on_every_database! {
    publish_prints_the_id_and_show_tells_the_story,
    a_second_publish_with_the_same_dedup_key_answers_the_first_id,
    lines_are_published_in_one_transaction,
    list_filters_and_pages,
    a_paused_topic_is_not_claimed_until_it_is_resumed,
    a_dead_letter_is_redriven_and_delivered,
    discard_makes_a_live_message_dead,
    retry_now_makes_a_delayed_message_due,
    purge_deletes_only_what_is_finished,
    migrate_can_be_run_again_and_printed,
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn publish_prints_the_id_and_show_tells_the_story(stage: Stage) {
    let args = ["publish", "orders.created", "--payload", r#"{"n": 1}"#, "--key", "shop-7", "--header", "trace=abc"];
    let id = stage.outboxd(&args).ok().trim().to_owned();

    let message = stage.show(&id);
    assert_eq!(message["topic"], "orders.created");
    assert_eq!(message["key"], "shop-7");
    assert_eq!(message["headers"]["trace"], "abc");
    assert_eq!(message["payload"], r#"{"n": 1}"#, "byte for byte");
    assert_eq!(message["state"], "pending");
    let story = stage.outboxd(&["messages", "show", &id]).ok();
    assert!(story.contains("no attempt yet") && story.contains("shop-7"), "{story}");
}

fn a_second_publish_with_the_same_dedup_key_answers_the_first_id(stage: Stage) {
    let args = ["publish", "orders", "--payload", "{}", "--dedup-key", "order-1"];

    let first = stage.outboxd(&args).ok();
    let second = stage.outboxd(&args).ok();

    assert_eq!(first, second);
}

fn lines_are_published_in_one_transaction(stage: Stage) {
    let good = stage.publish_lines("orders", &["{}".into(), "1".into(), "\"a\"".into()]);

    assert_eq!(good.len(), 3);
    let file = stage.path().join("lines");
    std::fs::write(&file, "{}\n{broken\n").expect("written");
    let mut command = stage.command(&["publish", "orders", "--lines"]);
    let output = command.stdin(std::fs::File::open(&file).expect("open")).output().expect("outboxd runs");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&stage.outboxd(&["messages", "list", "--json"]).ok()).as_array().map(Vec::len), Some(3));
}

fn list_filters_and_pages(stage: Stage) {
    stage.publish_lines("a", &vec!["{}".into(); 5]);
    stage.publish_lines("b", &vec!["{}".into(); 2]);

    let all = json(&stage.outboxd(&["messages", "list", "--topic", "a", "--json"]).ok());
    let page = json(&stage.outboxd(&["messages", "list", "--topic", "a", "--limit", "3", "--json"]).ok());
    let last = page[2]["id"].as_str().expect("an id");
    let rest = json(&stage.outboxd(&["messages", "list", "--topic", "a", "--after", last, "--json"]).ok());

    let ids = |rows: &Value| rows.as_array().expect("rows").iter().map(|row| row["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&all).len(), 5);
    assert_eq!([ids(&page), ids(&rest)].concat(), ids(&all));
    let dead = json(&stage.outboxd(&["messages", "list", "--state", "dead", "--json"]).ok());
    assert_eq!(ids(&dead).len(), 0);
    stage.outboxd(&["messages", "list", "--state", "ded"]).fails(2);
}

fn a_paused_topic_is_not_claimed_until_it_is_resumed(stage: Stage) {
    stage.install_verbs("");
    let id = stage.publish("verbs", r#"{"do":"succeed"}"#);
    stage.outboxd(&["pause", "verbs"]).ok();

    stage.outboxd(&["run", "--once"]).ok();
    assert_eq!(stage.show(&id)["state"], "pending");
    assert!(stage.outboxd(&["stats"]).ok().contains("paused"));

    stage.outboxd(&["resume", "verbs"]).ok();
    stage.outboxd(&["run", "--once"]).ok();
    assert_eq!(stage.show(&id)["state"], "delivered");
}

fn a_dead_letter_is_redriven_and_delivered(stage: Stage) {
    stage.install_verbs("");
    let id = stage.publish("verbs", r#"{"do":"cancel"}"#);
    stage.outboxd(&["run", "--once"]).ok();
    assert_eq!(stage.show(&id)["state"], "dead");

    let said = stage.outboxd(&["redrive", "--topic", "verbs", "--reason", "cancelled"]).ok();

    assert!(said.starts_with("1 dead letter"), "{said}");
    let message = stage.show(&id);
    assert_eq!((&message["state"], &message["attempts"]), (&"pending".into(), &0.into()), "{message:#}");
    assert_eq!(message["history"].as_array().map(Vec::len), Some(1), "the story goes on: {message:#}");
    stage.outboxd(&["redrive"]).fails(2);
}

fn discard_makes_a_live_message_dead(stage: Stage) {
    let id = stage.publish("orders", "{}");

    stage.outboxd(&["messages", "discard", &id]).ok();

    let message = stage.show(&id);
    assert_eq!((&message["state"], &message["reason"]), (&"dead".into(), &"discarded".into()), "{message:#}");
    stage.outboxd(&["messages", "discard", &id]).fails(1);
}

fn retry_now_makes_a_delayed_message_due(stage: Stage) {
    stage.install_verbs("");
    let args = ["publish", "verbs", "--payload", r#"{"do":"succeed"}"#, "--delay", "1h"];
    let id = stage.outboxd(&args).ok().trim().to_owned();
    stage.outboxd(&["run", "--once"]).ok();
    assert_eq!(stage.show(&id)["state"], "pending");

    for _ in 0..2 {
        // Due is what it is then, also if it was before.
        assert_eq!(stage.outboxd(&["messages", "retry-now", &id]).ok(), "due now: 1 of 1\n");
    }
    stage.outboxd(&["run", "--once"]).ok();

    assert_eq!(stage.show(&id)["state"], "delivered");
    stage.outboxd(&["messages", "retry-now", &id]).fails(1);
}

fn purge_deletes_only_what_is_finished(stage: Stage) {
    stage.install_verbs("");
    let delivered = stage.publish("verbs", r#"{"do":"succeed"}"#);
    stage.outboxd(&["run", "--once"]).ok();
    let waiting = stage.publish("orders", "{}");

    assert!(stage.outboxd(&["purge"]).ok().starts_with("0 "), "younger than seven days");
    assert!(stage.outboxd(&["purge", "--older-than", "0s"]).ok().starts_with("1 "));

    stage.outboxd(&["messages", "show", &delivered]).fails(1);
    assert_eq!(stage.show(&waiting)["state"], "pending");
}

fn migrate_can_be_run_again_and_printed(stage: Stage) {
    let again = stage.outboxd(&["migrate"]).ok();
    let printed = stage.outboxd(&["migrate", "--print"]).ok();

    assert!(again.contains("up to date"), "{again}");
    assert!(printed.to_lowercase().contains("create table"), "{printed}");
}

#[test]
fn check_prints_the_resolved_configuration_without_secrets() {
    let stage = Stage::sqlite();

    let args = ["run", "--check", "--database", "postgres://shop:s3cret-canary@db/shop"];
    let printed = stage.outboxd(&args).ok();

    assert!(printed.contains("lease = \"2s\""), "{printed}");
    assert!(printed.contains("postgres://shop:…@db/shop"), "{printed}");

    // What is printed is a configuration that means the same.
    std::fs::write(stage.config(), &printed).expect("written");
    assert_eq!(stage.outboxd(&["run", "--check"]).ok(), printed);
}

/// Runs a command on a terminal; answers what both streams show there.
fn on_a_terminal(stage: &Stage, args: &[&str]) -> String {
    let outboxd = stage.command(args);
    let words = std::iter::once(outboxd.get_program()).chain(outboxd.get_args());
    let line = words.map(|word| format!("'{}'", word.to_str().expect("text"))).collect::<Vec<_>>().join(" ");
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).current_dir(stage.path());
    script.envs(outboxd.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "xterm");
    let output = script.stdin(std::process::Stdio::null()).output().expect("script (Debian: bsdutils) runs");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}");
    shown
}

#[test]
fn long_work_shows_its_progress_on_a_terminal_and_nowhere_else() {
    let stage = Stage::sqlite();
    let ids = stage.publish_lines("orders", &vec!["{}".into(); 1200]);
    let discard: Vec<&str> = ["messages", "discard"].into_iter().chain(ids.iter().map(String::as_str)).collect();
    stage.outboxd(&discard).ok();

    let redriving = on_a_terminal(&stage, &["redrive", "--all", "--rate", "1000000/s"]);
    stage.outboxd(&discard).ok();
    let deleting = on_a_terminal(&stage, &["purge", "--state", "dead", "--older-than", "0s"]);
    let piped = stage.outboxd(&["purge", "--state", "dead", "--older-than", "0s"]);

    assert!(redriving.contains("redriving: ") && redriving.contains("1200 dead letters go round again"), "{redriving}");
    assert!(deleting.contains("deleting: ") && deleting.contains("1200 dead messages are deleted"), "{deleting}");
    assert_eq!((piped.stdout.as_str(), piped.stderr.as_str()), ("0 dead messages are deleted\n", ""));
}

#[test]
fn what_a_relay_has_parked_is_told_by_stats_where_that_relay_delivers_from_the_same_outbox() {
    let (stage, other) = (Stage::sqlite(), Stage::sqlite());
    stage.install_verbs("");
    stage.publish("verbs", r#"{"do":"trap"}"#);
    other.publish("verbs", "{}");
    let relay = stage.relay_with(&["--admin", "127.0.0.1:0"]);
    let admin = relay.admin();
    let parked = |stage: &Stage, admin: &str| {
        json(&stage.outboxd(&["stats", "--admin", admin, "--json"]).ok())[0]["parked"].clone()
    };

    assert!(wait_for(PATIENCE, || parked(&stage, &admin) == true), "{}", relay.log());

    let table = stage.outboxd(&["stats", "--admin", &admin]).ok();
    assert!(table.contains("parked: its plugin is unhealthy"), "{table}");
    assert_eq!(parked(&stage, "off"), Value::Null, "nobody was asked");
    assert_eq!(parked(&other, &admin), Value::Null, "that relay knows nothing of this outbox");
    let said = |stage: &Stage, admin: &str| stage.outboxd(&["stats", "--admin", admin]).stderr;
    assert!(said(&other, &admin).contains("what is parked is not known"));
    assert_eq!((said(&stage, &admin), said(&stage, "off")), (String::new(), String::new()));
}
