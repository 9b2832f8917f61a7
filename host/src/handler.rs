//! The seam between the relay and what delivers: plugins implement it, tests fake it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::{Admission, Claim, Order, Outcome, Rate, RetryPolicy, Target};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// One attempt: whatever goes wrong is an outcome, not an error.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Handles one attempt, within a deadline of the handler's own. Ends soon after `call.stop` is cancelled, as a fault
    /// `interrupted` of the host.
    async fn handle(&self, claim: &Claim, call: CallControl) -> Handled;

    /// The threads that its calls run on, where they are not the relay's: an attempt that lives there crosses to no other
    /// thread and back.
    fn threads(&self) -> Option<Handle> {
        None
    }
}

/// What bounds one call.
#[derive(Clone, Debug)]
pub struct CallControl {
    /// Cancelled when the lease is lost or the relay leaves: the outcome will not be used, or is `interrupted`.
    pub stop: CancellationToken,
}

/// What an attempt came to, and what its record keeps.
#[derive(Clone, Debug)]
pub struct Handled {
    pub outcome: Outcome,
    /// The digest of the version that ran.
    pub digest: Option<Arc<str>>,
    pub http_status: Option<u16>,
    pub response_excerpt: Option<String>,
    /// The plugin asked that the message's key rest so long.
    pub pause_key: Option<Duration>,
    /// What the host saw of the target.
    pub target: Target,
}

impl Handled {
    /// An outcome about which nothing else is known.
    pub fn new(outcome: Outcome) -> Self {
        Handled {
            outcome,
            digest: None,
            http_status: None,
            response_excerpt: None,
            pause_key: None,
            target: Target::Unseen,
        }
    }
}

/// Which handler serves which topic just now. A reload changes the answers; attempts under way keep what they were given.
pub trait Handlers: Send + Sync {
    /// The route of `topic`, or nothing: its messages then wait, unrouted.
    fn route(&self, topic: &str) -> Option<Route>;

    /// How many plugins share the relay's slots.
    fn plugins(&self) -> usize;
}

/// Where a topic's messages go.
#[derive(Clone)]
pub struct Route {
    /// Topics of one plugin share its slots.
    pub plugin: Arc<str>,
    pub handler: Arc<dyn Handler>,
    pub policy: Arc<RetryPolicy>,
    /// How many calls of the plugin may run at once.
    pub concurrency: usize,
    /// How messages of one key follow each other.
    pub order: Order,
    /// What lies at least between the beginnings of two calls of a key, in the whole fleet; zero: nothing.
    pub spacing: Duration,
    /// How many calls of the plugin one relay begins, at most.
    pub rate: Option<Rate>,
    /// Whether its messages may be claimed just now.
    pub admission: Admission,
}

impl Route {
    /// Its plugin is unhealthy: its messages wait, but for trials.
    pub fn is_parked(&self) -> bool {
        self.admission != Admission::Open
    }
}
