//! Four relays on PostgreSQL; both are killed again and again.

use std::thread;
use std::time::{Duration, Instant};

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::proxy::Proxy;

use crate::checker::Cause;
use crate::faults::Kind;
use crate::nemesis::{Curfew, Numbers, harass_database, harass_relay};
use crate::round::{Market, alone, demand, report};
use crate::seed::Seed;
use crate::stage::{CONCURRENCY, Lapses, Stage};

const RELAYS: usize = 4;
const THINK_MAX: Duration = Duration::from_millis(60);
/// Whatever the machine: then no further fault begins.
const ROUND_MAX: Duration = Duration::from_secs(360);

/// What CI does.
const NUMBERS: Numbers = Numbers {
    kills: 40,
    pauses: 8,
    leaves: 8,
    database_kills: 2,
    database_crashes: 2,
    database_stops: 1,
    terminations: 2,
    cuts: 0,
    blackholes: 0,
    half_opens: 0,
    delays: 0,
    swallowed_replies: 0,
};

/// Calls that may be under way, or ended and not yet settled, at one fault.
fn duplicates_max(cause: Cause) -> usize {
    match cause {
        Cause::Fault(Kind::Killed | Kind::Paused) => 2 * CONCURRENCY,
        Cause::Fault(_) | Cause::Lapse => RELAYS * 4 * CONCURRENCY,
    }
}

#[test]
fn nothing_is_lost_when_relays_and_database_are_killed() {
    let _alone = alone();
    let seed = Seed::of_run();
    let server = TestPostgres::start();
    storm(&server, &NUMBERS, seed);
}

fn storm(server: &TestPostgres, numbers: &Numbers, seed: Seed) {
    println!("OUTBOXD_CHAOS_SEED={}", seed.0);
    let stage = Stage::new(Some(server.database()), Lapses::Many, THINK_MAX);
    let proxy = Proxy::before_postgres(server.socket_folder());
    let market = Market::open(&stage, stage.database(), seed);
    let mut relays: Vec<_> = (0..RELAYS).map(|_| stage.relay()).collect();
    relays.iter_mut().for_each(|relay| relay.start());

    let began = Instant::now();
    let curfew = Curfew(began + ROUND_MAX);
    thread::scope(|scope| {
        for relay in &mut relays {
            scope.spawn(|| harass_relay(relay, RELAYS, numbers, seed, curfew));
        }
        scope.spawn(|| harass_database(server, &proxy, &stage.faults, numbers, seed, curfew));
    });
    let took = began.elapsed();
    let (verdict, drained) = market.reckon(&stage);
    let report = report(&stage, &verdict, seed, took, drained);
    drop(relays);
    demand(stage, &verdict, &report, duplicates_max);
}
