//! What became of every message, and whether that is what was promised.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::faults::{Fault, Kind};
use crate::producer::Fates;
use crate::sink::Delivery;
use crate::stage::lease;
use crate::truth::Truth;
use crate::verdict::{Cause, Story, Verdict};

/// How long after its answer a call is settled where nothing goes wrong, on a loaded machine: a quarter of a lease, 500 ms.
fn settled_within() -> Duration {
    lease() / 4
}

/// Everything that was seen.
pub struct Evidence {
    pub fates: Fates,
    pub truth: Truth,
    pub deliveries: Vec<Delivery>,
    pub faults: Vec<Fault>,
    /// Messages of which a relay has said that it lost the lease, or could not write what came of them.
    pub lapsed: HashSet<Uuid>,
}

pub fn check(evidence: &Evidence) -> Verdict {
    let mut deliveries: HashMap<Uuid, Vec<&Delivery>> = HashMap::new();
    for delivery in &evidence.deliveries {
        deliveries.entry(delivery.id).or_default().push(delivery);
    }
    for of_one in deliveries.values_mut() {
        of_one.sort_by_key(|delivery| delivery.at);
    }
    let mut verdict = Verdict {
        messages: evidence.truth.orders.len(),
        rolled_back: evidence.fates.rolled_back.len(),
        unknown: evidence.fates.unknown.len(),
        unknown_committed: evidence.fates.unknown.iter().filter(|id| evidence.truth.orders.contains(id)).count(),
        ..Verdict::default()
    };
    check_commits(evidence, &mut verdict);
    check_phantoms(evidence, &deliveries, &mut verdict);
    check_order(evidence, &deliveries, &mut verdict);

    let mut by_fault: HashMap<usize, usize> = HashMap::new();
    for id in &evidence.truth.orders {
        check_message(evidence, *id, deliveries.get(id).map_or(&[], Vec::as_slice), &mut by_fault, &mut verdict);
    }
    for (fault, count) in by_fault {
        let most = verdict.duplicates_max.entry(Cause::Fault(evidence.faults[fault].kind)).or_default();
        *most = count.max(*most);
    }
    for cause in [Cause::Lapse, Cause::Silence] {
        if let Some(count) = verdict.duplicates.get(&cause) {
            verdict.duplicates_max.insert(cause, *count);
        }
    }
    verdict
}

/// A commit that was answered is kept, business row and message alike, and what was rolled back is not.
fn check_commits(evidence: &Evidence, verdict: &mut Verdict) {
    for id in &evidence.fates.committed {
        if !evidence.truth.orders.contains(id) {
            verdict.lost.push(format!("{id}: its commit was answered, and the database has no trace of it"));
        }
    }
    for id in &evidence.fates.rolled_back {
        if evidence.truth.rows.contains_key(id) || evidence.truth.orders.contains(id) {
            verdict.phantom.push(format!("{id}: it was rolled back, and is in the database"));
        }
    }
    for id in evidence.truth.rows.keys().filter(|id| !evidence.truth.orders.contains(id)) {
        verdict.phantom.push(format!("{id}: the outbox has it, and there is no such business row"));
    }
}

fn check_phantoms(evidence: &Evidence, deliveries: &HashMap<Uuid, Vec<&Delivery>>, verdict: &mut Verdict) {
    for id in deliveries.keys().filter(|id| !evidence.truth.orders.contains(id)) {
        verdict.phantom.push(format!("{id}: it was delivered and never committed"));
    }
}

/// In the order of a key no message is handed over before the one before it was settled. Both times are this machine's; what
/// is kept is rounded to milliseconds.
fn check_order(evidence: &Evidence, deliveries: &HashMap<Uuid, Vec<&Delivery>>, verdict: &mut Verdict) {
    for pair in evidence.fates.in_order.values().flat_map(|of_key| of_key.windows(2)) {
        let settled = evidence.truth.rows.get(&pair[0]).and_then(|row| row.delivered_at);
        let handed_over = deliveries.get(&pair[1]).and_then(|deliveries| deliveries.first());
        let (Some(settled), Some(handed_over)) = (settled, handed_over) else { continue };
        verdict.in_order += 1;
        if handed_over.at + Duration::from_millis(2) < settled {
            let [earlier, later] = [pair[0], pair[1]];
            verdict
                .broken
                .push(format!("{later}: handed over before {earlier}, the one before it of its key, was settled"));
        }
    }
}

