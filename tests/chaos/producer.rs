//! Applications that sell things: each sale is a business row and a message in one transaction, and many sales fall through.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use outboxd_client::{NewMessage, Outbox, OutboxDatabase, PublishError, publish, publish_all};
use sqlx::{Connection, Transaction};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::stage::{ORDERED_TOPIC, TOPIC};

const PAYLOAD: &str = r#"{"article":"lamp","price":42.50}"#;
/// A transaction that takes longer is given up, its fate unknown.
const ANSWERS_WITHIN: Duration = Duration::from_secs(6);

/// What the producers know of their messages' fates.
#[derive(Default)]
pub struct Records(Mutex<Fates>);

#[derive(Default, Clone)]
pub struct Fates {
    /// The commit was answered.
    pub committed: Vec<Uuid>,
    /// The commit was sent, and the connection lost before its answer.
    pub unknown: Vec<Uuid>,
    /// The transaction or savepoint was rolled back, or its commit never sent.
    pub rolled_back: Vec<Uuid>,
    /// Of the committed ones those of each key, one transaction after the other.
    pub in_order: HashMap<String, Vec<Uuid>>,
}

impl Records {
    pub fn fates(&self) -> Fates {
        self.lock().clone()
    }

    pub fn committed(&self) -> usize {
        self.lock().committed.len()
    }

