//! What programs read: the fields of every `--json` output. One that is added is written down here; one that goes or changes
//! its name breaks somebody.

use std::collections::BTreeSet;

use outboxd_test_support::guests;
use serde_json::Value;

use crate::stage::Stage;

/// Every field of a document, as `headers.trace` or `[].id`.
fn fields(document: &str) -> String {
    fn collect(value: &Value, path: &str, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    into.insert(path.clone());
                    collect(value, &path, into);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, &format!("{path}[]"), into)),
            _ => {}
        }
    }
    let value = serde_json::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"));
    let mut found = BTreeSet::new();
    collect(&value, "", &mut found);
    found.into_iter().collect::<Vec<_>>().join(" ")
}

/// The commands whose synopsis in the manual page has `--json`.
fn commands_with_json(manual: &str) -> BTreeSet<String> {
    let synopses = manual.lines().filter(|line| line.contains(r"[\fB\-\-json\fR]"));
    let names = synopses.filter_map(|line| line.strip_prefix(r"\fBoutboxd ")?.split(r"\fR").next());
    names.map(|name| name.replace(r"\-", "-")).collect()
}

#[test]
fn the_fields_of_every_json_output_stay_as_they_are() {
    const SUMMARY: &str = "attempts available_at_ms created_at_ms dead_at_ms delivered_at_ms expires_at_ms id key lapses last_error \
                           reason state topic";
    let stage = Stage::sqlite();
    stage.install_verbs("");
    let component = stage.plugins().join("verbs.wasm");
    let component = component.to_str().expect("text");
    let payload = r#"{"do": "cancel", "reason": "gone"}"#;
    let mut pinned = BTreeSet::new();
    let mut answer = |command: &str, args: &[&str]| {
        pinned.insert(command.to_owned());
        let words: Vec<&str> = command.split(' ').collect();
        stage.outboxd(&[&words, args, &["--json"]].concat()).stdout
    };
    let published = answer("publish", &["verbs", "--payload", payload, "--header", "trace=abc"]);
    let id = serde_json::from_str::<Value>(&published).expect("JSON")[0]["id"].as_str().expect("an id").to_owned();
    // What blocks a key is listed.
    stage.install("ordered", &guests::guest("verbs"), "topics = [\"ordered\"]\nordered = true\n");
    stage.outboxd(&["publish", "ordered", "--key", "a", "--payload", payload]).ok();
    stage.outboxd(&["run", "--once"]).ok();
    let relay = stage.relay_with(&["--admin", "127.0.0.1:0"]);
    let admin = relay.admin();
    let mut json = |command: &str, args: &[&str]| fields(&answer(command, args));

    assert_eq!(fields(&published), "[].id [].insertion");
    assert_eq!(
        json("messages list", &[]),
        SUMMARY.split(' ').map(|name| format!("[].{name}")).collect::<Vec<_>>().join(" ")
    );
    let mut of_one: Vec<&str> = SUMMARY.split(' ').collect();
    of_one.extend(["dedup_key", "headers", "headers.trace", "history", "payload", "payload_bytes"]);
    of_one.extend(["history[].at_ms", "history[].attempt", "history[].digest", "history[].error"]);
    of_one.extend(["history[].reason", "history[].result", "history[].took_ms"]);
    of_one.sort_unstable();
    assert_eq!(json("messages show", &[&id]), of_one.join(" "));
    assert_eq!(
        json("stats", &[]),
        "[].blocked_keys [].dead [].delivered [].held [].last_error [].oldest_due_ms [].parked [].paused [].pending [].processing \
         [].resting_keys [].topic [].unrouted"
    );
    assert_eq!(
        json("keys", &[]),
        "[].depth [].due_in_ms [].error [].head [].key [].reason [].since_ms [].state [].topic"
    );
    // A finding without advice is all well; one plugin's reload is on no trial.
    assert_eq!(json("doctor", &["--plugins", "nowhere"]), "[].advice [].check [].found [].verdict");
    assert_eq!(
        json("plugin list", &["--admin", &admin]),
        "[].calls [].canary [].digest [].error [].faults [].file [].hosts [].last_error [].limits [].limits.concurrency \
         [].limits.cpu_ms [].limits.deadline_ms [].limits.memory_bytes [].loaded_at_ms [].name [].previous \
         [].private_networks [].secrets [].state [].tcp [].topics"
    );
    assert_eq!(
        json("plugin check", &[component]),
        "bytes compile_ms digest exports file goldens hosts imports memory_bytes memory_bytes_at_start private_networks \
         secrets start_ms tcp topics untrusted"
    );
    assert_eq!(
        json("plugin invoke", &[component, "--topic", "verbs", "--payload", payload]),
        "after_ms cpu_us error memory_bytes outcome requests response_excerpt"
    );
    assert_eq!(pinned, commands_with_json(&stage.outboxd(&["man"]).ok()), "a command's fields are not pinned here");
}
