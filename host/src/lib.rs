//! outboxd: a transactional-outbox relay whose delivery logic is a sandboxed WebAssembly component.
//!
//! In layers, from the seam upwards; `ARCHITECTURE.md` follows one message through them.

pub mod handler;
pub mod logging;
pub mod plugin;
pub mod times;
pub mod toml_reader;

mod alarms;
mod dispatcher;
mod lanes;
mod leases;
mod outage;
mod settler;
mod slots;
mod turns;

pub mod bulk;
pub mod purger;
pub mod relay;
pub mod service;
pub mod shutdown;
pub mod unorder;

pub mod admin;
pub mod cli;
pub mod config;
pub mod metrics;
#[cfg(feature = "otel")]
pub mod traces;

/// The bugs that stand in the code on purpose and that unit tests must find.
#[cfg(all(test, feature = "planted-bugs"))]
mod planted_bugs {
    use outboxd_test_support::planted::{Suite, every_bug_is_found};

    #[test]
    fn every_planted_bug_is_found() {
        every_bug_is_found(Suite::Unit);
    }
}
