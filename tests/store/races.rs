//! Two producers and one dedup key, in every order.

use std::time::Duration;

use outboxd_client::{Insertion, NewMessage, Outbox, PublishError, Published, publish};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, Transaction};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::backend::{TestStore, draft};
use crate::wake;

fn outbox() -> Outbox {
    Outbox::new("shop.outbox").unwrap()
}

fn message() -> NewMessage {
    NewMessage::from_json("a", "{}").dedup_key("k")
}

async fn publish_in(transaction: &mut Transaction<'_, Postgres>) -> Published {
    publish(transaction, &outbox(), message()).await.expect("publish")
}

/// Publishes on a connection of its own, and commits. Answers when the other transaction lets it.
fn publish_beside(store: &TestStore) -> JoinHandle<Published> {
    let url = store.options.url.clone();
    tokio::spawn(async move {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let mut transaction = connection.begin().await.unwrap();
        let published = publish_in(&mut transaction).await;
        transaction.commit().await.unwrap();
        published
    })
}

/// Until the second publish waits for the first.
async fn until_somebody_waits(store: &TestStore) {
    let mut connection = store.postgres_connection().await;
    for _ in 0..500 {
        let (waiting,): (i64,) =
            sqlx::query_as("select count(*) from pg_locks where not granted").fetch_one(&mut connection).await.unwrap();
        if waiting > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody waits");
}

#[tokio::test]
async fn a_publish_that_met_its_dedup_key_uncommitted_answers_the_first_ones_id_when_that_commits() {
    let store = TestStore::postgres().await;
    let mut connection = store.postgres_connection().await;
    let mut first = connection.begin().await.unwrap();
    let published = publish_in(&mut first).await;
    let second = publish_beside(&store);
    until_somebody_waits(&store).await;

    first.commit().await.unwrap();

    assert_eq!(second.await.unwrap(), Published { id: published.id, insertion: Insertion::Duplicate });
}

#[tokio::test]
async fn a_publish_that_met_its_dedup_key_uncommitted_inserts_when_the_first_rolls_back() {
    let store = TestStore::postgres().await;
    let mut connection = store.postgres_connection().await;
    let mut first = connection.begin().await.unwrap();
    let published = publish_in(&mut first).await;
    let second = publish_beside(&store);
    until_somebody_waits(&store).await;

    first.rollback().await.unwrap();

    let second = second.await.unwrap();
    assert_eq!(second.insertion, Insertion::Inserted);
    assert_ne!(second.id, published.id);
}

#[tokio::test]
async fn a_publish_that_met_a_row_being_purged_inserts_anew() {
    let store = TestStore::postgres().await;
    let old = store.publish_one(draft("a").dedup_key("k")).await;
    let mut connection = store.postgres_connection().await;
    let mut purge = connection.begin().await.unwrap();
    sqlx::query("delete from shop.outbox").execute(&mut *purge).await.unwrap();
    let second = publish_beside(&store);
    until_somebody_waits(&store).await;

    purge.commit().await.unwrap();

    let second = second.await.unwrap();
    assert_eq!(second.insertion, Insertion::Inserted);
    assert_ne!(second.id, old.0);
}

#[tokio::test]
async fn every_publish_of_a_contended_key_answers_an_id_though_rows_vanish() {
    const PRODUCERS: usize = 6;
    const EACH: usize = 60;
    let store = TestStore::postgres().await;
    let mut producers = Vec::new();
    for producer in 0..PRODUCERS {
        let url = store.options.url.clone();
        producers.push(tokio::spawn(async move {
            let mut connection = PgConnection::connect(&url).await.unwrap();
            let mut inserted = Vec::new();
            for round in 0..EACH {
                let mut transaction = connection.begin().await.unwrap();
                // Half of them as other languages do it.
                let published = if producer % 2 == 0 {
                    let published = publish_in(&mut transaction).await;
                    (published.insertion == Insertion::Inserted).then_some(published.id)
                } else {
                    let sql = "select shop.outbox_publish('a', '{}', dedup_key => 'k')";
                    let (id,): (Uuid,) = sqlx::query_as(sql).fetch_one(&mut *transaction).await.unwrap();
                    sqlx::query("select 1").execute(&mut *transaction).await.unwrap();
                    Some(id)
                };
                inserted.extend(published);
                if round % 3 == 0 {
                    sqlx::query("delete from shop.outbox where dedup_key = 'k'")
                        .execute(&mut *transaction)
                        .await
                        .unwrap();
                }
                transaction.commit().await.unwrap();
            }
            inserted.len()
        }));
    }
    for producer in producers {
        assert!(producer.await.unwrap() > 0);
    }
    let mut connection = store.postgres_connection().await;
    let (rows,): (i64,) = sqlx::query_as("select count(*) from shop.outbox").fetch_one(&mut connection).await.unwrap();
    assert!(rows <= 1);
}

#[tokio::test]
async fn a_repeatable_read_producer_is_told_to_try_again() {
    let store = TestStore::postgres().await;
    let mut connection = store.postgres_connection().await;
    let mut snapshot = connection.begin_with("begin isolation level repeatable read").await.unwrap();
    sqlx::query("select 1 from shop.outbox").execute(&mut *snapshot).await.unwrap();
    store.publish_one(draft("a").dedup_key("k")).await;

    let error = publish(&mut snapshot, &outbox(), message()).await.unwrap_err();

    let PublishError::Database(sqlx::Error::Database(error)) = error else { panic!("{error:?}") };
    assert_eq!(error.code().as_deref(), Some("40001"));
}

#[tokio::test]
async fn a_rolled_back_message_or_savepoint_never_was() {
    let store = TestStore::postgres().await;
    let mut connection = store.postgres_connection().await;
    let mut transaction = connection.begin().await.unwrap();
    let kept = publish(&mut transaction, &outbox(), NewMessage::from_json("order.created", "1")).await.unwrap();
    sqlx::query("savepoint s").execute(&mut *transaction).await.unwrap();
    publish(&mut transaction, &outbox(), NewMessage::from_json("order.created", "2")).await.unwrap();
    sqlx::query("rollback to s").execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    publish(&mut transaction, &outbox(), NewMessage::from_json("order.created", "3")).await.unwrap();
    transaction.rollback().await.unwrap();

    let claims = store.claim(10).await;

    assert_eq!(claims.iter().map(|claim| claim.message.id.0).collect::<Vec<_>>(), [kept.id]);
}

#[tokio::test]
async fn a_message_is_seen_when_it_is_committed_however_late() {
    let store = TestStore::postgres().await;
    let mut connection = store.postgres_connection().await;
    let mut slow = connection.begin().await.unwrap();
    publish(&mut slow, &outbox(), NewMessage::from_json("order.created", "1")).await.unwrap();
    store.publish_one(draft("order.created")).await;
    assert_eq!(store.claim(10).await.len(), 1);

    slow.commit().await.unwrap();

    assert_eq!(store.claim(10).await.len(), 1);
}

#[tokio::test]
async fn a_prepared_transaction_publishes_when_it_is_committed_though_a_relay_sleeps() {
    let store = TestStore::postgres().await;
    let mut connection = store.postgres_connection().await;
    store.outbox.wait_for_work(Duration::from_millis(30)).await;
    wake::until_a_relay_sleeps(&store).await;
    // In the simple protocol and in the extended one.
    for (protocol, name) in ["simple", "extended"].iter().zip(["a", "b"]) {
        for sql in
            ["begin", "select shop.outbox_publish('order.created', '{}')", &format!("prepare transaction '{name}'")]
        {
            let sql = AssertSqlSafe(sql.to_string());
            match *protocol {
                "simple" => sqlx::raw_sql(sql).execute(&mut connection).await.unwrap(),
                _ => sqlx::query(sql).execute(&mut connection).await.unwrap(),
            };
        }
    }
    assert!(store.claim(10).await.is_empty());

    for name in ["a", "b"] {
        let sql = AssertSqlSafe(format!("commit prepared '{name}'"));
        sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    }

    assert_eq!(store.claim(10).await.len(), 2);
}
