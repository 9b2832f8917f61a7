//! Behind PgBouncer in transaction mode, with two server connections for everybody.

use std::collections::HashSet;
use std::str::FromStr;
use std::time::Duration;

use outboxd_client::{NewMessage, Outbox, publish};
use outboxd_core::{LeaseStatus, Transition};
use outboxd_store::{Migrated, Notify, Pooler, Selection, Store, StoreOptions, TableName, Wake, migrate};
use outboxd_test_support::pgbouncer::TestPgBouncer;
use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::skip;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, draft, lane, settlement};

/// An outbox behind the pooler; says by name what is skipped.
async fn pooled() -> Option<(TestStore, StoreOptions)> {
    let store = TestStore::postgres().await;
    let Some(pooler) = tokio::task::spawn_blocking(TestPgBouncer::shared).await.unwrap() else {
        skip("there is no pgbouncer");
        return None;
    };
    let options = StoreOptions {
        url: pooler.url_of(&store.options.url),
        pooler: Pooler::Transaction,
        notify: Notify::PollOnly,
        ..store.options.clone()
    };
    Some((store, options))
}

#[tokio::test]
async fn many_relays_share_two_server_connections() {
    const MESSAGES: usize = 300;
    let Some((store, options)) = pooled().await else { return };
    store.publish(vec![draft(TOPIC); MESSAGES]).await;
    let relays: Vec<_> = (0..8)
        .map(|_| {
            let options = options.clone();
            tokio::spawn(async move {
                let relay = Store::connect(&options).await.unwrap();
                let mut mine = Vec::new();
                loop {
                    let claims = relay.outbox.claim(&[lane(TOPIC, 5)], LEASE, LAPSES_MAX).await.unwrap();
                    if claims.is_empty() {
                        return mine;
                    }
                    let held: Vec<_> = claims.iter().map(crate::backend::held).collect();
                    assert_eq!(relay.outbox.renew(&held, LEASE).await.unwrap(), vec![LeaseStatus::Held; held.len()]);
                    let settled: Vec<_> = claims.iter().map(|claim| settlement(claim, Transition::Delivered)).collect();
                    assert_eq!(relay.outbox.settle(&settled).await.unwrap(), vec![LeaseStatus::Held; settled.len()]);
                    mine.extend(claims.into_iter().map(|claim| claim.message.id));
                }
            })
        })
        .collect();

    let mut delivered = Vec::new();
    for relay in relays {
        delivered.extend(relay.await.unwrap());
    }

    assert_eq!(delivered.iter().collect::<HashSet<_>>().len(), delivered.len());
    // One that found everything locked by the others may have stopped early.
    delivered.extend(store.claim(MESSAGES as u32).await.into_iter().map(|claim| claim.message.id));
    assert_eq!(delivered.len(), MESSAGES);
    let sql = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'";
    let (open,): (i64,) = sqlx::query_as(sql).fetch_one(&mut store.postgres_connection().await).await.unwrap();
    assert_eq!(open, 0);
}

#[tokio::test]
async fn timeouts_hold_behind_the_pooler() {
    let Some((store, options)) = pooled().await else { return };
    let relay = Store::connect(&StoreOptions { lock_timeout: Duration::from_millis(200), ..options }).await.unwrap();
    let mut connection = store.postgres_connection().await;
    let mut lock = connection.begin().await.unwrap();
    sqlx::query("lock table shop.outbox in access exclusive mode").execute(&mut *lock).await.unwrap();

    let error = relay.outbox.claim(&[lane(TOPIC, 1)], LEASE, LAPSES_MAX).await.unwrap_err().to_string();

    assert!(error.contains("55P03"), "{error}");
    lock.rollback().await.unwrap();
    relay.outbox.claim(&[lane(TOPIC, 1)], LEASE, LAPSES_MAX).await.unwrap();
}

#[tokio::test]
async fn people_and_migrations_come_through() {
    let Some((store, options)) = pooled().await else { return };
    let table = TableName::parse("shop.fresh").unwrap();
    let options = StoreOptions { table, ..options };
    let migrations: Vec<_> = (0..5)
        .map(|_| {
            let options = options.clone();
            tokio::spawn(async move { migrate(&options).await.unwrap() })
        })
        .collect();
    let mut fresh = 0;
    for migration in migrations {
        fresh += usize::from(migration.await.unwrap() == Migrated { from: 0, to: 3 });
    }
    assert_eq!(fresh, 1);
    let relay = Store::connect(&options).await.unwrap();
    relay.admin.pause("t").await.unwrap();
    assert!(relay.admin.stats().await.unwrap()[0].paused);
    relay.admin.ping().await.unwrap();
    let people = Store::connect(&StoreOptions { table: store.options.table.clone(), ..options }).await.unwrap();
    let waiting = store.publish(vec![draft(TOPIC)]).await;
    assert_eq!(people.admin.discard(&Selection::Ids(waiting), 1).await.unwrap(), 1);
    let log = TestPostgres::shared().log();
    assert!(!log.contains("there is already a transaction in progress"), "two statements begin one transaction");
    drop(store);
}

#[tokio::test]
async fn a_producer_behind_the_pooler_publishes() {
    let Some((store, options)) = pooled().await else { return };
    // As every program behind such a pooler must: no named statements.
    let connect = PgConnectOptions::from_str(&options.url).unwrap().extra_float_digits(None);
    let outbox = Outbox::of(options.table.clone()).behind_pooler();
    for _ in 0..10 {
        let mut connection = PgConnection::connect_with(&connect).await.unwrap();
        let mut transaction = connection.begin().await.unwrap();
        publish(&mut transaction, &outbox, NewMessage::from_json(TOPIC, "{}")).await.unwrap();
        transaction.commit().await.unwrap();
    }

    assert_eq!(store.claim(20).await.len(), 10);
}

#[tokio::test]
async fn a_direct_url_listens_past_the_pooler() {
    let Some((store, options)) = pooled().await else { return };
    let listen_url = Some(store.options.url.clone());
    let relay = Store::connect(&StoreOptions { notify: Notify::Listen, listen_url, ..options }).await.unwrap();
    relay.outbox.wait_for_work(Duration::from_millis(30)).await;
    crate::wake::until_a_relay_sleeps(&store).await;
    while relay.outbox.wait_for_work(Duration::from_millis(300)).await == Wake::Notify {}

    store.publish_one(draft(TOPIC)).await;

    let mut wakes = Vec::new();
    while !wakes.contains(&Wake::Notify) {
        assert!(wakes.len() < 10);
        wakes.push(relay.outbox.wait_for_work(Duration::from_secs(2)).await);
    }
}

#[tokio::test]
async fn a_direct_url_vacuums_past_the_pooler() {
    let Some((store, options)) = pooled().await else { return };
    let listen_url = Some(store.options.url.clone());
    let relay = Store::connect(&StoreOptions { listen_url, ..options }).await.unwrap();

    assert!(crate::vacuum::is_vacuumed_by(&store, &relay).await);
}
