//! The outbox table behind two small traits.
//!
//! [`OutboxStore`] is what a relay asks of it, [`OutboxAdmin`] what people ask. Each database is one folder with its own
//! whole statements; every behaviour is one test body that runs on all of them (`tests/store`).
//!
//! Absent on purpose: plugins, HTTP, settings, and any INSERT into the outbox table (`outboxd-client` has the only one).

mod admin;
mod change;
mod connect;
mod connections;
mod doctor;
mod error;
mod limited;
mod memory;
mod migrate;
mod options;
mod outbox;
#[cfg(feature = "planted-bugs")]
mod planted;
mod postgres;
mod row;
mod sqlite;
mod table;
mod wake;

pub use admin::{
    Changed, Finished, HistoryEntry, KEY_DEPTH_MAX, KeyFilter, KeyState, KeySummary, Listening, MessageDetail,
    MessageFilter, MessageSummary, OutboxAdmin, Selection, SnapshotHolder, SpacedTopic, TopicStats,
};
pub use connect::Store;
pub use doctor::{Finding, Verdict, examine};
pub use error::StoreError;
pub use memory::{MemoryMessage, MemoryStore};
pub use migrate::{Migrated, Printed, check_version, migrate, print_migrations};
pub use options::{Notify, OnDelivered, Pooler, SqliteSynchronous, StoreOptions};
pub use outbox::{DueTopic, Hold, OutboxStore, Wake};
pub use outboxd_core::TableName;
#[cfg(feature = "planted-bugs")]
pub use planted::statement as planted_statement;
