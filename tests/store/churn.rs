//! The table of a queue does not grow with the messages that go through it, but with those between two vacuums, which the store makes.
//! `OUTBOXD_CHURN=500000` sends so many, beside an autovacuum that looks each minute, as a server comes; it prints what the table and
//! the claims made of it.

use std::time::{Duration, Instant};

use outboxd_client::{NewMessage, Outbox, publish_all};
use outboxd_core::Transition;
use outboxd_store::{OnDelivered, Store, StoreOptions, migrate};
use outboxd_test_support::postgres::TestPostgres;
use sqlx::{Connection as _, PgConnection};

use crate::backend::{LAPSES_MAX, LEASE, lane, settlement};

/// Messages that wait all the while, in another topic.
const WAITING: usize = 10_000;
const BATCH: usize = 200;

async fn publish(connection: &mut PgConnection, topic: &str, count: usize, delay: Duration) {
    let payload = format!("{{\"order\": \"{}\"}}", "x".repeat(200));
    let message = NewMessage::from_json(topic, payload).delay(delay);
    let mut transaction = connection.begin().await.expect("begin");
    publish_all(&mut transaction, &Outbox::default(), &vec![message; count]).await.expect("published");
    transaction.commit().await.expect("committed");
}

async fn bytes(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select pg_total_relation_size('outbox')").fetch_one(connection).await.expect("a size")
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test]
async fn a_table_that_many_messages_went_through_is_at_most_three_times_as_large() {
    let measured = std::env::var("OUTBOXD_CHURN").ok();
    let churned = measured.as_deref().map_or(20_000, |number| number.parse().expect("OUTBOXD_CHURN is a number"));
    // Nobody but the store vacuums, unless it is to be as it would be.
    let autovacuum = if measured.is_some() { "autovacuum=on" } else { "autovacuum=off" };
    let server = TestPostgres::start_with(&[autovacuum, "fsync=off"]);
    let options = StoreOptions { url: server.database(), on_delivered: OnDelivered::Delete, ..StoreOptions::default() };
    migrate(&options).await.expect("migrated");
    let store = Store::connect(&options).await.expect("connected");
    let mut connection = PgConnection::connect(&options.url).await.expect("connects");
    publish(&mut connection, "waiting", WAITING, Duration::from_secs(3600)).await;
    sqlx::raw_sql("vacuum analyze outbox").execute(&mut connection).await.expect("vacuumed");
    let before = bytes(&mut connection).await;

    let (mut claims, started) = (Vec::new(), Instant::now());
    for _ in 0..churned / BATCH {
        publish(&mut connection, "passing", BATCH, Duration::ZERO).await;
        let asked = Instant::now();
        let claimed = store.outbox.claim(&[lane("passing", BATCH as u32)], LEASE, LAPSES_MAX).await.expect("claimed");
        claims.push(asked.elapsed());
        assert_eq!(claimed.len(), BATCH);
        let settlements: Vec<_> = claimed.iter().map(|claim| settlement(claim, Transition::Delivered)).collect();
        store.outbox.settle(&settlements).await.expect("settled");
    }

    let (took, after) = (started.elapsed(), bytes(&mut connection).await);
    // But for the one above.
    let vacuums = "select vacuum_count - 1 from pg_stat_all_tables where relid = 'outbox'::regclass";
    let vacuums: i64 = sqlx::query_scalar(vacuums).fetch_one(&mut connection).await.expect("counted");
    let tenth = claims.len() / 10;
    let (first, last) = (median(claims[..tenth].to_vec()), median(claims[claims.len() - tenth..].to_vec()));
    println!(
        "{churned} messages in {took:.0?}, {autovacuum}, {vacuums} vacuums: {before} bytes before, {after} after ({:.2} times); a claim \
         of {BATCH}: {first:.1?} in the first tenth, {last:.1?} in the last ({:.2} times)",
        after as f64 / before as f64,
        last.as_secs_f64() / first.as_secs_f64(),
    );
    assert!(after <= 3 * before, "{before} bytes became {after}");
}
