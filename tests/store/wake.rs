use std::sync::Arc;
use std::time::{Duration, Instant};

use outboxd_store::{Notify, OutboxStore, Wake};
use sqlx::Connection as _;
use tokio_util::sync::CancellationToken;

use crate::backend::{LAPSES_MAX, TOPIC, TestStore, draft, lane, on_every_store};

on_every_store! {
    a_publish_wakes_a_relay_that_waits
    a_publish_while_nobody_waits_is_kept_for_the_next_wait
    a_wait_ends_when_its_time_is_up
}

const LONG: Duration = Duration::from_secs(20);

/// Waits until the listener is up and its first signal is spent.
async fn quiet(store: &TestStore) {
    store.outbox.wait_for_work(Duration::from_secs(5)).await;
    while store.outbox.wait_for_work(Duration::from_millis(200)).await == Wake::Notify {}
}

/// Waits as a relay does, until something was published; looks in between are only looks.
async fn notified(outbox: &dyn OutboxStore) -> Wake {
    let deadline = Instant::now() + LONG;
    while Instant::now() < deadline {
        if outbox.wait_for_work(LONG).await == Wake::Notify {
            return Wake::Notify;
        }
    }
    Wake::Poll
}

async fn a_publish_wakes_a_relay_that_waits(store: TestStore) {
    store.publish_one(draft(TOPIC)).await;
    quiet(&store).await;
    let outbox = store.outbox.clone();
    let waiting = tokio::spawn(async move {
        let started = Instant::now();
        (notified(&*outbox).await, started.elapsed())
    });
    tokio::task::yield_now().await;

    store.publish_one(draft(TOPIC)).await;

    let (wake, waited) = waiting.await.unwrap();
    assert_eq!(wake, Wake::Notify);
    assert!(waited < LONG / 2, "{waited:?}");
}

async fn a_publish_while_nobody_waits_is_kept_for_the_next_wait(store: TestStore) {
    quiet(&store).await;
    store.publish_one(draft(TOPIC)).await;

    assert_eq!(notified(&*store.outbox).await, Wake::Notify);
}

async fn a_wait_ends_when_its_time_is_up(store: TestStore) {
    let store = store.reconnect(|options| options.notify = Notify::PollOnly).await;

    assert_eq!(store.outbox.wait_for_work(Duration::from_millis(30)).await, Wake::Poll);
}

