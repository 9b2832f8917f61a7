//! The outbox store's contract: every behaviour is one test body, run on every database.

mod backend;

/// What people ask for: redrive, discard, purge, pause, and what they look at.
mod admin;
/// Tables that somebody else made.
mod adopt;
/// Dead letters in order by key.
mod blocked_keys;
/// What many messages leave behind.
mod churn;
/// What a claim takes, and what it leaves.
mod claim;
/// A server whose clock is not this machine's.
mod clocks;
/// A dedup key lets one message in.
mod dedup;
/// Random sequences of operations: the stores answer alike.
mod differential;
/// `outbox_publish()` from other languages.
mod drivers;
/// A database that is away, frozen, locked or read-only.
mod faults;
/// Order by key.
mod keys;
/// Order by key, raced for on PostgreSQL.
mod keys_race;
/// Leases: renewed, lost, given back.
mod lease;
/// Limits by key.
mod limits;
/// Limits by key, raced for on PostgreSQL.
mod limits_race;
/// The table's name.
mod names;
/// What is done to all stores alike, at random.
mod operations;
/// What the statements cost.
mod planner;
/// The same, of order and limits by key.
mod planner_keys;
/// The same on SQLite.
mod planner_sqlite;
/// Behind PgBouncer.
mod pooler;
/// Several processes on one SQLite file.
mod processes;
/// The bugs that stand in the code on purpose are found.
#[cfg(feature = "planted-bugs")]
mod planted {
    #[test]
    fn every_planted_bug_is_found() {
        outboxd_test_support::planted::every_bug_is_found(outboxd_test_support::planted::Suite::Store);
    }
}
/// Producers that race for a dedup key.
mod races;
/// Keys that rest.
mod rests;
/// Migrations and what the table refuses.
mod schema;
/// What a settle writes.
mod settle;
/// SQLite's system calls, made to fail.
mod sqlite_calls;
/// Every operation disturbed at each of its steps.
mod sweep;
/// When the next of an ordered key has its turn.
mod turns;
/// What died is vacuumed.
mod vacuum;
/// Waking a relay that sleeps.
mod wake;
