use std::sync::Arc;

use outboxd_core::TableName;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::Statements;
use super::connect::parse;
use crate::migrate::{Migrated, Migration, plan};
use crate::row::VersionRow;
use crate::table::Names;
use crate::{StoreError, StoreOptions};

const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, works_with: 1, text: include_str!("../../../../migrations/sqlite/0001_outbox.sql") },
    Migration { version: 2, works_with: 1, text: include_str!("../../../../migrations/sqlite/0002_keys.sql") },
    Migration { version: 3, works_with: 1, text: include_str!("../../../../migrations/sqlite/0003_key_limits.sql") },
];

/// Before it, two connections that reset the WAL at once could lose a commit.
const LIBRARY_MIN: (u32, u32, u32) = (3, 51, 3);

pub(crate) async fn migrate(options: &StoreOptions) -> Result<Migrated, StoreError> {
    let mut connection = parse(options)?.create_if_missing(true).connect().await?;
    let migrated = apply(&mut connection, &options.table).await;
    // Closing is a courtesy: the answer is known.
    let _ = connection.close().await;
    migrated
}

async fn apply(connection: &mut SqliteConnection, table: &TableName) -> Result<Migrated, StoreError> {
    check_library(connection).await?;
    let names = Names::sqlite(table).map_err(StoreError::Broken)?;
    let sql = Statements::new(&names);
    // Of many at once one works and the others wait for the lock.
    let mut transaction = connection.begin_with("begin immediate").await?;
    let plan = plan(applied(&mut transaction, table, sql.applied).await?, table)?;
    if plan.from == plan.to {
        return Ok(plan);
    }
    sqlx::raw_sql(AssertSqlSafe(sql.versions)).execute(&mut *transaction).await?;
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > plan.from) {
        sqlx::raw_sql(AssertSqlSafe(names.write_into(migration.text))).execute(&mut *transaction).await?;
        sqlx::query(AssertSqlSafe(sql.record.clone()))
            .bind(migration.version)
            .bind(migration.works_with)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(plan)
}

pub(crate) async fn check_version(options: &StoreOptions) -> Result<Migrated, StoreError> {
    let mut connection = parse(options)?.connect().await?;
    let version = version_of(&mut connection, &options.table).await;
    let _ = connection.close().await;
    version
}

/// The same on a connection that is there, and only reads.
pub(super) async fn version_of(connection: &mut SqliteConnection, table: &TableName) -> Result<Migrated, StoreError> {
    let names = Names::sqlite(table).map_err(StoreError::Broken)?;
    check_library(connection).await?;
    plan(applied(connection, table, Statements::new(&names).applied).await?, table)
}

/// Refuses an SQLite that loses data: a build may link the system's.
async fn check_library(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let (version,): (String,) = sqlx::query_as("select sqlite_version()").fetch_one(connection).await?;
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    if (next(), next(), next()) < LIBRARY_MIN {
        let (major, minor, patch) = LIBRARY_MIN;
        return Err(StoreError::Broken(format!(
            "this is SQLite {version}; {major}.{minor}.{patch} or newer is needed"
        )));
    }
    Ok(())
}

/// What the bookkeeping table says, if it is there.
async fn applied(
    connection: &mut SqliteConnection,
    table: &TableName,
    sql: Arc<str>,
) -> Result<Option<VersionRow>, StoreError> {
    let found: (bool,) = sqlx::query_as(
        "select exists (select 1 from main.sqlite_schema where type = 'table' and name = ?1 collate nocase)",
    )
    .bind(table.derived("versions"))
    .fetch_one(&mut *connection)
    .await?;
    match found {
        (true,) => Ok(sqlx::query_as(AssertSqlSafe(sql)).fetch_optional(connection).await?),
        (false,) => Ok(None),
    }
}

pub(crate) fn print(table: &TableName) -> Result<String, StoreError> {
    let names = Names::sqlite(table).map_err(StoreError::Broken)?;
    Ok(crate::migrate::print(&names, include_str!("sql/versions.sql"), include_str!("sql/record.sql"), MIGRATIONS))
}
