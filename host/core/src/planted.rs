//! Bugs written on purpose, to test the tests: `tests/support/src/planted.rs` says which suite must find which.
//!
//! Absent unless the feature `planted-bugs` is on, which only test builds do. Then `OUTBOXD_PLANTED_BUG` chooses one by its
//! number; 0, or nothing, is the code as it should be.

#[cfg(all(feature = "planted-bugs", not(debug_assertions)))]
compile_error!("planted bugs are for tests: build without --release, or without the feature planted-bugs");

/// The number of the bug that was chosen for this process.
#[cfg(feature = "planted-bugs")]
pub fn planted_bug() -> u32 {
    static NUMBER: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| match std::env::var("OUTBOXD_PLANTED_BUG") {
        Ok(text) => text.parse().expect("OUTBOXD_PLANTED_BUG is a whole number"),
        Err(_) => 0,
    });
    *NUMBER
}

/// `planted!(7, buggy, right)` is `right`, and `planted!(7, buggy)` nothing, except in a test build where bug 7 was chosen.
#[cfg(feature = "planted-bugs")]
#[macro_export]
macro_rules! planted {
    ($numbers:pat, $buggy:expr, $right:expr $(,)?) => {
        match $crate::planted_bug() {
            $numbers => $buggy,
            _ => $right,
        }
    };
    ($numbers:pat, $buggy:expr) => {
        if let $numbers = $crate::planted_bug() {
            $buggy
        }
    };
}

/// `planted!(7, buggy, right)` is `right`, and `planted!(7, buggy)` nothing, except in a test build where bug 7 was chosen.
#[cfg(not(feature = "planted-bugs"))]
#[macro_export]
macro_rules! planted {
    ($numbers:pat, $buggy:expr, $right:expr $(,)?) => {
        $right
    };
    ($numbers:pat, $buggy:expr) => {};
}
