//! What the test targets share: components to run, targets to deliver to, databases, patience.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub mod browser;
pub mod clock;
pub mod disk;
pub mod guests;
pub mod pgbouncer;
pub mod planted;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod receiver;
pub mod tools;

/// The repository's root. Cargo says at run time where it is: clones that share a target folder share what was compiled, too.
pub fn repository() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&package).ancestors().find(|folder| folder.join("wit/v1").is_dir());
    root.expect("a package of the repository").to_path_buf()
}

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
