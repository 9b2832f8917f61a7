use outboxd_core::TableName;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::Statements;
use super::connect::parse;
use crate::migrate::{Migrated, Migration, plan};
use crate::row::VersionRow;
use crate::table::Names;
use crate::{StoreError, StoreOptions};

const MIGRATIONS: &[Migration] =
    &[Migration { version: 1, works_with: 1, text: include_str!("../../../../migrations/postgres/0001_outbox.sql") }];

pub(crate) async fn migrate(options: &StoreOptions) -> Result<Migrated, StoreError> {
    let mut connection = parse(&options.url)?.connect().await?;
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
        .execute(&mut *transaction)
        .await?;
    let applied = if exists(&mut transaction, &names).await? {
        sqlx::query_as::<_, VersionRow>(AssertSqlSafe(sql.applied)).fetch_optional(&mut *transaction).await?
    } else {
        None
    };
    let plan = plan(applied, table)?;
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
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(plan)
}

/// Whether the bookkeeping table is there: asking it when it is not would end the transaction.
async fn exists(connection: &mut PgConnection, names: &Names) -> Result<bool, StoreError> {
    let versions = names.write_into("{versions}").to_string();
    let found: (bool,) = sqlx::query_as("select to_regclass($1) is not null").bind(versions).fetch_one(connection).await?;
    Ok(found.0)
}

pub(crate) fn print(table: &TableName) -> String {
    let names = Names::postgres(table);
    crate::migrate::print(&names, include_str!("sql/versions.sql"), include_str!("sql/record.sql"), MIGRATIONS)
}
