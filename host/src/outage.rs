//! Says once that something is failing, and once that it is over: not once a millisecond.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

#[derive(Debug)]
pub struct Outage {
    doing: &'static str,
    since: Option<Instant>,
    failures: u32,
}

impl Outage {
    /// `doing` completes "… fails".
    pub fn new(doing: &'static str) -> Self {
        Outage { doing, since: None, failures: 0 }
    }

    /// Notes a failure and answers how long to wait before the next try: 50 ms, doubling up to 1 s.
    pub fn note(&mut self, error: &dyn Display) -> Duration {
        let pause = Duration::from_millis(50).saturating_mul(1 << self.failures.min(8)).min(Duration::from_secs(1));
        self.failures = self.failures.saturating_add(1);
        if self.since.is_none() {
            self.since = Some(Instant::now());
            warn!("{} fails: {error}; trying again until it works", self.doing);
        }
        pause
    }

    pub fn over(&mut self) {
        if let Some(since) = self.since.take() {
            info!(
                "{} works again after {:.1} s and {} failures",
                self.doing,
                since.elapsed().as_secs_f64(),
                self.failures
            );
        }
        self.failures = 0;
    }
}
