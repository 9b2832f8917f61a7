//! What happened, and the invariants over it: checked at every statement, not only at the end.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outboxd_core::{Claim, Held, LeaseId, LeaseStatus, MessageId, Outcome, Reason, Settlement, Transition};
use tokio::time::Instant;

use crate::faults::Link;
use crate::policy::assert_follows;
use crate::seen::Seen;

/// What the ledger knows of one message.
#[derive(Default)]
struct Entry {
    attempts: u32,
    lease: Option<Lease>,
    finished: Option<&'static str>,
    successes: u32,
    /// What may have made it come twice: a lapse, or a person who discarded it while it was under way.
    excused: bool,
}

/// A lease that the store granted.
struct Lease {
    id: LeaseId,
    until: Instant,
    holder: Arc<Link>,
    /// The holder got the claim's answer.
    is_known: bool,
}

#[derive(Clone)]
pub struct Ledger {
    started: Instant,
    max_attempts: u32,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    messages: HashMap<MessageId, Entry>,
    granted: HashMap<LeaseId, Instant>,
    /// What a plugin answered under each lease.
    answers: HashMap<LeaseId, Outcome>,
    /// When a relay was told that its lease is lost.
    told_lost: HashMap<LeaseId, Instant>,
    /// Leases that a person ended, by discarding the message.
    ended_by_a_person: HashMap<LeaseId, Instant>,
    seen: Seen,
}

