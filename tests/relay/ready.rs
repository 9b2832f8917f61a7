//! The ready plugins, as they lie in `plugins/`: each is taken with its own manifest, and plays its golden messages;
//! slack and email deliver to a target that answers as the real one does, too.

use std::path::Path;

use outboxd::plugin::{PluginHost, PluginOptions, SandboxOptions, Secrets};
use outboxd_test_support::guests;
use outboxd_test_support::receiver::{Answer, Receiver};
use serde_json::json;

use crate::stage::{Stage, cache};

const PLUGINS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins");

/// Puts a plugin with its manifest and golden messages into a folder as a host loads it; answers why it was refused.
fn loads(name: &str, component: &Path, secrets: &[(&str, &str)]) -> Result<(), String> {
    let source = Path::new(PLUGINS).join(name);
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
    let manifest = std::fs::read_to_string(Path::new(PLUGINS).join("slack/slack.toml")).expect("a manifest");
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

#[test]
fn clickhouse() {
    let Some(component) = guests::ready("clickhouse") else { return };

    assert_eq!(loads("clickhouse", &component, &[("CLICKHOUSE_KEY", "secret")]), Ok(()));
}

#[test]
fn email() {
    let Some(component) = guests::ready("email") else { return };
    assert_eq!(loads("email", &component, &[("RESEND_KEY", "re_123")]), Ok(()));

    let receiver = Receiver::start();
    receiver.script([Answer::status(500).body("internal_server_error")]);
    let stage = Stage::sqlite();
    stage.configure("[secrets]\nRESEND_KEY = { env = \"RESEND_KEY\" }");
    let manifest = std::fs::read_to_string(Path::new(PLUGINS).join("email/email.toml")).expect("a manifest");
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
