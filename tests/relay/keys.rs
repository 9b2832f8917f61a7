//! Order by key, with the real binary; docs/keys.md.

use std::collections::BTreeMap;

use outboxd_test_support::{guests, wait_for};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage, on_every_database};

on_every_database! {
    once_delivers_every_message_of_a_key_in_order,
    a_key_whose_target_hangs_holds_up_no_other,
    a_blocked_key_is_listed_and_goes_on_when_it_is_skipped,
    a_key_rests_when_its_plugin_says_so_until_a_person_resumes_it,
    a_manifest_that_is_not_ordered_any_more_lets_go_of_what_was_held,
}

const ORDERED: &str = "topics = [\"verbs\"]\nordered = true\n";

fn install(stage: &Stage, manifest: &str) {
    stage.install("verbs", &guests::guest("verbs"), manifest);
}

fn publish(stage: &Stage, key: &str, payload: &Value) -> String {
    stage.outboxd(&["publish", "verbs", "--key", key, "--payload", &payload.to_string()]).ok().trim().to_owned()
}

fn keys(stage: &Stage, state: &str) -> Vec<Value> {
    serde_json::from_str(&stage.outboxd(&["keys", "--state", state, "--json"]).ok()).expect("JSON")
}

fn once_delivers_every_message_of_a_key_in_order(stage: Stage) {
    install(&stage, ORDERED);
    let mut published: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for _ in 0..8 {
        for key in ["a", "b"] {
            published.entry(key).or_default().push(publish(&stage, key, &json!({ "do": "succeed" })));
        }
    }

    stage.outboxd(&["run", "--once"]).ok();

    for (key, ids) in published {
        let ended: Vec<i64> =
            ids.iter().map(|id| stage.show(id)["delivered_at_ms"].as_i64().expect("it is delivered")).collect();
        assert!(ended.is_sorted(), "the messages of key {key} ended at {ended:?}");
    }
    assert_eq!(stage.outboxd(&["keys"]).ok(), "no keys\n");
}

fn a_key_whose_target_hangs_holds_up_no_other(stage: Stage) {
    install(&stage, &format!("{ORDERED}[limits]\nconcurrency = 4\ndeadline = \"60s\"\n"));
    publish(&stage, "hung", &json!({ "do": "sleep", "ms": 60_000 }));
    publish_many(&stage, "hung", &json!({ "do": "succeed" }), 300);
    let last = publish(&stage, "healthy", &json!({ "do": "succeed" }));
    let relay = stage.relay();

    stage.wait_until(&last, "delivered");

    let stats: Value = serde_json::from_str(&stage.outboxd(&["stats", "--json"]).ok()).expect("JSON");
    assert_eq!((&stats[0]["held"], &stats[0]["processing"]), (&json!(300), &json!(1)));
    relay.kill();
}

fn publish_many(stage: &Stage, key: &str, payload: &Value, count: usize) {
    use std::io::Write as _;
    let mut command = stage.command(&["publish", "verbs", "--key", key, "--lines"]);
    let mut child =
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().expect("starts");
    let lines = vec![payload.to_string(); count].join("\n");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("written");
    assert!(child.wait().expect("ends").success());
}

fn a_blocked_key_is_listed_and_goes_on_when_it_is_skipped(stage: Stage) {
    install(&stage, ORDERED);
    let head = publish(&stage, "customer-7", &json!({ "do": "cancel", "reason": "no such customer" }));
    let behind = publish(&stage, "customer-7", &json!({ "do": "succeed" }));
    let relay = stage.relay();
    stage.wait_until(&head, "dead");
    stage.wait_until(&behind, "held");

    let blocked = keys(&stage, "blocked");
    assert_eq!((&blocked[0]["key"], &blocked[0]["head"]), (&json!("customer-7"), &json!(head)));
    assert_eq!((&blocked[0]["depth"], &blocked[0]["error"]), (&json!(1), &json!("no such customer")));
    let table = stage.outboxd(&["keys", "--topic", "verbs"]).ok();
    assert!(table.contains("customer-7") && table.contains("blocked") && table.contains("no such customer"), "{table}");
    assert!(stage.outboxd(&["stats"]).ok().contains("keys blocked by a dead letter: 1"));

    stage.outboxd(&["keys", "skip", "verbs", "customer-7"]).ok();

    stage.wait_until(&behind, "delivered");
    assert!(stage.outboxd(&["keys", "skip", "verbs", "customer-7"]).fails(1).contains("is not blocked"));
    stage.outboxd(&["keys", "--state", "odd"]).fails(2);
    drop(relay);
}

