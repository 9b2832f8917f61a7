//! Moments and spans as people read them, on the terminal and on the admin page.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment as `2026-11-30T01:02:03Z`.
pub fn moment(ms_since_epoch: i64) -> String {
    let Ok(ms) = u64::try_from(ms_since_epoch) else { return "before 1970".into() };
    match UNIX_EPOCH.checked_add(Duration::from_millis(ms)) {
        Some(time) if ms < 253_402_300_800_000 => humantime::format_rfc3339_seconds(time).to_string(),
        _ => "after 9999".into(),
    }
}

/// A span of time in its two largest units: `2h 5m`.
pub fn span(ms: u64) -> String {
    let whole = if ms < 1000 { Duration::from_millis(ms) } else { Duration::from_secs(ms / 1000) };
    humantime::format_duration(whole).to_string().split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// How long ago a moment was, or in how long it will be, on this host's clock.
pub fn relative(ms_since_epoch: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as i64);
    match ms_since_epoch.saturating_sub(now) {
        ahead if ahead > 0 => format!("in {}", span(ahead.unsigned_abs())),
        behind => format!("{} ago", span(behind.unsigned_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_its_two_largest_units() {
        assert_eq!(span(350), "350ms");
        assert_eq!(span(7_503_000), "2h 5m");
    }

    #[test]
    fn a_moment_far_off_is_said_in_words() {
        assert_eq!(moment(0), "1970-01-01T00:00:00Z");
        assert_eq!(moment(i64::MAX), "after 9999");
        assert_eq!(moment(-1), "before 1970");
        assert!(relative(i64::MIN).ends_with(" ago"));
        assert!(relative(i64::MAX).starts_with("in "));
    }
}
