//! Versions of a plugin take turns while messages come at a steady rate, with the real binary: no message notices.
//! `OUTBOXD_RELOADS=1000` runs so many swaps rather than ten.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboxd_client::{NewMessage, Outbox, publish_all};
use outboxd_test_support::{guests, wait_for};
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::runtime::Runtime;
use tokio::time::interval;

use crate::stage::{PATIENCE, RelayProcess, Stage};

/// A thousand messages a second, ten in each transaction.
const BATCH: usize = 10;
const PACE: Duration = Duration::from_millis(10);
/// How long to look before anything is swapped.
const CALM: Duration = Duration::from_secs(4);

fn reloads() -> usize {
    let number = std::env::var("OUTBOXD_RELOADS").ok();
    number.map_or(10, |number| number.parse().expect("OUTBOXD_RELOADS is a number"))
}

async fn publish_until(database: &str, topic: &str, stop: &AtomicBool) {
    let mut connection = PgConnection::connect(database).await.expect("connects");
    let messages: Vec<_> = (0..BATCH).map(|_| NewMessage::from_json(topic, r#"{"do":"succeed"}"#)).collect();
    let mut pace = interval(PACE);
    while !stop.load(Ordering::Relaxed) {
        pace.tick().await;
        let mut transaction = connection.begin().await.expect("begins");
        publish_all(&mut transaction, &Outbox::default(), &messages).await.expect("published");
        transaction.commit().await.expect("committed");
    }
}

/// Publishes to `topic` while `work` runs.
fn publishing(stage: &Stage, topic: &str, work: impl FnOnce()) {
    /// Also where `work` panics: the publisher would be waited for without end.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _stop = Stop(&stop);
        threads.spawn(|| runtime().block_on(publish_until(&stage.database, topic, &stop)));
        work();
    });
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// What became of a topic's messages, by the database's own clock.
#[derive(Debug)]
struct Told {
    count: i64,
    /// Delivered by their first attempt.
    untroubled: i64,
    p50_ms: f64,
    p99_ms: f64,
    digests: BTreeSet<String>,
}

async fn told(database: &str, topic: &str) -> Told {
    let mut connection = PgConnection::connect(database).await.expect("connects");
    let row = sqlx::query(
        "select count(*) as count,
            count(*) filter (where state = 'delivered' and attempts = 1 and jsonb_array_length(history) = 1) as untroubled,
            coalesce(percentile_disc(0.5) within group (order by took), 0)::float8 as p50,
            coalesce(percentile_disc(0.99) within group (order by took), 0)::float8 as p99,
            coalesce(array_agg(distinct history -> 0 ->> 'digest') filter (where history <> '[]'), '{}') as digests
        from (
            select *, extract(epoch from delivered_at - created_at) * 1000 as took
            from outbox
            where topic = $1
        ) as messages",
    )
    .bind(topic)
    .fetch_one(&mut connection)
    .await
    .expect("a row");
    let digests: Vec<String> = row.get("digests");
    Told {
        count: row.get("count"),
        untroubled: row.get("untroubled"),
        p50_ms: row.get("p50"),
        p99_ms: row.get("p99"),
        digests: digests.into_iter().collect(),
    }
}

#[test]
fn swaps_under_a_steady_rate_of_messages_cost_none_of_them_an_attempt() {
    let (stage, swaps) = (Stage::postgres(), reloads());
    let manifest = "topics = [\"warm\", \"calm\", \"swapped\"]\n";
    stage.install("verbs", &guests::guest("verbs"), manifest);
    let component = std::fs::read(guests::guest("verbs")).expect("a component");
    let (file, aside) = (stage.plugins().join("verbs.wasm"), stage.plugins().join("_next"));
    let relay = stage.relay();
    relay.wait_for_log("delivering from");

    // The first seconds of a relay are no measure.
    publishing(&stage, "warm", || std::thread::sleep(CALM / 2));
    publishing(&stage, "calm", || std::thread::sleep(CALM));
    publishing(&stage, "swapped", || {
        for number in 1..=swaps {
            std::fs::write(&aside, guests::marked(&component, &format!("version {number}"))).expect("written");
            std::fs::rename(&aside, &file).expect("renamed");
            assert!(
                wait_for(PATIENCE, || served(&relay).len() == number + 1),
                "{number} is not served:\n{}",
                relay.log()
            );
        }
    });

    let mut last = None;
    let all = wait_for(PATIENCE, || {
        let [calm, swapped] = ["calm", "swapped"].map(|topic| runtime().block_on(told(&stage.database, topic)));
        let done = calm.count == calm.untroubled && swapped.count == swapped.untroubled;
        last = Some((calm, swapped));
        done
    });
    let (calm, swapped) = last.expect("it was asked");
    assert!(all, "{calm:?}\n{swapped:?}");
    println!(
        "{} messages over {swaps} swaps: p50 {:.1} p99 {:.1} ms from publish to settled; {} before them: p50 {:.1} p99 {:.1} ms",
        swapped.count, swapped.p50_ms, swapped.p99_ms, calm.count, calm.p50_ms, calm.p99_ms
    );
    // The last one may have come too late to serve any.
    let served = served(&relay);
    assert!(swapped.digests.is_subset(&served.iter().cloned().collect()), "{:?} answered", swapped.digests);
    assert!(swapped.digests.len() + 1 >= served.len(), "a version served nothing: {:?}", swapped.digests);
}

/// The digests of the versions that were said to serve, in their order.
fn served(relay: &RelayProcess) -> Vec<String> {
    let log = relay.log();
    let digests = log.lines().filter(|line| line.contains(" serves ")).filter_map(|line| line.split_once(" digest="));
    digests.map(|(_, digest)| digest.trim().to_owned()).collect()
}
