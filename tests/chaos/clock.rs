//! Clocks that jump. What hosts must agree on is decided by the database's clock, and what a relay waits for by one that never
//! jumps. So nothing comes of it when a relay's clock jumps, not even a duplicate. When the database's does, leases lapse that
//! should not, or waits take as long as the clock needs to be there again; nothing is lost.

use std::time::{Duration, Instant, SystemTime};

use outboxd_test_support::clock::FakeClock;
use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::wait_for;

use crate::faults::Kind;
use crate::producer::sell_at_once;
use crate::round::{Market, alone, block_on};
use crate::seed::Seed;
use crate::stage::{Lapses, Stage};

const PATIENCE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);
const HOUR_S: i64 = 3600;
const THINK_MAX: Duration = Duration::from_millis(60);
/// Back and forth, ten times each.
const STEPS: i64 = 20;
/// Sold after each step of the server's clock, beside the market.
const SOLD_A_STEP: usize = 5;

#[test]
fn nothing_comes_of_it_when_the_clock_of_a_relay_jumps() {
    let _alone = alone();
    let Some(clock) = FakeClock::new() else { return };
    let stage = Stage::new(Some(TestPostgres::shared().database()), Lapses::Default, THINK_MAX);
    let seed = Seed::of_run();
    let market = Market::open(&stage, stage.database(), seed);
    let (mut fooled, mut sane) = (stage.relay(), stage.relay());
    clock.environment().iter().for_each(|(name, value)| fooled.set(name, value));
    fooled.start();
    sane.start();

    let began = Instant::now();
    for number in 0..STEPS {
        let ahead_s = if number % 2 == 0 { HOUR_S } else { -HOUR_S };
        let from = SystemTime::now();
        clock.set(ahead_s);
        // A line of its log tells the time that it believes.
        fooled.swap_plugins();
        let jumped = || {
            let (told, now) = (told_last(&fooled.log()), SystemTime::now());
            let off = if ahead_s > 0 { told.duration_since(now) } else { now.duration_since(told) };
            off.is_ok_and(|off| off.abs_diff(HOUR) < Duration::from_secs(60))
        };
        assert!(wait_for(PATIENCE, jumped), "its clock did not jump by {ahead_s} s: {}", fooled.log());
        stage.faults.note(Kind::ClockStepped, Some(fooled.incarnation()), from);
        let delivered = || stage.sink.first_since(from, |delivery| delivery.incarnation == fooled.incarnation());
        assert!(wait_for(PATIENCE, || delivered().is_some()), "it delivers no more: {}", fooled.log());
    }
    let round = market.reckon(&stage, seed, began.elapsed());

    println!("{round}");
    assert!(fooled.is_running() && sane.is_running(), "a relay ended: {}", stage.logs());
    let nothing_came_of_it = round.verdict.is_clean() && round.verdict.duplicates() == 0;
    assert!(nothing_came_of_it, "messages came twice, or never, because a relay's clock jumped: {round}");
    assert!(round.verdict.ok > 10 * STEPS as usize, "little was sold: {round}");
}

/// The time at the head of the last line.
fn told_last(log: &str) -> SystemTime {
    let line = log.lines().last().expect("a line");
    let time = line.split_whitespace().next().unwrap_or_default();
    humantime::parse_rfc3339(time).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn nothing_is_lost_when_the_clock_of_the_database_jumps() {
    let _alone = alone();
    let Some(clock) = FakeClock::new() else { return };
    let server = TestPostgres::start_by(&clock);
    // An hour ahead every lease has lapsed, again and again.
    let stage = Stage::new(Some(server.url()), Lapses::Many, THINK_MAX);
    let seed = Seed::of_run();
    let market = Market::open(&stage, stage.database(), seed);
    let mut relays = [stage.relay(), stage.relay()];
    relays.iter_mut().for_each(|relay| relay.start());

    let began = Instant::now();
    for number in 0..STEPS {
        let from = SystemTime::now();
        // Ahead in the end: what was published or claimed while it was ahead waits until it is there again.
        clock.set(if number % 2 == 0 { -HOUR_S } else { HOUR_S });
        let sold = block_on(sell_at_once::<sqlx::Postgres>(stage.database(), SOLD_A_STEP));
        stage.faults.note(Kind::DatabaseClockStepped, None, from);
        let all = || sold.iter().all(|id| stage.sink.first_since(from, |delivery| delivery.id == *id).is_some());
        assert!(wait_for(PATIENCE, all), "what was sold by the new time is not delivered: {}", stage.logs());
    }
    let round = market.reckon(&stage, seed, began.elapsed());

    println!("{round}");
    assert!(relays.iter_mut().all(|relay| relay.is_running()), "a relay ended: {}", stage.logs());
    assert!(round.verdict.is_clean(), "{:?}", round.verdict);
    assert!(round.verdict.duplicates() > 0, "no lease lapsed: the server's clock did not jump: {round}");
    assert!(round.verdict.ok > SOLD_A_STEP * STEPS as usize, "the market sold little: {round}");
}
