//! The program that searches: libFuzzer holds `main` and calls this with one input after another. `run` builds it.

#![no_main]
#![allow(unsafe_code, reason = "libFuzzer is C++")]

use std::sync::LazyLock;

static TRY_ONE: LazyLock<fn(&[u8])> = LazyLock::new(outboxd_fuzz::chosen);

/// A panic cannot leave it: it aborts, and libFuzzer writes down the input.
#[unsafe(no_mangle)]
extern "C" fn LLVMFuzzerTestOneInput(bytes: *const u8, length: usize) -> i32 {
    // SAFETY: libFuzzer lends `length` bytes until this returns; an empty input may have no address.
    let bytes = if length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(bytes, length) } };
    TRY_ONE(bytes);
    0
}
