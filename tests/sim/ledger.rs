//! What happened, and the invariants over it: checked at every statement, not only at the end.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outboxd_core::{Claim, LeaseId, LeaseStatus, MessageId, Reason, Settlement, Transition};
use tokio::time::Instant;

/// Counts over a run. A count that stays zero tells what was not tested.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub statements: u64,
    pub calls: u64,
    pub fenced: u64,
    pub unknown_landed: u64,
    pub unknown_not_landed: u64,
    pub lapses: u64,
    pub lost_by_renewal: u64,
    pub late_settles: u64,
    pub duplicates: u64,
    pub parked: u64,
    pub resumed: u64,
    pub interrupted: u64,
    pub stopped_in_a_claim: u64,
    pub crashed: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        self.statements += other.statements;
        self.calls += other.calls;
        self.fenced += other.fenced;
        self.unknown_landed += other.unknown_landed;
        self.unknown_not_landed += other.unknown_not_landed;
        self.lapses += other.lapses;
        self.lost_by_renewal += other.lost_by_renewal;
        self.late_settles += other.late_settles;
        self.duplicates += other.duplicates;
        self.parked += other.parked;
        self.resumed += other.resumed;
        self.interrupted += other.interrupted;
        self.stopped_in_a_claim += other.stopped_in_a_claim;
        self.crashed += other.crashed;
    }
}

/// What the ledger knows of one message.
#[derive(Default)]
struct Entry {
    attempts: u32,
    lease: Option<(LeaseId, Instant)>,
    finished: Option<&'static str>,
    successes: u32,
    /// A fault that may have made it come twice: a lapse, or a result that could not be settled.
    excused: bool,
}

#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    messages: HashMap<MessageId, Entry>,
    succeeded: HashSet<LeaseId>,
    seen: Seen,
}

impl Ledger {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no invariant failed while the ledger was held")
    }

    pub fn seen(&self) -> Seen {
        self.inner().seen.clone()
    }

    pub fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.inner().seen);
    }

    /// A claim took effect, whether or not its answer arrives.
    pub fn claimed(&self, claims: &[Claim], lease: Duration) {
        let mut inner = self.inner();
        let now = Instant::now();
        for claim in claims {
            let entry = inner.messages.entry(claim.message.id).or_default();
            assert_eq!(entry.finished, None, "{} was claimed after it had ended", claim.message.id);
            let lapsed = match entry.lease {
                Some((_, until)) => {
                    assert!(now >= until, "{} was claimed while another lease was live", claim.message.id);
                    true
                }
                None => false,
            };
            assert_eq!(claim.lapsed, lapsed, "a claim says of itself whether it took over a lost lease");
            assert_eq!(claim.attempt.0, entry.attempts + 1, "attempts rise by one at each claim");
            entry.attempts = claim.attempt.0;
            entry.lease = Some((claim.lease_id, now + lease));
            entry.excused |= lapsed;
            inner.seen.lapses += u64::from(lapsed);
        }
    }

    pub fn renewed(&self, id: MessageId, lease_id: LeaseId, status: LeaseStatus, lease: Duration) {
        let mut inner = self.inner();
        let now = Instant::now();
        let entry = inner.messages.entry(id).or_default();
        match (&mut entry.lease, status) {
            (Some((current, until)), LeaseStatus::Held) => {
                assert_eq!(*current, lease_id, "a stale lease was renewed");
                *until = now + lease;
            }
            (None, LeaseStatus::Held) => panic!("a lease was renewed that nobody has"),
            (current, LeaseStatus::Lost) => {
                assert!(current.is_none_or(|(current, _)| current != lease_id), "a live lease was called lost");
                inner.seen.lost_by_renewal += 1;
            }
        }
    }

    /// A settle or release took effect.
    pub fn settled(&self, settlement: &Settlement, status: LeaseStatus) {
        let mut inner = self.inner();
        let now = Instant::now();
        let succeeded = inner.succeeded.contains(&settlement.lease_id);
        let entry = inner.messages.entry(settlement.id).or_default();
        let current = entry.lease.filter(|(current, _)| *current == settlement.lease_id);
        if status == LeaseStatus::Lost {
            assert!(current.is_none(), "a settle under a live lease was refused");
            inner.seen.fenced += 1;
            return;
        }
        let Some((_, until)) = current else { panic!("a settle without its lease changed something") };
        entry.lease = None;
        match &settlement.transition {
            Transition::Delivered => {
                assert!(succeeded, "delivered without a success");
                entry.finished = Some("delivered");
            }
            Transition::Dead { reason, .. } => {
                entry.finished = Some("dead");
                inner.seen.crashed += u64::from(*reason == Reason::Crashed);
            }
            Transition::Released { reason, .. } => {
                entry.attempts -= 1;
                inner.seen.interrupted += u64::from(*reason == Reason::Interrupted);
            }
            Transition::Pending { .. } => {}
        }
        inner.seen.late_settles += u64::from(now >= until);
    }

    /// A plugin is about to answer success.
    pub fn succeeded(&self, claim: &Claim) {
        let mut inner = self.inner();
        inner.succeeded.insert(claim.lease_id);
        let entry = inner.messages.entry(claim.message.id).or_default();
        entry.successes += 1;
        if entry.successes > 1 {
            assert!(entry.excused, "{} came twice without a cause", claim.message.id);
            inner.seen.duplicates += 1;
        }
    }

    /// The answer under this lease may be lost: a stop, a crash, a cut database.
    pub fn excuse(&self, id: MessageId) {
        self.inner().messages.entry(id).or_default().excused = true;
    }

    /// Every message has ended, and `crashed` only those of `killers`, where only they kill.
    pub fn all_finished(&self, ids: &[MessageId]) -> bool {
        let inner = self.inner();
        ids.iter().all(|id| inner.messages.get(id).is_some_and(|entry| entry.finished.is_some()))
    }

    pub fn unfinished(&self, ids: &[MessageId]) -> Vec<MessageId> {
        let inner = self.inner();
        let finished = |id: &&MessageId| inner.messages.get(id).is_some_and(|entry| entry.finished.is_some());
        ids.iter().filter(|id| !finished(id)).copied().collect()
    }
}
