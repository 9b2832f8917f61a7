use std::fmt::Write;

use outboxd_core::TableName;
use tokio::time::timeout;

use crate::row::VersionRow;
use crate::table::Names;
use crate::{StoreError, StoreOptions, connect, postgres, sqlite};

/// One step of the schema.
pub(crate) struct Migration {
    pub(crate) version: i64,
    /// The oldest schema version whose binaries work on this one.
    pub(crate) works_with: i64,
    pub(crate) text: &'static str,
}

/// The schema version this binary is made for.
pub(crate) const VERSION: i64 = 3;

/// From which version to which a migration went; the same where nothing was to do. 0 is an empty database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    pub from: i64,
    pub to: i64,
}

/// Brings the schema to this binary's version, all in one transaction: killed half-way, nothing has happened. Of many at once
/// one works and the others wait. Gives up after a minute: a lock that somebody holds is theirs to end.
pub async fn migrate(options: &StoreOptions) -> Result<Migrated, StoreError> {
    const AT_MOST: std::time::Duration = std::time::Duration::from_secs(60);
    let work = async {
        match connect::kind(&options.url)? {
            connect::Kind::Postgres => postgres::migrate(options).await,
            connect::Kind::Sqlite => sqlite::migrate(options).await,
        }
    };
    timeout(AT_MOST, work).await.unwrap_or_else(|_| Err(StoreError::late(AT_MOST)))
}

/// Changes nothing: answers the schema's version, and fails where it is older than this binary or too new for it.
pub async fn check_version(options: &StoreOptions) -> Result<Migrated, StoreError> {
    const AT_MOST: std::time::Duration = std::time::Duration::from_secs(60);
    let work = async {
        match connect::kind(&options.url)? {
            connect::Kind::Postgres => postgres::check_version(options).await,
            connect::Kind::Sqlite => sqlite::check_version(options).await,
        }
    };
    let plan = timeout(AT_MOST, work).await.unwrap_or_else(|_| Err(StoreError::late(AT_MOST)))?;
    if plan.from < plan.to {
        return Err(StoreError::Broken(format!(
            "table {} has schema version {}, this binary needs {}; run \"outboxd migrate\"",
            options.table, plan.from, plan.to
        )));
    }
    Ok(plan)
}

/// Who brings the transaction around printed migrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Printed {
    /// The text itself: it begins with `begin` and ends with `commit`.
    Transaction,
    /// Whoever runs it, as migration tools do.
    Statements,
}

/// The statements of all migrations, for people who run them themselves. Needs no database.
pub fn print_migrations(options: &StoreOptions, printed: Printed) -> Result<String, StoreError> {
    let statements = match connect::kind(&options.url)? {
        connect::Kind::Postgres => postgres::print(&options.table),
        connect::Kind::Sqlite => sqlite::print(&options.table)?,
    };
    Ok(match printed {
        Printed::Transaction => format!("begin;\n\n{statements}\ncommit;\n"),
        Printed::Statements => statements,
    })
}

/// Decides what is to be done on a schema that says `applied` of itself.
pub(crate) fn plan(applied: Option<VersionRow>, table: &TableName) -> Result<Migrated, StoreError> {
    let Some(applied) = applied else { return Ok(Migrated { from: 0, to: VERSION }) };
    if applied.works_with > VERSION {
        return Err(StoreError::Broken(format!(
            "table {table} has schema version {}, which works with binaries of version {} and later; this binary is of version {VERSION}: use a newer outboxd",
            applied.version, applied.works_with
        )));
    }
    Ok(Migrated { from: applied.version, to: applied.version.max(VERSION) })
}

pub(crate) fn print(names: &Names, versions: &str, record: &str, migrations: &[Migration]) -> String {
    let mut text = format!("{};\n", names.write_into(versions).trim_end());
    for migration in migrations {
        let record = names.write_into(record);
        let record = record.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        let values =
            ["1", "2"].iter().zip([migration.version, migration.works_with]).fold(record, |record, (bind, value)| {
                record.replace(&format!("${bind}"), &value.to_string()).replace(&format!("?{bind}"), &value.to_string())
            });
        // Writing into a String cannot fail.
        let _ = write!(text, "\n{}\n{values};\n", names.write_into(migration.text));
    }
    text
}
