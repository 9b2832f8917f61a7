//! The ready plugins, as they lie in `plugins/`: each is taken with its own manifest, and plays its golden messages;
//! slack and email deliver to a target that answers as the real one does, too.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use outboxd::plugin::egress::TcpPeer;
use outboxd::plugin::{
    Ceiling, Content, Invoked, Manifest, OnePlugin, PluginHost, PluginOptions, SandboxOptions, Secrets,
};
use outboxd_core::{Attempt, Claim, LeaseId, Message, MessageId, Order, Outcome, Payload, RetryPolicy};
use outboxd_test_support::guests;
use outboxd_test_support::receiver::{Answer, Receiver};
use serde_json::json;
use uuid::Uuid;

use crate::stage::{Stage, cache};

fn plugins() -> PathBuf {
    outboxd_test_support::repository().join("plugins")
}

/// Puts a plugin with its manifest and golden messages into a folder as a host loads it; answers why it was refused.
fn loads(name: &str, component: &Path, secrets: &[(&str, &str)]) -> Result<(), String> {
    let source = plugins().join(name);
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    let place = |file: &str| dir.path().join(file);
    std::fs::copy(component, place(&format!("{name}.wasm"))).expect("the component is copied");
    std::fs::copy(source.join(format!("{name}.toml")), place(&format!("{name}.toml"))).expect("a manifest");
    let messages = place(&format!("{name}.tests"));
    std::fs::create_dir(&messages).expect("a folder");
    for entry in std::fs::read_dir(source.join(format!("{name}.tests"))).expect("golden messages") {
        let file = entry.expect("an entry").path();
        std::fs::copy(&file, messages.join(file.file_name().expect("a name"))).expect("copied");
    }
    let secrets = secrets.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect::<Secrets>();
    let options = PluginOptions {
        dir: dir.path().into(),
        // Where the relay of the same test looks too: a large component is compiled once.
        cache_dir: Some(cache().join("compiled")),
        ceiling: Ceiling { tcp: vec![TcpPeer::parse("redis.internal:6379").expect("a peer")], ..Ceiling::default() },
        sandbox: SandboxOptions { slots: 2, secrets, ..SandboxOptions::default() },
        ..PluginOptions::default()
    };

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let list = runtime.block_on(async {
        let host = PluginHost::start(options).expect("a host of plugins");
        host.scan_once().await;
        host.list()
    });
    match &list[..] {
        [plugin] if plugin.state == "live" && plugin.error.is_none() => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn webhook() {
    assert_eq!(loads("webhook", &guests::plugin("webhook"), &[("SHOP_KEY", "whsec_c2hvcA==")]), Ok(()));
}

#[test]
fn redis() {
    assert_eq!(loads("redis", &guests::plugin("redis"), &[]), Ok(()));
}

#[test]
fn a_plugin_that_breaks_its_golden_messages_is_refused() {
    let refusal = loads("webhook", &guests::plugin("webhook"), &[]).unwrap_err();

    assert!(refusal.contains("golden message"), "{refusal}");
}

#[test]
fn slack() {
    let Some(component) = guests::ready("slack") else { return };
    assert_eq!(loads("slack", &component, &[]), Ok(()));

    let receiver = Receiver::start();
    receiver.script([Answer::status(500).body("rollup_error")]);
    let stage = Stage::sqlite();
    let manifest = std::fs::read_to_string(plugins().join("slack/slack.toml")).expect("a manifest");
    stage.install("slack", &component, &manifest.replace("https://hooks.slack.com", &receiver.url("")));
    let id = stage.publish("alerts.disk", r#"{"title": "disk full", "detail": {"host": "db-1"}}"#);
    let _relay = stage.relay();
    let message = stage.wait_until(&id, "delivered");

    assert_eq!(message["history"][0]["error"], "Slack answered 500: rollup_error", "{message:#}");
    let received = receiver.received();
    assert_eq!(received.len(), 2);
    assert_eq!(received[1].path, "/services/T000/B000/XXXX");
    assert_eq!(received[1].json(), json!({ "text": ":rotating_light: alerts.disk: disk full (db-1)" }));
}

/// What slack makes of one message without a key, under the setting `text`.
fn slack_says(component: &Path, receiver: &Receiver, text: &str, payload: &[u8]) -> Invoked {
    let target = receiver.url("");
    let manifest = format!(
        "topics = [\"alerts.*\"]\n[grants]\nhosts = [\"{target}\"]\n[settings]\nurl = \"{target}/\"\ntext = \"{text}\"\n"
    );
    let ceiling = Ceiling { private_networks: vec!["127.0.0.0/8".parse().expect("a network")], ..Ceiling::default() };
    let parsed = Manifest::parse("slack.toml", &manifest, "slack", &ceiling, &RetryPolicy::default()).expect("valid");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after the epoch");
    let message = Message {
        id: MessageId(Uuid::now_v7()),
        topic: "alerts.disk".into(),
        key: None,
        payload: Payload::Bytes(payload.into()),
        headers: vec![],
        created_at_ms: now.as_millis() as u64,
    };
    let lease_id = LeaseId(Uuid::new_v4());
    let claim = Claim {
        message,
        lease_id,
        attempt: Attempt(1),
        lapses: 0,
        lapsed: false,
        expired: false,
        order: Order::None,
        key_failures: 0,
    };
    let component = std::fs::read(component).expect("the component");
    let content = Content::new(component.into(), Some(manifest));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let options = SandboxOptions { slots: 1, ..SandboxOptions::default() };
        let compiled = cache().join("compiled");
        let plugin = OnePlugin::load(options, Some(&compiled), "slack", content, parsed).await.expect("it loads");
        plugin.invoke(&claim).await.expect("it runs")
    })
}

#[test]
fn slack_takes_a_field_of_the_message_from_the_message_alone() {
    let Some(component) = guests::ready("slack") else { return };
    let receiver = Receiver::start();

    let invoked = slack_says(&component, &receiver, "{topic} ({key})", br#"{"key": "the payload's"}"#);

    assert_eq!(invoked.outcome, Outcome::Success);
    assert_eq!(receiver.received()[0].json(), json!({ "text": "alerts.disk ()" }));
}

#[test]
fn slack_gives_up_on_a_payload_without_fields_only_where_one_is_asked_for() {
    let Some(component) = guests::ready("slack") else { return };
    let receiver = Receiver::start();

    let whole = slack_says(&component, &receiver, "{payload}", b"disk full");
    let field = slack_says(&component, &receiver, "{title}", b"disk full");

    assert_eq!(whole.outcome, Outcome::Success);
    assert_eq!(receiver.received()[0].json(), json!({ "text": "disk full" }));
    let Outcome::Cancel { error } = field.outcome else { panic!("{field:?}") };
    assert!(error.starts_with("the payload is no JSON: "), "{error}");
}

#[test]
fn clickhouse() {
    let Some(component) = guests::ready("clickhouse") else { return };

    assert_eq!(loads("clickhouse", &component, &[("CLICKHOUSE_KEY", "secret")]), Ok(()));
}

#[test]
fn elasticsearch() {
    let Some(component) = guests::ready("elasticsearch") else { return };
    assert_eq!(loads("elasticsearch", &component, &[("SEARCH_KEY", "a2V5")]), Ok(()));

    let receiver = Receiver::start();
    receiver.script([Answer::status(503), Answer::status(201)]);
    let stage = Stage::sqlite();
    stage.configure("[secrets]\nSEARCH_KEY = { env = \"SEARCH_KEY\" }");
    let manifest = include_str!("../../plugins/elasticsearch/elasticsearch.toml");
    stage.install("elasticsearch", &component, &manifest.replace("https://search.example.com:9200", &receiver.url("")));
    let id = stage.publish("events.Order", r#"{"order": 7}"#);
    let _relay = stage.relay_in(&[("SEARCH_KEY", "a2V5")]);
    stage.wait_until(&id, "delivered");

    let received = receiver.received();
    assert_eq!(received.len(), 2);
    assert_eq!((&*received[1].method, &*received[1].path), ("PUT", &*format!("/events.order/_create/{id}")));
    assert_eq!(received[1].header("authorization"), Some("ApiKey a2V5"));
    assert_eq!(received[1].json(), json!({ "order": 7 }));
}

#[test]
fn email() {
    let Some(component) = guests::ready("email") else { return };
    assert_eq!(loads("email", &component, &[("RESEND_KEY", "re_123")]), Ok(()));

    let receiver = Receiver::start();
    receiver.script([Answer::status(500).body("internal_server_error")]);
    let stage = Stage::sqlite();
    stage.configure("[secrets]\nRESEND_KEY = { env = \"RESEND_KEY\" }");
    let manifest = std::fs::read_to_string(plugins().join("email/email.toml")).expect("a manifest");
    let manifest = manifest.replace("https://api.resend.com", &receiver.url(""));
    stage.install("email", &component, &format!("{manifest}url = \"{}\"\n", receiver.url("/emails")));
    let id = stage.publish("mail.welcome", r#"{"to": "ada@example.com", "subject": "Hello", "text": "Hello, Ada"}"#);
    let _relay = stage.relay_in(&[("RESEND_KEY", "re_123")]);
    stage.wait_until(&id, "delivered");

    let received = receiver.received();
    assert_eq!(received.len(), 2);
    assert!(received.iter().all(|received| received.header("idempotency-key") == Some(&*id)));
    assert_eq!((&*received[1].path, received[1].header("authorization")), ("/emails", Some("Bearer re_123")));
    assert_eq!(received[1].json()["from"], "Shop <shop@example.com>");
}
