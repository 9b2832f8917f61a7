//! Examines a PostgreSQL: one connection, opened as plainly as possible, and what stands in its way.

mod judge;
mod probes;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, FromRow};
use tokio::time::timeout;

use super::Statements;
use super::connect::{direct_url, plain};
use crate::doctor::{Finding, GRANTS, clock, indexes, schema};
use crate::table::Names;
use crate::{SnapshotHolder, StoreError, StoreOptions};

/// Each step of the examination may take so long.
const STEP_MAX: Duration = Duration::from_secs(5);

/// The oldest server that the statements are written for.
const VERSION_MIN: i32 = 150_000;

#[derive(FromRow)]
struct Server {
    version: String,
    version_number: i32,
    standby: bool,
    fsync: bool,
    full_page_writes: bool,
    synchronous_commit: String,
    asynchronous_roles: Vec<String>,
    autovacuum: bool,
    notify_queue: f64,
    sees_all: bool,
    listeners: i64,
    now_ms: i64,
}

#[derive(FromRow)]
struct Table {
    live: i64,
    dead: i64,
    vacuumed_ago_s: Option<i64>,
    autovacuum: bool,
    missing_indexes: Vec<String>,
    unused_indexes: Vec<String>,
    missing_privileges: Vec<String>,
}

/// Whether relays vacuum the table, and if not, why.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vacuums {
    Yes,
    /// The role may not.
    NotAllowed,
    /// Nothing but a pooler leads to the server.
    NoWay,
    /// The server did not say.
    Unknown,
}

pub(crate) async fn examine(options: &StoreOptions, snapshot_max: Duration) -> Vec<Finding> {
    let started = Instant::now();
    let mut connection = match within(async { Ok(plain(&options.url)?.connect().await?) }).await {
        Ok(connection) => connection,
        Err(error) => {
            let advice = "start it, or correct the URL, its user and password, and pg_hba.conf";
            return vec![Finding::fail("database", error.to_string(), advice)];
        }
    };
    let mut findings = Vec::new();
    if let Err(error) = look(&mut connection, options, snapshot_max, started, &mut findings).await {
        findings.push(Finding::fail("database", error.to_string(), "what follows could not be examined"));
    }
    // Closing is a courtesy: all answers are there.
    let _ = timeout(STEP_MAX, connection.close()).await;
    findings
}

/// Asks as relays do: the way past a pooler may be another role's.
async fn may_vacuum(url: &str, pages: Arc<str>) -> Result<Vacuums, StoreError> {
    let mut direct = plain(url)?.connect().await?;
    let asked = sqlx::query_as(AssertSqlSafe(pages)).persistent(false).fetch_one(&mut direct);
    let (_, allowed): (i64, bool) = asked.await?;
    // Closing is a courtesy: the answer is known.
    let _ = direct.close().await;
    Ok(if allowed { Vacuums::Yes } else { Vacuums::NotAllowed })
}

async fn look(
    connection: &mut PgConnection,
    options: &StoreOptions,
    snapshot_max: Duration,
    started: Instant,
    findings: &mut Vec<Finding>,
) -> Result<(), StoreError> {
    let names = Names::postgres(&options.table);
    let sql = Statements::new(&names);
    let asked = SystemTime::now();
    let server: Server = within(async {
        Ok(sqlx::query_as(AssertSqlSafe(sql.doctor_server)).persistent(false).fetch_one(&mut *connection).await?)
    })
    .await?;
    let answered = SystemTime::now();
    findings.push(judge::server(&server, started.elapsed()));
    findings.push(judge::durability(&server));
    findings.push(clock(server.now_ms, asked, answered));
    findings.push(probes::pooler(connection, options).await);
    findings.push(judge::notify_queue(&server));
    findings.push(probes::listener(connection, options, server.listeners).await);

    findings.push(schema(within(super::check_version(options)).await));
    let own: Vec<String> =
        ["due", "dedup", "delivered", "dead", "waiting", "held"].map(|part| options.table.derived(part)).into();
    let table: Result<Option<Table>, StoreError> = within(async {
        let query = sqlx::query_as(AssertSqlSafe(sql.doctor_table)).bind(own).persistent(false);
        Ok(query.fetch_optional(&mut *connection).await?)
    })
    .await;
    match table {
        Ok(Some(table)) => {
            findings.push(judge::privileges(&table));
            findings.push(indexes(&table.missing_indexes));
            findings.push(judge::unused(&table));
            let relays = match direct_url(options) {
                None => Vacuums::NoWay,
                Some(url) => within(may_vacuum(url, sql.vacuum_pages)).await.unwrap_or(Vacuums::Unknown),
            };
            findings.push(judge::vacuum(&server, &table, relays));
        }
        // The schema's finding says it.
        Ok(None) => {}
        // The schema that it is in may be closed to this role.
        Err(StoreError::Broken(error)) => findings.push(Finding::fail("privileges", error, GRANTS)),
        Err(error) => return Err(error),
    }
    let holder: Option<SnapshotHolder> = within(async {
        Ok(sqlx::query_as(AssertSqlSafe(sql.oldest_snapshot))
            .persistent(false)
            .fetch_optional(&mut *connection)
            .await?)
    })
    .await?;
    findings.push(judge::snapshot(holder.as_ref(), server.sees_all, snapshot_max));
    Ok(())
}

async fn within<T>(step: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(STEP_MAX, step).await.unwrap_or_else(|_| Err(StoreError::late(STEP_MAX)))
}
