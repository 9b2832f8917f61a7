//! Chaos: the real binary on real databases, killed, paused, cut off and stopped, under producers that often change their
//! minds. A checker then holds every message against what was promised. See `docs/reliability.md`.
//!
//! `OUTBOXD_CHAOS_SEED=N` repeats the faults of a run; `OUTBOXD_CHAOS_MINUTES=M` goes on, round after round, for so long, and
//! enters the sum into `tests/ledger.csv`.

mod checker;
mod faults;
mod ledger;
mod nemesis;
mod other_language;
mod producer;
mod round;
mod seed;
mod sink;
mod stage;
mod truth;
mod verdict;

mod clock;
mod poison;
mod postgres;
mod promptness;
mod scarcity;
mod sqlite;
