//! A message that kills every relay that touches it. No guest can do that, so the target does: it kills the sender.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::process::{SIGKILL, send_signal};

use crate::faults::Kind;
use crate::producer::sell_at_once;
use crate::round::{Market, alone, block_on};
use crate::seed::Seed;
use crate::sink::Reaction;
use crate::stage::{Lapses, Stage};
use crate::truth;

const RELAYS: usize = 4;
const THINK_MAX: Duration = Duration::from_millis(200);
const DEAD_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn a_poison_among_four_relays_kills_three_at_most_and_dies_alone_on_postgres() {
    let _alone = alone();
    poison(Stage::new(Some(TestPostgres::shared().database()), Lapses::Default, THINK_MAX));
}

#[test]
fn a_poison_among_four_relays_kills_three_at_most_and_dies_alone_on_sqlite() {
    let _alone = alone();
    poison(Stage::new(None, Lapses::Default, THINK_MAX));
}

fn poison(stage: Stage) {
    let seed = Seed::of_run();
    println!("OUTBOXD_CHAOS_SEED={}", seed.0);
    let market = Market::open(&stage, stage.database(), seed);
    let database = stage.database();
    let poison = if database.starts_with("sqlite") {
        block_on(sell_at_once::<sqlx::Sqlite>(database, 1))[0]
    } else {
        block_on(sell_at_once::<sqlx::Postgres>(database, 1))[0]
    };
    let deaths = Arc::new(AtomicUsize::new(0));
    let (pids, faults, killed) = (stage.pids(), stage.faults.clone(), deaths.clone());
    stage.sink.hook(Box::new(move |id, incarnation| match pids.of(incarnation) {
        Some(pid) if id == poison => {
            let from = SystemTime::now();
            killed.fetch_add(1, Ordering::Relaxed);
            send_signal(pid, SIGKILL);
            faults.note(Kind::Killed, Some(incarnation), from);
            Reaction::Hang
        }
        _ => Reaction::Take,
    }));
    let mut relays: Vec<_> = (0..RELAYS).map(|_| stage.relay()).collect();
    relays.iter_mut().for_each(|relay| relay.start());

    let began = Instant::now();
    while block_on(truth::state(database, poison)) != "dead" && began.elapsed() < DEAD_WITHIN {
        relays.iter_mut().for_each(|relay| relay.revive());
        std::thread::sleep(Duration::from_millis(50));
    }
    let round = market.reckon(&stage, seed, began.elapsed());

    println!("{round}");
    let (lost, deaths) = (&round.verdict.lost, deaths.load(Ordering::Relaxed));
    assert!(deaths <= 3, "{deaths} relays died of one message");
    assert!(matches!(&lost[..], [only] if only.contains(&poison.to_string()) && only.contains("crashed")), "{lost:?}");
    assert!(round.verdict.messages > 50, "too few innocents to tell");
    assert_eq!(
        (&round.verdict.phantom[..], &round.verdict.unexplained[..], &round.verdict.broken[..]),
        (&[][..], &[][..], &[][..])
    );
}
