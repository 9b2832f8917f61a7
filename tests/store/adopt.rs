//! Tables that somebody else made, and payloads that come out as they went in.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use outboxd_client::{Insertion, NewMessage, Outbox, publish};
use outboxd_core::{LeaseStatus, Payload, Transition};
use outboxd_store::{Migrated, Notify, Selection, Store, StoreError, StoreOptions, TableName, migrate};
use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::tools::tool;
use sqlx::{AssertSqlSafe, Connection};

use crate::backend::{LAPSES_MAX, LEASE, TestStore, lane, settlement};

const TEXTS: [&str; 6] = [
    r#"{"b":1,"a":1.0,"n":12345678901234567890,"d":1,"d":2}"#,
    r#"{"nul":"\u0000","lone":"\ud800","pair":"\ud83d\ude00"}"#,
    "  [1 ,\n\t2.50e+3 , -0.0]  ",
    "\"a\u{202e}b\u{7f}\u{1f600}\"",
    "null",
    "1e400",
];

/// An outbox in a table with this payload column, made by hand and then adopted.
async fn adopted(column: &str) -> (TestStore, StoreOptions, Store) {
    let store = TestStore::postgres().await;
    let sql = format!(
        "create table by_hand (id uuid primary key default gen_random_uuid(), topic text not null, payload {column})"
    );
    store.execute(&sql).await.unwrap();
    let options = StoreOptions {
        table: TableName::parse("shop.by_hand").unwrap(),
        payload_max: 200,
        notify: Notify::PollOnly,
        ..store.options.clone()
    };
    assert_eq!(migrate(&options).await.unwrap(), Migrated { from: 0, to: 3 });
    let by_hand = Store::connect(&options).await.unwrap();
    (store, options, by_hand)
}

async fn payload(store: &Store) -> Payload {
    let claims = store.outbox.claim(&[lane("t", 2)], LEASE, LAPSES_MAX).await.unwrap();
    assert_eq!(claims.len(), 1);
    let shown = store.admin.show(claims[0].message.id).await.unwrap().unwrap();
    let bytes = claims[0].message.payload.as_bytes();
    assert!(bytes.is_empty() || shown.payload.as_deref() == Some(&*String::from_utf8_lossy(bytes)));
    let settled = store.outbox.settle(&[settlement(&claims[0], Transition::Delivered)]).await.unwrap();
    assert_eq!(settled, [LeaseStatus::Held]);
    claims.into_iter().next().unwrap().message.payload
}

