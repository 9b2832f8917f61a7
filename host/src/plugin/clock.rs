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

    fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_mul(1_000_000)
    }
}
