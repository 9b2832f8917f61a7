//! What a service manager says and hears: SIGHUP, readiness, signs of life, completions for its users.

use std::os::unix::net::UnixDatagram;

use outboxd_test_support::wait_for;

use crate::stage::{PATIENCE, Stage};

/// What is told to a socket as systemd's; nothing after a while.
fn told(socket: &UnixDatagram) -> Option<String> {
    let mut bytes = [0; 512];
    let length = socket.recv(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// Waits until `text` is told; answers what was told before.
pub fn wait_until_told(socket: &UnixDatagram, text: &str) -> Vec<String> {
    let mut before = Vec::new();
    loop {
        let said = told(socket).unwrap_or_else(|| panic!("{text:?} was never told, only {before:?}"));
        if said.starts_with(text) {
            return before;
        }
        before.push(said);
    }
}

#[test]
fn systemd_is_told_ready_alive_reloading_and_stopping() {
    let stage = Stage::sqlite();
    let path = stage.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");

    let relay = stage.relay_in(&[("NOTIFY_SOCKET", path.to_str().expect("text")), ("WATCHDOG_USEC", "100000")]);

    // Signs of life come from a task of their own, and may be first.
    wait_until_told(&socket, "READY=1");
    wait_until_told(&socket, "WATCHDOG=1");
    wait_until_told(&socket, "WATCHDOG=1");
    relay.signal("-HUP");
    wait_until_told(&socket, "RELOADING=1\nMONOTONIC_USEC=");
    wait_until_told(&socket, "READY=1");
    let (status, _) = relay.terminate();
    wait_until_told(&socket, "STOPPING=1");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_hangup_finds_new_plugins_and_names_what_needs_a_restart() {
    let stage = Stage::sqlite();
    let text = std::fs::read_to_string(stage.config()).expect("the configuration");
    std::fs::write(stage.config(), format!("watch = \"off\"\n{text}")).expect("written");
    let relay = stage.relay();
    relay.wait_for_log("delivering from");
    stage.install_verbs("");
    let id = stage.publish("verbs", r#"{"do": "succeed"}"#);
    let text = std::fs::read_to_string(stage.config()).expect("the configuration");
    std::fs::write(stage.config(), text.replace("grace = \"10s\"", "grace = \"9s\"")).expect("written");

    relay.signal("-HUP");

    relay.wait_for_log("a restart is needed for relay.grace");
    stage.wait_until(&id, "delivered");
    relay.terminate();
}

#[test]
fn a_hangup_with_a_wrong_file_changes_nothing_and_says_so_in_one_line() {
    let stage = Stage::sqlite();
    let mut relay = stage.relay();
    relay.wait_for_log("delivering from");
    stage.configure("[retention]\ndelivered = \"soon\"\nded = \"1d\"");

    relay.signal("-HUP");

    relay.wait_for_log("the configuration is wrong and the old one stays");
    let log = relay.log();
    let line = log.lines().find(|line| line.contains("the old one stays")).expect("said");
    assert!(line.contains("retention.delivered") && line.contains("\"dead\""), "{line}");
    assert!(relay.is_running());
}

#[test]
fn a_hangup_takes_a_rotated_secret() {
    use outboxd_test_support::receiver::Receiver;
    let receiver = Receiver::start();
    let stage = Stage::sqlite();
    let secret = stage.path().join("secret");
    std::fs::write(&secret, "whsec_b25l").expect("written");
    stage.configure(&format!("[secrets]\nSHOP_KEY = {{ file = {secret:?} }}"));
    let manifest = format!(
        "topics = [\"orders\"]\n[grants]\nhosts = [\"http://127.0.0.1:*\"]\nprivate_networks = [\"127.0.0.0/8\"]\n\
         [grants.secrets]\nSHOP_KEY = []\n[settings]\nurl = \"{}\"\nsecret = \"SHOP_KEY\"\n",
        receiver.url("/orders")
    );
    stage.install("webhook", &outboxd_test_support::guests::plugin("webhook"), &manifest);
    let relay = stage.relay();
    let delivered = |number: usize| {
        stage.publish("orders", "{}");
        assert!(wait_for(PATIENCE, || receiver.count() == number), "{}", relay.log());
        receiver.received().pop().expect("one")
    };

    let old = delivered(1);
    std::fs::write(&secret, "whsec_dHdv").expect("written");
    relay.signal("-HUP");
    relay.wait_for_log("secrets, admin_token and retention are as the configuration says now");
    let new = delivered(2);

    assert_eq!(old.verify("whsec_b25l"), Ok(()));
    assert_eq!(new.verify("whsec_dHdv"), Ok(()));
    assert!(new.verify("whsec_b25l").is_err());
    relay.terminate();
}

#[test]
fn a_hangup_takes_a_rotated_admin_token() {
    let stage = Stage::sqlite();
    let token = stage.path().join("token");
    std::fs::write(&token, "the old one").expect("written");
    let rest = std::fs::read_to_string(stage.config()).expect("the configuration");
    std::fs::write(stage.config(), format!("admin_token = {{ file = {token:?} }}\n{rest}")).expect("written");
    let relay = stage.relay_with(&["--admin", "127.0.0.1:0"]);
    relay.wait_for_log("delivering from");
    let admin = relay.admin();
    // It reads the token anew each time; the relay does at a hangup.
    let list = || stage.outboxd(&["plugin", "list", "--admin", &admin]);
    list().ok();

    std::fs::write(&token, "the new one").expect("written");
    list().fails(1);
    relay.signal("-HUP");
    relay.wait_for_log("secrets, admin_token and retention are as the configuration says now");

    list().ok();
    relay.terminate();
}

#[test]
fn completions_and_the_manual_are_generated() {
    let stage = Stage::sqlite();
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(stage.command(&[]).get_program());
        String::from_utf8(command.args(args).output().expect("runs").stdout).expect("text")
    };

    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]);
        assert!(script.contains("redrive") && script.contains("doctor"), "{shell}: {script}");
    }
    let file = stage.path().join("outboxd.bash");
    std::fs::write(&file, run(&["completions", "bash"])).expect("written");
    let completed = std::process::Command::new("bash")
        .args(["-c", "source \"$0\"; COMP_WORDS=(outboxd red); COMP_CWORD=1; _outboxd outboxd red outboxd; echo \"${COMPREPLY[@]}\""])
        .arg(&file)
        .output()
        .expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&completed.stdout).trim(), "redrive");
    let page = run(&["man"]);
    assert!(page.starts_with(".ie") && page.contains("OUTBOXD REDRIVE") && page.contains("SYNOPSIS"), "{page}");
    let page = page.replace("\\-", "-");
    let (_, list) = page.split_once(".SH \"OUTBOXD MESSAGES LIST\"").expect("a section of its own");
    let list = list.split(".SH \"OUTBOXD").next().expect("the section ends");
    assert!(list.contains("--state") && list.contains("--limit"), "{list}");
    assert!(page.contains("OUTBOXD PLUGIN CHECK") && !page.contains("OUTBOXD MESSAGES HELP"), "{page}");
}
