//! What the target's answer means for the message.

use std::time::SystemTime;

use crate::settings::On4xx;

/// How much of an answer's body an error quotes. Characters.
const EXCERPT_MAX: usize = 200;

/// The longest wait that a target may ask for. A day, in milliseconds; the topic's policy clamps further.
const RETRY_AFTER_MAX_MS: u64 = 24 * 60 * 60 * 1_000;

/// What becomes of the attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Delivered,
    Retry {
        reason: String,
        after_ms: Option<u64>,
    },
    /// Tried again, and the target needs a rest: other messages of the same key had better wait too.
    Throttled {
        reason: String,
        after_ms: Option<u64>,
    },
    Cancel(String),
}

/// What came back, whatever its status.
pub struct Answer<'a> {
    pub status: u16,
    pub headers: &'a [(String, String)],
    pub body: &'a [u8],
}

/// Decides. The statuses that ask for patience are retried whatever the settings say; 410 says that nobody will ever
/// listen here again; a redirect is a wrong URL in the settings, which a person can correct while the message waits.
pub fn verdict(answer: &Answer, on_4xx: On4xx, now: SystemTime) -> Verdict {
    let reason = describe(answer);
    match answer.status {
        200..=299 => Verdict::Delivered,
        410 => Verdict::Cancel(reason),
        408 | 425 | 429 => Verdict::Throttled { reason, after_ms: asked_wait_ms(answer, now) },
        // Without a wish they are left to the host, which counts failures: its pauses grow, and no fixed one would.
        502..=504 => match asked_wait_ms(answer, now) {
            None => Verdict::Retry { reason, after_ms: None },
            after_ms => Verdict::Throttled { reason, after_ms },
        },
        400..=499 if on_4xx == On4xx::Cancel => Verdict::Cancel(reason),
        _ => Verdict::Retry { reason, after_ms: asked_wait_ms(answer, now) },
    }
}

/// The first `Retry-After` that makes sense.
fn asked_wait_ms(answer: &Answer, now: SystemTime) -> Option<u64> {
    let asked = answer.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("retry-after"));
    asked.filter_map(|(_, value)| retry_after_ms(value, now)).next()
}

/// Reads `Retry-After`, seconds or a date, as milliseconds from `now`. Nonsense, zero and dates that are over ask for
/// nothing: the host's backoff is then the better wait. Never more than a day.
pub fn retry_after_ms(value: &str, now: SystemTime) -> Option<u64> {
    let value = value.trim();
    let wait_ms = if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than fit mean "very long".
        value.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(1_000)
    } else {
        let until = httpdate::parse_http_date(value).ok()?;
        u64::try_from(until.duration_since(now).ok()?.as_millis()).unwrap_or(u64::MAX)
    };
    (wait_ms > 0).then_some(wait_ms.min(RETRY_AFTER_MAX_MS))
}

fn describe(answer: &Answer) -> String {
    let hint = match answer.status {
        300..=399 => " (redirects are not followed: put the final address into `url`)",
        _ => "",
    };
    match excerpt(answer.body) {
        text if text.is_empty() => format!("answered {}{hint}", answer.status),
        text => format!("answered {}{hint}: {text}", answer.status),
    }
}

