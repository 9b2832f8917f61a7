//! PostgreSQL 15 and later.

mod admin;
mod connect;
mod doctor;
mod migrate;
mod outbox;
mod vacuum;
mod wake;

pub(crate) use connect::{Postgres, addresses};
pub(crate) use doctor::examine;
pub(crate) use migrate::{check_version, migrate, print};

crate::table::statements! {
    due_topics claim renew settle settle_delete release
    arrange add_keys claim_ordered arrange_limited claim_limited free_discarded keys skip_key resume_key ordered_topics unorder spaced
    sleep awake
    list show stats redrive redrive_ids discard discard_ids retry_now retry_now_ids purge_delivered purge_dead pause resume ping
    versions applied record
    vacuum vacuum_pages
    doctor_server doctor_table oldest_snapshot
}