#[tokio::test]
async fn payloads_of_json_text_and_bytea_come_out_byte_for_byte() {
    for column in ["json", "text", "varchar", "bytea"] {
        let (by_hand, _, store) = adopted(column).await;
        let mut connection = by_hand.postgres_connection().await;
        for text in TEXTS {
            let expression = if column == "bytea" { "convert_to($1, 'UTF8')" } else { "$1" };
            let sql = format!("insert into shop.by_hand (topic, payload) values ('t', {expression}::{column})");
            sqlx::query(AssertSqlSafe(sql)).bind(text).execute(&mut connection).await.unwrap();

            assert_eq!(payload(&store).await, Payload::Bytes(text.into()), "{column}");
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_come_out_of_bytea() {
    let (by_hand, _, store) = adopted("bytea").await;
    let bytes: Vec<u8> = (0..=127).map(|byte: u8| byte.wrapping_mul(3).wrapping_sub(1)).chain([0, 255, 92]).collect();
    let sql = "insert into shop.by_hand (topic, payload) values ('t', $1)";
    sqlx::query(sql).bind(&bytes).execute(&mut by_hand.postgres_connection().await).await.unwrap();

    let claims = store.outbox.claim(&[lane("t", 1)], LEASE, LAPSES_MAX).await.unwrap();

    assert_eq!(claims[0].message.payload, Payload::Bytes(bytes));
}

#[tokio::test]
async fn jsonb_keeps_its_own_normal_form() {
    let (by_hand, _, store) = adopted("jsonb").await;
    let sql = r#"insert into shop.by_hand (topic, payload) values ('t', '{"b":1,"a":1.0,"d":1,"d":2}')"#;
    sqlx::query(sql).execute(&mut by_hand.postgres_connection().await).await.unwrap();

    assert_eq!(payload(&store).await, Payload::Bytes(br#"{"a": 1.0, "b": 1, "d": 2}"#.to_vec()));
}

#[tokio::test]
async fn a_large_payload_of_any_type_stays_in_the_database() {
    for column in ["json", "jsonb", "text", "bytea"] {
        let (by_hand, _, store) = adopted(column).await;
        let sql = format!(
            "insert into shop.by_hand (topic, payload) values ('t', ('\"' || repeat('x', 199) || '\"')::{column})"
        );
        sqlx::query(AssertSqlSafe(sql)).execute(&mut by_hand.postgres_connection().await).await.unwrap();

        assert_eq!(payload(&store).await, Payload::TooLarge { bytes: 201 }, "{column}");
    }
}

#[tokio::test]
async fn the_client_publishes_into_json_and_text_columns() {
    for column in ["json", "text", "jsonb"] {
        let (_by_hand, options, store) = adopted(column).await;
        let text = r#"{"a": 1, "b": 2}"#;
        let message = NewMessage::from_json("t", text);
        outboxd_client::standalone::publish(&options.url, "shop.by_hand", 100, vec![message]).await.unwrap();

        assert_eq!(payload(&store).await, Payload::Bytes(text.into()));
    }
}

#[tokio::test]
async fn a_table_that_cannot_be_adopted_says_why() {
    let store = TestStore::postgres().await;
    for (columns, why) in [
        ("id bigint primary key, topic text not null, payload json", "the id is of type bigint, not uuid"),
        ("id uuid primary key, topic text not null, payload int", "the payload is of type integer"),
        ("name text", "\"topic\" does not exist"),
    ] {
        store.execute(&format!("drop table if exists odd; create table odd ({columns})")).await.unwrap();
        let options = StoreOptions { table: TableName::parse("shop.odd").unwrap(), ..store.options.clone() };

        let Err(StoreError::Broken(text)) = migrate(&options).await else { panic!("it cannot be adopted") };

        assert!(text.contains(why), "{text}");
        // Nothing was left behind.
        let error = store.execute("select 1 from odd_control").await.unwrap_err().to_string();
        assert!(error.contains("does not exist"), "{error}");
    }
}

#[tokio::test]
async fn sqlite_payloads_come_out_byte_for_byte() {
    let store = TestStore::sqlite().await;
    for text in TEXTS {
        store.publish(vec![crate::backend::draft("order.created").payload(text)]).await;
        let claim = store.claim_one().await;
        assert_eq!(claim.message.payload, Payload::Bytes(text.into()));
        store.settle_one(&claim, Transition::Delivered).await;
    }
}

async fn grelmicro(tool: &Path, database: &str, what: &str) -> String {
    let mut command = Command::new(tool.join("bin/python"));
    command.arg(outboxd_test_support::repository().join("tests/store/drivers/run_grelmicro.py"));
    command.arg(TestPostgres::shared().socket_folder()).args([database, what]);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}

#[tokio::test]
async fn a_grelmicro_outbox_is_adopted_and_its_producer_goes_on() {
    let Some(tool) = tool("grelmicro") else { return };
    let store = TestStore::postgres().await;
    let database = store.options.url.split(['/', '?']).find(|part| part.starts_with("test")).unwrap().to_string();
    grelmicro(&tool, &database, "create").await;
    let before = r#"[{"topic": "t", "payload": {"n": 1}, "key": "k", "headers": {"h": "v", "n": 2}, "dedup_key": "d"},
        {"topic": "t", "payload": {"n": 2}}]"#;
    assert_eq!(grelmicro(&tool, &database, before).await, "[true, true]");
    store
        .execute("insert into public.grelmicro_outbox (id, topic, payload, state, last_error) values (gen_random_uuid(), 'u', '{}', 'dead', 'x')")
        .await
        .unwrap();
    let options = StoreOptions { table: TableName::parse("grelmicro_outbox").unwrap(), ..store.options.clone() };

    assert_eq!(migrate(&options).await.unwrap(), Migrated { from: 0, to: 3 });

    assert_eq!(migrate(&options).await.unwrap(), Migrated { from: 3, to: 3 });
    grelmicro(&tool, &database, "create").await;
    let after = r#"[{"topic": "t", "payload": {"n": 3}}, {"topic": "other", "payload": {}, "dedup_key": "d"},
        {"topic": "t", "payload": {"n": 4}, "delay": 3600}]"#;
    // Its dedup keys know no topics.
    assert_eq!(grelmicro(&tool, &database, after).await, "[true, false, true]");
    let adopted = Store::connect(&options).await.unwrap();
    let claims = adopted.outbox.claim(&[lane("t", 10), lane("other", 10)], LEASE, LAPSES_MAX).await.unwrap();
    let payloads: Vec<_> =
        claims.iter().map(|claim| String::from_utf8_lossy(claim.message.payload.as_bytes())).collect();
    assert_eq!(payloads, [r#"{"n": 1}"#, r#"{"n": 2}"#, r#"{"n": 3}"#]);
    assert_eq!(claims[0].message.key.as_deref(), Some("k"));
    assert_eq!(claims[0].message.headers[..2], [("h".into(), "v".into()), ("n".into(), "2".to_string())]);
    let settlements: Vec<_> = claims.iter().map(|claim| settlement(claim, Transition::Delivered)).collect();
    assert_eq!(adopted.outbox.settle(&settlements).await.unwrap(), [LeaseStatus::Held; 3]);
    // Our own client meets its dedup key too, and a dead letter of its relay can be redriven or purged.
    let mut connection = store.postgres_connection().await;
    let mut transaction = connection.begin().await.unwrap();
    let outbox = Outbox::new("grelmicro_outbox").unwrap();
    let duplicate =
        publish(&mut transaction, &outbox, NewMessage::from_json("new", "{}").dedup_key("d")).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!((duplicate.insertion, duplicate.id), (Insertion::Duplicate, claims[0].message.id.0));
    let all = Selection::Matching { topic: None, reason: None };
    assert_eq!(adopted.admin.redrive(&all, 10, Duration::ZERO, Duration::ZERO).await.unwrap(), 1);
    assert_eq!(adopted.outbox.claim(&[lane("u", 10)], LEASE, LAPSES_MAX).await.unwrap().len(), 1);
}