fn a_key_rests_when_its_plugin_says_so_until_a_person_resumes_it(stage: Stage) {
    install(&stage, &format!("{ORDERED}[retry]\nmax = \"1h\"\n"));
    let first = publish(&stage, "a", &json!({ "do": "pause-key", "ms": 3_000_000 }));
    let behind = publish(&stage, "a", &json!({ "do": "succeed" }));
    let other = publish(&stage, "b", &json!({ "do": "succeed" }));
    let relay = stage.relay();
    stage.wait_until(&first, "delivered");
    stage.wait_until(&other, "delivered");
    stage.wait_until(&behind, "held");

    let paused = keys(&stage, "paused");
    assert_eq!((&paused[0]["key"], &paused[0]["depth"]), (&json!("a"), &json!(1)));
    assert!(paused[0]["due_in_ms"].as_u64().is_some_and(|ms| ms > 1_000_000), "{paused:?}");
    stage.outboxd(&["keys", "resume", "verbs", "a"]).ok();

    assert_eq!(stage.wait_until(&behind, "delivered")["attempts"], 1);
    assert!(stage.outboxd(&["keys", "resume", "verbs", "a"]).fails(1).contains("neither paused nor waiting"));
    drop(relay);
}

fn a_manifest_that_is_not_ordered_any_more_lets_go_of_what_was_held(stage: Stage) {
    install(&stage, ORDERED);
    let head = publish(&stage, "a", &json!({ "do": "cancel" }));
    let behind = publish(&stage, "a", &json!({ "do": "succeed" }));
    let relay = stage.relay();
    stage.wait_until(&head, "dead");
    stage.wait_until(&behind, "held");

    std::fs::write(stage.plugins().join("verbs.toml"), "topics = [\"verbs\"]\n").expect("written");

    stage.wait_until(&behind, "delivered");
    assert!(wait_for(PATIENCE, || stage.outboxd(&["keys"]).ok() == "no keys\n"));
    drop(relay);
}

/// The commands of the page, as they stand there.
#[test]
fn the_commands_of_the_page_run() {
    let page = include_str!("../../docs/keys.md");
    let block = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of commands");
    let stage = Stage::sqlite();
    stage.install("orders", &guests::guest("verbs"), "topics = [\"orders.created\"]\nordered = true\n");
    let publish = ["publish", "orders.created", "--key", "customer-7", "--payload", r#"{"do":"cancel"}"#];
    let head = stage.outboxd(&publish).ok();
    stage.outboxd(&publish).ok();
    stage.outboxd(&["run", "--once"]).ok();

    let said: Vec<String> =
        block.lines().map(|line| stage.outboxd(&line.split_whitespace().skip(1).collect::<Vec<_>>()).ok()).collect();

    assert!(said[0].contains(head.trim()), "{said:?}");
    assert_eq!(said.len(), 3);
}

/// Every sentence of the page names the test that holds it: the names must lead somewhere.
#[test]
fn every_test_that_the_page_names_exists() {
    let root = outboxd_test_support::repository();
    let page = std::fs::read_to_string(root.join("docs/keys.md")).expect("the page").replace("```", "");
    let is_unit_test =
        |file: &str| ["lanes", "turns", "metrics::", "plugin::"].iter().any(|module| file.starts_with(module));
    let named = page.split('`').skip(1).step_by(2).filter_map(|name| {
        let (file, test) = name.rsplit_once("::")?;
        let path = match file.strip_prefix("core::") {
            Some(module) => format!("host/core/src/{module}"),
            None if is_unit_test(file) => format!("host/src/{}", file.replace("::", "/")),
            None => format!("tests/{}", file.replace("::", "/")),
        };
        Some((root.join(path).with_extension("rs"), test))
    });
    let mut found = 0;
    for (file, test) in named {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(text.contains(&format!("fn {test}(")), "{test} is not in {}", file.display());
        found += 1;
    }
    assert!(found >= 25, "the page names {found} tests only");
}
