//! What happened, and the invariants over it: checked at every statement, not only at the end.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outboxd_core::{
    Claim, Held, KEY_FAILURES_MAX, LeaseId, LeaseStatus, MessageId, Order, Outcome, Reason, RestCause, Settlement,
    Transition,
};
use tokio::time::Instant;

use crate::faults::Link;
use crate::plugins::{PACED, SPACING};
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
    /// Its topic and key.
    key: Option<(String, String)>,
    /// In an ordered topic, the next of its key has gone on without it.
    passed_over: bool,
}

/// A lease that the store granted.
struct Lease {
    id: LeaseId,
    until: Instant,
    holder: Arc<Link>,
    /// The holder got the claim's answer.
    is_known: bool,
    /// Once it has lapsed, the message may be held without a claim.
    may_be_held: bool,
}

#[derive(Clone)]
pub struct Ledger {
    started: Instant,
    /// Whether order by key is checked: not where topics cease to be ordered and are again.
    ordered: bool,
    max_attempts: u32,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    messages: HashMap<MessageId, Entry>,
    /// The messages of each topic and key, in publish order.
    keys: HashMap<(String, String), Vec<MessageId>>,
    /// Until when a key rests.
    rests: HashMap<(String, String), Instant>,
    /// The last call of each key whose calls are spaced: when it began, its message and its lease.
    last_calls: HashMap<(String, String), (Instant, MessageId, LeaseId)>,
    /// Leases that were lost, and taken over.
    taken_over: HashSet<LeaseId>,
    /// Leases that were given back: a call under one was interrupted as its relay stopped.
    given_back: HashSet<LeaseId>,
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
    pub fn new(max_attempts: u32, ordered: bool) -> Self {
        Ledger { started: Instant::now(), ordered, max_attempts, inner: Arc::default() }
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
        self.note(|seen| {
            seen.steps += 1;
            seen.digest += digest.finish() >> 32;
        });
    }

    /// It has a place in the order of its key.
    pub fn published(&self, id: MessageId, topic: &str, key: &str) {
        let (mut inner, key) = (self.inner(), (topic.to_owned(), key.to_owned()));
        inner.messages.entry(id).or_default().key = Some(key.clone());
        inner.keys.entry(key).or_default().push(id);
    }

    /// A claim took effect; `is_known` says whether its answer arrives.
    pub fn claimed(&self, claims: &[Claim], lease: Duration, holder: &Arc<Link>, is_known: bool) {
        claims.iter().for_each(|claim| self.step("claimed", claim.message.id));
        let mut inner = self.inner();
        let now = Instant::now();
        for claim in claims {
            match claim.order {
                Order::Limited { per_key } => inner.assert_within_limits(claim, per_key),
                Order::ByKey { .. } if self.ordered => inner.assert_its_turn(claim),
                Order::ByKey { .. } | Order::None => {}
            }
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
            let taken_over = lapsed.map(|lapsed| lapsed.id);
            let lapsed = lapsed.is_some();
            // Where its topic has become ordered, or its key rested, it may have been held in between.
            let may_be_held = !self.ordered || matches!(claim.order, Order::Limited { .. });
            let said = claim.lapsed == lapsed || (may_be_held && lapsed);
            assert!(said, "a claim says of itself whether it took over a lost lease");
            assert_eq!(claim.attempt.0, entry.attempts + 1, "attempts rise by one at each claim");
            entry.attempts = claim.attempt.0;
            let (holder, until) = (holder.clone(), now + lease);
            entry.lease = Some(Lease { id: claim.lease_id, until, holder, is_known, may_be_held });
            entry.excused |= lapsed;
            inner.taken_over.extend(taken_over);
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
                let current = current.as_ref().filter(|current| current.id == lease_id);
                assert!(current.is_none_or(|lease| lease.may_be_held(now)), "a live lease was called lost");
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
            let may = current.is_none_or(|lease| lease.may_be_held(now));
            assert!(may, "a settle under a live lease was refused");
            inner.seen.fenced += 1;
            return;
        }
        let Some(until) = current.map(|lease| lease.until) else {
            panic!("a settle without its lease changed something")
        };
        entry.lease = None;
        assert_follows(answer.as_ref(), settlement, entry.attempts, self.max_attempts);
        let key = entry.key.clone();
        match &settlement.transition {
            Transition::Delivered => entry.finished = Some("delivered"),
            Transition::Dead { reason, .. } => {
                entry.finished = Some("dead");
                entry.passed_over |= settlement.order.frees_key(&settlement.transition);
                let is_spent = entry.attempts >= self.max_attempts;
                inner.seen.crashed += u64::from(*reason == Reason::Crashed);
                inner.seen.spent += u64::from(is_spent);
            }
            Transition::Released { reason, error, .. } => {
                entry.attempts -= 1;
                inner.given_back.insert(settlement.lease_id);
                inner.seen.turned_away(error);
                // A call was: other messages go back before there is one.
                inner.seen.interrupted += u64::from(answer.is_some() && *reason == Reason::Interrupted);
            }
            Transition::Pending { .. } => {}
        }
        let is_told = !matches!(settlement.transition, Transition::Released { .. });
        if let Some(key) = key.filter(|_| is_told && !settlement.rest.time.is_zero()) {
            let until = inner.rests.entry(key).or_insert(now);
            *until = (now + settlement.rest.time).max(*until);
            match settlement.rest.cause {
                Some(RestCause::Plugin) => inner.seen.rests += 1,
                Some(RestCause::RetryAfter) => inner.seen.rests_asked_for += 1,
                Some(RestCause::Failures) => inner.seen.rests_of_failures += 1,
                Some(RestCause::Rate) => inner.seen.spaced += 1,
                None => panic!("a key rests without a cause"),
            }
        }
        inner.seen.late_settles += u64::from(now >= until);
    }

