//! Deletes finished messages past their retention, in batches that hold no long lock.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use outboxd_core::State;
use outboxd_store::{Finished, OutboxAdmin};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::outage::Outage;

/// How long finished messages are kept; `None` is for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Default 7 days. Zero: deleted on success, by the settle itself.
    pub delivered: Option<Duration>,
    /// Default: until a person acts.
    pub dead: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { delivered: Some(Duration::from_secs(7 * 24 * 3600)), dead: None }
    }
}

/// Rows in one statement, at most.
const BATCH: u32 = 1000;
const EVERY: Duration = Duration::from_secs(60);
/// Between batches, so that a purge never starves claims and settles.
const PAUSE: Duration = Duration::from_millis(50);

/// Purges every minute until `end`, as `retention` says at that time.
pub async fn purge_until(store: Arc<dyn OutboxAdmin>, retention: Arc<ArcSwap<Retention>>, end: CancellationToken) {
    let mut outage = Outage::new("purging");
    loop {
        let mut wait = EVERY;
        let retention = **retention.load();
        for (state, kept) in [(Finished::Delivered, retention.delivered), (Finished::Dead, retention.dead)] {
            let Some(older_than) = kept else { continue };
            match store.purge(state, older_than, BATCH).await {
                Ok(0) => outage.over(),
                Ok(purged) => {
                    outage.over();
                    info!(
                        "purged {purged} messages that were {} for more than {}",
                        word(state),
                        humantime::format_duration(older_than)
                    );
                    if purged >= u64::from(BATCH) {
                        wait = PAUSE;
                    }
                }
                Err(error) => {
                    outage.note(&error);
                }
            }
        }
        if end.run_until_cancelled(sleep(wait)).await.is_none() {
            return;
        }
    }
}

fn word(state: Finished) -> &'static str {
    match state {
        Finished::Delivered => State::Delivered.as_str(),
        Finished::Dead => State::Dead.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use outboxd_core::{Lane, Order, Settlement, Transition};
    use outboxd_store::{MemoryMessage, MemoryStore, MessageFilter, OutboxStore as _};

    use super::*;

    /// Longer than any wait between two rounds.
    const ROUND: Duration = Duration::from_secs(61);

    async fn delivered() -> Arc<MemoryStore> {
        let store = Arc::new(MemoryStore::default());
        store.put(MemoryMessage { topic: "a".into(), payload: b"{}".to_vec(), ..MemoryMessage::default() });
        let lanes = [Lane { topic: "a".into(), slots: 1, order: Order::None }];
        let claim = store.claim(&lanes, Duration::from_secs(30), u32::MAX).await.unwrap().remove(0);
        let transition = Transition::Delivered;
        store.settle(&[Settlement::of(&claim, transition)]).await.unwrap();
        store
    }

    #[tokio::test(start_paused = true)]
    async fn a_retention_that_changes_counts_from_the_next_round_on() {
        let store = delivered().await;
        let kept = |delivered| Retention { delivered, dead: None };
        let retention = Arc::new(ArcSwap::from_pointee(kept(None)));
        let end = CancellationToken::new();
        let purger = tokio::spawn(purge_until(store.clone(), retention.clone(), end.clone()));
        let rows = async || store.list(&MessageFilter::default(), None, 10).await.unwrap().len();

        sleep(ROUND).await;
        assert_eq!(rows().await, 1, "for ever");
        retention.store(Arc::new(kept(Some(Duration::from_secs(1)))));
        sleep(ROUND).await;
        assert_eq!(rows().await, 0);

        end.cancel();
        purger.await.unwrap();
    }
}
