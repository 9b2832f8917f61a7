//! The store vacuums its table when its own work has made enough of it dead, and lets be where that is not worth it or not allowed.

use std::time::{Duration, Instant};

use outboxd_store::{Finished, OutboxAdmin, Store, StoreOptions};
use sqlx::{Connection, PgConnection};

use crate::backend::{TOPIC, TestStore, draft};

/// So many dead rows are worth a vacuum of a small table.
const ENOUGH: u32 = 10_000;

const LOOKS: &str = "pg_relation_size";
const VACUUMS: &str = "skip_locked";

/// Waits until the connection for vacuums has done a statement with `words` in it, later than the one that was waited for before.
async fn until(connection: &mut PgConnection, before: &mut f64, words: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let sql =
        "select max(extract(epoch from query_start))::float8 from pg_stat_activity where datname = current_database()
        and application_name = 'outboxd vacuum' and state = 'idle' and strpos(query, $1) > 0";
    loop {
        let last: Option<f64> = sqlx::query_scalar(sql).bind(words).fetch_one(&mut *connection).await.expect("asked");
        if let Some(last) = last.filter(|last| last > before) {
            *before = last;
            return;
        }
        assert!(Instant::now() < deadline, "nobody did {words:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn vacuums(connection: &mut PgConnection) -> i64 {
    let sql = "select vacuum_count from pg_stat_all_tables where relid = 'shop.outbox'::regclass";
    sqlx::query_scalar(sql).fetch_one(connection).await.expect("counted")
}

/// Makes so many rows dead, by one purge.
async fn purge(store: &TestStore, admin: &dyn OutboxAdmin, rows: u32) {
    let sql = format!(
        "insert into outbox (topic, payload, state, delivered_at)
         select 'passed', '{{}}', 'delivered', now() from generate_series(1, {rows})"
    );
    store.execute(&sql).await.expect("filled");
    assert_eq!(admin.purge(Finished::Delivered, Duration::ZERO, rows).await.expect("purged"), u64::from(rows));
}

/// A store without autovacuum, and a connection to ask with.
async fn stage() -> (TestStore, PgConnection) {
    let store = TestStore::postgres().await;
    let connection = without_autovacuum(&store).await;
    (store, connection)
}

async fn without_autovacuum(store: &TestStore) -> PgConnection {
    store.execute("alter table outbox set (autovacuum_enabled = off)").await.expect("altered");
    store.postgres_connection().await
}

#[tokio::test]
async fn what_died_is_vacuumed_when_it_is_enough_and_again_after_a_failure() {
    let (store, mut connection) = stage().await;
    let mut last = 0.0;

    purge(&store, &*store.admin, ENOUGH - 1).await;
    purge(&store, &*store.admin, 1).await;
    until(&mut connection, &mut last, VACUUMS).await;
    assert_eq!(vacuums(&mut connection).await, 1);

    let end = "select count(pg_terminate_backend(pid, 60000)) from pg_stat_activity
        where datname = current_database() and application_name = 'outboxd vacuum'";
    sqlx::raw_sql(end).execute(&mut connection).await.expect("ended");
    purge(&store, &*store.admin, ENOUGH).await;
    purge(&store, &*store.admin, ENOUGH).await;

    until(&mut connection, &mut last, VACUUMS).await;
    assert_eq!(vacuums(&mut connection).await, 2);
}

#[tokio::test]
async fn a_snapshot_that_keeps_the_dead_does_not_bring_vacuum_after_vacuum() {
    let (store, mut connection) = stage().await;
    // A row takes a page.
    let fill = "alter table outbox set (fillfactor = 10);
        insert into outbox (topic, payload, available_at)
        select 'waiting', to_json(repeat('x', 700)), now() + interval '1 day' from generate_series(1, 6000);
        alter table outbox set (fillfactor = 80)";
    store.execute(fill).await.expect("filled");
    let mut report = store.postgres_connection().await;
    let mut snapshot = report.begin_with("begin isolation level repeatable read").await.expect("begun");
    sqlx::query("select 1").execute(&mut *snapshot).await.expect("a snapshot");

    let mut last = 0.0;
    purge(&store, &*store.admin, ENOUGH).await;
    until(&mut connection, &mut last, LOOKS).await;
    for _ in 0..2 {
        purge(&store, &*store.admin, ENOUGH).await;
        // Two dead rows for each of the 6,000 pages are there each second time.
        until(&mut connection, &mut last, VACUUMS).await;
        purge(&store, &*store.admin, ENOUGH).await;
    }

    assert_eq!(vacuums(&mut connection).await, 2);
}

#[tokio::test]
async fn nobody_waits_for_another_vacuum() {
    let (store, mut connection) = stage().await;
    let mut other = store.postgres_connection().await;
    let mut transaction = other.begin().await.expect("begun");
    let lock = "lock table shop.outbox in share update exclusive mode";
    sqlx::query(lock).execute(&mut *transaction).await.expect("what a vacuum holds");
    let mut last = 0.0;

    purge(&store, &*store.admin, ENOUGH).await;
    until(&mut connection, &mut last, VACUUMS).await;
    assert_eq!(vacuums(&mut connection).await, 0);
    transaction.rollback().await.expect("rolled back");
    purge(&store, &*store.admin, ENOUGH).await;

    until(&mut connection, &mut last, VACUUMS).await;
    assert_eq!(vacuums(&mut connection).await, 1);
}

#[tokio::test]
async fn who_vacuums_is_not_named_as_the_holder_of_a_snapshot() {
    let (store, mut connection) = stage().await;
    let fill = "insert into outbox (topic, payload, available_at)
        select 'waiting', '{}', now() + interval '1 day' from generate_series(1, 20000)";
    store.execute(fill).await.expect("filled");
    let mut other = store.postgres_connection().await;
    let slow = "set application_name = 'slow vacuum'; set vacuum_cost_delay = 100; set vacuum_cost_limit = 1";
    sqlx::raw_sql(slow).execute(&mut other).await.expect("set");
    let vacuuming = tokio::spawn(async move { sqlx::raw_sql("vacuum shop.outbox").execute(&mut other).await });
    let runs = "select count(*) from pg_stat_progress_vacuum where datname = current_database()";
    let deadline = Instant::now() + Duration::from_secs(60);
    while sqlx::query_scalar::<_, i64>(runs).fetch_one(&mut connection).await.expect("asked") == 0 {
        assert!(Instant::now() < deadline && !vacuuming.is_finished(), "no vacuum runs");
    }

    let holder = store.admin.oldest_snapshot().await.expect("asked");

    let still: i64 = sqlx::query_scalar(runs).fetch_one(&mut connection).await.expect("asked");
    assert_eq!(still, 1, "it ran all the while");
    assert!(holder.is_none_or(|holder| !holder.holder.contains("slow vacuum")));
    let cancel = "select pg_cancel_backend(pid) from pg_stat_activity where application_name = 'slow vacuum'";
    sqlx::raw_sql(cancel).execute(&mut connection).await.expect("cancelled");
    vacuuming.await.expect("ends").expect_err("was cancelled");
}

#[tokio::test]
async fn a_role_that_does_not_own_the_table_works_on_and_asks_for_no_vacuum() {
    let (store, mut connection) = stage().await;
    store
        .execute(
            "create role vacuum_guest login; grant usage on schema shop to vacuum_guest;
             grant select, update, delete on outbox, outbox_control, outbox_keys to vacuum_guest",
        )
        .await
        .expect("granted");
    let url = store.options.url.replace("user=postgres", "user=vacuum_guest");
    let guest = Store::connect(&StoreOptions { url, ..store.options.clone() }).await.expect("connected");

    purge(&store, &*guest.admin, ENOUGH).await;
    until(&mut connection, &mut 0.0, LOOKS).await;
    for _ in 0..2 {
        purge(&store, &*guest.admin, ENOUGH).await;
    }

    assert_eq!(vacuums(&mut connection).await, 0);
    store.publish_one(draft(TOPIC)).await;
    let claims = guest.outbox.claim(&[crate::backend::lane(TOPIC, 1)], crate::backend::LEASE, 3).await;
    assert_eq!(claims.expect("claimed").len(), 1);
    let log = outboxd_test_support::postgres::TestPostgres::shared().log();
    assert!(!log.contains("permission denied to vacuum"));

    store.execute("grant postgres to vacuum_guest").await.expect("granted");
    purge(&store, &*guest.admin, ENOUGH).await;
    until(&mut connection, &mut 0.0, VACUUMS).await;
    assert_eq!(vacuums(&mut connection).await, 1);
    store.execute("drop owned by vacuum_guest; drop role vacuum_guest").await.expect("dropped");
}

/// Makes enough dead and answers whether it was vacuumed.
pub async fn is_vacuumed_by(store: &TestStore, relay: &Store) -> bool {
    let mut connection = without_autovacuum(store).await;
    purge(store, &*relay.admin, ENOUGH).await;
    until(&mut connection, &mut 0.0, VACUUMS).await;
    vacuums(&mut connection).await == 1
}