impl Ledger {
    pub fn new(max_attempts: u32) -> Self {
        Ledger { started: Instant::now(), max_attempts, inner: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no invariant failed while the ledger was held")
    }

    pub fn seen(&self) -> Seen {
        self.inner().seen.clone()
    }

    pub fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.inner().seen);
    }

    fn step(&self, what: &str, message: MessageId) {
        let mut digest = DefaultHasher::new();
        (what, message.0, self.started.elapsed()).hash(&mut digest);
        // Half of it, so that very many can be added up.
        self.note(|seen| seen.steps += digest.finish() >> 32);
    }

    /// A claim took effect; `is_known` says whether its answer arrives.
    pub fn claimed(&self, claims: &[Claim], lease: Duration, holder: &Arc<Link>, is_known: bool) {
        claims.iter().for_each(|claim| self.step("claimed", claim.message.id));
        let mut inner = self.inner();
        let now = Instant::now();
        for claim in claims {
            let entry = inner.messages.entry(claim.message.id).or_default();
            assert_eq!(entry.finished, None, "{} was claimed after it had ended", claim.message.id);
            let lapsed = entry.lease.as_ref();
            if let Some(lapsed) = lapsed {
                assert!(now >= lapsed.until, "{} was claimed while another lease was live", claim.message.id);
                assert!(
                    !lapsed.is_known || lapsed.holder.may_have_let_lapse(lapsed.until),
                    "the lease of {} lapsed at {:?} without a cause: {:?}",
                    claim.message.id,
                    lapsed.until,
                    lapsed.holder,
                );
            }
            let lapsed = lapsed.is_some();
            assert_eq!(claim.lapsed, lapsed, "a claim says of itself whether it took over a lost lease");
            assert_eq!(claim.attempt.0, entry.attempts + 1, "attempts rise by one at each claim");
            entry.attempts = claim.attempt.0;
            let (holder, until) = (holder.clone(), now + lease);
            entry.lease = Some(Lease { id: claim.lease_id, until, holder, is_known });
            entry.excused |= lapsed;
            inner.granted.insert(claim.lease_id, now);
            inner.seen.lapses += u64::from(lapsed);
        }
    }

    pub fn renewed(&self, id: MessageId, lease_id: LeaseId, status: LeaseStatus, lease: Duration) {
        self.step("renewed", id);
        let mut inner = self.inner();
        let now = Instant::now();
        let entry = inner.messages.entry(id).or_default();
        match (&mut entry.lease, status) {
            (Some(current), LeaseStatus::Held) => {
                assert_eq!(current.id, lease_id, "a stale lease was renewed");
                current.until = now + lease;
            }
            (None, LeaseStatus::Held) => panic!("a lease was renewed that nobody has"),
            (current, LeaseStatus::Lost) => {
                assert!(current.as_ref().is_none_or(|current| current.id != lease_id), "a live lease was called lost");
                inner.seen.lost_by_renewal += 1;
            }
        }
    }

    /// The answer of a renewal has arrived.
    pub fn told(&self, held: &[Held], statuses: &[LeaseStatus]) {
        let mut inner = self.inner();
        for (held, _) in held.iter().zip(statuses).filter(|(_, status)| **status == LeaseStatus::Lost) {
            inner.told_lost.insert(held.lease_id, Instant::now());
        }
    }

    /// A settle or release took effect.
    pub fn settled(&self, settlement: &Settlement, status: LeaseStatus) {
        self.step(settlement.transition.result(), settlement.id);
        let mut inner = self.inner();
        let now = Instant::now();
        let answer = inner.answers.get(&settlement.lease_id).cloned();
        let entry = inner.messages.entry(settlement.id).or_default();
        let current = entry.lease.as_ref().filter(|current| current.id == settlement.lease_id);
        if status == LeaseStatus::Lost {
            assert!(current.is_none(), "a settle under a live lease was refused");
            inner.seen.fenced += 1;
            return;
        }
        let Some(until) = current.map(|lease| lease.until) else {
            panic!("a settle without its lease changed something")
        };
        entry.lease = None;
        assert_follows(answer.as_ref(), &settlement.transition, entry.attempts, self.max_attempts);
        match &settlement.transition {
            Transition::Delivered => entry.finished = Some("delivered"),
            Transition::Dead { reason, .. } => {
                entry.finished = Some("dead");
                let is_spent = entry.attempts >= self.max_attempts;
                inner.seen.crashed += u64::from(*reason == Reason::Crashed);
                inner.seen.spent += u64::from(is_spent);
            }
            Transition::Released { reason, .. } => {
                entry.attempts -= 1;
                inner.seen.interrupted += u64::from(*reason == Reason::Interrupted);
            }
            Transition::Pending { .. } => {}
        }
        inner.seen.late_settles += u64::from(now >= until);
    }

    /// A call of a plugin begins.
    pub fn called(&self, claim: &Claim, by: &Link) {
        self.step("called", claim.message.id);
        let mut inner = self.inner();
        inner.seen.calls += 1;
        inner.assert_trusted(claim, by);
    }

    /// A plugin is about to answer.
    pub fn answered(&self, claim: &Claim, outcome: &Outcome, by: &Arc<Link>) {
        self.step("answered", claim.message.id);
        let mut inner = self.inner();
        inner.answers.insert(claim.lease_id, outcome.clone());
        let waiting = inner.messages.values().filter_map(|entry| entry.lease.as_ref());
        let waiting =
            waiting.filter(|lease| Arc::ptr_eq(&lease.holder, by) && inner.answers.contains_key(&lease.id)).count();
        inner.seen.results_waiting_max = inner.seen.results_waiting_max.max(waiting);
        if *outcome != Outcome::Success {
            return;
        }
        inner.assert_trusted(claim, by);
        if let Some(told) = inner.told_lost.get(&claim.lease_id) {
            assert!(*told >= Instant::now(), "a call went on after its relay was told that the lease is lost");
        }
        let entry = inner.messages.entry(claim.message.id).or_default();
        entry.successes += 1;
        if entry.successes > 1 {
            assert!(entry.excused, "{} came twice without a cause", claim.message.id);
            inner.seen.duplicates += 1;
        }
    }

    /// A person made it dead.
    pub fn discarded(&self, id: MessageId) {
        self.step("discarded", id);
        let mut inner = self.inner();
        let entry = inner.messages.entry(id).or_default();
        assert_eq!(entry.finished, None, "{id} was discarded after it had ended");
        entry.finished = Some("dead");
        if let Some(lease) = entry.lease.take() {
            entry.excused = true;
            inner.ended_by_a_person.insert(lease.id, Instant::now());
            inner.seen.discarded_under_way += 1;
        }
    }

    /// A person sent it round again.
    pub fn redriven(&self, id: MessageId) {
        self.step("redriven", id);
        let mut inner = self.inner();
        let entry = inner.messages.entry(id).or_default();
        assert_eq!(entry.finished, Some("dead"), "{id} was redriven, and it was not dead");
        entry.finished = None;
        entry.attempts = 0;
        inner.seen.redriven += 1;
    }

    /// Every message has ended.
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

impl Inner {
    /// A relay that works under a lease has it, as the database sees it: nobody else can be at work on the same message.
    /// Excepted is a relay that stood still and had no chance to notice, and a lease that a person ended.
    fn assert_trusted(&self, claim: &Claim, by: &Link) {
        let lease = self.messages.get(&claim.message.id).and_then(|entry| entry.lease.as_ref());
        let is_live = lease.is_some_and(|lease| lease.id == claim.lease_id && Instant::now() < lease.until);
        assert!(
            is_live
                || by.was_frozen_since(self.granted[&claim.lease_id])
                || self.ended_by_a_person.contains_key(&claim.lease_id),
            "a call was under way without its lease"
        );
    }
}
