//! The edges of the command line: odd values, empty variables, readers that stand still.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use outboxd_test_support::wait_for;

use crate::stage::{PATIENCE, Stage};

#[test]
fn what_cannot_be_meant_is_refused_as_wrong_usage() {
    let stage = Stage::sqlite();

    stage.outboxd(&["messages", "list", "--limit", "0"]).fails(2);
    stage.outboxd(&["messages", "list", "--reason", "tarp"]).fails(2);
    stage.outboxd(&["stats", "--database", "mysql://shop:s3cret-canary@db/shop"]).fails(2);
    let said = stage.outboxd(&["plugin", "list", "--admin", "off"]).fails(2);
    assert!(said.contains("\"off\""), "{said}");
}

#[test]
fn the_slowest_rate_there_is_redrives_nothing_into_a_panic() {
    let stage = Stage::sqlite();

    let said = stage.outboxd(&["redrive", "--all", "--rate", "1e-300/s"]).ok();

    assert!(said.contains("no dead letter"), "{said}");
}

#[test]
fn an_id_written_twice_counts_once_and_one_that_is_no_dead_letter_is_told() {
    let stage = Stage::sqlite();
    let id = stage.publish("orders", "{}");

    let said = stage.outboxd(&["redrive", &id]).fails(1);
    assert!(said.contains("1 of 1"), "{said}");
    stage.outboxd(&["messages", "discard", &id, &id]).ok();
    stage.outboxd(&["redrive", &id, &id]).ok();
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let stage = Stage::sqlite();
    let mut command = stage.command(&["stats"]);
    for name in ["OUTBOXD_DATABASE", "OUTBOXD_TABLE", "OUTBOXD_PLUGINS", "OUTBOXD_LOG", "DATABASE_URL"] {
        command.env(name, "");
    }

    let output = command.output().expect("outboxd runs");

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn stats_knows_the_plugins_folder_of_the_environment() {
    let stage = Stage::sqlite();
    let folder = stage.path().join("elsewhere");
    std::fs::create_dir(&folder).expect("made");
    std::fs::write(folder.join("orders.wasm"), "").expect("written");
    stage.publish("orders", "{}");

    let output = stage.command(&["stats"]).env("OUTBOXD_PLUGINS", &folder).output().expect("outboxd runs");

    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.contains("unrouted"), "{said}");
}

#[test]
fn publishing_before_the_outbox_is_there_says_what_to_do() {
    let stage = Stage::sqlite();

    for (flag, value) in [("--database", "sqlite:nowhere.db"), ("--table", "elsewhere")] {
        let said = stage.outboxd(&["publish", "orders", "--payload", "{}", flag, value]).fails(1);
        assert!(said.contains("outboxd migrate"), "{said}");
    }
}

#[test]
fn the_line_that_is_no_json_is_named() {
    let stage = Stage::sqlite();
    let file = stage.path().join("lines");
    std::fs::write(&file, "{}\n\n{broken\n").expect("written");

    let mut command = stage.command(&["publish", "orders", "--lines"]);
    let output = command.stdin(std::fs::File::open(&file).expect("open")).output().expect("outboxd runs");

    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("line 3"), "{said}");
}

#[test]
fn a_message_that_no_plugin_handles_is_told_by_once() {
    let stage = Stage::sqlite();
    stage.publish("orders", "{}");

    let finished = stage.outboxd(&["run", "--once"]);

    assert!(finished.stderr.contains("no plugin handles it"), "{}", finished.stderr);
    finished.ok();
}

#[test]
fn a_disk_that_is_full_is_a_failure_and_a_reader_that_went_away_is_none() {
    let stage = Stage::sqlite();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let (gone, ours) = UnixStream::pair().expect("a pair");
    drop(ours);

    let full = stage.command(&["stats"]).stdout(full).status().expect("outboxd runs");
    let gone = stage.command(&["stats"]).stdout(OwnedFd::from(gone)).status().expect("outboxd runs");

    assert_eq!((full.code(), gone.code()), (Some(1), Some(0)));
}

#[test]
fn a_reader_of_the_log_that_went_away_changes_no_exit_code() {
    let stage = Stage::sqlite();
    let (gone, ours) = UnixStream::pair().expect("a pair");
    drop(ours);

    let status = stage.command(&["messages", "list", "--state", "ded"]).stderr(OwnedFd::from(gone)).status();

    assert_eq!(status.expect("outboxd runs").code(), Some(2));
}

#[test]
fn a_reader_of_the_log_that_stands_still_stops_no_delivery() {
    use std::io::Write as _;
    let stage = Stage::sqlite();
    stage.install_verbs("");
    let id = stage.publish("verbs", r#"{"do":"succeed"}"#);
    let (mut log, _unread) = UnixStream::pair().expect("a pair");
    log.set_nonblocking(true).expect("set");
    while log.write(&[b'x'; 4096]).is_ok() {}
    log.set_nonblocking(false).expect("set");

    let mut command = stage.command(&["run", "--once"]);
    let mut child = command.stderr(OwnedFd::from(log)).stdout(Stdio::null()).spawn().expect("outboxd starts");

    let mut status = None;
    let ended = wait_for(PATIENCE, || {
        status = child.try_wait().expect("our child");
        status.is_some()
    });
    if !ended {
        child.kill().expect("our child");
        child.wait().expect("our child");
    }
    assert!(ended && status.is_some_and(|status| status.success()), "{status:?}");
    assert_eq!(stage.show(&id)["state"], "delivered");
}
