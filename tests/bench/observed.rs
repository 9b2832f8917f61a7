use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outboxd_core::{Claim, Held, Lane, LeaseStatus, MessageId, Settlement, Transition};
use outboxd_store::{DueTopic, Hold, OutboxStore, StoreError, Wake};
use tokio::sync::watch;

/// An [`OutboxStore`] that remembers what its statements did and when. Several relays may share what it saw.
pub struct Observed {
    inner: Arc<dyn OutboxStore>,
    seen: Arc<Seen>,
}

/// What relays did.
pub struct Seen {
    counts: watch::Sender<Counts>,
    times: Mutex<Times>,
}

#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub claimed: u64,
    pub delivered: u64,
}

#[derive(Default)]
struct Times {
    /// Seconds of each claim that found something, in their order, with what was arranged for it.
    claims: Vec<f64>,
    /// Seconds of arranging since the last of them.
    arranging: f64,
    delivered: HashMap<MessageId, Instant>,
}

impl Seen {
    pub fn new() -> Arc<Seen> {
        Arc::new(Seen { counts: watch::Sender::new(Counts::default()), times: Mutex::default() })
    }

    pub fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    /// Returns when so many were delivered and settled; panics when that takes so long that it will never end: a minute, and
    /// 5 ms a message.
    pub async fn delivered(&self, messages: u64) {
        let mut counts = self.counts.subscribe();
        let reached = counts.wait_for(|counts| counts.delivered >= messages);
        let limit = Duration::from_secs(60) + Duration::from_millis(5 * messages);
        let waited = tokio::time::timeout(limit, reached).await;
        assert!(matches!(waited, Ok(Ok(_))), "only {} of {messages} were delivered", self.counts().delivered);
    }

    pub fn claims(&self) -> Vec<f64> {
        self.times().claims.clone()
    }

    /// When its success was written.
    pub fn settled_at(&self, id: MessageId) -> Option<Instant> {
        self.times().delivered.get(&id).copied()
    }

    fn times(&self) -> std::sync::MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observed {
    pub fn new(inner: Arc<dyn OutboxStore>, seen: Arc<Seen>) -> Arc<Observed> {
        Arc::new(Observed { inner, seen })
    }
}

#[async_trait]
impl OutboxStore for Observed {
    async fn due_topics(&self) -> Result<Vec<DueTopic>, StoreError> {
        self.inner.due_topics().await
    }

    async fn arrange(&self, lanes: &[Lane], hold: Hold) -> Result<u64, StoreError> {
        let asked = Instant::now();
        let arranged = self.inner.arrange(lanes, hold).await?;
        self.seen.times().arranging += asked.elapsed().as_secs_f64();
        Ok(arranged)
    }

    async fn claim(&self, lanes: &[Lane], lease: Duration, lapses_max: u32) -> Result<Vec<Claim>, StoreError> {
        let asked = Instant::now();
        let claims = self.inner.claim(lanes, lease, lapses_max).await?;
        if !claims.is_empty() {
            let mut times = self.seen.times();
            let arranging = std::mem::take(&mut times.arranging);
            times.claims.push(arranging + asked.elapsed().as_secs_f64());
            drop(times);
            self.seen.counts.send_modify(|counts| counts.claimed += claims.len() as u64);
        }
        Ok(claims)
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<LeaseStatus>, StoreError> {
        self.inner.renew(held, lease).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let statuses = self.inner.settle(settlements).await?;
        let now = Instant::now();
        let delivered = settlements.iter().zip(&statuses).filter(|(settlement, status)| {
            settlement.transition == Transition::Delivered && **status == LeaseStatus::Held
        });
        let delivered: Vec<_> = delivered.map(|(settlement, _)| (settlement.id, now)).collect();
        let count = delivered.len() as u64;
        self.seen.times().delivered.extend(delivered);
        self.seen.counts.send_modify(|counts| counts.delivered += count);
        Ok(statuses)
    }

    async fn release(&self, released: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        self.seen.counts.send_modify(|counts| counts.claimed -= released.len() as u64);
        self.inner.release(released).await
    }

    async fn wait_for_work(&self, at_most: Duration) -> Wake {
        self.inner.wait_for_work(at_most).await
    }
}
