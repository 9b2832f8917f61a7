//! A night on call as docs/operations.md tells it: two relays kept by a manager that does what the unit for systemd says, a
//! target that breaks, a relay that is killed, the page, a redrive, and an upgrade of the binary. Nothing is lost.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use outboxd_test_support::receiver::{Answer, Receiver};
use outboxd_test_support::wait_for;
use serde_json::Value;

use crate::health::{get, wait_until};
use crate::operations::{UNIT, run};
use crate::service::wait_until_told;
use crate::stage::{PATIENCE, RelayProcess, Stage};

/// What the unit says of `key`.
fn unit(key: &str) -> &'static str {
    let lines = UNIT.lines().filter_map(|line| line.split_once('='));
    lines.filter(|(name, _)| *name == key).map(|(_, value)| value).next().expect("the unit has the key")
}

/// One host's relay and its manager.
struct Service<'a> {
    stage: &'a Stage,
    /// What stands for `/usr/bin/outboxd`.
    installed: &'a Path,
    address: String,
    told: UnixDatagram,
    socket: PathBuf,
    process: Option<RelayProcess>,
}

impl<'a> Service<'a> {
    fn start(stage: &'a Stage, installed: &'a Path, number: u32) -> Service<'a> {
        let socket = stage.path().join(format!("notify-{number}"));
        let told = UnixDatagram::bind(&socket).expect("bound");
        told.set_read_timeout(Some(PATIENCE)).expect("set");
        // Each host has its own; here they are addresses of loopback that no other process of this machine takes.
        let [high, middle, low] = [16, 8, 0].map(|bits| (std::process::id() >> bits) & 0xff);
        let address = format!("127.{}.{middle}.{low}:{}", high + 1, 8787 + number);
        let mut service = Service { stage, installed, address, told, socket, process: None };
        service.begin();
        service
    }

    /// `ExecStart=`, and waits until it says that it is ready.
    fn begin(&mut self) {
        assert_eq!(unit("Type"), "notify");
        let exec = unit("ExecStart").replace("/usr/bin/outboxd", self.installed.to_str().expect("text"));
        let exec = exec.replace("/etc/outboxd/outboxd.toml", self.stage.config().to_str().expect("text"));
        let mut command = Command::new("env");
        command.args(exec.split(' ')).current_dir(self.stage.path()).env_remove("DATABASE_URL");
        command.env("OUTBOXD_CACHE", crate::stage::cache()).env("OUTBOXD_ADMIN", &self.address);
        command.env("NOTIFY_SOCKET", &self.socket);
        self.process = Some(self.stage.spawn(command));
        wait_until_told(&self.told, "READY=1");
    }

    /// `systemctl restart`.
    fn restart(&mut self) {
        let (status, _) = self.process.take().expect("it runs").terminate();
        assert!(status.success());
        self.begin();
    }

    /// It dies, and is started again.
    fn die(&mut self) {
        self.process.take().expect("it runs").kill();
        assert_eq!(unit("Restart"), "always");
        self.begin();
    }

    /// The file that runs.
    fn binary(&self) -> PathBuf {
        let pid = self.process.as_ref().expect("it runs").pid();
        std::fs::read_link(format!("/proc/{pid}/exe")).expect("it runs")
    }
}

/// Counts of topic `orders`: delivered, dead, live.
fn counts(stage: &Stage) -> (u64, u64, u64) {
    let stats: Value = serde_json::from_str(&stage.outboxd(&["stats", "--json"]).ok()).expect("JSON");
    let count = |state: &str| stats[0][state].as_u64().unwrap_or_default();
    (count("delivered"), count("dead"), count("pending") + count("processing"))
}

#[track_caller]
fn wait_for_counts(stage: &Stage, expected: (u64, u64, u64)) {
    let came = wait_for(PATIENCE, || counts(stage) == expected);
    assert!(came, "(delivered, dead, live) are {:?}, not {expected:?}", counts(stage));
}

#[test]
fn a_target_breaks_a_relay_is_killed_the_binary_is_upgraded_and_nothing_is_lost() {
    let receiver = Receiver::start();
    let stage = Stage::postgres();
    stage.install_webhook(&receiver.url("/orders"));
    let (old, new) = (PathBuf::from(env!("CARGO_BIN_EXE_outboxd")), stage.path().join("outboxd-new"));
    let installed = stage.path().join("outboxd");
    std::os::unix::fs::symlink(&old, &installed).expect("installed");
    let mut published = BTreeSet::new();
    let mut publish = |count| published.extend(stage.publish_lines("orders", &vec!["{}".to_owned(); count]));
    let mut relays = [0, 1].map(|number| Service::start(&stage, &installed, number));
    publish(20);
    wait_for_counts(&stage, (20, 0, 0));

    // The target breaks, and one relay with it.
    receiver.answer(|_| Answer::status(503).body("the shop is closed"));
    publish(30);
    relays[0].die();
    wait_for_counts(&stage, (20, 30, 0));

    // Whoever is on call sees it on the page of any relay, and on the command line.
    for relay in &relays {
        wait_until(&relay.address, "/", "Redrive all 30 dead");
        assert!(get(&relay.address, "/messages?state=dead").contains("the shop is closed"));
    }
    let seen = run(&stage, "outboxd stats", &[]);
    assert!(seen.matches("the shop is closed").count() > 30, "{seen}");

    // The target works again, and what died goes round.
    receiver.answer(|_| Answer::status(200));
    let said = run(&stage, "outboxd redrive", &[]);
    assert!(said.starts_with("30 dead letters go round again"), "{said}");
    wait_for_counts(&stage, (50, 0, 0));

    // A new binary, while messages go on coming.
    std::fs::copy(&old, &new).expect("copied");
    std::fs::remove_file(&installed).expect("replaced");
    std::os::unix::fs::symlink(&new, &installed).expect("installed");
    for relay in &mut relays {
        assert_ne!(relay.binary(), new);
        std::thread::scope(|threads| {
            threads.spawn(|| publish(20));
            relay.restart();
        });
        assert_eq!(relay.binary(), new);
    }
    wait_for_counts(&stage, (90, 0, 0));

    let received: BTreeSet<String> = receiver.received().iter().map(|received| received.id().to_owned()).collect();
    assert_eq!(received, published);
}
