use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics::gauge;
use outboxd_store::{Listening, OutboxAdmin, SnapshotHolder, TopicStats};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::TOPICS_MAX;
use crate::handler::Handlers;

const EVERY: Duration = Duration::from_secs(5);

/// An answer older than this means that the database is away.
const FRESH: Duration = Duration::from_secs(30);

/// The latest look at the database, kept in memory so that health and metrics answer while it is away.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When the database answered; nothing while it is away.
    pub answered_at: Option<Instant>,
    /// When the topics were counted; nothing before the first time.
    pub counted_at: Option<Instant>,
    /// When a person changed a topic, here, last.
    pub changed_at: Option<Instant>,
    pub topics: Vec<TopicStats>,
    /// Who holds the database's oldest snapshot.
    pub holder: Option<SnapshotHolder>,
    pub listening: Listening,
}

impl Snapshot {
    /// Whether the database answers.
    pub fn answers(&self) -> bool {
        self.answered_at.is_some_and(|at| at.elapsed() < FRESH)
    }
}

/// Reads the topics' numbers again and again, until `end`. Where counting is slow it counts less often, so that it takes a
/// twentieth of the time at most.
pub async fn watch_until(
    store: Arc<dyn OutboxAdmin>,
    handlers: Arc<dyn Handlers>,
    latest: Arc<ArcSwap<Snapshot>>,
    end: CancellationToken,
) {
    let mut shown: HashSet<String> = HashSet::new();
    let mut count_at = Instant::now();
    loop {
        // Apart from counting, which may be slow or time out in a large table whose database answers well.
        let answered_at = store.ping().await.ok().map(|()| Instant::now());
        let listening = store.listening();
        // Nobody, too, where it cannot be asked: what is gone must not stand there.
        let holder = match answered_at {
            Some(_) => store.oldest_snapshot().await.ok().flatten(),
            None => None,
        };
        show_database(listening, holder.as_ref());
        latest.rcu(|last| Snapshot { answered_at, listening, holder: holder.clone(), ..Snapshot::clone(last) });
        let started = Instant::now();
        // Claiming says that the database is away; here it only ages the snapshot.
        if answered_at.is_some() && count_at <= started {
            let mut is_outdated = false;
            if let Ok(topics) = store.stats().await {
                show(&topics, &*handlers, &mut shown);
                latest.rcu(|last| {
                    // A count that began before a person's change may not know of it.
                    is_outdated = last.changed_at.is_some_and(|changed_at| changed_at >= started);
                    let counted_at = Some(started);
                    match is_outdated {
                        true => last.clone(),
                        false => Arc::new(Snapshot { counted_at, topics: topics.clone(), ..Snapshot::clone(last) }),
                    }
                });
            }
            if !is_outdated {
                count_at = Instant::now() + 20 * started.elapsed();
            }
        }
        if end.run_until_cancelled(sleep(EVERY)).await.is_none() {
            return;
        }
    }
}

fn show_database(listening: Listening, holder: Option<&SnapshotHolder>) {
    if listening != Listening::Never {
        gauge!("outboxd_listener_up").set(f64::from(u8::from(listening == Listening::Yes)));
    }
    gauge!("outboxd_oldest_snapshot_seconds").set(holder.and_then(|holder| holder.age_s).unwrap_or(0.0));
}

fn show(topics: &[TopicStats], handlers: &dyn Handlers, shown: &mut HashSet<String>) {
    for topic in topics {
        if shown.len() < TOPICS_MAX {
            shown.insert(topic.topic.clone());
        }
    }
    for name in shown.iter() {
        let empty = TopicStats::default();
        let stats = topics.iter().find(|topic| topic.topic == *name).unwrap_or(&empty);
        let by_state = [
            ("pending", stats.pending),
            ("processing", stats.processing),
            ("held", stats.held),
            ("delivered", stats.delivered),
            ("dead", stats.dead),
        ];
        for (state, count) in by_state {
            gauge!("outboxd_messages", "topic" => name.clone(), "state" => state).set(count as f64);
        }
        let oldest = stats.oldest_due_ms.unwrap_or(0) as f64 / 1000.0;
        gauge!("outboxd_oldest_due_seconds", "topic" => name.clone()).set(oldest);
        gauge!("outboxd_blocked_keys", "topic" => name.clone()).set(stats.blocked_keys as f64);
        gauge!("outboxd_resting_keys", "topic" => name.clone()).set(stats.resting_keys as f64);
        let route = handlers.route(name);
        let unrouted = if route.is_none() { stats.live() } else { 0 };
        gauge!("outboxd_unrouted_messages", "topic" => name.clone()).set(unrouted as f64);
        let parked = route.is_some_and(|route| route.is_parked());
        gauge!("outboxd_topics_parked", "topic" => name.clone()).set(f64::from(u8::from(parked)));
    }
}
