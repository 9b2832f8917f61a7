use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::{Message, MessageId, Order, Rest, Transition};

/// The right to settle one attempt: 128 random bits, new at every claim, derived from nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub Uuid);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a delivery try, counted from 1 at the claim. A count, never a fence: a release gives one back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u32);

/// How many messages of one topic a claim may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    pub topic: String,
    pub slots: u32,
    pub order: Order,
}

/// A message under a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub message: Message,
    pub lease_id: LeaseId,
    pub attempt: Attempt,
    /// How many leases of this message were lost without a settle, this claim's finding included.
    pub lapses: u32,
    /// This very claim took the message over from a lease that was lost.
    pub lapsed: bool,
    /// The message's `expires_at` has passed, on the database's clock.
    pub expired: bool,
    /// As its lane said.
    pub order: Order,
    /// How many calls of its key the target has failed in a row; 0 where keys are no unit of delivery.
    pub key_failures: u32,
}

/// What renewing needs to know of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub id: MessageId,
    pub lease_id: LeaseId,
}

/// Whether a statement that is fenced by `(id, lease id)` found its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    Held,
    /// Another relay may hold the message, or it was settled or deleted: nothing was changed.
    Lost,
}

/// The consequence of one attempt, to be written under its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub id: MessageId,
    pub lease_id: LeaseId,
    pub transition: Transition,
    /// As the claim's lane said.
    pub order: Order,
    /// What the call tells its key.
    pub rest: Rest,
    pub record: AttemptRecord,
}

impl Settlement {
    /// Of an attempt of which nothing but its number is recorded; its key does not rest.
    pub fn of(claim: &Claim, transition: Transition) -> Settlement {
        Settlement {
            id: claim.message.id,
            lease_id: claim.lease_id,
            transition,
            order: claim.order,
            rest: Rest::default(),
            record: AttemptRecord::of(claim.attempt),
        }
    }
}

/// What the row's `history` keeps of an attempt, beside when it was settled, its result, reason and error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    pub attempt: Attempt,
    pub took: Duration,
    /// The last HTTP status the target answered during this attempt.
    pub http_status: Option<u16>,
    /// The start of the target's last answer, made safe by [`crate::safe_text`].
    pub response_excerpt: Option<String>,
    /// The digest of the plugin version that ran.
    pub digest: Option<String>,
}

impl AttemptRecord {
    /// Of an attempt of which nothing but its number is known.
    pub fn of(attempt: Attempt) -> AttemptRecord {
        AttemptRecord { attempt, took: Duration::ZERO, http_status: None, response_excerpt: None, digest: None }
    }
}
