use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::Wake;

/// Raised when something may be due; kept for the next wait where nobody waits.
#[derive(Default)]
pub(crate) struct Signal {
    raised: Notify,
    /// Whether a publish raised it, or only time.
    notified: AtomicBool,
}

impl Signal {
    /// Something was published.
    pub(crate) fn raise(&self) {
        self.notified.store(true, Ordering::Relaxed);
        self.raised.notify_one();
    }

    /// It is time to look again.
    pub(crate) fn nudge(&self) {
        self.raised.notify_one();
    }

    pub(crate) async fn wait(&self, at_most: Duration) -> Wake {
        // Which of the two ended the wait is told by who raised it.
        let _ = tokio::time::timeout(at_most, self.raised.notified()).await;
        if self.notified.swap(false, Ordering::Relaxed) { Wake::Notify } else { Wake::Poll }
    }
}
