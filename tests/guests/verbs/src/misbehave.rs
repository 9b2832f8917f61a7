//! Everything that a limit must end.

use std::hint::black_box;
use std::time::Duration;

use super::Failure;
use super::wasi::logging::logging::{Level, log};

pub fn panic(reason: &str) -> Result<(), Failure> {
    panic!("{reason}")
}

/// An `unreachable`, without a word on stderr.
pub fn trap() -> Result<(), Failure> {
    core::arch::wasm32::unreachable()
}

pub fn exit() -> Result<(), Failure> {
    std::process::exit(1)
}

/// Calls itself until the stack ends.
pub fn overflow(depth: u64) -> Result<(), Failure> {
    fn descend(depth: u64) -> u64 {
        let room = black_box([depth; 64]);
        if depth == 0 { 0 } else { descend(black_box(depth - 1)) + room[1] }
    }
    black_box(descend(depth));
    Ok(())
}

/// Uses processor time for ever.
/// Computes for so many milliseconds.
pub fn burn(ms: u64) -> Result<(), Failure> {
    let until = std::time::Instant::now() + std::time::Duration::from_millis(ms);
    while std::time::Instant::now() < until {
        (0..20_000u64).for_each(|n| {
            std::hint::black_box(n);
        });
    }
    Ok(())
}

pub fn spin() -> Result<(), Failure> {
    let mut turns = 0u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

/// Takes memory, and writes to it, until there is no more.
pub fn hoard() -> Result<(), Failure> {
    let mut hoard: Vec<Vec<u8>> = Vec::new();
    loop {
        hoard.push(black_box(vec![1; 1 << 20]));
    }
}

/// Waits in the host, using no processor time.
pub fn sleep(ms: u64) -> Result<(), Failure> {
    std::thread::sleep(Duration::from_millis(ms));
    Ok(())
}

/// Logs, a kilobyte a line.
pub fn flood(lines: u64) -> Result<(), Failure> {
    let text = "x".repeat(1_000);
    for line in 0..lines {
        log(Level::Info, "verbs", &format!("{line} {text}"));
    }
    Ok(())
}

/// The same to standard output.
pub fn print(lines: u64) -> Result<(), Failure> {
    let text = "x".repeat(1_000);
    for line in 0..lines {
        println!("{line} {text}");
    }
    Ok(())
}

/// Text as no one should store it.
pub fn babble(bytes: u64) -> String {
    "nul \0 escape \u{1b}[31m line\r\n".chars().cycle().take(usize::try_from(bytes).unwrap_or(usize::MAX)).collect()
}