    /// What another program says of a message of its own.
    pub fn told(&self, fate: &str, id: Uuid) {
        let mut fates = self.lock();
        match fate {
            "committed" => fates.committed.push(id),
            "unknown" => fates.unknown.push(id),
            "rolled_back" => fates.rolled_back.push(id),
            other => panic!("{other:?} is no fate"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Fates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a sale ends.
#[derive(Clone, Copy)]
enum End {
    Commit,
    Rollback,
    /// The application dies: its connection goes away amid the transaction.
    Vanish,
    /// A second sale within a savepoint falls through, the first is kept.
    Savepoint,
}

impl End {
    /// 70 % are kept; of the others half are undone by a savepoint.
    fn draw(draw: &mut Rng) -> End {
        match draw.u8(..100) {
            0..70 => End::Commit,
            70..80 => End::Rollback,
            80..85 => End::Vanish,
            _ => End::Savepoint,
        }
    }
}

/// What an application publishes with.
#[derive(Clone, Copy)]
enum Language {
    /// The client, as an application in Rust.
    Rust,
    /// Plain SQL, as one in any language: `outbox_publish` on PostgreSQL, an INSERT on SQLite.
    Sql,
}

/// A database to sell in.
pub trait Market: OutboxDatabase {
    fn execute(
        transaction: &mut Transaction<'_, Self>,
        sql: &'static str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Publishes in SQL and answers the message's id.
    fn publish_in_sql(
        transaction: &mut Transaction<'_, Self>,
        place: &Place,
    ) -> impl Future<Output = Result<String, sqlx::Error>> + Send;

    /// Writes the business's row.
    fn insert_order(
        transaction: &mut Transaction<'_, Self>,
        message: Uuid,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

macro_rules! market {
    ($database:ty, $publish:literal) => {
        impl Market for $database {
            async fn execute(transaction: &mut Transaction<'_, Self>, sql: &'static str) -> Result<(), sqlx::Error> {
                sqlx::query(sql).execute(&mut **transaction).await.map(drop)
            }

            async fn publish_in_sql(
                transaction: &mut Transaction<'_, Self>,
                place: &Place,
            ) -> Result<String, sqlx::Error> {
                let query = sqlx::query_scalar($publish).bind(place.topic()).bind(PAYLOAD).bind(place.key.clone());
                query.fetch_one(&mut **transaction).await
            }

            async fn insert_order(transaction: &mut Transaction<'_, Self>, message: Uuid) -> Result<(), sqlx::Error> {
                let query = sqlx::query("insert into orders (message) values ($1)").bind(message.to_string());
                query.execute(&mut **transaction).await.map(drop)
            }
        }
    };
}

market!(sqlx::Postgres, "select outbox_publish($1, $2::json, key => $3)::text");
market!(sqlx::Sqlite, "insert into outbox (topic, payload, key) values ($1, $2, $3) returning id");

/// Where a sale's messages go: without a key, or in the order of one.
#[derive(Default)]
pub struct Place {
    key: Option<String>,
}

impl Place {
    fn topic(&self) -> &'static str {
        if self.key.is_some() { ORDERED_TOPIC } else { TOPIC }
    }
}

/// One application.
pub struct Producer {
    /// The key of its messages that are in order.
    pub name: String,
    pub url: String,
    pub draw: Rng,
    pub records: Arc<Records>,
}

impl Producer {
    /// Sells until told to stop; waits while `may_go_on` says no.
    pub async fn run<DB: Market>(mut self, stop: CancellationToken, may_go_on: impl Fn() -> bool) {
        let mut connection: Option<DB::Connection> = None;
        while !stop.is_cancelled() {
            let pause = if may_go_on() { self.draw.u64(2..30) } else { 50 };
            stop.run_until_cancelled(tokio::time::sleep(Duration::from_millis(pause))).await;
            let open = match connection.take() {
                Some(open) => open,
                None => match timeout(ANSWERS_WITHIN, DB::Connection::connect(&self.url)).await {
                    Ok(Ok(open)) => open,
                    _ => continue,
                },
            };
            let language = if self.draw.bool() { Language::Rust } else { Language::Sql };
            let end = End::draw(&mut self.draw);
            // Few enough that one call after the other keeps up.
            let place = Place { key: (self.draw.u8(..8) == 0).then(|| self.name.clone()) };
            connection = self.sell::<DB>(open, language, end, place).await;
        }
    }

    /// Makes one transaction; answers the connection if it can be used again.
    async fn sell<DB: Market>(
        &self,
        mut connection: DB::Connection,
        language: Language,
        end: End,
        place: Place,
    ) -> Option<DB::Connection> {
        let mut sale = Sale::default();
        let sold = timeout(ANSWERS_WITHIN, transaction::<DB>(&mut connection, language, end, &place, &mut sale)).await;
        let done = matches!(sold, Ok(Ok(())));
        let mut fates = self.records.lock();
        match sale.stage {
            SaleStage::Open => fates.rolled_back.extend(sale.kept),
            SaleStage::CommitSent if done => {
                if let Some(key) = place.key {
                    fates.in_order.entry(key).or_default().extend(&sale.kept);
                }
                fates.committed.extend(sale.kept);
            }
            SaleStage::CommitSent => fates.unknown.extend(sale.kept),
        }
        fates.rolled_back.extend(sale.undone);
        (done && !matches!(end, End::Vanish)).then_some(connection)
    }
}

/// What is known of a transaction while it runs.
#[derive(Default)]
struct Sale {
    kept: Vec<Uuid>,
    undone: Vec<Uuid>,
    stage: SaleStage,
}

#[derive(Default, Clone, Copy)]
enum SaleStage {
    #[default]
    Open,
    CommitSent,
}

async fn transaction<DB: Market>(
    connection: &mut DB::Connection,
    language: Language,
    end: End,
    place: &Place,
    sale: &mut Sale,
) -> Result<(), PublishError> {
    let mut transaction = connection.begin().await?;
    sale.kept.push(order::<DB>(&mut transaction, language, place).await?);
    if let End::Savepoint = end {
        DB::execute(&mut transaction, "savepoint second").await?;
        // Before the insert is answered its id is not known: then what was stored shows as a row without an order.
        sale.undone.push(order::<DB>(&mut transaction, language, place).await?);
        DB::execute(&mut transaction, "rollback to savepoint second").await?;
    }
    match end {
        End::Commit | End::Savepoint => {
            sale.stage = SaleStage::CommitSent;
            transaction.commit().await?;
        }
        End::Rollback => transaction.rollback().await?,
        // Not rolled back: the connection goes away with the transaction open.
        End::Vanish => std::mem::forget(transaction),
    }
    Ok(())
}

/// A message and the row it tells about.
async fn order<DB: Market>(
    transaction: &mut Transaction<'_, DB>,
    language: Language,
    place: &Place,
) -> Result<Uuid, PublishError> {
    let id = match language {
        Language::Rust => {
            let mut message = NewMessage::from_json(place.topic(), PAYLOAD);
            if let Some(key) = &place.key {
                message = message.key(key);
            }
            publish(transaction, &Outbox::default(), message).await?.id
        }
        Language::Sql => {
            let id = DB::publish_in_sql(transaction, place).await?;
            Uuid::parse_str(&id).map_err(|error| PublishError::Invalid(error.to_string()))?
        }
    };
    DB::insert_order(transaction, id).await?;
    Ok(id)
}

/// Publishes `count` messages of so many bytes in one transaction, each with its order, and answers their ids.
pub async fn sell_large(url: &str, count: usize, bytes: usize) -> Vec<Uuid> {
    let mut connection = sqlx::PgConnection::connect(url).await.expect("connect");
    let mut transaction = connection.begin().await.expect("begin");
    let payload = format!("\"{}\"", "x".repeat(bytes));
    let messages = vec![NewMessage::from_json(TOPIC, payload); count];
    let published = publish_all(&mut transaction, &Outbox::default(), &messages).await.expect("publish");
    let ids: Vec<Uuid> = published.into_iter().map(|published| published.id).collect();
    for id in &ids {
        Market::insert_order(&mut transaction, *id).await.expect("the order");
    }
    transaction.commit().await.expect("commit");
    connection.close().await.expect("close");
    ids
}

/// Sells `count` times in one transaction and answers the messages' ids.
pub async fn sell_at_once<DB: Market>(url: &str, count: usize) -> Vec<Uuid> {
    let mut connection = DB::Connection::connect(url).await.expect("connect");
    let mut transaction = connection.begin().await.expect("begin");
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        ids.push(order::<DB>(&mut transaction, Language::Rust, &Place::default()).await.expect("publish"));
    }
    transaction.commit().await.expect("commit");
    connection.close().await.expect("close");
    ids
}
