use std::process::Command;

use outboxd_store::OnDelivered;
use serde_json::Value;

use crate::drain;
use crate::plugins::Component;
use crate::report::{Report, median};
use crate::stage::Stage;

/// Another queue.
struct Peer {
    name: &'static str,
    /// Of how many messages it is measured at most: a slow one would take minutes.
    messages_max: u64,
    /// How much more than its rate ours should be.
    target: Option<&'static str>,
}

const PEERS: [Peer; 6] = [
    Peer { name: "graphile-worker", messages_max: u64::MAX, target: Some("at least 1.5") },
    Peer { name: "pg-boss", messages_max: u64::MAX, target: Some("at least 3") },
    Peer { name: "apalis", messages_max: u64::MAX, target: None },
    Peer { name: "pgqueuer", messages_max: 10_000, target: None },
    Peer { name: "grelmicro", messages_max: 10_000, target: Some("at least 8") },
    Peer { name: "procrastinate", messages_max: 1_000, target: None },
];

/// Other queues, each draining no-op messages from a database of its own on the same server, after a drain of ours.
pub async fn measure(stage: &Stage, report: &mut Report, messages: u64, rounds: usize) {
    let component = Component::load().await;
    for Peer { name, messages_max, target } in PEERS {
        let (mut ours, mut theirs) = (vec![], vec![]);
        for _ in 0..rounds {
            let outbox = stage.postgres(OnDelivered::Delete).await;
            outbox.fill(messages, 1).await;
            ours.push(drain::drain(&outbox, component.handlers(), messages, 1).await.rate);
            match drain(&stage.postgres.database(), name, messages.min(messages_max)) {
                Ok(rate) => theirs.push(rate),
                Err(why) => {
                    eprintln!("{name} was not measured: {why}");
                    break;
                }
            }
        }
        if theirs.len() == rounds {
            report.add(format!("{name}: drain"), median(&theirs), "messages/s");
            report.add_with_target(format!("drain, over {name}"), drain::ratio(&ours, &theirs), "x", target);
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
