use std::time::Duration;

use arbitrary::Unstructured;
use outboxd::plugin::fuzzing::{Answer, judged};
use outboxd_core::{
    Attempt, Backoff, Blame, ERROR_BYTES_MAX, Jitter, Outcome, Reason, RetryPolicy, Transition, decide,
};

/// How a call ended and what was seen beside it, to what becomes of the message.
pub fn try_one(bytes: &[u8]) {
    // What is missing at the end is drawn as nothing, so every input is a case.
    let _ = judge_and_decide(&mut Unstructured::new(bytes));
}

fn judge_and_decide(bytes: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let answer = match bytes.int_in_range(0..=3)? {
        0 => Answer::Success,
        1 => Answer::Cancel(bytes.arbitrary()?),
        2 => Answer::Retry(bytes.arbitrary()?, bytes.arbitrary()?),
        _ => Answer::Trap(bytes.arbitrary()?),
    };
    let is_success = matches!(answer, Answer::Success);
    let outcome = judged(answer, bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?);
    match &outcome {
        Outcome::Success => assert!(is_success, "only a success is one"),
        Outcome::Retry { error, .. } | Outcome::Cancel { error } | Outcome::Fault { error, .. } => {
            assert_storable(error)
        }
        Outcome::Refused { .. } => panic!("a plugin ran: {outcome:?}"),
    }

    let backoff = Backoff {
        base: Duration::from_millis(bytes.arbitrary()?),
        max: Duration::from_millis(bytes.arbitrary()?),
        jitter: f64::from(bytes.arbitrary::<u8>()?) / 255.0,
    };
    let policy = RetryPolicy { max_attempts: bytes.arbitrary()?, backoff, ..RetryPolicy::default() };
    let attempt: u32 = bytes.arbitrary()?;
    let may_repeat = attempt < policy.max_attempts;
    let transition = decide(outcome.clone(), Attempt(attempt), &policy, Jitter::new(bytes.arbitrary()?));
    match (transition, outcome) {
        (Transition::Delivered, Outcome::Success) => {}
        (Transition::Dead { reason: Reason::Cancelled, .. }, Outcome::Cancel { .. }) => {}
        (Transition::Released { .. }, Outcome::Fault { blame: Blame::Host | Blame::Plugin, .. }) => {}
        (Transition::Dead { .. }, Outcome::Retry { .. } | Outcome::Fault { blame: Blame::Message, .. }) => {
            assert!(!may_repeat)
        }
        (Transition::Pending { after, .. }, Outcome::Retry { .. } | Outcome::Fault { blame: Blame::Message, .. }) => {
            assert!(may_repeat && after <= backoff.max, "{after:?} of at most {:?}", backoff.max)
        }
        (transition, outcome) => panic!("{transition:?} does not follow from {outcome:?}"),
    }
    Ok(())
}

/// No error text may make a settle fail or drive a terminal.
fn assert_storable(error: &str) {
    assert!(error.len() <= ERROR_BYTES_MAX, "{} bytes", error.len());
    assert!(!error.chars().any(|char| char.is_control() && char != '\n' && char != '\t'), "{error:?}");
}
