//! Many messages changed in batches, the same from the command line, the page and the API.

use std::time::Duration;

use outboxd_store::{OutboxAdmin, Selection, StoreError};
use serde::Serialize;

/// Rows in one statement of those that match, at most.
const BATCH: u32 = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `spacing` from one to the next, so that a target that has just recovered isn't overrun.
    Redrive {
        spacing: Duration,
    },
    RetryNow,
    Discard,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Done {
    pub changed: u64,
    /// It stopped at its limit: more may match.
    pub more: bool,
}

/// The store failed after so many were changed.
#[derive(Debug, thiserror::Error)]
#[error("{}{error}", after(.changed))]
pub struct Broken {
    pub changed: u64,
    pub error: StoreError,
}

fn after(changed: &u64) -> String {
    if *changed == 0 { String::new() } else { format!("{changed} messages were changed, then it stopped: ") }
}

/// Changes at most `limit` messages. `progress` hears after each batch how many are changed so far.
pub async fn change(
    store: &dyn OutboxAdmin,
    change: Change,
    selection: &Selection,
    limit: u64,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Done, Broken> {
    let (mut most, batch_max) = match selection {
        // In one statement: what was made due is still pending, and a second one would count it again.
        Selection::Ids(ids) => (limit.min(ids.len() as u64), u32::MAX),
        Selection::Matching { .. } => (limit, BATCH),
    };
    let mut changed = 0;
    while changed < most {
        let batch = u32::try_from(most - changed).unwrap_or(u32::MAX).min(batch_max);
        let batch_changed = match change {
            Change::Redrive { spacing } => store.redrive(selection, batch, times(spacing, changed), spacing).await,
            Change::RetryNow => store.retry_now(selection, batch).await,
            Change::Discard => store.discard(selection, batch).await,
        };
        let batch_changed = batch_changed.map_err(|error| Broken { changed, error })?;
        let is_first = changed == 0;
        changed += batch_changed;
        progress(changed);
        if batch_changed < u64::from(batch) {
            return Ok(Done { changed, more: false });
        }
        if is_first && changed < most && matches!(change, Change::Redrive { .. }) {
            // What dies again meanwhile does not keep it going.
            most = most.min(changed.saturating_add(dead(store, selection).await));
        }
    }
    Ok(Done { changed, more: changed == limit })
}

/// Dead letters that may match. Counting a large table may time out: then only the limit bounds the work.
async fn dead(store: &dyn OutboxAdmin, selection: &Selection) -> u64 {
    let of = |name: &str| match selection {
        Selection::Matching { topic: Some(topic), .. } => name == topic,
        _ => true,
    };
    let topics = store.stats().await;
    topics.map_or(u64::MAX, |topics| topics.iter().filter(|stats| of(&stats.topic)).map(|stats| stats.dead).sum())
}

pub fn times(spacing: Duration, count: u64) -> Duration {
    spacing.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}