fn check_message(
    evidence: &Evidence,
    id: Uuid,
    deliveries: &[&Delivery],
    by_fault: &mut HashMap<usize, usize>,
    verdict: &mut Verdict,
) {
    let Some(row) = evidence.truth.rows.get(&id) else {
        verdict.lost.push(format!("{id}: committed, and its row is gone"));
        return;
    };
    let taken: Vec<&Delivery> = deliveries.iter().filter(|delivery| delivery.taken).copied().collect();
    if row.state != "delivered" {
        verdict.lost.push(format!("{id}: still {} ({:?}) after the drain", row.state, row.reason));
        return;
    }
    if taken.is_empty() {
        verdict.lost.push(format!("{id}: delivered as its row says, and the target never took it"));
        return;
    }
    if row.results.iter().rposition(|result| result == "delivered") != Some(row.results.len().wrapping_sub(1))
        || row.results.iter().filter(|result| *result == "delivered").count() != 1
    {
        verdict.broken.push(format!("{id}: something was settled after its success: {:?}", row.results));
    }

    // Every claim has a higher number than the one before: a settle of an older one came from a lease that was lost.
    if row.settled_attempt != Some(row.attempts) {
        let (settled, attempts) = (row.settled_attempt, row.attempts);
        verdict.broken.push(format!("{id}: settled by attempt {settled:?}, though attempt {attempts} had the lease"));
    }

    if taken.len() == 1 {
        // Each attempt is a request or a lease lost before there was one.
        match usize::try_from(row.attempts).is_ok_and(|attempts| attempts > deliveries.len()) {
            true => verdict.recovered += 1,
            false => verdict.ok += 1,
        }
    }
    for pair in taken.windows(2) {
        match explain(evidence, id, pair[0], pair[1]) {
            Some(Explanation::Fault(index)) => {
                *by_fault.entry(index).or_default() += 1;
                *verdict.duplicates.entry(Cause::Fault(evidence.faults[index].kind)).or_default() += 1;
            }
            Some(Explanation::Lapse) => *verdict.duplicates.entry(Cause::Lapse).or_default() += 1,
            Some(Explanation::Silence) => *verdict.duplicates.entry(Cause::Silence).or_default() += 1,
            None => verdict.unexplained.push(format!("{id}: {}", Story(&taken))),
        }
    }
    if let Some(settled) = row.delivered_at {
        check_nothing_after(evidence, id, settled, &taken, verdict);
    }
}

/// A message that was settled is never handed over again. A relay that slept through all of that may still finish its call.
fn check_nothing_after(evidence: &Evidence, id: Uuid, settled: SystemTime, taken: &[&Delivery], verdict: &mut Verdict) {
    for late in taken.iter().filter(|delivery| delivery.at > settled + settled_within()) {
        if !evidence.faults.iter().any(|fault| woke_up(fault, late) && fault.from <= settled) {
            verdict.broken.push(format!("{id}: handed over again after it was settled: {}", Story(taken)));
        }
    }
}

enum Explanation {
    Fault(usize),
    Lapse,
    /// The target did not answer for as long as the plugin waits.
    Silence,
}

/// A call has 10 s; the request was on its way for some of them.
const SILENCE_MIN: Duration = Duration::from_secs(9);

/// Why a message that the target took came again: the fault that hit its first relay between request and settle, a relay that
/// was asleep when it should have sent the second, a lease that a relay told it lost, or a target that did not answer.
fn explain(evidence: &Evidence, id: Uuid, first: &Delivery, second: &Delivery) -> Option<Explanation> {
    // A call without an answer went on until its sender was gone.
    let settled_by = first.answered.map_or(second.at, |answered| answered + settled_within());
    let hit = |fault: &Fault| fault.excuses(first.incarnation) && fault.overlaps(first.at, settled_by);
    let slept = |fault: &Fault| woke_up(fault, second) && fault.from <= first.at;
    let explaining = evidence.faults.iter().enumerate().filter(|(_, fault)| hit(fault) || slept(fault));
    // A kill explains best, since nothing is left of what it hit; then what hit this relay alone.
    let worth = |fault: &Fault| (fault.kind != Kind::Killed, fault.incarnation.is_none(), !hit(fault));
    if let Some((index, _)) = explaining.min_by_key(|(_, fault)| worth(fault)) {
        return Some(Explanation::Fault(index));
    }
    if evidence.lapsed.contains(&id) {
        return Some(Explanation::Lapse);
    }
    let waited = second.at.duration_since(first.at).unwrap_or_default();
    (first.answered.is_none() && waited >= SILENCE_MIN).then_some(Explanation::Silence)
}