/// Until a relay has said in the table that it sleeps.
pub async fn until_a_relay_sleeps(store: &TestStore) {
    for _ in 0..500 {
        if sleepers(store).await > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no relay says that it sleeps");
}

/// How many relays say that they sleep, where producers believe it.
async fn sleepers(store: &TestStore) -> i64 {
    let sql = "select count(*) from shop.outbox_sleepers, shop.outbox_asleep
        where until > now() and last_value > extract(epoch from now()) * 1000";
    sqlx::query_scalar(sql).fetch_one(&mut store.postgres_connection().await).await.unwrap()
}

/// Claims as a busy relay does, until so many say that they sleep.
async fn claim_until_sleepers(store: &TestStore, relay: &dyn OutboxStore, left: i64) {
    let deadline = Instant::now() + LONG;
    while sleepers(store).await != left {
        assert!(Instant::now() < deadline, "{left} relays should sleep");
        store.publish(vec![draft(TOPIC); 200]).await;
        let claims = async || {
            for _ in 0..50 {
                relay.claim(&[lane(TOPIC, 1)], LONG, LAPSES_MAX).await.unwrap();
            }
        };
        tokio::join!(claims(), claims(), claims(), claims());
    }
}

#[tokio::test]
async fn a_relay_that_claims_now_and_then_stays_a_sleeper() {
    let store = TestStore::postgres().await;
    quiet(&store).await;
    until_a_relay_sleeps(&store).await;

    for _ in 0..10 {
        rest(&store).await;
        store.publish_one(draft(TOPIC)).await;
        store.claim_one().await;
        assert_eq!(sleepers(&store).await, 1);
    }
}

/// Waits as a relay does that has nothing to do for a while.
async fn rest(store: &TestStore) {
    let until = Instant::now() + Duration::from_millis(30);
    while Instant::now() < until {
        store.outbox.wait_for_work(Duration::from_millis(30)).await;
    }
}

/// Longer than what was once said is believed.
#[tokio::test]
async fn a_sleeper_that_is_notified_all_the_time_is_still_believed() {
    let store = TestStore::postgres().await;
    quiet(&store).await;
    until_a_relay_sleeps(&store).await;
    let notify = format!("notify {}", outboxd_core::quoted(&store.options.table.channel()));
    let until = Instant::now() + Duration::from_secs(17);

    while Instant::now() < until {
        store.execute(&notify).await.unwrap();
        assert_eq!(sleepers(&store).await, 1);
        store.outbox.wait_for_work(Duration::from_secs(1)).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_busy_relay_says_that_it_is_awake_and_is_not_notified() {
    let store = TestStore::postgres().await;
    store.outbox.wait_for_work(Duration::from_millis(30)).await;
    until_a_relay_sleeps(&store).await;
    let mut other = sqlx::postgres::PgListener::connect(&store.options.url).await.unwrap();
    other.listen(&store.options.table.channel()).await.unwrap();

    store.publish(vec![draft(TOPIC); 3]).await;
    tokio::time::timeout(LONG, other.recv()).await.expect("a sleeping relay is notified").unwrap();
    claim_until_sleepers(&store, &*store.outbox, 0).await;
    while tokio::time::timeout(Duration::from_millis(300), other.recv()).await.is_ok() {}

    store.publish(vec![draft(TOPIC); 3]).await;
    assert!(tokio::time::timeout(Duration::from_millis(300), other.recv()).await.is_err(), "nobody sleeps");
}

#[tokio::test]
async fn one_relay_that_wakes_does_not_speak_for_another_that_sleeps() {
    let store = TestStore::postgres().await;
    let other = store.another().await;
    let wait = Duration::from_millis(30);
    store.outbox.wait_for_work(wait).await;
    other.outbox.wait_for_work(wait).await;
    let until = async |count: i64| {
        let deadline = Instant::now() + LONG;
        while sleepers(&store).await != count {
            assert!(Instant::now() < deadline, "{count} relays should sleep");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    until(2).await;

    // Each of them in turn, whichever said it last.
    for relay in [&store.outbox, &other.outbox] {
        claim_until_sleepers(&store, &**relay, 1).await;
        relay.wait_for_work(wait).await;
        until(2).await;
    }
}

#[tokio::test]
async fn one_transaction_notifies_once_and_a_delayed_message_nobody() {
    let store = TestStore::postgres().await;
    store.outbox.wait_for_work(Duration::from_millis(30)).await;
    until_a_relay_sleeps(&store).await;
    let mut other = sqlx::postgres::PgListener::connect(&store.options.url).await.unwrap();
    other.listen(&store.options.table.channel()).await.unwrap();

    store.publish_one(draft(TOPIC).delay(LONG)).await;
    assert!(tokio::time::timeout(Duration::from_millis(300), other.recv()).await.is_err(), "it is not due");
    store.publish(vec![draft(TOPIC); 500]).await;

    tokio::time::timeout(LONG, other.recv()).await.expect("notified").unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(300), other.recv()).await.is_err(), "once");
}

#[tokio::test]
async fn a_message_that_commits_just_as_a_relay_falls_asleep_is_looked_for() {
    let store = TestStore::postgres().await;
    quiet(&store).await;
    claim_until_sleepers(&store, &*store.outbox, 0).await;

    // Awake, so nobody is notified; then it falls asleep, and looks again a few times.
    store.publish_one(draft(TOPIC)).await;
    let mut looks = 0;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(1) {
        store.outbox.wait_for_work(Duration::from_secs(1)).await;
        looks += 1;
    }

    // The eight looks, and up to as many again for what the listener itself raises.
    assert!((8..=16).contains(&looks), "{looks}");
}

#[tokio::test]
async fn a_producer_that_may_only_insert_wakes_a_relay() {
    let store = TestStore::postgres().await;
    store.execute("create role producer login").await.unwrap();
    store.execute("grant usage on schema shop to producer; grant insert on outbox to producer").await.unwrap();
    let mut connection =
        sqlx::PgConnection::connect(&store.options.url.replace("user=postgres", "user=producer")).await.unwrap();
    quiet(&store).await;
    until_a_relay_sleeps(&store).await;

    let sql = "insert into shop.outbox (topic, payload) values ('order.created', '{}')";
    sqlx::query(sql).execute(&mut connection).await.unwrap();

    assert_eq!(notified(&*store.outbox).await, Wake::Notify);
    store.execute("drop owned by producer; drop role producer").await.unwrap();
}

/// What the wake costs producers while a relay is busy, as a share of the rate without any: prints the ratio. Slices of both
/// alternate, so that a busy machine slows both, on connections that stay open, as a pool's do. What fails is a NOTIFY in
/// every commit, which leaves a third at best. `OUTBOXD_BENCH_SLICES=15` measures more carefully.
#[tokio::test(flavor = "multi_thread")]
async fn publishing_beside_a_busy_relay_does_not_notify_in_every_commit() {
    const SLICE: Duration = Duration::from_millis(500);
    let slices = std::env::var("OUTBOXD_BENCH_SLICES").ok().and_then(|slices| slices.parse().ok()).unwrap_or(3);
    for count in [16, 64] {
        let stores = [TestStore::postgres().await, TestStore::postgres().await];
        stores[1].execute("drop trigger outboxd_wake on outbox").await.unwrap();
        let end = CancellationToken::new();
        let relays = stores.each_ref().map(|store| tokio::spawn(claim_until(store.outbox.clone(), end.clone())));
        let mut arms = Vec::new();
        for store in &stores {
            arms.push(Producers::connect(&store.options.url, count).await);
        }
        let mut rates = [Vec::new(), Vec::new()];
        for slice in 0..=slices {
            for (producers, rates) in arms.iter_mut().zip(&mut rates) {
                let rate = producers.commits(SLICE).await;
                // The first is for warming up: plans, caches.
                if slice > 0 {
                    rates.push(rate);
                }
            }
        }
        let median = |rates: &mut Vec<f64>| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        };
        let [with, without] = rates.each_mut().map(median);
        end.cancel();
        for relay in relays {
            let claimed = relay.await.unwrap();
            assert!(claimed > 0, "the relay was at work");
        }
        println!("{count} producers: {with:.0} commits/s with the wake, {without:.0} without: {:.2}", with / without);
        assert!(with / without > 0.45);
    }
}

/// Claims as a relay with work for all its slots does, and never falls asleep. Answers how many messages it took.
async fn claim_until(outbox: Arc<dyn OutboxStore>, end: CancellationToken) -> usize {
    let mut claimed = 0;
    // As calls end, so slots come free.
    while end.run_until_cancelled(tokio::time::sleep(Duration::from_millis(5))).await.is_some() {
        claimed += outbox.claim(&[lane("a", 16)], LONG, LAPSES_MAX).await.unwrap().len();
    }
    claimed
}

struct Producers(Vec<sqlx::PgConnection>);

impl Producers {
    async fn connect(url: &str, count: usize) -> Self {
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(sqlx::PgConnection::connect(url).await.unwrap());
        }
        Producers(connections)
    }

    /// Commits a second, each publishing one message.
    async fn commits(&mut self, during: Duration) -> f64 {
        let deadline = Instant::now() + during;
        let mut tasks = Vec::new();
        for mut connection in self.0.drain(..) {
            tasks.push(tokio::spawn(async move {
                let mut count = 0u32;
                while Instant::now() < deadline {
                    let sql = "insert into shop.outbox (topic, payload) values ('a', '{}')";
                    sqlx::query(sql).execute(&mut connection).await.unwrap();
                    count += 1;
                }
                (connection, count)
            }));
        }
        let mut sum = 0;
        for task in tasks {
            let (connection, count) = task.await.unwrap();
            self.0.push(connection);
            sum += count;
        }
        f64::from(sum) / during.as_secs_f64()
    }
}
