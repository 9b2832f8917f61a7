use std::time::Duration;

use crate::Backoff;

/// How often and how fast a topic's messages are tried.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// The attempt that is the last. Default 25: about 7 hours on average, so an outage of an evening kills nothing.
    pub max_attempts: u32,
    /// How long a released message waits when its plugin or the host is at fault. Default 1 s.
    pub pause: Duration,
    pub backoff: Backoff,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { max_attempts: 25, pause: Duration::from_secs(1), backoff: Backoff::default() }
    }
}
