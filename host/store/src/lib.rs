//! The outbox table behind two small traits.
//!
//! [`OutboxStore`] is what a relay asks of it, [`OutboxAdmin`] what people ask. Each database is one folder with its own
//! whole statements; every behaviour is one test body that runs on all of them (`tests/store`).
//!
//! Absent on purpose: plugins, HTTP, settings, and any INSERT into the outbox table (`outboxd-client` has the only one).

mod admin;
mod error;
mod outbox;

pub use admin::{
    Changed, Finished, HistoryEntry, MessageDetail, MessageFilter, MessageSummary, OutboxAdmin, Selection, TopicStats,
};
pub use error::StoreError;
pub use outbox::{DueTopic, OutboxStore, Wake};
