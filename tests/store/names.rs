//! The table may be called anything; nothing that is not quoted reaches a statement.

use outboxd_core::{LeaseStatus, Transition, quoted};
use outboxd_store::{Migrated, Notify, Store, StoreOptions, TableName, Wake, migrate};
use sqlx::AssertSqlSafe;

use crate::backend::{LAPSES_MAX, LEASE, TestStore, lane, settlement};

const ODD: [&str; 14] = [
    "outbox",
    "Outbox",
    "OUTBOX",
    "billing",
    "\"select\"",
    "\"with space\"",
    "\"quo\"\"te\"",
    "\"it's\"",
    "\"a.b\"",
    "\"; drop schema shop cascade; --\"",
    "\"$$\"",
    "\"{table}{control}\"",
    "\"back\\slash\"",
    "日本語_früh",
];

/// Publish, claim, settle, look: with that table and no other.
async fn goes_round(options: &StoreOptions, payload: &str) {
    let name = &options.table;
    assert_eq!(migrate(options).await.unwrap_or_else(|error| panic!("{name}: {error}")), Migrated { from: 0, to: 3 });
    let store = Store::connect(options).await.unwrap();
    let message = outboxd_client::NewMessage::from_json("t", payload).dedup_key("d");
    for _ in 0..2 {
        outboxd_client::standalone::publish(&options.url, &name.to_string(), 1 << 20, vec![message.clone()])
            .await
            .unwrap();
    }
    assert_eq!(store.outbox.due_topics().await.unwrap().len(), 1, "{name}");
    let claims = store.outbox.claim(&[lane("t", 5)], LEASE, LAPSES_MAX).await.unwrap();
    assert_eq!(claims.len(), 1, "{name}");
    assert_eq!(claims[0].message.payload.as_bytes(), payload.as_bytes(), "{name}");
    let settled = store.outbox.settle(&[settlement(&claims[0], Transition::Delivered)]).await.unwrap();
    assert_eq!(settled, [LeaseStatus::Held]);
    store.admin.pause("t").await.unwrap();
    assert_eq!(store.admin.stats().await.unwrap()[0].delivered, 1, "{name}");
}

#[tokio::test]
async fn odd_names_work_on_postgres_beside_each_other() {
    let store = TestStore::postgres().await;
    let long = ["x".repeat(63), format!("{}y", "x".repeat(62)), "é".repeat(31)];
    for name in ODD.iter().copied().chain(long.iter().map(String::as_str)) {
        let table = TableName::parse(name).unwrap();
        // `outbox` in `public` is a decoy of another shape.
        let schema = if name == "outbox" { "odd" } else { "public" };
        let table = TableName::parse(&format!("{schema}.{}", quoted(table.table()))).unwrap();
        store.execute(&format!("create schema if not exists {}", quoted(schema))).await.unwrap();
        let options = StoreOptions { table, notify: Notify::PollOnly, ..store.options.clone() };
        goes_round(&options, &format!("{:?}", "odd")).await;
    }
}

#[tokio::test]
async fn odd_names_work_on_sqlite_beside_each_other() {
    let store = TestStore::sqlite().await;
    // SQLite's names do not tell cases apart.
    for name in ODD.iter().copied().filter(|name| !name.eq_ignore_ascii_case("outbox")) {
        let options = StoreOptions { table: TableName::parse(name).unwrap(), ..store.options.clone() };
        goes_round(&options, "{\"a\":  1}").await;
    }
}

#[tokio::test]
async fn odd_schemas_work() {
    let store = TestStore::postgres().await;
    for schema in ["Sales", "sa.les", "quo\"te", "; drop schema shop cascade; --", "日本"] {
        store.execute(&format!("create schema {}", quoted(schema))).await.unwrap();
        let table = TableName::parse(&format!("{}.outbox", quoted(schema))).unwrap();
        goes_round(&StoreOptions { table, notify: Notify::PollOnly, ..store.options.clone() }, "1").await;
    }
}

#[tokio::test]
async fn quoting_is_the_servers_own() {
    let store = TestStore::postgres().await;
    let mut connection = store.postgres_connection().await;
    for name in ODD.map(|name| TableName::parse(name).unwrap()) {
        let sql = format!("select {} from (select 1 as {}) as t", quoted(name.table()), quoted(name.table()));
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        let (same,): (bool,) = sqlx::query_as("select quote_ident($1) in ($1, $2)")
            .bind(name.table())
            .bind(quoted(name.table()))
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert!(same, "{name}");
    }
}

#[tokio::test]
async fn neither_search_path_nor_role_settings_decide_anything() {
    let store = TestStore::postgres().await;
    store
        .execute(
            "create schema evil;
             create table evil.outbox (like shop.outbox including all);
             create role odd superuser login;
             alter role odd set search_path = evil, public;
             alter role odd set default_transaction_isolation = 'serializable';
             alter role odd set bytea_output = 'escape';
             alter role odd set synchronous_commit = off;
             alter role odd set timezone = 'Asia/Kathmandu';
             alter role odd set intervalstyle = 'sql_standard';
             alter role odd set datestyle = 'German'",
        )
        .await
        .unwrap();
    let url = store.options.url.replace("user=postgres", "user=odd");
    let table = TableName::parse("shop.second").unwrap();
    goes_round(&StoreOptions { url, table, notify: Notify::PollOnly, ..store.options.clone() }, "[1]").await;
    store.execute("drop owned by odd; drop role odd").await.unwrap();
}

#[tokio::test]
async fn another_tables_messages_wake_nobody() {
    let store = TestStore::postgres().await;
    let other = StoreOptions { table: TableName::parse("shop.other").unwrap(), ..store.options.clone() };
    migrate(&other).await.unwrap();
    let other = Store::connect(&other).await.unwrap();
    while other.outbox.wait_for_work(std::time::Duration::from_millis(500)).await == Wake::Notify {}

    store.publish_one(crate::backend::draft("a")).await;

    assert_eq!(other.outbox.wait_for_work(std::time::Duration::from_millis(300)).await, Wake::Poll);
}

#[test]
fn a_password_stands_in_no_error_and_no_debug_text() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for url in [
            "postgres://u:hunter2@127.0.0.1:1/db",
            "postgres://u:hunter2@nowhere.invalid/db",
            "postgres://u:hunter2@[::1/db",
            "postgres://u:hunter2@127.0.0.1:99999/db",
            "mysql://u:hunter2@h/db",
            "hunter2",
        ] {
            let options = StoreOptions { url: url.into(), notify: Notify::PollOnly, ..StoreOptions::default() };
            assert!(!format!("{options:?}").contains("hunter2"));
            let error = match Store::connect(&options).await {
                Err(error) => error,
                Ok(store) => store.admin.ping().await.unwrap_err(),
            };
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
            let error = migrate(&options).await.unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    });
}
