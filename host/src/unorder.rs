//! Lets go of messages that were held for their key, once their topic is not ordered or limited by key any more.

use std::sync::Arc;
use std::time::Duration;

use outboxd_core::Order;
use outboxd_store::{OutboxAdmin, StoreError};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::handler::Handlers;
use crate::outage::Outage;

/// Rows in one statement, at most.
const BATCH: u32 = 1000;
/// Statements for one topic in one look, at most: where two relays read different manifests, one holds again what the other lets
/// go, and neither would come to an end.
const BATCHES_MAX: u32 = 100;
const EVERY: Duration = Duration::from_secs(5);

/// Looks for such topics every few seconds until `end`.
pub async fn unorder_until(store: Arc<dyn OutboxAdmin>, handlers: Arc<dyn Handlers>, end: CancellationToken) {
    let mut outage = Outage::new("letting go of what is not ordered any more");
    loop {
        match unorder(&*store, &*handlers, &end).await {
            Ok(_) => outage.over(),
            Err(error) => {
                outage.note(&error);
            }
        }
        if end.run_until_cancelled(sleep(EVERY)).await.is_none() {
            return;
        }
    }
}

/// One such look; answers how many rows it changed. A topic without a plugin is left as it is: its messages wait anyway, and it may be ordered again.
pub async fn unorder(
    store: &dyn OutboxAdmin,
    handlers: &dyn Handlers,
    end: &CancellationToken,
) -> Result<u64, StoreError> {
    let mut all = 0;
    let unordered = |topic: &String| handlers.route(topic).is_some_and(|route| route.order == Order::None);
    for topic in store.ordered_topics().await?.into_iter().filter(unordered) {
        let mut changed = 0;
        for _ in 0..BATCHES_MAX {
            match end.is_cancelled() {
                true => break,
                false => match store.unorder(&topic, BATCH).await? {
                    0 => break,
                    some => changed += some,
                },
            }
        }
        if changed > 0 {
            info!("topic {topic:?} is not ordered or limited by key any more: what waited for its key is let go");
        }
        all += changed;
    }
    Ok(all)
}
