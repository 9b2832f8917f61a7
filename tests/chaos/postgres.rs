//! Four relays on PostgreSQL; both are killed again and again.

use std::thread;
use std::time::{Duration, Instant};

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::proxy::Proxy;

use crate::faults::Kind;
use crate::nemesis::{Curfew, Numbers, harass_database, harass_relay};
use crate::round::{LAPSES_MAX, Market, Rare, Round, alone};
use crate::seed::Seed;
use crate::stage::{HELD_MAX, Lapses, Stage};
use crate::verdict::Cause;

const RELAYS: usize = 4;
const THINK_MAX: Duration = Duration::from_millis(60);
/// Whatever the machine: then no further fault begins.
const ROUND_MAX: Duration = Duration::from_secs(360);

/// What CI does to relays and server.
const KILLS: Numbers = Numbers {
    kills: 300,
    pauses: 60,
    leaves: 20,
    swaps: 20,
    database_kills: 12,
    database_crashes: 8,
    database_stops: 3,
    terminations: 8,
    ..Numbers::NONE
};

/// What CI does to the way between them.
const NETWORK: Numbers =
    Numbers { kills: 20, cuts: 6, blackholes: 3, half_opens: 3, delays: 3, swallowed_replies: 10, ..Numbers::NONE };

/// Messages that may come twice by one fault.
fn duplicates_max(cause: Cause) -> usize {
    match cause {
        Cause::Fault(Kind::Killed | Kind::Paused) => HELD_MAX,
        Cause::Fault(_) | Cause::Silence => RELAYS * HELD_MAX,
        Cause::Lapse => LAPSES_MAX,
    }
}

#[test]
fn nothing_is_lost_when_relays_and_database_are_killed() {
    let _alone = alone();
    Round::repeat("postgres", |seed| {
        storm(&KILLS, seed).must_have_seen(&[
            Rare::Recovered,
            Rare::Fenced,
            Rare::UnknownSettle,
            Rare::Duplicate,
            Rare::InOrder,
        ])
    });
}

#[test]
fn nothing_is_lost_when_the_network_fails() {
    let _alone = alone();
    Round::repeat("network", |seed| {
        storm(&NETWORK, seed).must_have_seen(&[Rare::Recovered, Rare::UnknownCommit, Rare::UnknownSettle])
    });
}

/// Relays and producers reach the server through the proxy.
fn storm(numbers: &Numbers, seed: Seed) -> Round {
    let server = TestPostgres::start();
    let proxy = Proxy::before_postgres(server.socket_folder());
    let stage = Stage::new(Some(server.url()), Lapses::Many, THINK_MAX);
    let way = proxy.postgres_url("postgres");
    let market = Market::open(&stage, &way, seed);
    let mut relays: Vec<_> = (0..RELAYS).map(|_| stage.relay_by(&way)).collect();
    relays.iter_mut().for_each(|relay| relay.start());

    let began = Instant::now();
    let curfew = Curfew(began + ROUND_MAX);
    thread::scope(|scope| {
        for relay in &mut relays {
            scope.spawn(|| harass_relay(relay, RELAYS, numbers, seed, curfew));
        }
        scope.spawn(|| harass_database(&server, &proxy, &stage.faults, numbers, seed, curfew));
    });
    let round = market.reckon(&stage, seed, began.elapsed());
    drop(relays);
    round.judged(stage, duplicates_max).must_have_killed(numbers.kills)
}
