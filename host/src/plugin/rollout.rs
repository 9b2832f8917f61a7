use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboxd_core::MessageId;

use super::outcome::Evidence;

/// So many different messages must have failed before a new version is sent back: one may be poison.
const FAULTS_MIN: usize = 3;

/// How a new version takes over from one that serves: the manifest's `[rollout]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rollout {
    /// The share of messages that the new version gets at first, 0 to 1. Default 0: it takes over at once.
    pub canary: f64,
    /// After so many calls it takes over. Default 100.
    pub calls: u64,
    /// The share of its calls that may fail by its own doing. Default 0.05.
    pub faults: f64,
}

impl Default for Rollout {
    fn default() -> Self {
        Rollout { canary: 0.0, calls: 100, faults: 0.05 }
    }
}

/// A new version on trial beside the one that serves. Each relay decides for itself.
pub(crate) struct Trial {
    rollout: Rollout,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    calls: u64,
    faulty: HashSet<MessageId>,
    decided: bool,
}

/// What a call has decided about the version on trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    GoOn,
    TakeOver,
    SendBack,
}

impl Trial {
    pub(crate) fn new(rollout: Rollout) -> Self {
        Trial { rollout, record: Mutex::default() }
    }

    /// Whether the version on trial gets this message. One that it failed goes to the version that serves.
    pub(crate) fn takes(&self, message: MessageId, drawn: f64) -> bool {
        let record = self.record();
        !record.decided && drawn < self.rollout.canary && !record.faulty.contains(&message)
    }

    /// Takes note of one call. Decides once.
    pub(crate) fn note(&self, message: MessageId, evidence: Evidence) -> Decision {
        let mut record = self.record();
        if record.decided {
            return Decision::GoOn;
        }
        record.calls += 1;
        if evidence == Evidence::Fault {
            record.faulty.insert(message);
        }
        let faults = record.faulty.len();
        let decision = if faults >= FAULTS_MIN && faults as f64 > self.rollout.faults * record.calls as f64 {
            Decision::SendBack
        } else if record.calls >= self.rollout.calls {
            Decision::TakeOver
        } else {
            Decision::GoOn
        };
        record.decided = decision != Decision::GoOn;
        decision
    }

    /// Calls and faults so far.
    pub(crate) fn so_far(&self) -> (u64, u64) {
        let record = self.record();
        (record.calls, record.faulty.len() as u64)
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn message(n: u128) -> MessageId {
        MessageId(Uuid::from_u128(n))
    }

    fn trial(calls: u64) -> Trial {
        Trial::new(Rollout { canary: 0.5, calls, faults: 0.1 })
    }

    #[test]
    fn a_version_without_fault_takes_over_after_its_calls() {
        let trial = trial(10);

        let decisions: Vec<Decision> = (0..11).map(|n| trial.note(message(n), Evidence::Success)).collect();

        assert!(decisions[..9].iter().all(|decision| *decision == Decision::GoOn));
        assert_eq!(decisions[9..], [Decision::TakeOver, Decision::GoOn]);
    }

    #[test]
    fn three_different_messages_send_it_back_and_one_poison_does_not() {
        let trial = trial(100);

        for _ in 0..20 {
            assert_eq!(trial.note(message(1), Evidence::Fault), Decision::GoOn);
        }
        assert_eq!(trial.note(message(2), Evidence::Fault), Decision::GoOn);
        assert_eq!(trial.note(message(3), Evidence::Fault), Decision::SendBack);
    }

    #[test]
    fn a_message_that_it_failed_does_not_come_back_to_it() {
        let trial = trial(100);
        trial.note(message(1), Evidence::Fault);

        assert!(!trial.takes(message(1), 0.0));
        assert!(trial.takes(message(2), 0.49));
        assert!(!trial.takes(message(2), 0.5));
    }
}
