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
    let applied = if exists(&mut transaction, table).await? {
        sqlx::query_as::<_, VersionRow>(AssertSqlSafe(sql.applied)).fetch_optional(&mut *transaction).await?
    } else {
        None
    };
    let plan = plan(applied, table)?;
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

async fn exists(connection: &mut SqliteConnection, table: &TableName) -> Result<bool, StoreError> {
    let found: (bool,) = sqlx::query_as("select exists (select 1 from main.sqlite_schema where type = 'table' and name = ?1 collate nocase)")
        .bind(table.derived("versions"))
        .fetch_one(connection)
        .await?;
    Ok(found.0)
}

pub(crate) fn print(table: &TableName) -> Result<String, StoreError> {
    let names = Names::sqlite(table).map_err(StoreError::Broken)?;
    Ok(crate::migrate::print(&names, include_str!("sql/versions.sql"), include_str!("sql/record.sql"), MIGRATIONS))
}