/// The beginning of a body on one line, without control characters.
fn excerpt(body: &[u8]) -> String {
    // Four bytes are the longest character, and some of the text may be white space that is folded.
    let head = String::from_utf8_lossy(&body[..body.len().min(8 * EXCERPT_MAX)]);
    let words: Vec<&str> =
        head.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()).collect();
    let line = words.join(" ");
    match line.char_indices().nth(EXCERPT_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answer(status: u16) -> Verdict {
        verdict(&Answer { status, headers: &[], body: b"" }, On4xx::Cancel, SystemTime::UNIX_EPOCH)
    }

    fn is_retry(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Retry { after_ms: None, .. })
    }

    fn is_cancel(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Cancel(_))
    }

    #[test]
    fn any_2xx_is_delivered() {
        assert!([200, 201, 202, 204, 299].iter().all(|status| answer(*status) == Verdict::Delivered));
    }

    #[test]
    fn gone_is_cancelled_whatever_the_settings_say() {
        let gone = Answer { status: 410, headers: &[], body: b"" };

        assert!(is_cancel(&verdict(&gone, On4xx::Retry, SystemTime::UNIX_EPOCH)));
    }

    #[test]
    fn answers_that_ask_for_patience_throttle() {
        let throttles = |status| matches!(answer(status), Verdict::Throttled { after_ms: None, .. });

        assert!([408, 425, 429].into_iter().all(throttles));
    }

    #[test]
    fn a_gateway_or_an_overloaded_target_rests_as_long_as_it_asks_and_else_as_the_host_counts() {
        let headers = [("Retry-After".to_string(), "3".to_string())];

        for status in [502, 503, 504] {
            let asks = Answer { status, headers: &headers, body: b"" };
            let throttled = Verdict::Throttled { reason: format!("answered {status}"), after_ms: Some(3_000) };
            assert_eq!(verdict(&asks, On4xx::Cancel, SystemTime::UNIX_EPOCH), throttled);
            assert!(is_retry(&answer(status)), "{status}");
        }
    }

    #[test]
    fn other_4xx_are_cancelled_unless_the_settings_say_retry() {
        let bad_request = Answer { status: 400, headers: &[], body: b"" };

        assert!([400, 401, 403, 404, 409, 422, 451].iter().all(|status| is_cancel(&answer(*status))));
        assert!(is_retry(&verdict(&bad_request, On4xx::Retry, SystemTime::UNIX_EPOCH)));
    }

    #[test]
    fn server_errors_redirects_and_odd_statuses_are_retried() {
        assert!(
            [100, 101, 301, 302, 307, 308, 500, 501, 505, 599, 600, 999]
                .iter()
                .all(|status| is_retry(&answer(*status)))
        );
    }

    #[test]
    fn the_error_quotes_status_and_answer_on_one_line() {
        let body = "database\r\n\tis \0 away".as_bytes();
        let answer = Answer { status: 500, headers: &[], body };

        let verdict = verdict(&answer, On4xx::Cancel, SystemTime::UNIX_EPOCH);

        assert_eq!(verdict, Verdict::Retry { reason: "answered 500: database is away".into(), after_ms: None });
    }

    #[test]
    fn a_long_or_binary_answer_is_cut_between_characters() {
        let long = "é".repeat(5_000);

        assert_eq!(excerpt(long.as_bytes()).chars().count(), EXCERPT_MAX + 1);
        assert!(excerpt(&[0xff, 0xfe, 0xc3]).chars().all(|c| c == char::REPLACEMENT_CHARACTER));
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_as_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);

        assert_eq!(retry_after_ms(" 120 ", now), Some(120_000));
        assert_eq!(retry_after_ms("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(7_000));
        assert_eq!(retry_after_ms("Sunday, 06-Nov-94 08:49:37 GMT", now), Some(7_000));
        assert_eq!(retry_after_ms("99999999999999999999999999", now), Some(RETRY_AFTER_MAX_MS));
        assert_eq!(retry_after_ms("Fri, 31 Dec 9999 23:59:59 GMT", now), Some(RETRY_AFTER_MAX_MS));
    }

    #[test]
    fn nonsense_zero_and_the_past_ask_for_nothing() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);

        for value in ["", "0", "-1", "1.5", "soon", "+3", "Sun, 06 Nov 1994 08:49:37 GMT"] {
            assert_eq!(retry_after_ms(value, now), None, "{value:?}");
        }
    }

    #[test]
    fn the_first_sensible_retry_after_wins() {
        let headers = [("retry-after", "junk"), ("Retry-After", "3"), ("retry-after", "9")];
        let headers = headers.map(|(name, value)| (name.to_string(), value.to_string()));
        let answer = Answer { status: 503, headers: &headers, body: b"" };

        let verdict = verdict(&answer, On4xx::Cancel, SystemTime::UNIX_EPOCH);

        assert_eq!(verdict, Verdict::Throttled { reason: "answered 503".into(), after_ms: Some(3_000) });
    }
}
