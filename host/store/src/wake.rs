use std::time::Duration;

use tokio::sync::Notify;

use crate::Wake;

/// Raised when something may be due; kept for the next wait where nobody waits.
#[derive(Default)]
pub(crate) struct Signal(Notify);

impl Signal {
    pub(crate) fn raise(&self) {
        self.0.notify_one();
    }

    pub(crate) async fn wait(&self, at_most: Duration) -> Wake {
        match tokio::time::timeout(at_most, self.0.notified()).await {
            Ok(()) => Wake::Notify,
            Err(_) => Wake::Poll,
        }
    }
}
