use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wasmtime_wasi::{HostMonotonicClock, HostWallClock};

/// A guest's clocks move in steps of one millisecond: enough for timestamps, too coarse to time its neighbours by.
const STEP: Duration = Duration::from_millis(1);

pub(crate) struct CoarseWallClock;

impl HostWallClock for CoarseWallClock {
    fn resolution(&self) -> Duration {
        STEP
    }

    fn now(&self) -> Duration {
        // A machine whose clock stands before 1970 gives zero rather than a panic.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Duration::from_millis(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }
}

pub(crate) struct CoarseMonotonicClock(pub(crate) Instant);

impl HostMonotonicClock for CoarseMonotonicClock {
    fn resolution(&self) -> u64 {
        STEP.as_nanos() as u64
    }

    /// Begins with one step: Go's runtime takes a clock that stands at zero for a broken one.
    fn now(&self) -> u64 {
        let steps = u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        steps.saturating_mul(self.resolution())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_has_just_begun_is_not_at_zero() {
        assert!(CoarseMonotonicClock(Instant::now() + Duration::from_secs(60)).now() > 0);
    }
}
