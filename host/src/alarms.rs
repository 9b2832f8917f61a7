//! When keys will have rested: a relay looks then, and not only at its next poll.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// So many are kept; the poll finds the rest.
const ALARMS_MAX: usize = 1000;

/// The ends of rests that this relay's own results began, as far as they come before the next poll.
pub struct Alarms {
    at: Mutex<BTreeSet<Instant>>,
    within: Duration,
}

impl Alarms {
    /// Keeps what ends within so much time.
    pub fn new(within: Duration) -> Self {
        Alarms { at: Mutex::default(), within }
    }

    /// A rest that ends after `time` was written just now: by the database's clock it began a little before.
    pub fn set(&self, time: Duration) {
        let mut at = self.at();
        if !time.is_zero() && time <= self.within && at.len() < ALARMS_MAX {
            at.insert(Instant::now() + time);
        }
    }

    /// How long until the next one. Forgets those that are over, and answers zero once where there were some: whoever looked just
    /// before has to look again.
    pub fn next(&self) -> Option<Duration> {
        let mut at = self.at();
        let now = Instant::now();
        let mut is_over = false;
        while at.first().is_some_and(|first| *first <= now) {
            is_over |= at.pop_first().is_some();
        }
        match is_over {
            true => Some(Duration::ZERO),
            false => at.first().map(|first| *first - now),
        }
    }

    // The set stays sound if a holder panicked: every change is a single step.
    fn at(&self) -> MutexGuard<'_, BTreeSet<Instant>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_next_rest_to_end_comes_first_and_what_the_poll_finds_is_not_kept() {
        let milliseconds = Duration::from_millis;
        let alarms = Alarms::new(milliseconds(1000));
        for ms in [300, 200, 1001, 0] {
            alarms.set(milliseconds(ms));
        }

        assert_eq!(alarms.next(), Some(milliseconds(200)));
        tokio::time::advance(milliseconds(200)).await;
        assert_eq!([alarms.next(), alarms.next()], [Some(Duration::ZERO), Some(milliseconds(100))]);
        tokio::time::advance(milliseconds(100)).await;
        assert_eq!([alarms.next(), alarms.next()], [Some(Duration::ZERO), None]);
    }
}
