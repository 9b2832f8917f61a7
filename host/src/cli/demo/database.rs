//! The shop's database: a file of its own, or a schema of its own in a PostgreSQL that somebody named.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use outboxd_client::{NewMessage, Outbox, publish};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor};
use tokio::time::timeout;
use uuid::Uuid;

use super::shop::{Order, TOPIC};

/// What becomes of a transaction when everything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Commit,
    RollBack,
}

/// The outbox table, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Neither delivered nor dead.
    pub(super) live: usize,
    pub(super) dead: usize,
    /// Took more than one attempt.
    pub(super) retried: usize,
}

pub(super) struct Database {
    pool: Pool,
    url: String,
    /// The outbox table's name, as the relay's configuration wants it.
    table: String,
    outbox: Outbox,
}

enum Pool {
    Sqlite(SqlitePool),
    Postgres { pool: PgPool, schema: String },
}

impl Database {
    /// PostgreSQL where `url` names one; otherwise, and by default, a file in `folder`.
    pub(super) async fn choose(url: Option<&str>, folder: &Path) -> anyhow::Result<Self> {
        match url {
            Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Self::postgres(url).await
            }
            Some(url) if !url.starts_with("sqlite:") => {
                bail!(
                    "the demo plays on postgres://… or on an SQLite file of its own; it does not know the database it was given"
                )
            }
            // Somebody's own SQLite file is left alone: it has no schemas to keep the demo's tables apart.
            _ => Self::sqlite(&folder.join("shop.db")).await,
        }
    }

    async fn sqlite(file: &Path) -> anyhow::Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(30));
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await;
        let pool = Pool::Sqlite(pool.with_context(|| format!("cannot create {file:?}"))?);
        Self::new(pool, format!("sqlite:{}", file.display()), "outbox".into())
    }

    async fn postgres(url: &str) -> anyhow::Result<Self> {
        let options = url.parse::<PgConnectOptions>().context("the database URL is not one")?;
        // Dropping the schema in the end would list all that was in it.
        let options = options.application_name("outboxd demo").options([("client_min_messages", "warning")]);
        // Tried outside the pool, which would only say that it waited in vain.
        let trial =
            timeout(Duration::from_secs(10), options.connect()).await.context("the database does not answer")?;
        drop(trial.map_err(|error| anyhow!("cannot connect to the database: {error}"))?);
        let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options);
        let schema = format!("outboxd_demo_{:08x}", fastrand::u32(..));
        let create = AssertSqlSafe(format!("create schema {schema}"));
        pool.execute(create).await.context("cannot create a schema for the demo")?;
        let table = format!("{schema}.outbox");
        Self::new(Pool::Postgres { pool, schema }, url.to_owned(), table)
    }

    fn new(pool: Pool, url: String, table: String) -> anyhow::Result<Self> {
        Ok(Database { pool, url, outbox: Outbox::new(&table)?, table })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// Creates the shop's own table.
    pub(super) async fn open_shop(&self) -> anyhow::Result<()> {
        let columns = "(number integer primary key, customer text not null, cents bigint not null)";
        match &self.pool {
            Pool::Sqlite(pool) => {
                pool.execute(AssertSqlSafe(format!("create table orders {columns}"))).await?;
            }
            Pool::Postgres { pool, schema } => {
                pool.execute(AssertSqlSafe(format!("create table {schema}.orders {columns}"))).await?;
            }
        }
        Ok(())
    }

    /// One transaction: the order, its message, and then what `fate` says. Answers the message's id.
    pub(super) async fn place(&self, order: &Order, fate: Fate) -> anyhow::Result<Uuid> {
        let message = NewMessage::new(TOPIC, &order.payload());
        match &self.pool {
            Pool::Sqlite(pool) => {
                let mut tx = pool.begin_with("begin immediate").await?;
                sqlx::query("insert into orders (number, customer, cents) values (?, ?, ?)")
                    .bind(order.number)
                    .bind(&order.customer)
                    .bind(order.cents)
                    .execute(&mut *tx)
                    .await?;
                let id = publish(&mut tx, &self.outbox, message).await?.id;
                match fate {
                    Fate::Commit => tx.commit().await?,
                    Fate::RollBack => tx.rollback().await?,
                }
                Ok(id)
            }
            Pool::Postgres { pool, schema } => {
                let mut tx = pool.begin().await?;
                let insert = format!("insert into {schema}.orders (number, customer, cents) values ($1, $2, $3)");
                sqlx::query(AssertSqlSafe(insert))
                    .bind(i64::from(order.number))
                    .bind(&order.customer)
                    .bind(order.cents)
                    .execute(&mut *tx)
                    .await?;
                let id = publish(&mut tx, &self.outbox, message).await?.id;
                match fate {
                    Fate::Commit => tx.commit().await?,
                    Fate::RollBack => tx.rollback().await?,
                }
                Ok(id)
            }
        }
    }

    /// Counts the outbox.
    pub(super) async fn tally(&self) -> anyhow::Result<Tally> {
        let query = format!("select state, attempts > 1, count(*) from {} group by 1, 2", self.table());
        let rows: Vec<(String, bool, i64)> = match &self.pool {
            Pool::Sqlite(pool) => sqlx::query_as(AssertSqlSafe(query)).fetch_all(pool).await?,
            Pool::Postgres { pool, .. } => sqlx::query_as(AssertSqlSafe(query)).fetch_all(pool).await?,
        };
        let mut tally = Tally::default();
        for (state, again, count) in rows {
            let count = usize::try_from(count)?;
            match state.as_str() {
                "delivered" => {}
                "dead" => tally.dead += count,
                _ => tally.live += count,
            }
            if again {
                tally.retried += count;
            }
        }
        Ok(tally)
    }

    /// Removes what the demo put into a database that is not its own.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        match &self.pool {
            Pool::Sqlite(pool) => pool.close().await,
            Pool::Postgres { pool, schema } => {
                let drop = AssertSqlSafe(format!("drop schema if exists {schema} cascade"));
                pool.execute(drop).await.with_context(|| format!("cannot drop schema {schema}"))?;
            }
        }
        Ok(())
    }
}