    /// A call of a plugin begins.
    pub fn called(&self, claim: &Claim, by: &Link) {
        self.step("called", claim.message.id);
        let mut inner = self.inner();
        inner.seen.calls += 1;
        inner.assert_trusted(claim, by);
        // A relay that stood still may begin a call when its lease is long lost, and no relay hears at once of a lease that a
        // person has ended.
        let may_be_late =
            by.was_frozen_since(inner.granted[&claim.lease_id]) || inner.was_lost(claim.message.id, claim.lease_id);
        if let Some(key) = claim.message.key.clone().filter(|_| claim.message.topic.starts_with(PACED) && !may_be_late)
        {
            let now = Instant::now();
            let last =
                inner.last_calls.insert((claim.message.topic.clone(), key), (now, claim.message.id, claim.lease_id));
            if let Some((last, message, lease)) = last.filter(|(last, ..)| now - *last < SPACING) {
                // A call may begin late in its lease, and nobody tells the key of one whose lease is lost or that is interrupted.
                assert!(
                    inner.was_lost(message, lease) || inner.given_back.contains(&lease),
                    "two calls of a key began {:?} apart: of {message} and of {}",
                    now - last,
                    claim.message.id,
                );
                inner.seen.spaced_less += 1;
            }
        }
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
        entry.passed_over = true;
        if let Some(lease) = entry.lease.take() {
            entry.excused = true;
            inner.ended_by_a_person.insert(lease.id, Instant::now());
            inner.seen.discarded_under_way += 1;
        }
    }

    /// A person let its key go on without it.
    pub fn skipped(&self, id: MessageId) {
        self.step("skipped", id);
        let mut inner = self.inner();
        let entry = inner.messages.entry(id).or_default();
        assert_eq!(entry.finished, Some("dead"), "{id} was skipped, and it was not dead");
        entry.passed_over = true;
        let key = entry.key.clone();
        key.and_then(|key| inner.rests.remove(&key));
        inner.seen.skipped += 1;
    }

    /// A person sent it round again.
    pub fn redriven(&self, id: MessageId) {
        self.step("redriven", id);
        let mut inner = self.inner();
        let entry = inner.messages.entry(id).or_default();
        assert_eq!(entry.finished, Some("dead"), "{id} was redriven, and it was not dead");
        entry.finished = None;
        entry.attempts = 0;
        let key = entry.key.clone();
        key.and_then(|key| inner.rests.remove(&key));
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

impl Lease {
    fn may_be_held(&self, now: Instant) -> bool {
        self.may_be_held && now >= self.until
    }
}

impl Inner {
    /// No more messages of its key are under way than may be, and none while it rests; one alone tries a target that failed.
    fn assert_within_limits(&mut self, claim: &Claim, per_key: u32) {
        let (id, Some(key)) = (claim.message.id, &claim.message.key) else { return };
        let key = (claim.message.topic.clone(), key.clone());
        let now = Instant::now();
        assert!(self.rests.get(&key).is_none_or(|until| now >= *until), "{id} was claimed while its key rests");
        let lease = |id| self.messages.get(id).and_then(|entry: &Entry| entry.lease.as_ref());
        let others = self.keys[&key].iter().filter(|other| **other != id);
        let under_way = others.filter_map(lease).filter(|lease| now < lease.until).count();
        let tries = claim.key_failures >= KEY_FAILURES_MAX;
        let most = if tries { 1 } else { per_key as usize };
        assert!(under_way < most, "{id} was claimed beside {under_way} others of its key, {most} may be under way");
        self.seen.limit_reached += u64::from(under_way + 1 == most && most > 1);
        self.seen.tries += u64::from(tries);
    }

    /// No other message of its key is under way, and all that were published before it have ended, or were passed over.
    fn assert_its_turn(&mut self, claim: &Claim) {
        let (id, Some(key)) = (claim.message.id, &claim.message.key) else { return };
        let key = (claim.message.topic.clone(), key.clone());
        let rests = self.rests.get(&key).is_some_and(|until| Instant::now() < *until);
        assert!(!rests, "{id} was claimed while its key rests");
        let of_key = &self.keys[&key];
        let place = of_key.iter().position(|other| *other == id).expect("it was published");
        let now = Instant::now();
        for (index, other) in of_key.iter().enumerate().filter(|(_, other)| **other != id) {
            let entry = self.messages.get(other);
            let live = entry.and_then(|entry| entry.lease.as_ref()).is_some_and(|lease| now < lease.until);
            assert!(!live, "{id} and {other} of one key are under way at once");
            let ended = entry.is_some_and(|entry| entry.finished == Some("delivered") || entry.passed_over);
            assert!(index > place || ended, "{id} was claimed before {other}, which is the earlier of its key");
        }
        self.seen.in_order += u64::from(place > 0);
    }

    /// A lease that nobody has any more, and that ended without a result: it lapsed, or a person ended it.
    fn was_lost(&self, message: MessageId, lease_id: LeaseId) -> bool {
        let current = self.messages.get(&message).and_then(|entry| entry.lease.as_ref());
        self.ended_by_a_person.contains_key(&lease_id)
            || self.taken_over.contains(&lease_id)
            || current.is_some_and(|lease| lease.id == lease_id && Instant::now() >= lease.until)
    }

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
