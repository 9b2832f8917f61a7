//! What `outboxd plugin list` and `/api/plugins` show of each plugin.

use outboxd_test_support::{guests, wait_for};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage};

#[test]
fn a_list_shows_name_digest_topics_grants_state_age_calls_and_faults_of_every_plugin() {
    let stage = Stage::sqlite();
    stage.configure("tcp = [\"127.0.0.1:4222\"]\n[secrets]\nSHOP_KEY = { env = \"SHOP_KEY\" }");
    let grants = "[grants]\nhosts = [\"https://hooks.example.com\"]\nprivate_networks = [\"127.0.0.0/8\"]\ntcp = [\"127.0.0.1:4222\"]\n\
                  [grants.secrets]\nSHOP_KEY = []\n[limits]\nmemory = \"32MiB\"\ncpu = \"2s\"\ndeadline = \"5s\"\nconcurrency = 3\n";
    let verbs = guests::guest("verbs");
    stage.install("live", &verbs, &format!("topics = [\"live.*\"]\n{grants}"));
    stage.install("parked", &verbs, "");
    stage.install("new", &verbs, "[rollout]\ncanary = 0.5");
    std::fs::write(stage.plugins().join("bad.wasm"), "(component)").expect("written");
    let relay = stage.start(&["--admin", "127.0.0.1:0"], &[("SHOP_KEY", "whsec_c2hvcA==")]);
    let admin = relay.admin();
    let list = |more: &[&str]| {
        let output =
            stage.command(&[&["plugin", "list", "--admin", &admin], more].concat()).env("SHOP_KEY", "x").output();
        String::from_utf8(output.expect("outboxd runs").stdout).expect("text")
    };
    let listed = || serde_json::from_str::<Value>(&list(&["--json"])).expect("JSON");
    stage.wait_until(&stage.publish("live.a", r#"{"do": "succeed"}"#), "delivered");
    stage.publish("parked", r#"{"do": "trap"}"#);
    // The same with a section more: a new version.
    let longer = [std::fs::read(&verbs).expect("the guest"), vec![0, 2, 1, b'x']].concat();
    std::fs::write(stage.plugins().join("new.wasm"), longer).expect("written");
    let states = || listed().as_array().into_iter().flatten().map(|plugin| plugin["state"].clone()).collect::<Vec<_>>();
    let wanted = ["bad", "live", "canary", "parked"];
    assert!(wait_for(PATIENCE, || states() == wanted), "{:#}", listed());

    let all = listed();
    let [bad, live, new, parked] = &all.as_array().expect("a list")[..] else { panic!("{all:#}") };
    assert_eq!((&bad["name"], &bad["digest"].as_str().map(str::len)), (&json!("bad"), &Some(64)));
    assert!(bad["error"].as_str().is_some_and(|error| error.contains("this is text")), "{bad:#}");
    assert_eq!((&live["name"], &live["topics"]), (&json!("live"), &json!(["live.*"])));
    assert_eq!(live["digest"].as_str().map(str::len), Some(64));
    assert_eq!(live["hosts"], json!(["https://hooks.example.com"]));
    assert_eq!((&live["private_networks"], &live["secrets"]), (&json!(["127.0.0.0/8"]), &json!(["SHOP_KEY"])));
    assert_eq!(live["tcp"], json!(["127.0.0.1:4222"]));
    let limits = json!({ "memory_bytes": 32 << 20, "cpu_ms": 2000, "deadline_ms": 5000, "concurrency": 3 });
    assert_eq!(live["limits"], limits);
    assert!(live["loaded_at_ms"].as_u64() > Some(1_700_000_000_000), "{live:#}");
    assert_eq!((&live["calls"], &live["faults"], &live["error"]), (&json!(1), &json!(0), &Value::Null));
    assert_eq!(new["canary"]["digest"].as_str().map(str::len), Some(64));
    assert_ne!(new["canary"]["digest"], new["digest"]);
    assert!(parked["faults"].as_u64() >= Some(1) && parked["last_error"].is_string(), "{parked:#}");

    let shown = list(&[]);
    let live_line = shown.lines().find(|line| line.starts_with("live")).expect("its line");
    for word in [
        "live.*",
        "https://hooks.example.com",
        "127.0.0.0/8",
        "tcp://127.0.0.1:4222",
        "SHOP_KEY",
        "32 MiB, 2s of 5s",
        "20",
    ] {
        assert!(live_line.contains(word), "{word}: {shown}");
    }
    assert!(shown.contains("on trial") && shown.contains("this is text"), "{shown}");
}
