/// An error text longer than this is cut before it is written. Bytes of UTF-8.
pub const ERROR_BYTES_MAX: usize = 8 << 10;

/// A row's `history` keeps this many attempts, the latest.
pub const HISTORY_ENTRIES_MAX: usize = 20;

/// So many lost leases make a message `crashed`, unless the configuration says otherwise.
pub const MAX_LAPSES_DEFAULT: u32 = 3;

/// What a message's last error is while an attempt runs that took over a lost lease.
pub const LAPSED_ERROR: &str = "a lease was lost without a result";

/// The default of `payload_max`: a payload above it is refused at publish, and dead as `too-large` at claim. Bytes.
pub const PAYLOAD_BYTES_MAX_DEFAULT: u64 = 1 << 20;
