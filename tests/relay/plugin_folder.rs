//! A plugin folder that gives trouble, and a relay that goes on.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use outboxd_test_support::{guests, skip};

use crate::stage::{RelayProcess, Stage};

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions are set");
}

/// A relay that may read what its user may and no more, also where that is root, and that can watch nothing.
fn relay_without_rights_or_watches(stage: &Stage) -> RelayProcess {
    let outboxd = stage.command(&["run"]);
    let mut shell = Command::new("unshare");
    shell.args(["--user", "--map-root-user", "sh", "-c"]);
    shell.arg("echo 0 >/proc/sys/user/max_inotify_instances && exec setpriv --bounding-set=-all \"$@\"");
    shell.arg("sh").arg(outboxd.get_program()).args(outboxd.get_args()).stdin(Stdio::null());
    shell.envs(outboxd.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(stage.path());
    stage.spawn(shell)
}

#[test]
fn a_folder_that_cannot_be_watched_or_read_is_looked_at_by_time_and_what_serves_goes_on() {
    let namespaces = Command::new("unshare").args(["--user", "--map-root-user", "true"]).stderr(Stdio::null()).status();
    if !namespaces.is_ok_and(|status| status.success()) {
        return skip("no user namespace can be made here");
    }
    let stage = Stage::sqlite();
    let relay = relay_without_rights_or_watches(&stage);
    relay.wait_for_log("cannot be watched");
    assert!(relay.log().contains("it is looked at every 2 s"), "{}", relay.log());

    // Found by looking alone.
    stage.install_verbs("");
    relay.wait_for_log("serves verbs");
    let delivered = || stage.wait_until(&stage.publish("verbs", r#"{"do": "succeed"}"#), "delivered");
    delivered();

    // The file, then the folder.
    let file = stage.plugins().join("verbs.wasm");
    allow(&file, 0o000);
    std::fs::write(stage.plugins().join("verbs.toml"), "topics = [\"other\"]").expect("written");
    relay.wait_for_log("\"verbs.wasm\" in the plugin folder is skipped: Permission denied");
    delivered();
    allow(&stage.plugins(), 0o000);
    relay.wait_for_log("cannot be read: Permission denied");
    delivered();

    allow(&stage.plugins(), 0o700);
    allow(&file, 0o600);
    stage.install("verbs", &guests::guest("verbs"), "topics = [\"verbs\", \"other\"]");
    relay.wait_for_log("serves verbs, other");
    stage.wait_until(&stage.publish("other", r#"{"do": "succeed"}"#), "delivered");
    let (status, _) = relay.terminate();
    assert!(status.success());
}

#[test]
fn the_messages_of_a_removed_plugin_wait_unspent_and_are_counted_until_it_is_back() {
    let stage = Stage::sqlite();
    stage.install_verbs("");
    let relay = stage.relay();
    stage.wait_until(&stage.publish("verbs", r#"{"do": "succeed"}"#), "delivered");

    std::fs::remove_file(stage.plugins().join("verbs.wasm")).expect("removed");
    relay.wait_for_log("plugin verbs is gone");
    let id = stage.publish("verbs", r#"{"do": "succeed"}"#);
    let stats: serde_json::Value = serde_json::from_str(&stage.outboxd(&["stats", "--json"]).ok()).expect("JSON");
    assert_eq!((&stats[0]["unrouted"], &stats[0]["pending"]), (&true.into(), &1.into()), "{stats:#}");
    assert_eq!(stage.show(&id)["attempts"], 0);

    stage.install_verbs("");
    assert_eq!(stage.wait_until(&id, "delivered")["attempts"], 1);
}
