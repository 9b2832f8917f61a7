//! The store's planted bugs: edits of statements, and the same mistakes in memory. See `outboxd_core::planted!`.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outboxd_core::planted_bug;

use crate::change::Change;
use crate::memory::{Row, Table};
use crate::row::milliseconds;

/// A statement with something put in another's place, wherever it stands.
struct Edit {
    bug: u32,
    database: &'static str,
    statement: &'static str,
    from: &'static str,
    to: &'static str,
}

const fn postgres(bug: u32, statement: &'static str, from: &'static str, to: &'static str) -> Edit {
    Edit { bug, database: "postgres", statement, from, to }
}

const fn sqlite(bug: u32, statement: &'static str, from: &'static str, to: &'static str) -> Edit {
    Edit { bug, database: "sqlite", statement, from, to }
}

const POSTGRES_FENCE: &str = "and m.lease_id = s.lease_id";
const SQLITE_FENCE: &str = "and m.lease_id = s.value ->> 'lease_id'";
const POSTGRES_FENCE_BY_ATTEMPTS: &str = "and m.attempts = (s.entry::jsonb ->> 'attempt')::int";
const SQLITE_FENCE_BY_ATTEMPTS: &str = "and m.attempts = s.value ->> '$.entry.attempt'";
const POSTGRES_LEASE_END: &str = "available_at = now() + $3 * interval '1 millisecond'";
const POSTGRES_LEASE_END_BY_THE_HOST: &str = "available_at = to_timestamp($3::bigint / 1000.0)";

#[rustfmt::skip]
const EDITS: &[Edit] = &[
    postgres(1, "settle", POSTGRES_FENCE, ""),
    postgres(1, "settle_delete", POSTGRES_FENCE, ""),
    sqlite(1, "settle", SQLITE_FENCE, ""),
    postgres(2, "release", POSTGRES_FENCE, POSTGRES_FENCE_BY_ATTEMPTS),
    sqlite(2, "release", SQLITE_FENCE, SQLITE_FENCE_BY_ATTEMPTS),
    postgres(3, "settle", POSTGRES_FENCE, POSTGRES_FENCE_BY_ATTEMPTS),
    sqlite(3, "settle", SQLITE_FENCE, SQLITE_FENCE_BY_ATTEMPTS),
    postgres(4, "release", POSTGRES_FENCE, ""),
    sqlite(4, "release", SQLITE_FENCE, ""),
    postgres(6, "claim", "m.id = any (array(", "m.id in ("),
    postgres(6, "claim", ") as due\n))", ") as due\n)"),
    postgres(13, "claim", POSTGRES_LEASE_END, POSTGRES_LEASE_END_BY_THE_HOST),
    postgres(13, "claim_ordered", POSTGRES_LEASE_END, POSTGRES_LEASE_END_BY_THE_HOST),
    postgres(13, "claim_limited", POSTGRES_LEASE_END, POSTGRES_LEASE_END_BY_THE_HOST),
    postgres(13, "renew", POSTGRES_LEASE_END, POSTGRES_LEASE_END_BY_THE_HOST),
    postgres(14, "settle", "lapses = 0,", ""),
    sqlite(14, "settle", "lapses = 0,", ""),
    postgres(15, "claim", "+ case when m.state = 'processing' then 1", "+ case when m.state = 'processing' then 2"),
    sqlite(15, "claim", "+ (m.state = 'processing')", "+ 2 * (m.state = 'processing')"),
    postgres(17, "release", "m.attempts - 1", "m.attempts"),
    sqlite(17, "release", "m.attempts - 1", "m.attempts"),
    postgres(21, "redrive", ".state = 'dead'", ".state in ('dead', 'processing')"),
    sqlite(21, "redrive", ".state = 'dead'", ".state in ('dead', 'processing')"),
    postgres(22, "purge_delivered", "o.delivered_at <=", "o.created_at <="),
    sqlite(22, "purge_delivered", "o.delivered_at <=", "o.created_at <="),
    postgres(23, "purge_delivered", "o.state = 'delivered'", "o.state in ('delivered', 'dead')"),
    postgres(23, "purge_delivered", "o.delivered_at <=", "coalesce(o.delivered_at, o.dead_at) <="),
    sqlite(23, "purge_delivered", "o.state = 'delivered'", "o.state in ('delivered', 'dead')"),
    sqlite(23, "purge_delivered", "o.delivered_at <=", "coalesce(o.delivered_at, o.dead_at) <="),
];

/// The text of a statement that stands in `module`, edited where a bug of this process says so.
pub fn statement<'s>(module: &str, name: &str, text: &'s str) -> Cow<'s, str> {
    let mut edited = Cow::Borrowed(text);
    for edit in EDITS.iter().filter(|edit| edit.bug == planted_bug()) {
        if module.ends_with(edit.database) && name == edit.statement {
            assert!(edited.contains(edit.from), "bug {} finds no {:?} in {module}/{name}", edit.bug, edit.from);
            edited = edited.replace(edit.from, edit.to).into();
        }
    }
    edited
}

/// Bug 13: when a lease ends, by the host's clock, in milliseconds since 1970.
pub(crate) fn end_by_the_hosts_clock(lease: Duration) -> i64 {
    milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + lease)
}

impl Table {
    /// The row that a change finds where the fence is wrong: none at all (1, 4), or the attempt (2, 3); in a release (2, 4) or
    /// in a settle (1, 3).
    pub(crate) fn held_by_a_wrong_fence(&mut self, change: &Change) -> Option<&mut Row> {
        let in_release = change.entry.result == "released";
        let row = self.rows.get_mut(&change.id).filter(|row| row.state == outboxd_core::State::Processing)?;
        let held = match (planted_bug(), in_release) {
            (1, false) | (4, true) => true,
            (2, true) | (3, false) => row.attempts == change.entry.attempt,
            _ => row.lease_id == Some(change.lease_id),
        };
        held.then_some(row)
    }
}
