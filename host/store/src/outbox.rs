use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::{Claim, Held, Lane, LeaseStatus, Order, Settlement};

use crate::StoreError;

/// A topic that has something due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueTopic {
    pub topic: String,
    /// How long its oldest due message has been waiting, on the database's clock.
    pub oldest_due: Duration,
}

/// What a relay asks of the outbox. Each method is one statement of its own: no transaction is ever left open, and no
/// future of these (but [`OutboxStore::wait_for_work`]) may be dropped half-way.
#[async_trait]
pub trait OutboxStore: Send + Sync {
    /// The topics that have a due message, or a key whose next message may go, and are not paused, oldest due first. Costs an
    /// index probe a topic, not a row.
    async fn due_topics(&self) -> Result<Vec<DueTopic>, StoreError>;

    /// Prepares a claim of those `lanes` in which keys are a unit of delivery; the others are none of its business. Of each
    /// key it chooses the message whose turn it is, the first in publish order, or so many as the lane allows, and makes of the
    /// others `held` that are due what `hold` says; keys that have nothing left it forgets. Answers how many messages it found a
    /// place for and how many keys it forgot: where that is some, another look may find more.
    async fn arrange(&self, lanes: &[Lane], hold: Hold) -> Result<u64, StoreError>;

    /// Leases due messages, oldest due first: of each lane at most its slots, of a paused topic none, and none that would
    /// have lost more than `lapses_max` leases by now. Of a lane in which keys are a unit of delivery only what
    /// [`OutboxStore::arrange`] has chosen, and messages without a key.
    ///
    /// Counts the attempt, and a lapse where the message was still `processing`. The lease ends `lease` after the
    /// database's now.
    async fn claim(&self, lanes: &[Lane], lease: Duration, lapses_max: u32) -> Result<Vec<Claim>, StoreError>;

    /// Extends leases by `lease` from the database's now; answers in the order of `held`, which names no message twice.
    /// `Lost` means another relay may already hold the message: stop work and do not settle.
    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<LeaseStatus>, StoreError>;

    /// Writes each transition whose lease is still held, all in one statement; the others change nothing and are `Lost`.
    /// Answers in the order of `settlements`, which name no message twice. Takes every transition but `Released`. Where the
    /// settlement's order says so, the next message of its key may go; of an ordered key that does not rest it has its turn at once.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError>;

    /// Gives messages back, attempts unspent, lapses as they were, due again after the transition's delay.
    /// Answers in the order of `released`, which name no message twice. Takes `Released` only.
    async fn release(&self, released: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError>;

    /// Returns when something may be due, or after `at_most`, and says which. Early returns are harmless. Of a wait of less
    /// than 25 ms producers are not told: they need not wake anybody for it.
    ///
    /// May be dropped: it waits on a signal that the listener's own task raises, never on the database itself. A signal
    /// raised while nobody waits is kept for the next wait.
    async fn wait_for_work(&self, at_most: Duration) -> Wake;
}

/// Which due messages an arrange holds that wait for their key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// All: what is due then can start.
    All,
    /// Of ordered keys those at whose head nothing is. Behind a head their turn mostly comes soon, and to hold a message and let it
    /// go is two writes.
    Headless,
}

/// How many due messages of an ordered topic are looked at in one statement. Each costs a look at its key, and where many
/// are asked for most of those that may go come first.
pub(crate) fn window(lanes: &[&Lane]) -> i64 {
    (8 * slots_max(lanes)).clamp(200, 500)
}

/// How many free keys of an ordered topic go on, or are forgotten, in one statement: enough for a few claims.
pub(crate) fn keys_max(lanes: &[&Lane]) -> i64 {
    4 * slots_max(lanes)
}

/// The largest lane's slots.
pub(crate) fn slots_max(lanes: &[&Lane]) -> i64 {
    i64::from(lanes.iter().map(|lane| lane.slots).max().unwrap_or(0))
}

/// Lanes by how the messages of their keys follow each other: each kind has its own statement.
#[derive(Default)]
pub(crate) struct Kinds<'a> {
    /// Keys are no unit of delivery.
    pub(crate) plain: Vec<&'a Lane>,
    pub(crate) ordered: Vec<&'a Lane>,
    /// So many messages of a key at a time.
    pub(crate) limited: Vec<&'a Lane>,
}

/// Those that have slots.
pub(crate) fn kinds(lanes: &[Lane]) -> Kinds<'_> {
    let mut kinds = Kinds::default();
    for lane in lanes.iter().filter(|lane| lane.slots > 0) {
        match lane.order {
            Order::None => kinds.plain.push(lane),
            Order::ByKey { .. } => kinds.ordered.push(lane),
            Order::Limited { .. } => kinds.limited.push(lane),
        }
    }
    kinds
}

/// How many messages of a key of that lane may be under way at once.
pub(crate) fn per_key(lane: &Lane) -> i64 {
    match lane.order {
        Order::Limited { per_key } => i64::from(per_key.max(1)),
        Order::None | Order::ByKey { .. } => 1,
    }
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    Notify,
    Poll,
}
