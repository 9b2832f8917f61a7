//! What a target makes of a request, as the host sees it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use outboxd_core::Target;

use super::call::lock;
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

/// Whether a request that failed on its way says that its target is sick: not where the guest or its grant is to blame.
pub(super) fn is_to_blame(error: &EgressError) -> bool {
    match error {
        EgressError::Dns(_)
        | EgressError::Connect(_)
        | EgressError::ConnectTimeout
        | EgressError::Tls(_)
        | EgressError::Certificate(_)
        | EgressError::FirstByteTimeout
        | EgressError::BetweenBytesTimeout
        | EgressError::Timeout
        | EgressError::Protocol(_) => true,
        EgressError::Denied(_)
        | EgressError::RequestsSpent
        | EgressError::UrlTooLong
        | EgressError::HeadersTooLarge
        | EgressError::UploadSpent
        | EgressError::DownloadSpent
        | EgressError::BodyLength
        | EgressError::Malformed(_) => false,
    }
}

/// Whether a raw TCP connection came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connected {
    Yes,
    No,
}

/// What the requests of one call saw of their targets: the last one that says something, but for a wish for rest, which no later
/// answer takes back.
#[derive(Debug, Default)]
pub(super) struct Sight {
    last: Target,
    /// How much is still to come: [`Awaited`].
    awaited: usize,
    /// The longest rest that a target asked for.
    asked: Option<Duration>,
    /// The last raw TCP connection that was tried has not come about, and nothing answered since.
    tcp_failed: bool,
}

impl Sight {
    /// What comes of a request. `Unseen` leaves what was seen before.
    fn see(&mut self, target: Target) {
        match target {
            Target::Unseen => {}
            Target::Failed => self.last = Target::Failed,
            Target::Answered | Target::AsksForRest(_) => {
                self.last = Target::Answered;
                self.tcp_failed = false;
            }
        }
        if let Target::AsksForRest(time) = target {
            self.asked = self.asked.max(Some(time));
        }
    }

    /// A raw TCP connection was tried. One that came about says no more than that: the plugin knows what its target answers. But
    /// it makes up for names and addresses that failed before it.
    pub(super) fn tried_tcp(&mut self, connected: Connected) {
        self.tcp_failed = connected == Connected::No;
    }

    /// Refusals say nothing: what was seen before stands.
    pub(super) fn note(&mut self, error: &EgressError) {
        if is_to_blame(error) {
            self.last = Target::Failed;
        }
    }

    pub(super) fn target(&self) -> Target {
        let last = if self.awaited > 0 || self.tcp_failed { Target::Failed } else { self.last };
        self.asked.map_or(last, Target::AsksForRest)
    }
}

/// Something is to come from a target. Until it has come the target counts as failed, since the call may end before; and so it
/// does where this is dropped, since nobody waits any more.
pub(super) struct Awaited {
    sight: Arc<Mutex<Sight>>,
    says: Target,
}

impl Awaited {
    pub(super) fn new(sight: &Arc<Mutex<Sight>>) -> Self {
        lock(sight).awaited += 1;
        Awaited { sight: sight.clone(), says: Target::Failed }
    }

    /// It has come, and says so much of its target; or what failed is noted, and it says no more: `Unseen`.
    pub(super) fn end(mut self, says: Target) {
        self.says = says;
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let mut sight = lock(&self.sight);
        sight.awaited -= 1;
        sight.see(self.says);
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
        let why = || "why".to_string();
        let blames = [
            EgressError::Dns(why()),
            EgressError::Connect(why()),
            EgressError::ConnectTimeout,
            EgressError::Tls(why()),
            EgressError::Certificate(why()),
            EgressError::FirstByteTimeout,
            EgressError::BetweenBytesTimeout,
            EgressError::Timeout,
            EgressError::Protocol(why()),
        ];
        let says_nothing = [
            EgressError::Denied(why()),
            EgressError::RequestsSpent,
            EgressError::UrlTooLong,
            EgressError::HeadersTooLarge,
            EgressError::UploadSpent,
            EgressError::DownloadSpent,
            EgressError::BodyLength,
            EgressError::Malformed(why()),
        ];

        for before in [Target::Unseen, Target::Answered, Target::Failed] {
            let after = |error: &EgressError| {
                let mut sight = Sight { last: before, ..Sight::default() };
                sight.note(error);
                sight.target()
            };
            assert!(blames.iter().all(|error| after(error) == Target::Failed), "after {before:?}");
            assert!(says_nothing.iter().all(|error| after(error) == before), "after {before:?}");
        }
    }

    #[test]
    fn a_wish_for_rest_outlives_what_other_requests_see_and_the_longest_counts() {
        let seconds = |seconds| Target::AsksForRest(Duration::from_secs(seconds));
        let mut sight = Sight::default();
        for target in [seconds(7), seconds(3), Target::Answered] {
            sight.see(target);
        }

        sight.note(&EgressError::BetweenBytesTimeout);

        assert_eq!(sight.target(), seconds(7));
    }

    #[test]
    fn what_is_awaited_has_failed_until_it_comes_whatever_else_comes_meanwhile() {
        let sight = Arc::<Mutex<Sight>>::default();
        let target = || lock(&sight).target();
        let (hangs, answers) = (Awaited::new(&sight), Awaited::new(&sight));

        answers.end(Target::Answered);
        assert_eq!(target(), Target::Failed);

        hangs.end(Target::Unseen);
        assert_eq!(target(), Target::Answered);
    }

    #[test]
    fn what_nobody_waits_for_any_more_has_failed() {
        let sight = Arc::<Mutex<Sight>>::default();
        let (hangs, answers) = (Awaited::new(&sight), Awaited::new(&sight));

        answers.end(Target::Answered);
        drop(hangs);

        assert_eq!(lock(&sight).target(), Target::Failed);
    }

    #[test]
    fn a_request_that_is_refused_makes_no_failure_of_one_that_was_under_way_with_it() {
        let sight = Arc::<Mutex<Sight>>::default();
        let (answers, refused) = (Awaited::new(&sight), Awaited::new(&sight));

        answers.end(Target::Answered);
        lock(&sight).note(&EgressError::BodyLength);
        refused.end(Target::Unseen);

        assert_eq!(lock(&sight).target(), Target::Answered);
    }

    #[test]
    fn an_answer_makes_up_for_a_tcp_connection_that_failed_before_it() {
        let mut sight = Sight::default();
        sight.tried_tcp(Connected::No);

        sight.see(Target::Failed);
        assert_eq!(sight.target(), Target::Failed);

        sight.see(Target::Answered);
        assert_eq!(sight.target(), Target::Answered);
    }

    #[test]
    fn a_tcp_connection_makes_up_for_what_failed_before_it() {
        for before in [Target::Unseen, Target::Answered, Target::Failed] {
            let mut sight = Sight { last: before, ..Sight::default() };

            sight.tried_tcp(Connected::No);
            assert_eq!(sight.target(), Target::Failed);

            sight.tried_tcp(Connected::Yes);
            assert_eq!(sight.target(), before);
        }
    }
}
