//! SQLite, in one file that several processes may use.

mod admin;
mod connect;
mod doctor;
mod file;
mod limited;
mod migrate;
mod outbox;
mod wake;

pub(crate) use connect::Sqlite;
pub(crate) use doctor::examine;
pub(crate) use migrate::{check_version, migrate, print};

crate::table::statements! {
    due_topics claim renew held settle settle_delete settle_unordered release
    add_keys forget_keys choose_heads let_go hold end_turns claim_ordered free_keys
    claim_limited astray free limited_key first_held first_waiting note_key forget_key hold_ids
    keys skip_key resume_key resume_head ordered_topics unorder unorder_keys spaced
    list show stats redrive redrive_ids discard discard_ids retry_now retry_now_ids purge_delivered purge_dead pause resume ping
    versions applied record
    doctor_server doctor_table
}
