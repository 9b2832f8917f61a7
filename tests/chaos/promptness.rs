//! One fault at a time, and how soon work goes on: after a kill, after the database is back, after a request to leave.

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::wait_for;

use crate::faults::Kind;
use crate::producer::sell_at_once;
use crate::round::{Market, alone, block_on};
use crate::seed::Seed;
use crate::stage::{Lapses, POLL, Stage, lease};
use crate::truth;

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn what_a_killed_relay_held_is_delivered_within_a_lease_and_a_poll_on_postgres() {
    let _alone = alone();
    let stage = Stage::new(Some(TestPostgres::shared().database()), Lapses::Many, Duration::from_millis(800));
    block_on(truth::create_orders(stage.database()));
    let sell = |count| block_on(sell_at_once::<sqlx::Postgres>(stage.database(), count));
    redelivered_in_time(&stage, sell);
}

#[test]
fn what_a_killed_relay_held_is_delivered_within_a_lease_and_a_poll_on_sqlite() {
    let _alone = alone();
    let stage = Stage::new(None, Lapses::Many, Duration::from_millis(800));
    block_on(truth::create_orders(stage.database()));
    let sell = |count| block_on(sell_at_once::<sqlx::Sqlite>(stage.database(), count));
    redelivered_in_time(&stage, sell);
}

fn redelivered_in_time(stage: &Stage, sell: impl Fn(usize) -> Vec<uuid::Uuid>) {
    let bound = lease() + POLL + Duration::from_secs(1);
    let mut took = Vec::new();
    let (mut victim, mut other) = (stage.relay(), stage.relay());
    victim.start();
    other.start();
    for _ in 0..10 {
        let incarnation = victim.incarnation();
        // Sold until the victim has something in hand: the other may be quicker.
        let in_hand = || {
            sell(4);
            wait_for(Duration::from_millis(200), || !stage.sink.unanswered(incarnation).is_empty())
        };
        assert!(wait_for(PATIENCE, in_hand), "the relay never got a message");
        let killed = SystemTime::now();
        victim.kill();

        for id in stage.sink.unanswered(incarnation) {
            let again =
                || stage.sink.first_since(killed, |delivery| delivery.id == id && delivery.incarnation != incarnation);
            assert!(wait_for(PATIENCE, || again().is_some()), "message {id} never came again");
            took.extend(again().and_then(|at| at.duration_since(killed).ok()));
        }
        victim.start();
    }
    took.sort();
    println!("{} messages came again after {:?} to {:?}, allowed {bound:?}", took.len(), took[0], took[took.len() - 1]);
    assert!(took.iter().all(|took| *took <= bound), "{took:?}");
}

#[test]
fn work_goes_on_soon_after_the_database_is_back() {
    let _alone = alone();
    let seed = Seed::of_run();
    let server = TestPostgres::start();
    let stage = Stage::new(Some(server.url()), Lapses::Many, Duration::from_millis(20));
    let market = Market::open(&stage, stage.database(), seed);
    let mut relays = [stage.relay(), stage.relay()];
    relays.iter_mut().for_each(|relay| relay.start());
    let mut took = Vec::new();
    for _ in 0..8 {
        let before = SystemTime::now();
        assert!(wait_for(PATIENCE, || stage.sink.first_since(before, |_| true).is_some()), "nothing was delivered");

        let from = SystemTime::now();
        server.kill();
        // Long enough for every backoff to grow.
        sleep(Duration::from_secs(1));
        server.restart();
        stage.faults.note(Kind::DatabaseKilled, None, from);

        let ready = SystemTime::now();
        assert!(wait_for(PATIENCE, || stage.sink.first_since(ready, |_| true).is_some()), "nothing more was delivered");
        took.extend(stage.sink.first_since(ready, |_| true).and_then(|at| at.duration_since(ready).ok()));
    }
    let round = market.reckon(&stage, seed, Duration::ZERO);
    took.sort();
    println!("first deliveries after the database was ready: {took:?}\n{round}");
    assert!(took.iter().all(|took| *took <= Duration::from_secs(2)), "{took:?}");
    assert!(round.verdict.is_clean(), "{:?}", round.verdict);
}

#[test]
fn relays_that_are_told_to_leave_cause_no_duplicate() {
    let _alone = alone();
    let seed = Seed::of_run();
    let call_max = Duration::from_millis(200);
    let stage = Stage::new(Some(TestPostgres::shared().database()), Lapses::Many, call_max);
    let market = Market::open(&stage, stage.database(), seed);
    let mut relays: Vec<_> = (0..3).map(|_| stage.relay()).collect();
    relays.iter_mut().for_each(|relay| relay.start());
    let (began, mut draw, mut took) = (Instant::now(), seed.stream("leaves"), Vec::new());
    for number in 0..60 {
        let relay = &mut relays[number % 3];
        let incarnation = relay.incarnation();
        let at_work =
            || stage.sink.first_since(SystemTime::UNIX_EPOCH, |delivery| delivery.incarnation == incarnation).is_some();
        assert!(wait_for(PATIENCE, at_work), "relay {} does nothing", relay.number);
        sleep(Duration::from_millis(draw.u64(0..200)));

        let asked = Instant::now();
        let status = relay.leave();
        took.push(asked.elapsed());

        assert_eq!(status.code(), Some(0), "relay {}: {status}", relay.number);
        relay.start();
    }
    let round = market.reckon(&stage, seed, began.elapsed());
    took.sort();
    println!("60 relays left within {:?}, the calls took up to {call_max:?}\n{round}", took[took.len() - 1]);
    assert!(round.verdict.is_clean(), "{:?}", round.verdict);
    assert_eq!(round.verdict.duplicates(), 0, "{:?}", round.verdict);
}
