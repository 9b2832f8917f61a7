use std::sync::Arc;

use outboxd_core::TableName;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::Statements;
use super::connect::plain;
use crate::migrate::{Migrated, Migration, plan};
use crate::row::VersionRow;
use crate::table::Names;
use crate::{StoreError, StoreOptions};

const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, works_with: 1, text: include_str!("../../../../migrations/postgres/0001_outbox.sql") },
    Migration { version: 2, works_with: 1, text: include_str!("../../../../migrations/postgres/0002_keys.sql") },
    Migration { version: 3, works_with: 1, text: include_str!("../../../../migrations/postgres/0003_key_limits.sql") },
];

pub(crate) async fn migrate(options: &StoreOptions) -> Result<Migrated, StoreError> {
    let mut connection = plain(&options.url)?.connect().await?;
    let migrated = apply(&mut connection, &options.table).await;
    // Closing is a courtesy: the answer is known.
    let _ = connection.close().await;
    migrated
}

async fn apply(connection: &mut PgConnection, table: &TableName) -> Result<Migrated, StoreError> {
    let names = Names::postgres(table);
    let sql = Statements::new(&names);
    let mut transaction = connection.begin().await?;
    sqlx::raw_sql("set local client_min_messages = warning").execute(&mut *transaction).await?;
    // One at a time a table. Taken for the transaction: it works behind a pooler, and a killed migration lets go of it.
    sqlx::query("select pg_advisory_xact_lock(hashtextextended($1, 0))")
        .bind(format!("outboxd migrate {table}"))
        .persistent(false)
        .execute(&mut *transaction)
        .await?;
    let plan = plan(applied(&mut transaction, &names, sql.applied).await?, table)?;
    // Nothing to do asks for no privilege either: the relay's role may not be allowed to create.
    if plan.from == plan.to {
        return Ok(plan);
    }
    sqlx::raw_sql(AssertSqlSafe(sql.versions)).execute(&mut *transaction).await?;
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > plan.from) {
        sqlx::raw_sql(AssertSqlSafe(names.write_into(migration.text))).execute(&mut *transaction).await?;
        sqlx::query(AssertSqlSafe(sql.record.clone()))
            .bind(i32::try_from(migration.version).unwrap_or(i32::MAX))
            .bind(i32::try_from(migration.works_with).unwrap_or(i32::MAX))
            .persistent(false)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(plan)
}

pub(crate) async fn check_version(options: &StoreOptions) -> Result<Migrated, StoreError> {
    let names = Names::postgres(&options.table);
    let mut connection = plain(&options.url)?.connect().await?;
    let applied = applied(&mut connection, &names, Statements::new(&names).applied).await?;
    let _ = connection.close().await;
    plan(applied, &options.table)
}

/// What the bookkeeping table says, if it is there: asking it when it is not would end the transaction.
async fn applied(
    connection: &mut PgConnection,
    names: &Names,
    sql: Arc<str>,
) -> Result<Option<VersionRow>, StoreError> {
    let versions = names.write_into("{versions}").to_string();
    let found: (bool,) = sqlx::query_as("select to_regclass($1) is not null")
        .bind(versions)
        .persistent(false)
        .fetch_one(&mut *connection)
        .await?;
    match found {
        (true,) => Ok(sqlx::query_as(AssertSqlSafe(sql)).persistent(false).fetch_optional(connection).await?),
        (false,) => Ok(None),
    }
}

pub(crate) fn print(table: &TableName) -> String {
    let names = Names::postgres(table);
    crate::migrate::print(&names, include_str!("sql/versions.sql"), include_str!("sql/record.sql"), MIGRATIONS)
}
