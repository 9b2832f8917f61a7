//! What a target makes of a request, as the host sees it.

use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use outboxd_core::Target;

use super::error::EgressError;

/// What an answer says of its target.
pub(super) fn of(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Target {
    let may_ask = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let asked = headers.get_all(RETRY_AFTER).iter().find_map(|value| wait(value, now)).filter(|_| may_ask);
    match asked {
        Some(time) => Target::AsksForRest(time),
        None if status.is_server_error() => Target::Failed,
        None => Target::Answered,
    }
}

/// What a request that failed on its way says of its target: where the guest or its grant is to blame, nothing more than was
/// known before; nothing at all where there was no answer.
pub(super) fn note(known: &mut Target, error: &EgressError) {
    match error {
        EgressError::Dns(_)
        | EgressError::Connect(_)
        | EgressError::ConnectTimeout
        | EgressError::Tls(_)
        | EgressError::Certificate(_)
        | EgressError::FirstByteTimeout
        | EgressError::BetweenBytesTimeout
        | EgressError::Timeout
        | EgressError::Protocol(_) => *known = Target::Failed,
        EgressError::Denied(_)
        | EgressError::RequestsSpent
        | EgressError::UrlTooLong
        | EgressError::HeadersTooLarge
        | EgressError::UploadSpent
        | EgressError::DownloadSpent
        | EgressError::BodyLength => {
            if *known == Target::Failed {
                *known = Target::Unseen;
            }
        }
    }
}

/// `Retry-After`: seconds, or a date. Nonsense, zero and dates that are over ask for nothing.
fn wait(value: &HeaderValue, now: SystemTime) -> Option<Duration> {
    let value = value.to_str().ok()?.trim();
    let time = match value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() {
        // More digits than fit mean "very long".
        true => Duration::from_secs(value.parse().unwrap_or(u64::from(u32::MAX))),
        false => httpdate::parse_http_date(value).ok()?.duration_since(now).ok()?,
    };
    Some(time).filter(|time| !time.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(status: u16, retry_after: &str) -> Target {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, retry_after.parse().unwrap());
        of(StatusCode::from_u16(status).unwrap(), &headers, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn a_target_asks_for_rest_with_429_and_503_and_in_no_other_way() {
        assert_eq!(seen(429, "7"), Target::AsksForRest(Duration::from_secs(7)));
        assert_eq!(seen(503, "Thu, 01 Jan 1970 00:01:00 GMT"), Target::AsksForRest(Duration::from_secs(60)));
        assert_eq!(
            (seen(200, "7"), seen(404, "7"), seen(500, "7")),
            (Target::Answered, Target::Answered, Target::Failed)
        );
    }

    #[test]
    fn nonsense_asks_for_nothing() {
        for nonsense in ["", "0", "-1", "soon", "Thu, 01 Jan 1969 00:00:00 GMT"] {
            assert_eq!((seen(429, nonsense), seen(503, nonsense)), (Target::Answered, Target::Failed), "{nonsense:?}");
        }
        assert!(matches!(seen(429, "99999999999999999999999"), Target::AsksForRest(_)));
    }

    #[test]
    fn what_the_guest_does_wrong_says_nothing_of_its_target() {
        let after = |mut known, error: &EgressError| {
            note(&mut known, error);
            known
        };

        assert_eq!(after(Target::Unseen, &EgressError::ConnectTimeout), Target::Failed);
        assert_eq!(after(Target::Answered, &EgressError::BetweenBytesTimeout), Target::Failed);
        assert_eq!(after(Target::Failed, &EgressError::BodyLength), Target::Unseen);
        assert_eq!(after(Target::Answered, &EgressError::DownloadSpent), Target::Answered);
    }
}
