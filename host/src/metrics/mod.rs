//! Every metric: its name, unit, labels and help. The relay holds no counters: [`Metered`] wraps the seams.
//!
//! Labels are bounded: topics past the first [`TOPICS_MAX`] are counted as `other`; ids, hosts and texts are never labels.

mod gauges;
mod metered;
mod recent;

use std::time::Duration;

use metrics::{describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;

pub use gauges::{Snapshot, watch_until};
pub use metered::{Metered, MeteredHandlers};
pub use recent::{Failure, Recent, SLOT, SLOTS, Series};

/// Distinct topics that get a label of their own.
pub const TOPICS_MAX: usize = 200;

const UPKEEP: Duration = Duration::from_secs(5);

const SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0];

/// Drains what histograms have gathered, until `end`: they would grow for ever where nobody reads the metrics.
pub async fn upkeep_until(metrics: PrometheusHandle, end: CancellationToken) {
    while end.run_until_cancelled(tokio::time::sleep(UPKEEP)).await.is_some() {
        metrics.run_upkeep();
    }
}

/// Installs the recorder of this process and describes every metric. Called once.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS)?
        .install_recorder()?;
    describe_gauge!("outboxd_messages", "Messages by topic and state");
    describe_gauge!("outboxd_oldest_due_seconds", "How long the oldest due message of a topic has been waiting");
    describe_gauge!("outboxd_unrouted_messages", "Live messages of a topic that no plugin handles");
    describe_gauge!("outboxd_blocked_keys", "Keys of ordered topics whose messages wait behind a dead letter");
    describe_gauge!("outboxd_resting_keys", "Keys whose target rests");
    describe_gauge!("outboxd_topics_parked", "1 where a topic waits because its plugin is unhealthy");
    describe_gauge!(
        "outboxd_listener_up",
        "1 while notifications of new messages reach this relay, 0 while it only polls"
    );
    describe_gauge!(
        "outboxd_oldest_snapshot_seconds",
        "Age of the transaction that keeps dead rows from being removed"
    );
    describe_gauge!("outboxd_plugin_info", "1 for each plugin version that serves");
    describe_counter!("outboxd_claimed_total", "Messages claimed");
    describe_counter!("outboxd_settled_total", "Attempts settled, by result: delivered, retry, dead, released");
    describe_counter!("outboxd_failures_total", "Attempts that did not deliver, by reason");
    describe_counter!("outboxd_key_rests_total", "Pauses of a key, by cause: plugin, retry-after, failures");
    describe_counter!("outboxd_settles_fenced_total", "Results dropped because the lease was lost");
    describe_counter!("outboxd_settles_unknown_total", "Results whose fate the database did not tell");
    describe_counter!("outboxd_leases_lapsed_total", "Claims that took a message over from a lost lease");
    describe_counter!(
        "outboxd_calls_interrupted_total",
        "Messages given back by a stop, or since their turn did not come"
    );
    describe_counter!("outboxd_plugin_reloads_total", "Plugin versions loaded or refused, by result");
    describe_counter!("outboxd_log_lines_dropped_total", "Log lines that nothing read from stderr in time");
    describe_counter!("outboxd_wakes_total", "Waits that ended, by source: notify, poll");
    describe_histogram!("outboxd_call_seconds", "Duration of a plugin's call");
    describe_histogram!("outboxd_delivery_seconds", "From publish to settled as delivered");
    // A counter that is there from the start lets an alert see its first step.
    for name in [
        "outboxd_settles_fenced_total",
        "outboxd_settles_unknown_total",
        "outboxd_leases_lapsed_total",
        "outboxd_calls_interrupted_total",
    ] {
        metrics::counter!(name).increment(0);
    }
    Ok(handle)
}
