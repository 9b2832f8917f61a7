use std::process::Command;

use serde_json::Value;

use crate::report::Report;
use crate::stage::Stage;

/// Other queues, each draining as many no-op messages from a database of its own on the same server.
pub async fn measure(stage: &Stage, report: &mut Report, messages: u64) {
    for peer in ["graphile-worker", "pg-boss", "procrastinate", "pgqueuer", "grelmicro"] {
        match drain(&stage.postgres.database(), peer, messages) {
            Ok(rate) => report.add(format!("{peer}: drain"), rate, "messages/s"),
            Err(why) => eprintln!("{peer} was not measured: {why}"),
        }
    }
}

fn drain(database: &str, peer: &str, messages: u64) -> Result<f64, String> {
    let peers = outboxd_test_support::repository().join("tests/bench/peers");
    let output = Command::new(peers.join("drain")).args([peer, database, &messages.to_string()]).output();
    let output = output.map_err(|error| error.to_string())?;
    let answer = String::from_utf8_lossy(&output.stdout);
    let rate = answer.lines().last().and_then(|line| serde_json::from_str::<Value>(line).ok());
    rate.and_then(|rate| rate["per_second"].as_f64())
        .ok_or_else(|| String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no answer").to_string())
}
