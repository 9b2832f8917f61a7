//! Every state that the lease protocol can come into, with the core's own decisions: claims, calls, settles and renewals of two
//! relays that crash, stand still, lose answers, lose their leases and are told to leave, and people who discard and redrive.
//!
//! Breadth first, so that what is found is found on a shortest way. Time is two things: a lease may end whenever no relay that is
//! awake trusts it, and a relay may cease to trust its lease at any moment.

mod protocol;
mod reduce;

use std::collections::{BTreeSet, HashSet, VecDeque};

use protocol::{Event, MAX_ATTEMPTS, MAX_LAPSES, RELAYS, Rules, World};

/// Goes through every state, each in the form that `form` gives it. Answers how many there are and what happened in them, or the
/// first step that must not be.
fn explore<const N: usize>(rules: Rules, form: fn(World<N>) -> World<N>) -> Result<(u64, BTreeSet<Event>), String> {
    let start = form(World::new());
    let (mut known, mut waiting) = (HashSet::from([start.packed()]), VecDeque::from([start]));
    let mut events = BTreeSet::new();
    while let Some(world) = waiting.pop_front() {
        let next = world.next(rules);
        for (event, next) in &next {
            check(&world, *event, next)?;
            events.insert(*event);
            let next = form(*next);
            if known.insert(next.packed()) {
                waiting.push_back(next);
            }
        }
        let is_nearer = |next: &World<N>| next.distance() < world.distance();
        let can_end = next.iter().any(|(event, next)| event.is_progress() && is_nearer(next));
        if !can_end && !world.is_finished() {
            return Err(format!("nothing leads to an end from here: {world:?}"));
        }
    }
    Ok((known.len() as u64, events))
}

/// The invariants, over one step.
fn check<const N: usize>(world: &World<N>, event: Event, next: &World<N>) -> Result<(), String> {
    let fail = |what: &str| Err(format!("{what}: {event:?}\nfrom {world:?}\nto {next:?}"));
    for (row, new) in world.rows.iter().zip(&next.rows) {
        // A spent message may be claimed, again too when the answer is lost: what must not be is a call.
        let is_called = event == Event::Claimed && row != new;
        if is_called && (u32::from(new.attempts) > MAX_ATTEMPTS || u32::from(new.lapses) >= MAX_LAPSES) {
            return fail("a message that was spent is called");
        }
    }
    match event {
        Event::FailedAndDelivered => return fail("delivered without a success"),
        Event::SettledWithoutLease => return fail("a lost lease changes nothing"),
        Event::CameTwice => return fail("a message came twice without a cause"),
        _ => {}
    }
    let at_work = next.relays.iter().filter(|relay| !relay.is_paused).filter_map(|relay| relay.task);
    let at_work = at_work.filter(|task| task.is_trusted && task.result.is_none() && !task.was_discarded);
    let at_work: Vec<u8> = at_work.map(|task| task.message).collect();
    if at_work.len() == 2 && at_work[0] == at_work[1] {
        return fail("two relays work on one message, and both trust their leases");
    }
    Ok(())
}

fn assert_sound<const N: usize>() {
    let explored = explore::<N>(Rules::AsBuilt, World::reduced);
    let (states, events) = explored.unwrap_or_else(|broken| panic!("{broken}"));

    let told = format!("{N} messages, {RELAYS} relays, {MAX_ATTEMPTS} attempts: {} states", with_spaces(states));
    println!("{told}");
    docs_say(&told);
    use Event::*;
    for rare in
        [Refused, Interrupted, SettledLate, Fenced, SettleAnswerLost, GivenUp, FoundLost, LapsedInACall, Redriven]
    {
        assert!(events.contains(&rare), "the space holds no {rare:?}");
    }
}

fn docs_say(told: &str) {
    let docs = include_str!("../../docs/reliability.md").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(docs.contains(told), "docs/reliability.md should say: {told}");
}

/// In groups of three digits.
fn with_spaces(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    groups.join(" ")
}

/// `OUTBOXD_MODEL_MESSAGES` says how many messages there are: 3 at most.
#[test]
fn in_every_state_the_invariants_hold_and_everything_can_end() {
    match std::env::var("OUTBOXD_MODEL_MESSAGES").as_deref() {
        Ok("1") => assert_sound::<1>(),
        Ok("3") => assert_sound::<3>(),
        _ => assert_sound::<2>(),
    }
}

/// What stands for a state goes where the state itself goes, and is as good or as bad.
#[test]
fn the_reduced_space_does_what_the_whole_space_does() {
    let start = World::<1>::new().sorted();
    let (mut known, mut waiting) = (HashSet::from([start.packed()]), VecDeque::from([start]));
    while let Some(world) = waiting.pop_front() {
        let [whole, reduced] = [world, world.reduced()].map(|world| {
            let next = world.next(Rules::AsBuilt).into_iter();
            next.map(|(event, next)| (next.reduced().packed(), check(&world, event, &next).is_err()))
                .collect::<BTreeSet<_>>()
        });
        assert_eq!(whole, reduced, "{world:?} is not {:?}", world.reduced());
        for (_, next) in world.next(Rules::AsBuilt) {
            let next = next.sorted();
            if known.insert(next.packed()) {
                waiting.push_back(next);
            }
        }
    }
    let (stand, ..) = explore::<1>(Rules::AsBuilt, World::reduced).unwrap_or_else(|broken| panic!("{broken}"));
    docs_say(&format!("({} states, for which {} stand)", with_spaces(known.len() as u64), with_spaces(stand)));
}

#[test]
fn the_checks_find_a_missing_fence_a_fence_by_attempts_a_lease_trusted_too_long_and_a_call_of_the_spent() {
    for (rules, broken) in [
        (Rules::NoFence, "a lost lease changes nothing"),
        (Rules::FenceByAttempts, "a lost lease changes nothing"),
        (Rules::TrustsTooLong, "two relays work on one message, and both trust their leases"),
        (Rules::CallsTheSpent, "a message that was spent is called"),
    ] {
        let found = explore::<1>(rules, World::sorted).err().unwrap_or_default();

        assert!(found.starts_with(broken), "{rules:?}: {found}");
    }
}
