//! What the database holds when all is over.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use sqlx::{Connection, PgConnection, SqliteConnection};
use uuid::Uuid;

/// A message's row.
#[derive(Clone, Debug)]
pub struct Row {
    pub state: String,
    pub reason: Option<String>,
    pub attempts: i64,
    pub delivered_at: Option<SystemTime>,
    /// What its settled attempts came to, the first first.
    pub results: Vec<String>,
    /// The number of the attempt that was settled last.
    pub settled_attempt: Option<i64>,
}

/// The business's rows and the outbox's.
#[derive(Default)]
pub struct Truth {
    pub orders: HashSet<Uuid>,
    pub rows: HashMap<Uuid, Row>,
}

impl Truth {
    /// The server's clock was whole hours off, ahead or behind: its times become those of this machine, where it is `now` and
    /// nothing is half an hour old.
    pub fn by_our_clock(&mut self, now: SystemTime) {
        const HOUR: Duration = Duration::from_secs(3600);
        for at in self.rows.values_mut().filter_map(|row| row.delivered_at.as_mut()) {
            while *at > now + HOUR / 2 {
                *at -= HOUR;
            }
            while *at + HOUR / 2 < now {
                *at += HOUR;
            }
        }
    }
}

type Columns = (String, String, Option<String>, i64, Option<i64>, String);

const POSTGRES_ROWS: &str = "select id::text, state, reason, attempts::bigint,
    (extract(epoch from delivered_at) * 1000)::bigint, history::text from outbox";
const SQLITE_ROWS: &str = "select id, state, reason, attempts, delivered_at, history from outbox";
const ORDERS: &str = "select message from orders";
const CREATE_ORDERS: &str = "create table orders (message text primary key)";
const UNFINISHED: &str = "select count(*) from outbox where state not in ('delivered', 'dead')";

/// Makes the business's table.
pub async fn create_orders(url: &str) {
    if url.starts_with("sqlite") {
        let mut connection = SqliteConnection::connect(url).await.expect("connect");
        sqlx::query(CREATE_ORDERS).execute(&mut connection).await.expect("create the orders");
        connection.close().await.expect("close");
    } else {
        let mut connection = PgConnection::connect(url).await.expect("connect");
        sqlx::query(CREATE_ORDERS).execute(&mut connection).await.expect("create the orders");
        connection.close().await.expect("close");
    }
}

/// What the messages' last attempts failed with, on PostgreSQL.
pub async fn last_errors(url: &str) -> String {
    let mut connection = PgConnection::connect(url).await.expect("connect");
    let query = sqlx::query_scalar::<_, String>("select coalesce(string_agg(last_error, ' '), '') from outbox");
    let errors = query.fetch_one(&mut connection).await.expect("the errors");
    connection.close().await.expect("close");
    errors
}

/// How many messages are not finished.
pub async fn unfinished(url: &str) -> Result<i64, sqlx::Error> {
    if url.starts_with("sqlite") {
        let mut connection = SqliteConnection::connect(url).await?;
        let count = sqlx::query_scalar(UNFINISHED).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(count)
    } else {
        let mut connection = PgConnection::connect(url).await?;
        let count = sqlx::query_scalar(UNFINISHED).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(count)
    }
}

/// The state of one message; "away" while the database is.
pub async fn state(url: &str, id: Uuid) -> String {
    const STATE: &str = "select state from outbox where id::text = $1";
    const SQLITE_STATE: &str = "select state from outbox where id = ?1";
    let state = if url.starts_with("sqlite") {
        let Ok(mut connection) = SqliteConnection::connect(url).await else { return "away".into() };
        sqlx::query_scalar(SQLITE_STATE).bind(id.to_string()).fetch_one(&mut connection).await
    } else {
        let Ok(mut connection) = PgConnection::connect(url).await else { return "away".into() };
        sqlx::query_scalar(STATE).bind(id.to_string()).fetch_one(&mut connection).await
    };
    state.unwrap_or_else(|_| "away".into())
}

pub async fn read(url: &str) -> Truth {
    let (orders, rows): (Vec<String>, Vec<Columns>) = if url.starts_with("sqlite") {
        let mut connection = SqliteConnection::connect(url).await.expect("connect");
        let orders = sqlx::query_scalar(ORDERS).fetch_all(&mut connection).await.expect("orders");
        (orders, sqlx::query_as(SQLITE_ROWS).fetch_all(&mut connection).await.expect("rows"))
    } else {
        let mut connection = PgConnection::connect(url).await.expect("connect");
        let orders = sqlx::query_scalar(ORDERS).fetch_all(&mut connection).await.expect("orders");
        (orders, sqlx::query_as(POSTGRES_ROWS).fetch_all(&mut connection).await.expect("rows"))
    };
    let id = |text: &str| Uuid::parse_str(text).expect("an id");
    Truth {
        orders: orders.iter().map(|text| id(text)).collect(),
        rows: rows.into_iter().map(|columns| (id(&columns.0), row(columns))).collect(),
    }
}

/// What `pragma integrity_check` says of an SQLite file: "ok".
pub async fn integrity(url: &str) -> String {
    let mut connection = SqliteConnection::connect(url).await.expect("connect");
    let said = sqlx::query_scalar("pragma integrity_check").fetch_one(&mut connection).await.expect("a check");
    connection.close().await.expect("close");
    said
}

fn row((_, state, reason, attempts, delivered_ms, history): Columns) -> Row {
    let history: Vec<Value> = serde_json::from_str(&history).expect("a history");
    let results = history.iter().map(|entry| entry["result"].as_str().unwrap_or_default().to_owned()).collect();
    let settled_attempt = history.last().and_then(|entry| entry["attempt"].as_i64());
    let at = |ms: i64| UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or_default());
    Row { state, reason, attempts, delivered_at: delivered_ms.map(at), results, settled_attempt }
}
