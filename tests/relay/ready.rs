//! The ready plugins, as they lie in `plugins/`: each is taken with its own manifest, and plays its golden messages.

use std::path::Path;

use outboxd::plugin::{PluginHost, PluginOptions, SandboxOptions, Secrets};
use outboxd_test_support::guests;

use crate::stage::cache;

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
        cache_dir: Some(cache()),
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
