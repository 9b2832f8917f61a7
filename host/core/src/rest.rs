use std::time::Duration;

use crate::{Attempt, Backoff, Jitter, Order, Outcome, RetryPolicy};

/// So many calls of a key in a row that its target failed, and the key rests.
pub const KEY_FAILURES_MAX: u32 = 5;

/// No rest that failures alone cause is longer: then one call tries whether the target is well.
const FAILURES_REST_MAX: Duration = Duration::from_secs(300);

/// What the host saw of a call's target, whatever the plugin made of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// Nothing: no request was sent.
    #[default]
    Unseen,
    /// It answered, be it with a refusal: it is well.
    Answered,
    /// No connection, no TLS, no answer in time, or 5xx.
    Failed,
    /// 429 or 503, and how long it wants to be left alone.
    AsksForRest(Duration),
}

/// What one call tells its key. The default: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// How long the key rests, from when this is written on: none of its messages is claimed before, this one neither.
    pub time: Duration,
    /// Why, where it rests.
    pub cause: Option<RestCause>,
    /// How many calls of the key its target has failed in a row by now, where the call tells.
    pub failures: Option<u32>,
}

/// Why a key rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestCause {
    /// Its plugin asked for it.
    Plugin,
    /// Its target asked for it, and the host saw that.
    RetryAfter,
    /// Its target failed too often in a row.
    Failures,
    /// Its calls are spaced.
    Rate,
}

impl RestCause {
    /// The word that stands in the table, in metrics and in messages to people.
    pub fn as_str(self) -> &'static str {
        match self {
            RestCause::Plugin => "plugin",
            RestCause::RetryAfter => "retry-after",
            RestCause::Failures => "failures",
            RestCause::Rate => "rate",
        }
    }
}

/// What there is to know of a call when it is decided whether its key rests.
#[derive(Clone, Copy, Debug)]
pub struct Called<'a> {
    pub outcome: &'a Outcome,
    pub target: Target,
    /// The plugin asked that the key rest so long.
    pub asked: Option<Duration>,
    /// How many calls of the key its target had failed in a row when this one was claimed.
    pub failures: u32,
    /// How long the call took.
    pub took: Duration,
}

impl Called<'_> {
    /// A rest of no time is none.
    fn asked(&self) -> Option<Duration> {
        self.asked.filter(|asked| !asked.is_zero())
    }
}

/// Decides whether the key of a message rests after a call, and how long. The only place that decides it.
///
/// A rest that is asked for is as long as it is asked for, and never longer than the longest wait between two tries; one that
/// failures cause doubles with each of them from [`KEY_FAILURES_MAX`] on, half of it drawn. `spacing` lies between the beginnings of two calls of a key, if not
/// zero. Where keys are no unit of delivery none rests.
pub fn rest(order: Order, called: &Called, policy: &RetryPolicy, spacing: Duration, jitter: Jitter) -> Rest {
    if order == Order::None {
        return Rest::default();
    }
    let target_asks = match called.target {
        Target::AsksForRest(time) => Some(time.min(policy.backoff.max)),
        _ => None,
    };
    let asked = called.asked().map(|asked| asked.min(policy.backoff.max));
    let failures = failures(called);
    // Who says how long gets that, and no guess of ours.
    let says_how_long = target_asks.is_some() || asked.is_some();
    let beyond = failures.filter(|_| !says_how_long).unwrap_or(0).checked_sub(KEY_FAILURES_MAX);
    let backoff = Backoff { jitter: 0.5, max: policy.backoff.max.min(FAILURES_REST_MAX), ..policy.backoff };
    let failed = beyond.map(|beyond| backoff.delay(Attempt(beyond.saturating_add(1)), jitter));
    let spaced = Some(spacing.saturating_sub(called.took));
    // Of two that are equally long the one that says more.
    let causes = [
        (spaced, RestCause::Rate),
        (failed, RestCause::Failures),
        (asked, RestCause::Plugin),
        (target_asks, RestCause::RetryAfter),
    ];
    let longest = causes.into_iter().filter_map(|(time, cause)| Some((time?, cause))).max_by_key(|(time, _)| *time);
    let (time, cause) = longest.filter(|(time, _)| !time.is_zero()).unzip();
    Rest { time: whole_milliseconds(time.unwrap_or_default()), cause, failures }
}

