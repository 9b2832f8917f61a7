//! `outboxd run --once`: to the end of what is due, and of what only the spacing of its key's calls holds back.

use std::time::Duration;

use outboxd_core::RestCause;
use outboxd_store::{KeyFilter, KeyState, KeySummary, OutboxAdmin, StoreError};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::relay::{Relay, Stopped};

/// So many keys that rest are looked at.
const KEYS_MAX: u32 = 1000;

/// Delivers until nothing is due and no key with a message left rests for `per_key_rate`. A key that rests for another reason is
/// not waited for: its target or its plugin wants to be left alone. An error of the database ends it.
pub async fn deliver(
    relay: &Relay,
    admin: &dyn OutboxAdmin,
    shutdown: &CancellationToken,
) -> Result<Stopped, StoreError> {
    loop {
        let stopped = relay.run_once(shutdown.clone()).await?;
        if shutdown.is_cancelled() {
            return Ok(stopped);
        }
        let filter = KeyFilter { topic: None, state: Some(KeyState::Paused) };
        match until_spaced(&admin.keys(&filter, KEYS_MAX).await?) {
            Some(next) => drop(shutdown.run_until_cancelled(sleep(next)).await),
            None => return Ok(stopped),
        }
    }
}

/// How long until the first of those keys has rested that are spaced and have a message.
fn until_spaced(keys: &[KeySummary]) -> Option<Duration> {
    let is_spaced = |key: &&KeySummary| key.reason.as_deref() == Some(RestCause::Rate.as_str());
    let has_messages = |key: &&KeySummary| key.depth > 0 || key.head.is_some();
    let spaced = keys.iter().filter(is_spaced).filter(has_messages);
    // What is left of a millisecond was cut.
    spaced.filter_map(|key| key.due_in_ms).min().map(|ms| Duration::from_millis(ms + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_for_the_first_of_the_spaced_keys_that_have_a_message() {
        let key = |reason: &str, depth, due_in_ms| KeySummary {
            topic: "orders".into(),
            key: "a".into(),
            state: KeyState::Paused.as_str().into(),
            head: None,
            since_ms: 0,
            reason: Some(reason.into()),
            error: None,
            due_in_ms: Some(due_in_ms),
            depth,
        };
        let others = [key("plugin", 1, 10), key("failures", 1, 10), key("rate", 0, 10)];
        let spaced = [key("rate", 1, 300), key("rate", 7, 200)];

        assert_eq!(until_spaced(&others), None);
        assert_eq!(until_spaced(&[&others[..], &spaced].concat()), Some(Duration::from_millis(201)));
    }
}