/// Whether the sender had just woken up from that fault.
fn woke_up(fault: &Fault, delivery: &Delivery) -> bool {
    fault.kind == Kind::Paused
        && fault.incarnation == Some(delivery.incarnation)
        && fault.overlaps(delivery.at, delivery.at)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::truth::Row;

    fn at(ms: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(1_000_000 + ms)
    }

    fn delivery(id: Uuid, incarnation: u32, ms: u64) -> Delivery {
        Delivery { id, incarnation, at: at(ms), answered: Some(at(ms + 10)), taken: true }
    }

    fn fault(kind: Kind, incarnation: Option<u32>, from: u64, until: u64) -> Fault {
        Fault { kind, incarnation, from: at(from), until: at(until) }
    }

    /// One message, committed and delivered at 100 ms by process 1.
    fn sound() -> (Uuid, Evidence) {
        let id = Uuid::from_u128(7);
        let row = Row {
            state: "delivered".into(),
            reason: None,
            attempts: 1,
            delivered_at: Some(at(120)),
            results: vec!["delivered".into()],
            settled_attempt: Some(1),
        };
        let truth = Truth { orders: [id].into(), rows: [(id, row)].into() };
        let fates = Fates { committed: vec![id], ..Fates::default() };
        let deliveries = vec![delivery(id, 1, 100)];
        (id, Evidence { fates, truth, deliveries, faults: Vec::new(), lapsed: HashSet::new() })
    }

    /// The same delivered again by process 2, two seconds later, and settled only then.
    fn doubled() -> (Uuid, Evidence) {
        let (id, mut evidence) = sound();
        evidence.deliveries.push(delivery(id, 2, 2_100));
        evidence.truth.rows.get_mut(&id).unwrap().delivered_at = Some(at(2_120));
        (id, evidence)
    }

    fn row(evidence: &mut Evidence, id: Uuid) -> &mut Row {
        evidence.truth.rows.get_mut(&id).unwrap()
    }

    #[test]
    fn a_sound_message_is_ok() {
        let (_, evidence) = sound();

        let verdict = check(&evidence);

        assert!(verdict.is_clean(), "{verdict:?}");
        assert_eq!((verdict.ok, verdict.recovered, verdict.duplicates()), (1, 0, 0));
    }

    #[test]
    fn a_message_that_is_handed_over_before_the_one_before_it_is_settled_is_out_of_order() {
        let handed_over_at = |ms| {
            let (first, mut evidence) = sound();
            let second = Uuid::from_u128(8);
            let row = Row { delivered_at: Some(at(220)), ..row(&mut evidence, first).clone() };
            evidence.truth.rows.insert(second, row);
            evidence.truth.orders.insert(second);
            evidence.fates.in_order = [("key".to_owned(), vec![first, second])].into();
            evidence.deliveries.push(delivery(second, 2, ms));
            check(&evidence)
        };

        let (sound, early) = (handed_over_at(120), handed_over_at(110));
        assert!(sound.is_clean() && sound.in_order == 1, "{sound:?}");
        assert_eq!(early.broken.len(), 1);
    }

    #[test]
    fn a_message_that_is_gone_or_stuck_or_never_arrived_is_lost() {
        let (id, mut gone) = sound();
        gone.truth.rows.remove(&id);
        let (id, mut stuck) = sound();
        row(&mut stuck, id).state = "processing".into();
        let (_, mut unseen) = sound();
        unseen.deliveries.clear();
        let (_, mut forgotten) = sound();
        forgotten.truth = Truth::default();
        forgotten.deliveries.clear();

        for evidence in [gone, stuck, unseen, forgotten] {
            assert_eq!(check(&evidence).lost.len(), 1);
        }
    }

    #[test]
    fn what_was_never_committed_is_a_phantom_when_it_arrives_or_is_stored() {
        let (id, mut delivered) = sound();
        delivered.truth = Truth::default();
        delivered.fates = Fates { rolled_back: vec![id], ..Fates::default() };
        let (id, mut stored) = sound();
        stored.truth.orders.clear();
        stored.deliveries.clear();
        stored.fates = Fates { unknown: vec![id], ..Fates::default() };

        for evidence in [delivered, stored] {
            assert_eq!(check(&evidence).phantom.len(), 1);
        }
    }

    #[test]
    fn a_duplicate_without_a_fault_is_unexplained() {
        let (_, evidence) = doubled();

        assert_eq!(check(&evidence).unexplained.len(), 1);
    }

    #[test]
    fn only_a_fault_of_its_own_relay_in_its_own_time_explains_a_duplicate() {
        let explained = [
            fault(Kind::Killed, Some(1), 105, 110),
            fault(Kind::Paused, Some(1), 300, 2_800),
            fault(Kind::DatabaseKilled, None, 115, 900),
            // The second sender claimed first, slept, and sent late.
            fault(Kind::Paused, Some(2), 50, 2_050),
        ];
        let unexplained = [
            fault(Kind::Killed, Some(2), 105, 110),
            fault(Kind::Killed, Some(1), 1_000, 1_010),
            fault(Kind::Left, Some(1), 105, 110),
            fault(Kind::DatabaseKilled, None, 1_000, 1_900),
            fault(Kind::Paused, Some(2), 500, 2_050),
        ];

        for fault in explained {
            let (_, mut evidence) = doubled();
            evidence.faults.push(fault.clone());
            let verdict = check(&evidence);
            assert_eq!(verdict.duplicates.get(&Cause::Fault(fault.kind)), Some(&1), "{fault:?}");
            assert_eq!(verdict.duplicates_max.get(&Cause::Fault(fault.kind)), Some(&1), "{fault:?}");
            assert!(verdict.is_clean(), "{fault:?}");
        }
        for fault in unexplained {
            let (_, mut evidence) = doubled();
            evidence.faults.push(fault.clone());
            assert_eq!(check(&evidence).unexplained.len(), 1, "{fault:?}");
        }
    }

    #[test]
    fn a_long_call_is_under_way_until_its_relay_is_killed() {
        let (_, mut evidence) = doubled();
        evidence.deliveries[0].answered = None;
        evidence.faults.push(fault(Kind::Killed, Some(1), 1_800, 1_810));

        assert!(check(&evidence).is_clean());
    }

    #[test]
    fn only_a_target_that_was_silent_while_the_plugin_waited_explains_that_it_was_asked_again() {
        let again_after = |waited: u64, answered| {
            let (id, mut evidence) = sound();
            let (asked, again) = (100, 100 + waited);
            evidence.deliveries = vec![delivery(id, 1, asked), delivery(id, 2, again)];
            evidence.deliveries[0].answered = answered;
            row(&mut evidence, id).delivered_at = Some(at(again + 20));
            check(&evidence).duplicates.get(&Cause::Silence).copied()
        };

        assert_eq!(again_after(10_000, None), Some(1));
        assert_eq!(again_after(10_000, Some(at(110))), None);
        assert_eq!(again_after(2_000, None), None);
    }

    #[test]
    fn a_message_handed_over_after_it_was_settled_is_a_broken_promise_whatever_was_done() {
        let (id, mut evidence) = doubled();
        evidence.faults.push(fault(Kind::Killed, Some(1), 105, 110));
        row(&mut evidence, id).delivered_at = Some(at(110));

        assert_eq!(check(&evidence).broken.len(), 1);
    }

    #[test]
    fn nothing_is_settled_after_a_success() {
        let (id, mut evidence) = sound();
        row(&mut evidence, id).results = vec!["delivered".into(), "delivered".into()];

        assert_eq!(check(&evidence).broken.len(), 1);
    }

    #[test]
    fn a_result_of_a_lost_lease_is_a_broken_promise() {
        let (id, mut evidence) = doubled();
        evidence.faults.push(fault(Kind::Paused, Some(1), 105, 2_300));
        row(&mut evidence, id).attempts = 2;

        assert_eq!(check(&evidence).broken.len(), 1);
    }

    #[test]
    fn a_lease_lost_without_a_second_delivery_is_recovered() {
        let (id, mut evidence) = sound();
        row(&mut evidence, id).attempts = 2;
        row(&mut evidence, id).settled_attempt = Some(2);

        let verdict = check(&evidence);

        assert!(verdict.is_clean(), "{verdict:?}");
        assert_eq!(verdict.recovered, 1);
    }
}
