use std::process::{Command, Stdio};

use outboxd_store::OnDelivered;
use outboxd_test_support::wait_for;

use crate::plugins;
use crate::report::Report;
use crate::stage::Stage;

const MESSAGES: u64 = 5_000;

/// What the real program holds after it has delivered in 64 slots.
pub async fn measure(stage: &Stage, report: &mut Report) {
    let outbox = stage.postgres(OnDelivered::Keep).await;
    outbox.fill(MESSAGES, 1).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    plugins::install(folder.path());
    std::fs::write(folder.path().join("parse.toml"), "topics = [\"*\"]\n[limits]\nconcurrency = 64\n")
        .expect("written");
    let mut relay = Command::new(env!("CARGO_BIN_EXE_outboxd"))
        .args(["run", "--admin", "off", "--database", &outbox.url, "--plugins"])
        .arg(folder.path())
        .current_dir(folder.path())
        .env("OUTBOXD_CACHE", folder.path().join("cache"))
        .stderr(Stdio::null())
        .spawn()
        .expect("outboxd starts");

    let mut connection = outbox.connection().await;
    let mut waiting = i64::MAX;
    for _ in 0..600 {
        let query = "select count(*) from outbox where state <> 'delivered'";
        waiting = sqlx::query_scalar(query).fetch_one(&mut connection).await.expect("counted");
        if waiting == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let resident = resident_mib(relay.id());
    outboxd_test_support::process::send_signal(relay.id(), 15);
    let ended = wait_for(std::time::Duration::from_secs(30), || matches!(relay.try_wait(), Ok(Some(_))));
    assert!(ended && waiting == 0, "the relay left {waiting} messages");
    report.add_with_target("resident memory, 64 slots", resident, "MiB", "at most 120");
}

fn resident_mib(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process of ours");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    let kib: f64 = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
    kib / 1024.0
}
