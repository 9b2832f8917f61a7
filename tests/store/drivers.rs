//! `outbox_publish()` from other languages: what shares its transaction with a write is published, what stands alone is refused
//! with advice. See `drivers/README.md`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::skip;
use outboxd_test_support::tools::tool;
use serde::Deserialize;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::backend::TestStore;

#[derive(Deserialize)]
struct Case {
    name: String,
    mode: String,
    expect: String,
    steps: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Tried {
    protocol: String,
    name: String,
    error: Option<String>,
    rows: u64,
}

fn folder() -> PathBuf {
    outboxd_test_support::repository().join("tests/store/drivers")
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(folder().join("publish_cases.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A shop with an outbox, a table of orders, and functions and a trigger that publish.
async fn shop() -> (TestStore, String) {
    let store = TestStore::postgres().await;
    store
        .execute(
            "create table orders (id int);
             create table watched (id int);
             create function publish_then_write() returns void language plpgsql as $$
                 begin perform shop.outbox_publish('t', '{}'); insert into shop.orders (id) values (1); end $$;
             create function write_then_publish() returns void language plpgsql as $$
                 begin insert into shop.orders (id) values (1); perform shop.outbox_publish('t', '{}'); end $$;
             create function watch() returns trigger language plpgsql as $$
                 begin perform shop.outbox_publish('t', json_build_object('id', new.id)); return null; end $$;
             create trigger watch after insert on watched for each row execute function watch();",
        )
        .await
        .unwrap();
    let database = store.options.url.split(['/', '?']).find(|part| part.starts_with("test")).unwrap().to_string();
    (store, database)
}

async fn run(mut command: Command, script: &str) {
    let (_store, database) = shop().await;
    command.arg(folder().join(script)).arg(TestPostgres::shared().socket_folder()).arg(database);
    command.arg(folder().join("publish_cases.json"));
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    check(script, &output);
}

fn check(driver: &str, output: &Output) {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{driver}: {stderr}");
    let tried: Vec<Tried> = stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let mut protocols: BTreeMap<&str, usize> = BTreeMap::new();
    for tried in &tried {
        *protocols.entry(&tried.protocol).or_default() += 1;
        assert_as_expected(driver, tried);
    }
    println!("{driver}: {protocols:?}");
    assert!(protocols.values().all(|count| *count >= cases().len() - 2), "{driver} left cases out: {protocols:?}");
}

fn assert_as_expected(driver: &str, tried: &Tried) {
    let case = cases().into_iter().find(|case| case.name == tried.name).unwrap();
    let rows = match case.expect.as_str() {
        "published" => 1,
        "published twice" => 2,
        _ => 0,
    };
    assert_eq!(tried.rows, rows, "{driver}: {tried:?}");
    match &tried.error {
        Some(error) => {
            assert_eq!(case.expect, "refused", "{driver}: {tried:?}");
            assert!(
                error.contains("outside the transaction") && error.contains("begin a transaction"),
                "{driver}: {error}"
            );
        }
        None => assert_ne!(case.expect, "refused", "{driver}: {tried:?}"),
    }
}

#[tokio::test]
async fn asyncpg() {
    if let Some(python) = tool("python") {
        run(Command::new(python.join("bin/python")), "run_asyncpg.py").await;
    }
}

#[tokio::test]
async fn psycopg() {
    if let Some(python) = tool("python") {
        run(Command::new(python.join("bin/python")), "run_psycopg.py").await;
    }
}

#[tokio::test]
async fn node_pg() {
    if let Some(node) = tool("node") {
        let mut command = Command::new("node");
        command.env("NODE_PATH", node.join("node_modules"));
        run(command, "run_pg.js").await;
    }
}

#[tokio::test]
async fn psql() {
    if Command::new("psql").arg("--version").output().is_err() {
        return skip("there is no psql");
    }
    let (store, database) = shop().await;
    for case in cases() {
        store.execute("truncate shop.outbox, shop.orders, shop.watched").await.unwrap();
        // Each -c is sent as one string: a batch where it holds several statements.
        let mut command = Command::new("psql");
        command.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", &database, "-h"]);
        command.arg(TestPostgres::shared().socket_folder());
        let end = if case.mode == "rollback" { "rollback" } else { "commit" };
        let (begin, end) = match case.mode.as_str() {
            "transaction" | "rollback" => (Some("begin"), Some(end)),
            _ => (None, None),
        };
        for step in begin.into_iter().chain(case.steps.iter().map(String::as_str)).chain(end) {
            command.args(["-c", step]);
        }
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let error = (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned());
        let sql = "select count(*) from shop.outbox";
        let rows: i64 = sqlx::query_scalar(sql).fetch_one(&mut store.postgres_connection().await).await.unwrap();
        assert_as_expected("psql", &Tried { protocol: "simple".into(), name: case.name, error, rows: rows as u64 });
    }
}

#[tokio::test]
async fn sqlx_in_both_protocols() {
    let (store, _) = shop().await;
    let mut connection = store.postgres_connection().await;
    for protocol in ["simple", "extended"] {
        for case in cases() {
            if protocol == "extended" && case.mode == "batch" {
                continue;
            }
            sqlx::raw_sql("truncate shop.outbox, shop.orders, shop.watched").execute(&mut connection).await.unwrap();
            let error = attempt(&mut connection, protocol, &case).await.err().map(|error| match &error {
                sqlx::Error::Database(database) => {
                    let hint = database.downcast_ref::<sqlx::postgres::PgDatabaseError>().hint().map(str::to_string);
                    format!("{error} {hint:?}")
                }
                other => other.to_string(),
            });
            if error.is_some() {
                sqlx::raw_sql("rollback").execute(&mut connection).await.unwrap();
            }
            let sql = "select count(*) from shop.outbox";
            let rows: i64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
            assert_as_expected("sqlx", &Tried { protocol: protocol.into(), name: case.name, error, rows: rows as u64 });
        }
    }
}

async fn attempt(connection: &mut PgConnection, protocol: &str, case: &Case) -> Result<(), sqlx::Error> {
    async fn run(connection: &mut PgConnection, protocol: &str, steps: &[String]) -> Result<(), sqlx::Error> {
        for step in steps {
            let sql = AssertSqlSafe(step.clone());
            match protocol {
                "simple" => sqlx::raw_sql(sql).execute(&mut *connection).await?,
                _ => sqlx::query(sql).execute(&mut *connection).await?,
            };
        }
        Ok(())
    }
    if matches!(case.mode.as_str(), "autocommit" | "batch") {
        return run(connection, protocol, &case.steps).await;
    }
    let mut transaction = connection.begin().await?;
    run(&mut transaction, protocol, &case.steps).await?;
    match case.mode.as_str() {
        "rollback" => transaction.rollback().await,
        _ => transaction.commit().await,
    }
}

#[tokio::test]
async fn everything_that_was_given_to_the_function_arrives() {
    let (store, _) = shop().await;
    let mut connection = store.postgres_connection().await;
    let mut transaction = connection.begin().await.unwrap();
    let sql = "select shop.outbox_publish('order.created', '{\"b\":1,\"a\":1.0, \"d\":1,\"d\":2}', key => 'k',
        headers => '{\"h\": \"v\"}', dedup_key => 'd', expires => interval '1 hour')";
    let (id,): (uuid::Uuid,) = sqlx::query_as(sql).fetch_one(&mut *transaction).await.unwrap();
    let (again,): (uuid::Uuid,) = sqlx::query_as(sql).fetch_one(&mut *transaction).await.unwrap();
    let delayed = "select shop.outbox_publish('order.created', '1', delay => interval '1 hour')";
    sqlx::query(delayed).execute(&mut *transaction).await.unwrap();
    sqlx::query("select 1").execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();

    let claims = store.claim(10).await;

    let [claim] = &claims[..] else { panic!("{claims:?}") };
    assert_eq!((claim.message.id.0, again), (id, id));
    assert_eq!(claim.message.payload.as_bytes(), br#"{"b":1,"a":1.0, "d":1,"d":2}"#);
    assert_eq!((claim.message.key.as_deref(), claim.message.headers.len()), (Some("k"), 1));
    let shown = store.show(claim.message.id).await;
    assert_eq!(shown.dedup_key.as_deref(), Some("d"));
    assert_eq!(shown.summary.expires_at_ms, Some(shown.summary.created_at_ms + 3_600_000));
}

#[tokio::test]
async fn the_function_refuses_a_payload_above_the_limit() {
    let (store, _) = shop().await;
    let mut connection = store.postgres_connection().await;
    let mut publish = async |bytes: usize| {
        let mut transaction = connection.begin().await.unwrap();
        let payload = format!("\"{}\"", "x".repeat(bytes - 2));
        let published = sqlx::query("select shop.outbox_publish('t', $1::text::json)")
            .bind(payload)
            .execute(&mut *transaction)
            .await;
        transaction.rollback().await.unwrap();
        published.map(|_| ()).map_err(|error| error.to_string())
    };

    assert_eq!(publish(1 << 20).await, Ok(()));
    let error = publish((1 << 20) + 1).await.unwrap_err();
    assert!(error.contains("1048577 bytes, more than the 1048576"), "{error}");
}
