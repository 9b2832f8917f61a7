//! Two relays on one SQLite file, killed again and again; the file stays sound.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use outboxd_test_support::wait_for;

use crate::faults::Kind;
use crate::nemesis::{Curfew, Numbers, harass_relay};
use crate::round::{LAPSES_MAX, Market, Rare, Round, alone, block_on};
use crate::seed::Seed;
use crate::stage::{HELD_MAX, Lapses, Stage};
use crate::truth;
use crate::verdict::Cause;

const RELAYS: usize = 2;
const THINK_MAX: Duration = Duration::from_millis(60);
/// Whatever the machine: then no further fault begins.
const ROUND_MAX: Duration = Duration::from_secs(300);
const CHECK_EVERY: Duration = Duration::from_secs(3);

/// What CI does.
const NUMBERS: Numbers = Numbers { kills: 200, pauses: 10, leaves: 10, ..Numbers::NONE };

#[test]
fn nothing_is_lost_when_relays_on_sqlite_are_killed() {
    let _alone = alone();
    Round::repeat("sqlite", |seed| storm(seed).must_have_seen(&[Rare::Recovered, Rare::Duplicate, Rare::InOrder]));
}

fn storm(seed: Seed) -> Round {
    let stage = Stage::new(None, Lapses::Many, THINK_MAX);
    let market = Market::open(&stage, stage.database(), seed);
    let mut relays: Vec<_> = (0..RELAYS).map(|_| stage.relay()).collect();
    relays.iter_mut().for_each(|relay| relay.start());

    let began = Instant::now();
    let (over, checks) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !wait_for(CHECK_EVERY, || over.load(Ordering::Relaxed)) {
                assert_sound(stage.database());
                checks.fetch_add(1, Ordering::Relaxed);
            }
        });
        let killers: Vec<_> = relays
            .iter_mut()
            .map(|relay| scope.spawn(|| harass_relay(relay, RELAYS, &NUMBERS, seed, Curfew(began + ROUND_MAX))))
            .collect();
        let ended: Vec<_> = killers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|end| end.expect("the nemesis of a relay ends well"));
    });
    let round = market.reckon(&stage, seed, began.elapsed());
    drop(relays);
    assert_sound(stage.database());
    println!("{} integrity checks of the file beside the kills, all ok", checks.into_inner() + 1);
    let duplicates_max = |cause| match cause {
        Cause::Fault(Kind::Killed | Kind::Paused) => HELD_MAX,
        Cause::Fault(_) | Cause::Silence => RELAYS * HELD_MAX,
        Cause::Lapse => LAPSES_MAX,
    };
    round.judged(stage, duplicates_max).must_have_killed(NUMBERS.kills)
}

fn assert_sound(database: &str) {
    assert_eq!(block_on(truth::integrity(database)), "ok");
}
