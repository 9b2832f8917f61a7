use crate::{Attempt, Blame, Claim, Jitter, Outcome, Payload, Reason, RetryPolicy, Transition, planted};

/// Decides whether a claimed message may be handed to a plugin at all. The neighbour of [`decide`]: what it refuses is
/// settled dead before any plugin runs. `max_lapses` lost leases make a message `crashed`.
pub fn admit(claim: &Claim, policy: &RetryPolicy, max_lapses: u32) -> Result<(), Outcome> {
    let refused = |reason, error| Err(Outcome::Refused { reason, error });
    if claim.lapses >= max_lapses {
        let error = format!("{} leases were lost without a result; the message may be killing its relay", claim.lapses);
        return refused(Reason::Crashed, error);
    }
    if claim.expired {
        return refused(Reason::Expired, "expired before it could be delivered".into());
    }
    if let Payload::TooLarge { bytes } = claim.message.payload {
        return refused(Reason::TooLarge, format!("the payload has {bytes} bytes, more than payload_max"));
    }
    if claim.attempt.0 > policy.max_attempts {
        return refused(Reason::Exhausted, format!("all {} attempts are spent", policy.max_attempts));
    }
    Ok(())
}

/// Decides what becomes of a message after one attempt. The only place that decides it.
///
/// Reads no clock, no randomness and no database. The last attempt keeps its own reason (a trap stays `trap`);
/// `exhausted` is for a message already spent when it was claimed.
pub fn decide(outcome: Outcome, attempt: Attempt, policy: &RetryPolicy, jitter: Jitter) -> Transition {
    let (reason, error, asked) = match outcome {
        Outcome::Success => return Transition::Delivered,
        Outcome::Cancel { error } => return Transition::Dead { reason: Reason::Cancelled, error },
        Outcome::Refused { reason, error } => return Transition::Dead { reason, error },
        // At a stop the message is due again at once: another relay can take it.
        Outcome::Fault { reason: Reason::Interrupted, error, blame: Blame::Host } => {
            return Transition::Released { after: std::time::Duration::ZERO, reason: Reason::Interrupted, error };
        }
        Outcome::Fault { reason, error, blame: Blame::Plugin | Blame::Host } => {
            return Transition::Released { after: policy.pause, reason, error };
        }
        Outcome::Fault { reason, error, blame: Blame::Message } => (reason, error, None),
        Outcome::Retry { error, after } => (Reason::Retry, error, after),
    };
    if planted!(11, attempt.0 > policy.max_attempts, attempt.0 >= policy.max_attempts) {
        return Transition::Dead { reason, error };
    }
    let after = asked.unwrap_or_else(|| policy.backoff.delay(attempt, jitter));
    let after = planted!(27, after, after.min(policy.backoff.max));
    Transition::Pending { after, reason, error }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::{LeaseId, Message, MessageId};

    fn claim(attempt: u32, lapses: u32) -> Claim {
        let message = Message {
            id: MessageId(Uuid::nil()),
            topic: "orders".into(),
            key: None,
            payload: Payload::Bytes(b"{}".to_vec()),
            headers: vec![],
            created_at_ms: 0,
        };
        Claim {
            message,
            lease_id: LeaseId(Uuid::nil()),
            attempt: Attempt(attempt),
            lapses,
            lapsed: false,
            expired: false,
            order: crate::Order::None,
            key_failures: 0,
        }
    }

    fn refusal(claim: &Claim) -> Option<Reason> {
        match admit(claim, &RetryPolicy::default(), 3) {
            Err(Outcome::Refused { reason, .. }) => Some(reason),
            Err(other) => panic!("admit may only refuse, not {other:?}"),
            Ok(()) => None,
        }
    }

    #[test]
    fn the_last_attempt_is_admitted_and_the_one_after_is_exhausted() {
        assert_eq!(refusal(&claim(25, 0)), None);
        assert_eq!(refusal(&claim(26, 0)), Some(Reason::Exhausted));
    }

    #[test]
    fn a_message_that_lost_three_leases_is_crashed() {
        assert_eq!(refusal(&claim(3, 2)), None);
        assert_eq!(refusal(&claim(4, 3)), Some(Reason::Crashed));
    }

    #[test]
    fn an_expired_message_and_an_oversize_payload_never_reach_a_plugin() {
        let expired = Claim { expired: true, ..claim(1, 0) };
        let mut large = claim(1, 0);
        large.message.payload = Payload::TooLarge { bytes: 2 << 20 };

        assert_eq!(refusal(&expired), Some(Reason::Expired));
        assert_eq!(refusal(&large), Some(Reason::TooLarge));
    }

    #[test]
    fn a_fault_of_the_plugin_or_the_host_gives_the_attempt_back_even_on_the_last_one() {
        for blame in [Blame::Plugin, Blame::Host] {
            let outcome = Outcome::Fault { reason: Reason::Trap, error: "boom".into(), blame };

            let transition = decide(outcome, Attempt(25), &RetryPolicy::default(), Jitter::new(0.5));

            assert!(matches!(transition, Transition::Released { reason: Reason::Trap, .. }), "{transition:?}");
        }
    }

    #[test]
    fn an_interrupted_call_is_due_again_at_once() {
        let outcome = Outcome::Fault { reason: Reason::Interrupted, error: "stop".into(), blame: Blame::Host };

        let transition = decide(outcome, Attempt(1), &RetryPolicy::default(), Jitter::new(0.5));

        assert!(matches!(transition, Transition::Released { after: Duration::ZERO, .. }));
    }

    #[test]
    fn a_plugins_own_delay_is_clamped_to_the_policy() {
        let outcome = Outcome::Retry { error: "busy".into(), after: Some(Duration::MAX) };

        let transition = decide(outcome, Attempt(1), &RetryPolicy::default(), Jitter::new(0.5));

        assert!(matches!(transition, Transition::Pending { after, .. } if after == Duration::from_secs(3600)));
    }

    fn any_failure() -> impl Strategy<Value = Outcome> {
        prop_oneof![
            any::<Option<u64>>()
                .prop_map(|after| Outcome::Retry { error: "e".into(), after: after.map(Duration::from_millis) }),
            Just(Outcome::Fault { reason: Reason::Trap, error: "e".into(), blame: Blame::Message }),
            Just(Outcome::Fault { reason: Reason::Deadline, error: "e".into(), blame: Blame::Message }),
        ]
    }

    proptest! {
        #[test]
        fn the_last_attempt_is_final_and_no_earlier_one_is(outcome in any_failure(), attempt: u32, max_attempts: u32, drawn in 0.0..=1.0f64) {
            let policy = RetryPolicy { max_attempts, ..RetryPolicy::default() };

            let transition = decide(outcome, Attempt(attempt), &policy, Jitter::new(drawn));

            match transition {
                Transition::Dead { .. } => prop_assert!(attempt >= max_attempts),
                Transition::Pending { after, .. } => {
                    prop_assert!(attempt < max_attempts);
                    prop_assert!(after <= policy.backoff.max);
                }
                other => prop_assert!(false, "a failure became {:?}", other),
            }
        }

        #[test]
        fn cancel_never_retries_and_success_never_fails(attempt: u32, drawn in 0.0..=1.0f64) {
            let policy = RetryPolicy::default();

            let cancelled = decide(Outcome::Cancel { error: "no".into() }, Attempt(attempt), &policy, Jitter::new(drawn));
            let delivered = decide(Outcome::Success, Attempt(attempt), &policy, Jitter::new(drawn));

            prop_assert_eq!(cancelled, Transition::Dead { reason: Reason::Cancelled, error: "no".into() });
            prop_assert_eq!(delivered, Transition::Delivered);
        }
    }
}
