//! Applications that sell things: each sale is a business row and a message in one transaction, and many sales fall through.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use outboxd_client::{NewMessage, Outbox, OutboxDatabase, PublishError, publish};
use sqlx::{Connection, Encode, Executor, IntoArguments, Transaction, Type};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::stage::TOPIC;

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
}

impl Records {
    pub fn fates(&self) -> Fates {
        self.lock().clone()
    }

    pub fn committed(&self) -> usize {
        self.lock().committed.len()
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

/// The databases a producer can sell in.
pub trait Market: OutboxDatabase {
    const INSERT_ORDER: &'static str;
}

impl Market for sqlx::Postgres {
    const INSERT_ORDER: &'static str = "insert into orders (message) values ($1)";
}

impl Market for sqlx::Sqlite {
    const INSERT_ORDER: &'static str = "insert into orders (message) values (?1)";
}

/// One application. `may_go_on` holds it back while the relays have enough to do.
pub struct Producer {
    pub url: String,
    pub draw: Rng,
    pub records: Arc<Records>,
    pub outbox: Outbox,
}

impl Producer {
    /// Sells until told to stop, at the pace that `wait` sets.
    pub async fn run<DB: Market>(mut self, stop: CancellationToken, may_go_on: impl Fn() -> bool)
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        for<'q> String: Encode<'q, DB> + Type<DB>,
        DB::Arguments: IntoArguments<DB>,
    {
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
            let end = End::draw(&mut self.draw);
            connection = self.sell::<DB>(open, end).await;
        }
    }

    /// Makes one transaction; answers the connection if it can be used again.
    async fn sell<DB: Market>(&self, mut connection: DB::Connection, end: End) -> Option<DB::Connection>
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        for<'q> String: Encode<'q, DB> + Type<DB>,
        DB::Arguments: IntoArguments<DB>,
    {
        let mut sale = Sale::default();
        let sold = timeout(ANSWERS_WITHIN, self.transaction::<DB>(&mut connection, end, &mut sale)).await;
        let done = matches!(sold, Ok(Ok(())));
        let mut fates = self.records.lock();
        match sale.stage {
            SaleStage::Open => fates.rolled_back.extend(sale.kept),
            SaleStage::CommitSent if done => fates.committed.extend(sale.kept),
            SaleStage::CommitSent => fates.unknown.extend(sale.kept),
        }
        fates.rolled_back.extend(sale.undone);
        (done && !matches!(end, End::Vanish)).then_some(connection)
    }

    async fn transaction<DB: Market>(
        &self,
        connection: &mut DB::Connection,
        end: End,
        sale: &mut Sale,
    ) -> Result<(), PublishError>
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        for<'q> String: Encode<'q, DB> + Type<DB>,
        DB::Arguments: IntoArguments<DB>,
    {
        let mut transaction = connection.begin().await?;
        let id = order::<DB>(&mut transaction, &self.outbox).await?;
        sale.kept.push(id);
        if let End::Savepoint = end {
            sqlx::query("savepoint second").execute(&mut *transaction).await?;
            // Before the insert is answered its id is not known: what is lost here cannot be told from what never was.
            sale.undone.push(order::<DB>(&mut transaction, &self.outbox).await?);
            sqlx::query("rollback to savepoint second").execute(&mut *transaction).await?;
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
}

/// Sells `count` times at once, in one transaction, and answers the messages' ids.
pub async fn sell_at_once<DB: Market>(url: &str, count: usize) -> Vec<Uuid>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    for<'q> String: Encode<'q, DB> + Type<DB>,
    DB::Arguments: IntoArguments<DB>,
{
    let mut connection = DB::Connection::connect(url).await.expect("connect");
    let mut transaction = connection.begin().await.expect("begin");
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        ids.push(order::<DB>(&mut transaction, &Outbox::default()).await.expect("publish"));
    }
    transaction.commit().await.expect("commit");
    connection.close().await.expect("close");
    ids
}

/// The message and the row it tells about.
async fn order<DB: Market>(transaction: &mut Transaction<'_, DB>, outbox: &Outbox) -> Result<Uuid, PublishError>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    for<'q> String: Encode<'q, DB> + Type<DB>,
    DB::Arguments: IntoArguments<DB>,
{
    let message = NewMessage::from_json(TOPIC, r#"{"article":"lamp","price":42.50}"#);
    let published = publish(transaction, outbox, message).await?;
    sqlx::query(DB::INSERT_ORDER).bind(published.id.to_string()).execute(&mut **transaction).await?;
    Ok(published.id)
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
