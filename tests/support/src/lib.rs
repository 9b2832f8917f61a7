//! What the test targets share: components to run, targets to deliver to, databases, patience.

use std::time::{Duration, Instant};

pub mod browser;
pub mod disk;
pub mod guests;
pub mod pgbouncer;
pub mod planted;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod receiver;
pub mod tools;

/// Polls `condition` until it holds; answers whether it did within `at_most`.
pub fn wait_for(at_most: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + at_most;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Says by name that a test cannot run here, and why. In CI (`CI` is set) nothing may be skipped: there it fails.
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}; in CI nothing is skipped");
    println!("SKIPPED: {why}");
}
