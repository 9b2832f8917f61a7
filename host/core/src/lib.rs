//! The words and the decisions of outboxd.
//!
//! A **message** is a row of the outbox. A relay **claims** a due message for one **attempt** under a **lease**, a plugin
//! answers with an **outcome**, [`decide()`] turns the outcome into a **transition**, and the store **settles** it.
//!
//! Nothing here does I/O, waits, reads a clock or draws a random number: what a decision needs of those comes in as an
//! argument. So every case can be tested, and a simulation can replay one.

mod backoff;
mod claim;
mod decide;
mod health;
mod limits;
mod message;
mod mounts;
mod order;
mod outcome;
mod planted;
mod policy;
mod rate;
mod rest;
mod table;
mod text;
mod topic;
mod transition;

pub use backoff::{Backoff, Jitter};
pub use claim::{Attempt, AttemptRecord, Claim, Held, Lane, LeaseId, LeaseStatus, Settlement};
pub use decide::{admit, decide};
pub use health::{Admission, Health};
pub use limits::{ERROR_BYTES_MAX, HISTORY_ENTRIES_MAX, LAPSED_ERROR, MAX_LAPSES_DEFAULT, PAYLOAD_BYTES_MAX_DEFAULT};
pub use message::{Message, MessageId, Payload};
pub use mounts::network_share;
pub use order::{OnDead, Order};
pub use outcome::{Blame, Outcome, Reason};
#[cfg(feature = "planted-bugs")]
pub use planted::planted_bug;
pub use policy::RetryPolicy;
pub use rate::{Bucket, Rate};
pub use rest::{Called, KEY_FAILURES_MAX, Rest, RestCause, Target, rest};
pub use table::{TableName, quoted};
pub use text::{one_line, safe_text};
pub use topic::TopicPattern;
pub use transition::{State, Transition};
