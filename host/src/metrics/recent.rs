use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::TOPICS_MAX;

/// How much of the past [`Recent`] keeps: so many slots of [`SLOT`] each.
pub const SLOTS: usize = 60;
pub const SLOT: Duration = Duration::from_secs(10);
const FAILURES_MAX: usize = 50;

/// The last ten minutes of this relay, in memory: what it delivered, what failed, and the latest failures. Only the first
/// [`TOPICS_MAX`] topics have a series.
pub struct Recent {
    started: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By topic, newest slot last: its number since the start, delivered, failed.
    series: HashMap<Arc<str>, VecDeque<(u64, u64, u64)>>,
    /// Some topic found no room for a series.
    is_full: bool,
    failures: VecDeque<Failure>,
}

/// One attempt that did not deliver.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// Milliseconds since the epoch, on this host's clock.
    pub at_ms: i64,
    pub id: String,
    pub topic: String,
    pub reason: String,
    pub error: String,
}

/// What a topic delivered and failed in each slot, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Series {
    pub delivered: Vec<u64>,
    pub failed: Vec<u64>,
}

impl Default for Recent {
    fn default() -> Self {
        Recent { started: Instant::now(), state: Mutex::default() }
    }
}

impl Recent {
    /// Counts one attempt that delivered.
    pub fn delivered(&self, topic: &Arc<str>) {
        self.with_slot(topic, |slot| slot.1 += 1);
    }

    /// Counts one attempt that failed, and keeps it among the latest.
    pub fn failed(&self, topic: &Arc<str>, failure: Failure) {
        self.with_slot(topic, |slot| slot.2 += 1);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failures.truncate(FAILURES_MAX - 1);
        state.failures.push_front(failure);
    }

    /// The latest failures, newest first.
    pub fn failures(&self) -> Vec<Failure> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).failures.iter().cloned().collect()
    }

    /// The last [`SLOTS`] slots of `topic`, up to now. Nothing where it may have found no room: that isn't zero.
    pub fn series(&self, topic: &str) -> Option<Series> {
        let mut series = Series { delivered: vec![0; SLOTS], failed: vec![0; SLOTS] };
        let now = self.slot();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_full && !state.series.contains_key(topic) {
            return None;
        }
        for (number, delivered, failed) in state.series.get(topic).into_iter().flatten() {
            let age = usize::try_from(now.saturating_sub(*number)).unwrap_or(usize::MAX);
            if age < SLOTS {
                series.delivered[SLOTS - 1 - age] += delivered;
                series.failed[SLOTS - 1 - age] += failed;
            }
        }
        Some(series)
    }

    fn with_slot(&self, topic: &Arc<str>, count: impl FnOnce(&mut (u64, u64, u64))) {
        let number = self.slot();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.series.len() >= TOPICS_MAX && !state.series.contains_key(topic) {
            state.is_full = true;
            return;
        }
        let slots = state.series.entry(topic.clone()).or_default();
        if slots.back().is_none_or(|slot| slot.0 < number) {
            slots.push_back((number, 0, 0));
            if slots.len() > SLOTS {
                slots.pop_front();
            }
        }
        if let Some(slot) = slots.back_mut() {
            count(slot);
        }
    }

    fn slot(&self) -> u64 {
        self.started.elapsed().as_secs() / SLOT.as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slot_moves_left_as_time_passes_and_is_forgotten() {
        let recent = Recent::default();
        recent.delivered(&"orders".into());

        tokio::time::advance(SLOT).await;
        assert_eq!(recent.series("orders").unwrap().delivered[SLOTS - 2..], [1, 0]);

        tokio::time::advance(SLOT * SLOTS as u32).await;
        assert_eq!(recent.series("orders").unwrap().delivered, vec![0; SLOTS]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_latest_failures_are_kept_and_no_more() {
        let recent = Recent::default();
        for n in 0..2 * FAILURES_MAX as i64 {
            let failure = Failure {
                at_ms: n,
                id: String::new(),
                topic: String::new(),
                reason: String::new(),
                error: String::new(),
            };
            recent.failed(&"orders".into(), failure);
        }

        let failures = recent.failures();
        assert_eq!((failures.len(), failures[0].at_ms), (FAILURES_MAX, 2 * FAILURES_MAX as i64 - 1));
        assert_eq!(recent.series("orders").unwrap().failed[SLOTS - 1], 2 * FAILURES_MAX as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_that_found_no_room_shows_no_false_zeros() {
        let recent = Recent::default();
        for n in 0..TOPICS_MAX {
            recent.delivered(&format!("topic-{n}").into());
        }
        assert_eq!(recent.series("idle").unwrap().delivered, vec![0; SLOTS]);

        recent.delivered(&"one-more".into());

        assert_eq!(recent.series("one-more"), None);
        assert_eq!(recent.series("topic-0").unwrap().delivered[SLOTS - 1], 1);
    }
}
