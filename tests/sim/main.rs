//! The real relay on the memory store, with faults drawn from a seed, in virtual time on one thread.
//!
//! Each seed is a little world: relays, producers, plugins that misbehave, and a nemesis that crashes relays, freezes them
//! past their leases, cuts the database, loses requests and loses answers. After every statement the invariants of the lease
//! protocol are checked; then everything is healed and every message must end.
//!
//! `OUTBOXD_SIM_SEED=7 cargo test -p outboxd --test sim` replays one seed. `OUTBOXD_SIM_SECONDS=600` runs longer.

mod beside;
mod faults;
mod ledger;
mod plugins;
mod policy;
mod seen;
mod world;

use std::time::{Duration, Instant};

use seen::Seen;

/// The bugs that stand in the code on purpose are found.
#[cfg(feature = "planted-bugs")]
#[test]
fn every_planted_bug_is_found() {
    outboxd_test_support::planted::every_bug_is_found(outboxd_test_support::planted::Suite::Simulation);
}

/// Enough for every rare path to be reached.
const SEEDS_MIN: u64 = 200;
/// Seeds of each scenario that are run twice.
const REPEATED: usize = 20;

fn run(seed: u64, scenario: world::Scenario) -> Seen {
    let outcome = std::panic::catch_unwind(|| world::run(seed, scenario));
    outcome.unwrap_or_else(|_| panic!("seed {seed} ({scenario:?}) failed; replay it with OUTBOXD_SIM_SEED={seed}"))
}

/// Runs fresh seeds until the time is over, and at least so many; answers what was seen in all of them.
fn run_many(scenario: world::Scenario) -> Seen {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("OUTBOXD_SIM_SEED") {
        return run(seed, scenario);
    }
    let time = Duration::from_secs(number("OUTBOXD_SIM_SECONDS").unwrap_or(15));
    let (started, first) = (Instant::now(), fastrand::u64(..u64::MAX / 2));
    let mut seen = Seen::default();
    let mut count = 0;
    while count < SEEDS_MIN || started.elapsed() < time {
        seen.add(&run(first + count, scenario));
        count += 1;
    }
    println!("{scenario:?}: {count} seeds from {first} in {:.0?}\n{seen:#?}", started.elapsed());
    seen
}

fn replaying() -> bool {
    std::env::var_os("OUTBOXD_SIM_SEED").is_some()
}

#[test]
fn a_seed_repeats_every_step() {
    for scenario in [world::Scenario::Calm, world::Scenario::Storm, world::Scenario::Poison] {
        for _ in 0..REPEATED {
            let seed = fastrand::u64(..u64::MAX / 2);
            assert_eq!(run(seed, scenario), run(seed, scenario), "seed {seed} ({scenario:?})");
        }
    }
}

#[test]
fn without_faults_every_message_ends_and_none_comes_twice() {
    let seen = run_many(world::Scenario::Calm);

    assert!(replaying() || seen.spent > 0, "no message spent its attempts");
    assert_eq!((seen.fenced, seen.unknown_landed, seen.lapses, seen.duplicates), (0, 0, 0, 0));
}

#[test]
fn under_faults_every_message_ends_and_every_duplicate_is_explained() {
    let seen = run_many(world::Scenario::Storm);

    if replaying() {
        return;
    }
    // A run that never saw one of these tested less than it believes.
    assert!(seen.fenced > 0, "no fenced settle");
    assert!(seen.unknown_landed > 0, "no settle whose answer was lost");
    assert!(seen.unknown_not_landed > 0, "no settle whose request was lost");
    assert!(seen.lapses > 0, "no lapse");
    assert!(seen.lost_by_renewal > 0, "no lease lost by renewal");
    assert!(seen.late_settles > 0, "no result that landed after its lease");
    assert!(seen.duplicates > 0, "no duplicate");
    assert!(seen.parked > 0 && seen.resumed > 0, "no plugin was parked and resumed");
    assert!(seen.interrupted > 0, "no call was interrupted by a stop");
    assert!(seen.discarded_under_way > 0 && seen.redriven > 0, "nobody discarded or redrove anything");
    assert!(seen.in_order > 0, "no key had a second message");
    assert!(seen.skipped > 0, "no key was blocked");
    assert!(seen.rests > 0, "no key had to rest");
    assert!(seen.rests_asked_for > 0 && seen.rests_of_failures > 0, "no target asked for rest, or none failed often");
    assert!(seen.spaced > 0 && seen.limit_reached > 0 && seen.tries > 0, "no limit of a key was reached");
    assert!(seen.reordered > 0, "no topic ceased to be ordered");
    assert!(seen.results_waiting_max >= world::RESULTS_MAX, "results never took all their places");
    assert!(seen.stopped_in_a_claim > 0, "no stop came while a claim was under way");
    assert!(seen.claimed_ahead > 0, "nothing was claimed ahead of its turn");
    assert!(seen.turned_away_by_slow_calls > 0, "no turn took too long to come");
    assert!(seen.turned_away_by_a_stop > 0, "no stop came before a turn");
}

#[test]
fn a_poison_that_kills_its_relay_ends_crashed_and_nothing_beside_it_does() {
    let seen = run_many(world::Scenario::Poison);

    assert!(replaying() || seen.crashed > 0, "no message ended crashed");
    assert!(replaying() || seen.claimed_ahead > 0, "nothing was claimed ahead of its turn");
}
