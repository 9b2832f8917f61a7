use std::time::Duration;

use crate::{Attempt, planted};

/// Capped exponential backoff with full jitter: the wait after attempt n is drawn from `[0, min(max, base · 2^(n-1))]`
/// (Brooker, "Exponential Backoff and Jitter", AWS 2015).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Default 1 s.
    pub base: Duration,
    /// No wait passes it, whoever asks. Default 1 h.
    pub max: Duration,
    /// The share of the wait that is drawn: 1.0 is full jitter, 0.0 none. Default 1.0.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { base: Duration::from_secs(1), max: Duration::from_secs(3600), jitter: 1.0 }
    }
}

/// A number in `[0, 1]`, drawn by the caller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter(f64);

impl Jitter {
    /// The number drawn.
    pub fn share(self) -> f64 {
        self.0
    }

    /// Values outside `[0, 1]`, and NaN, are brought inside.
    pub fn new(drawn: f64) -> Self {
        Jitter(if drawn.is_nan() { 1.0 } else { drawn.clamp(0.0, 1.0) })
    }
}

impl Backoff {
    /// The wait after `attempt` failed. Saturates: no attempt overflows, none waits longer than `max`.
    pub fn delay(&self, attempt: Attempt, jitter: Jitter) -> Duration {
        let doublings = planted!(26, attempt.0.saturating_sub(1) % 8, attempt.0.saturating_sub(1).min(31));
        let full = self.base.saturating_mul(1 << doublings).min(self.max);
        let share = self.jitter.clamp(0.0, 1.0);
        full.mul_f64(1.0 - share * (1.0 - jitter.0)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_wait_never_passes_the_ceiling(attempt: u32, drawn in 0.0..=1.0f64, base_ms in 0u64..u64::MAX / 2, max_ms in 0u64..1 << 40, jitter in 0.0..=1.0f64) {
            let backoff = Backoff { base: Duration::from_millis(base_ms), max: Duration::from_millis(max_ms), jitter };

            prop_assert!(backoff.delay(Attempt(attempt), Jitter::new(drawn)) <= backoff.max);
        }

        #[test]
        fn without_jitter_waits_never_shrink(attempt in 1u32..u32::MAX) {
            let backoff = Backoff { jitter: 0.0, ..Backoff::default() };

            prop_assert!(backoff.delay(Attempt(attempt), Jitter::new(0.3)) <= backoff.delay(Attempt(attempt + 1), Jitter::new(0.3)));
        }
    }

    #[test]
    fn a_huge_attempt_gives_the_cap() {
        let backoff = Backoff::default();

        assert_eq!(backoff.delay(Attempt(1 << 31), Jitter::new(1.0)), backoff.max);
        assert_eq!(backoff.delay(Attempt(u32::MAX), Jitter::new(1.0)), backoff.max);
    }

    #[test]
    fn the_first_waits_double_from_the_base() {
        let waits = [1, 2, 3, 4].map(|n| Backoff::default().delay(Attempt(n), Jitter::new(1.0)).as_secs());

        assert_eq!(waits, [1, 2, 4, 8]);
    }

    #[test]
    fn full_jitter_reaches_zero() {
        assert_eq!(Backoff::default().delay(Attempt(9), Jitter::new(0.0)), Duration::ZERO);
    }
}
