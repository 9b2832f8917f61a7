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

const MIGRATIONS: &[Migration] =
    &[Migration { version: 1, works_with: 1, text: include_str!("../../../../migrations/sqlite/0001_outbox.sql") }];

pub(crate) async fn migrate(options: &StoreOptions) -> Result<Migrated, StoreError> {
    let mut connection = parse(options)?.create_if_missing(true).connect().await?;
    let migrated = apply(&mut connection, &options.table).await;
    // Closing is a courtesy: the answer is known.
    let _ = connection.close().await;
    migrated
}

async fn apply(connection: &mut SqliteConnection, table: &TableName) -> Result<Migrated, StoreError> {
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
    let names = Names::sqlite(&options.table).map_err(StoreError::Broken)?;
    let mut connection = parse(options)?.connect().await?;
    let applied = applied(&mut connection, &options.table, Statements::new(&names).applied).await?;
    let _ = connection.close().await;
    plan(applied, &options.table)
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