/// Rounded up: the table counts in them, and would cut what is beyond.
fn whole_milliseconds(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// A target that asks for rest, or whose plugin does, counts as one that failed often: after the rest one call tries it.
fn failures(called: &Called) -> Option<u32> {
    let one_more = called.failures.saturating_add(1);
    match (called.outcome, called.target) {
        // No call has ended.
        (Outcome::Refused { .. } | Outcome::Fault { blame: crate::Blame::Host, .. }, _) => None,
        (Outcome::Success, _) => Some(0),
        (_, Target::AsksForRest(_)) => Some(one_more.max(KEY_FAILURES_MAX)),
        (_, _) if called.asked().is_some() => Some(one_more.max(KEY_FAILURES_MAX)),
        (_, Target::Failed) => Some(one_more),
        (_, Target::Answered) => Some(0),
        (_, Target::Unseen) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Blame, OnDead, Reason};

    const ORDERED: Order = Order::ByKey { on_dead: OnDead::Block };
    const LIMITED: Order = Order::Limited { per_key: 2 };
    const SECOND: Duration = Duration::from_secs(1);

    fn again() -> Outcome {
        Outcome::Retry { error: "later".into(), after: None }
    }

    fn called(outcome: &Outcome, target: Target, failures: u32) -> Called<'_> {
        Called { outcome, target, asked: None, failures, took: Duration::ZERO }
    }

    fn decided(order: Order, called: &Called) -> Rest {
        rest(order, called, &RetryPolicy::default(), Duration::ZERO, Jitter::new(1.0))
    }

    #[test]
    fn a_rest_is_as_long_as_the_plugin_asks_and_the_policy_allows() {
        let max = RetryPolicy::default().backoff.max;
        let asks = |order, asked| {
            let outcome = Outcome::Success;
            decided(order, &Called { asked, ..called(&outcome, Target::Answered, 0) }).time
        };

        assert_eq!(asks(ORDERED, Some(30 * SECOND)), 30 * SECOND);
        assert_eq!(asks(LIMITED, Some(Duration::MAX)), max);
        assert_eq!(asks(LIMITED, None), Duration::ZERO);
        assert_eq!(asks(Order::None, Some(Duration::MAX)), Duration::ZERO);
    }

    #[test]
    fn a_target_that_asks_for_rest_gets_it_and_is_then_tried_by_one_call() {
        let outcome = again();

        let rest = decided(LIMITED, &called(&outcome, Target::AsksForRest(7 * SECOND), 0));

        let (cause, failures) = (Some(RestCause::RetryAfter), Some(KEY_FAILURES_MAX));
        assert_eq!(rest, Rest { time: 7 * SECOND, cause, failures });
    }

    #[test]
    fn who_says_how_long_gets_that_and_no_guess_of_ours() {
        let backoff = Backoff { base: 60 * SECOND, ..Backoff::default() };
        let (policy, outcome) = (RetryPolicy { backoff, ..RetryPolicy::default() }, again());
        let after = |called: Called| {
            let rest = rest(LIMITED, &called, &policy, Duration::ZERO, Jitter::new(1.0));
            (rest.time, rest.cause)
        };

        for failures in [0, 9] {
            let target_asks = called(&outcome, Target::AsksForRest(SECOND), failures);
            assert_eq!(after(target_asks), (SECOND, Some(RestCause::RetryAfter)), "{failures} failures before");
            let plugin_asks = Called { asked: Some(SECOND / 10), ..called(&outcome, Target::Failed, failures) };
            assert_eq!(after(plugin_asks), (SECOND / 10, Some(RestCause::Plugin)), "{failures} failures before");
        }
    }

    #[test]
    fn a_plugin_that_asks_for_a_rest_of_no_time_has_not_asked() {
        let outcome = again();
        let asks_for_none = Called { asked: Some(Duration::ZERO), ..called(&outcome, Target::Failed, 0) };

        assert_eq!(decided(LIMITED, &asks_for_none), Rest { failures: Some(1), ..Rest::default() });
    }

    #[test]
    fn a_target_that_asks_for_ever_gets_the_longest_wait_between_two_tries() {
        let outcome = again();

        let rest = decided(LIMITED, &called(&outcome, Target::AsksForRest(Duration::MAX), 0));

        assert_eq!(rest.time, RetryPolicy::default().backoff.max);
    }

    #[test]
    fn the_fifth_failure_in_a_row_gives_a_rest_and_each_further_one_a_longer() {
        let outcome = again();
        let after = |failures| decided(LIMITED, &called(&outcome, Target::Failed, failures));

        assert_eq!(after(3), Rest { failures: Some(4), ..Rest::default() });
        assert_eq!([4, 5, 6].map(|failures| after(failures).time), [SECOND, 2 * SECOND, 4 * SECOND]);
        assert_eq!(after(u32::MAX - 1).time, FAILURES_REST_MAX);
        assert_eq!(after(4).cause, Some(RestCause::Failures));
    }

    #[test]
    fn half_of_a_rest_that_failures_cause_is_drawn() {
        let outcome = again();
        let called = called(&outcome, Target::Failed, 5);
        let drawn = |share| rest(LIMITED, &called, &RetryPolicy::default(), Duration::ZERO, Jitter::new(share)).time;

        assert_eq!([0.0, 0.5, 1.0].map(drawn), [SECOND, SECOND * 3 / 2, 2 * SECOND]);
    }

    #[test]
    fn success_and_a_refusal_by_the_target_end_the_row_of_failures_and_what_no_target_saw_does_not_count() {
        let (success, again) = (Outcome::Success, again());
        let stopped = Outcome::Fault { reason: Reason::Interrupted, error: "stop".into(), blame: Blame::Host };

        assert_eq!(decided(LIMITED, &called(&success, Target::Unseen, 4)).failures, Some(0));
        assert_eq!(decided(LIMITED, &called(&again, Target::Answered, 4)).failures, Some(0));
        assert_eq!(decided(LIMITED, &called(&again, Target::Unseen, 4)).failures, None);
        assert_eq!(decided(LIMITED, &called(&stopped, Target::Failed, 4)), Rest::default());
    }

    #[test]
    fn two_calls_of_a_key_begin_at_least_the_spacing_apart() {
        let outcome = Outcome::Success;
        let after = |took| {
            let called = Called { took, ..called(&outcome, Target::Answered, 0) };
            rest(LIMITED, &called, &RetryPolicy::default(), SECOND, Jitter::new(0.0))
        };

        assert_eq!((after(SECOND / 4).time, after(SECOND / 4).cause), (SECOND * 3 / 4, Some(RestCause::Rate)));
        assert_eq!((after(3 * SECOND).time, after(3 * SECOND).cause), (Duration::ZERO, None));
    }

    fn any_target() -> impl Strategy<Value = Target> {
        prop_oneof![
            Just(Target::Unseen),
            Just(Target::Answered),
            Just(Target::Failed),
            any::<u64>().prop_map(|ms| Target::AsksForRest(Duration::from_millis(ms))),
        ]
    }

    proptest! {
        #[test]
        fn no_rest_is_longer_than_the_longest_wait_between_two_tries(
            target in any_target(), failures: u32, asked: Option<u64>, drawn in 0.0..=1.0f64, max_ms in 1000u64..1 << 40,
        ) {
            let backoff = Backoff { max: Duration::from_millis(max_ms), ..Backoff::default() };
            let policy = RetryPolicy { backoff, ..RetryPolicy::default() };
            let outcome = again();
            let called = Called { asked: asked.map(Duration::from_millis), ..called(&outcome, target, failures) };

            let rest = rest(LIMITED, &called, &policy, Duration::ZERO, Jitter::new(drawn));

            prop_assert!(rest.time <= backoff.max && rest.time.subsec_nanos().is_multiple_of(1_000_000));
            prop_assert_eq!(rest.cause.is_some(), !rest.time.is_zero());
        }
    }
}
