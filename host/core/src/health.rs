use std::time::{Duration, Instant};

use crate::{Blame, MessageId, planted};

/// After this many different messages failed by the plugin's own fault, with no success between, the version is unhealthy.
const FAULTY_MESSAGES_MAX: usize = 3;
const TRIAL_PAUSE_MIN: Duration = Duration::from_secs(1);
const TRIAL_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Whether messages may be handed to a plugin version just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Open,
    /// Parked, and one message may be tried.
    Trial,
    /// Parked until then: messages wait and spend no attempt.
    Parked {
        until: Instant,
    },
}

/// Tells a plugin's fault from a message's: the evidence one version of a plugin has given.
///
/// A version that never succeeded and fails by itself (trap, cpu, memory), or one that fails so on three *different*
/// messages with no success between, is unhealthy: its failures are the plugin's, and its topics are parked. Trial calls
/// follow with a growing pause; one success resumes everything. So a broken plugin cannot kill a message, and a lone
/// poison message can neither park a healthy version nor escape being dead.
#[derive(Debug, Default)]
pub struct Health {
    succeeded: bool,
    faulty: Vec<MessageId>,
    parked: Option<Parked>,
}

#[derive(Debug)]
struct Parked {
    trials: u32,
    until: Instant,
}

impl Health {
    /// Any success clears all evidence.
    pub fn succeeded(&mut self) {
        *self = Health { succeeded: true, ..Health::default() };
    }

    /// Takes a fault that is evidence against the version (never a deadline or a retry: those may be the target's fault)
    /// and says whose it is.
    pub fn faulted(&mut self, message: MessageId, now: Instant) -> Blame {
        if planted!(20, true, !self.faulty.contains(&message)) && self.faulty.len() < FAULTY_MESSAGES_MAX {
            self.faulty.push(message);
        }
        if self.succeeded && self.faulty.len() < FAULTY_MESSAGES_MAX {
            return Blame::Message;
        }
        self.park(now);
        planted!(18, Blame::Message, Blame::Plugin)
    }

    fn park(&mut self, now: Instant) {
        let trials = match &self.parked {
            // Calls that were under way when the version was parked tell nothing new.
            Some(parked) if now < parked.until => return,
            Some(parked) => parked.trials.saturating_add(1),
            None => 0,
        };
        let pause = TRIAL_PAUSE_MIN.saturating_mul(1 << trials.min(16)).min(TRIAL_PAUSE_MAX);
        self.parked = Some(Parked { trials, until: now + pause });
    }

    pub fn admission(&self, now: Instant) -> Admission {
        match &self.parked {
            None => Admission::Open,
            Some(parked) if planted!(19, false, now >= parked.until) => Admission::Trial,
            Some(parked) => Admission::Parked { until: parked.until },
        }
    }

    pub fn is_parked(&self) -> bool {
        self.parked.is_some()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn message(n: u128) -> MessageId {
        MessageId(Uuid::from_u128(n))
    }

    #[test]
    fn a_version_that_never_succeeded_is_parked_at_its_first_fault() {
        let mut health = Health::default();
        let now = Instant::now();

        assert_eq!(health.faulted(message(1), now), Blame::Plugin);
        assert_eq!(health.admission(now), Admission::Parked { until: now + Duration::from_secs(1) });
        assert_eq!(health.admission(now + Duration::from_secs(1)), Admission::Trial);
    }

    #[test]
    fn a_lone_poison_never_parks_a_version_that_has_worked() {
        let mut health = Health::default();
        health.succeeded();

        for _ in 0..25 {
            assert_eq!(health.faulted(message(1), Instant::now()), Blame::Message);
        }

        assert_eq!(health.admission(Instant::now()), Admission::Open);
    }

    #[test]
    fn three_different_messages_without_a_success_between_park_a_version_that_has_worked() {
        let mut health = Health::default();
        let now = Instant::now();
        health.succeeded();

        assert_eq!(health.faulted(message(1), now), Blame::Message);
        assert_eq!(health.faulted(message(2), now), Blame::Message);
        assert_eq!(health.faulted(message(3), now), Blame::Plugin);
        assert!(health.is_parked());
    }

    #[test]
    fn a_success_between_starts_the_count_anew() {
        let mut health = Health::default();
        let now = Instant::now();
        health.succeeded();
        health.faulted(message(1), now);
        health.faulted(message(2), now);

        health.succeeded();

        assert_eq!(health.faulted(message(3), now), Blame::Message);
    }

    #[test]
    fn trials_come_less_and_less_often_and_a_success_resumes_at_once() {
        let mut health = Health::default();
        let mut now = Instant::now();
        let mut pauses = vec![];
        for n in 0..9 {
            health.faulted(message(n), now);
            let Admission::Parked { until } = health.admission(now) else { panic!("not parked") };
            pauses.push((until - now).as_secs());
            now = until;
        }

        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);

        health.succeeded();
        assert_eq!(health.admission(now), Admission::Open);
    }
}
