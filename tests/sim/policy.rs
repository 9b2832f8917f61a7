//! What may follow from which answer: said a second time, and by other means than `decide` says it.

use std::time::Duration;

use outboxd_core::{Backoff, Blame, Outcome, Reason, RetryPolicy, Settlement, Transition};

/// Half of each wait is drawn, so that a wait that is too short shows.
pub const POLICY: RetryPolicy = RetryPolicy {
    max_attempts: 1000,
    pause: Duration::from_millis(200),
    backoff: Backoff { base: Duration::from_millis(50), max: Duration::from_secs(2), jitter: 0.5 },
};

/// `answer` is what the plugin said under the lease, if it was called.
pub fn assert_follows(answer: Option<&Outcome>, settlement: &Settlement, attempt: u32, max_attempts: u32) {
    let (transition, rest) = (&settlement.transition, &settlement.rest.time);
    let follows = match (answer, transition) {
        (Some(Outcome::Success), transition) => *transition == Transition::Delivered,
        (_, Transition::Delivered) => false,
        (Some(Outcome::Cancel { .. }), Transition::Dead { reason, .. }) => *reason == Reason::Cancelled,
        (Some(Outcome::Fault { blame: Blame::Plugin | Blame::Host, .. }), transition) => {
            matches!(transition, Transition::Released { .. })
        }
        (Some(Outcome::Retry { after: Some(asked), .. }), Transition::Pending { after, .. }) => {
            // A message that loses its turn is held while its key rests.
            let rests = if settlement.order.frees_key(transition) { &Duration::ZERO } else { rest };
            attempt < max_attempts && *after == (*asked).min(POLICY.backoff.max).max(*rests)
        }
        (Some(Outcome::Retry { .. } | Outcome::Fault { .. }), Transition::Pending { after, .. }) => {
            let least = full_wait(attempt).mul_f64(0.499);
            attempt < max_attempts && *after >= least && (*after <= full_wait(attempt) || after == rest)
        }
        (Some(Outcome::Retry { .. } | Outcome::Fault { .. }), Transition::Dead { .. }) => attempt >= max_attempts,
        // No plugin was called: refused, or given back.
        (None, Transition::Dead { reason, .. }) => matches!(reason, Reason::Crashed | Reason::Exhausted),
        (None, Transition::Released { .. }) => true,
        _ => false,
    };
    assert!(follows, "attempt {attempt} of {max_attempts}: {transition:?} does not follow from {answer:?}");
}

/// The longest wait after an attempt: the base, doubled by each attempt before, up to the maximum.
fn full_wait(attempt: u32) -> Duration {
    let mut wait = POLICY.backoff.base;
    for _ in 1..attempt {
        wait = (wait * 2).min(POLICY.backoff.max);
    }
    wait
}
