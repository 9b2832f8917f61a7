//! Every state that the lease protocol can come into, with the core's own decisions: claims, calls, settles and renewals of two
//! relays that crash, stand still, lose answers, lose their leases and are told to leave, and people who discard and redrive.
//!
//! Breadth first, so that what is found is found on a shortest way. Time is two things: a lease may end whenever no relay that is
//! awake trusts it, and a relay may cease to trust its lease at any moment.

mod protocol;

use std::collections::{BTreeSet, HashMap};

use protocol::{Event, MAX_ATTEMPTS, MAX_LAPSES, RELAYS, RowState, Rules, World};

/// Every state, and how each can be reached.
struct Space<const N: usize> {
    worlds: Vec<World<N>>,
    /// For each state those that lead to it without a fault.
    before: Vec<Vec<u32>>,
    events: BTreeSet<Event>,
}

/// All states, or the first step that must not be.
fn explore<const N: usize>(rules: Rules) -> Result<Space<N>, String> {
    let start = World::new();
    let mut numbers = HashMap::from([(start, 0u32)]);
    let mut space = Space { worlds: vec![start], before: vec![Vec::new()], events: BTreeSet::new() };
    let mut at = 0;
    while at < space.worlds.len() {
        let world = space.worlds[at];
        for (event, next) in world.next(rules) {
            check(&world, event, &next)?;
            let number = *numbers.entry(next).or_insert_with(|| {
                space.worlds.push(next);
                space.before.push(Vec::new());
                (space.worlds.len() - 1) as u32
            });
            if event.is_progress() {
                space.before[number as usize].push(at as u32);
            }
            space.events.insert(event);
        }
        at += 1;
    }
    Ok(space)
}

/// The invariants, over one step.
fn check<const N: usize>(world: &World<N>, event: Event, next: &World<N>) -> Result<(), String> {
    let fail = |what: &str| Err(format!("{what}: {event:?}\nfrom {world:?}\nto {next:?}"));
    for (row, new) in world.rows.iter().zip(&next.rows) {
        let is_settled = row.state == RowState::Processing && new.state == RowState::Delivered;
        if is_settled && !new.has_succeeded {
            return fail("delivered without a success");
        }
        // A spent message may be claimed, again too when the answer is lost: what must not be is a call.
        let is_called = event == Event::Claimed && row != new;
        if is_called && (u32::from(new.attempts) > MAX_ATTEMPTS || u32::from(new.lapses) >= MAX_LAPSES) {
            return fail("a message that was spent is called");
        }
    }
    if event == Event::SettledWithoutLease {
        return fail("a lost lease changes nothing");
    }
    if event == Event::CameTwice {
        return fail("a message came twice without a cause");
    }
    let at_work = next.relays.iter().filter(|relay| !relay.is_paused).filter_map(|relay| relay.task);
    let at_work = at_work.filter(|task| task.is_trusted && task.result.is_none() && !task.was_discarded);
    let at_work: Vec<u8> = at_work.map(|task| task.message).collect();
    if at_work.len() == 2 && at_work[0] == at_work[1] {
        return fail("two relays work on one message, and both trust their leases");
    }
    Ok(())
}

/// From every state, once faults stop, everything can end.
fn assert_progress<const N: usize>(space: &Space<N>) {
    let mut ends = vec![false; space.worlds.len()];
    let mut waiting: Vec<u32> = Vec::new();
    for (number, _) in space.worlds.iter().enumerate().filter(|(_, world)| world.is_finished()) {
        ends[number] = true;
        waiting.push(number as u32);
    }
    while let Some(number) = waiting.pop() {
        for before in &space.before[number as usize] {
            if !std::mem::replace(&mut ends[*before as usize], true) {
                waiting.push(*before);
            }
        }
    }
    let stuck = ends.iter().position(|ends| !ends);
    assert!(stuck.is_none(), "nothing ends from here: {:?}", stuck.map(|number| space.worlds[number]));
}

fn assert_sound<const N: usize>() {
    let space = explore::<N>(Rules::AsBuilt).unwrap_or_else(|broken| panic!("{broken}"));

    let states = space.worlds.len();
    println!("messages: {N}, relays: {RELAYS}, attempts: {MAX_ATTEMPTS}, states: {states}");
    if N == 1 {
        let told = format!("every state ({} {:03})", states / 1000, states % 1000);
        assert!(include_str!("../../docs/reliability.md").contains(&told), "docs/reliability.md should say: {told}");
    }
    assert_progress(&space);
    use Event::*;
    for rare in
        [Refused, Interrupted, SettledLate, Fenced, SettleAnswerLost, GivenUp, FoundLost, LapsedInACall, Redriven]
    {
        assert!(space.events.contains(&rare), "the space holds no {rare:?}");
    }
}

/// One message: about 12 s on a busy machine. `OUTBOXD_MODEL_MESSAGES=2` explores two; no such run has ended yet.
#[test]
fn in_every_state_the_invariants_hold_and_everything_can_end() {
    match std::env::var("OUTBOXD_MODEL_MESSAGES").as_deref() {
        Ok("2") => assert_sound::<2>(),
        _ => assert_sound::<1>(),
    }
}

#[test]
fn the_checks_find_a_missing_fence_a_fence_by_attempts_a_lease_trusted_too_long_and_a_call_of_the_spent() {
    for (rules, broken) in [
        (Rules::NoFence, "a lost lease changes nothing"),
        (Rules::FenceByAttempts, "a lost lease changes nothing"),
        (Rules::TrustsTooLong, "two relays work on one message, and both trust their leases"),
        (Rules::CallsTheSpent, "a message that was spent is called"),
    ] {
        let found = explore::<1>(rules).err().unwrap_or_default();

        assert!(found.starts_with(broken), "{rules:?}: {found}");
    }
}
