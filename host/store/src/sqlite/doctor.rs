//! Examines an SQLite file. A file that is not there is not made.

use std::path::Path;
use std::time::SystemTime;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::Statements;
use super::connect::parse;
use super::migrate::version_of;
use crate::doctor::{Finding, Verdict, clock, indexes, schema};
use crate::table::Names;
use crate::{SqliteSynchronous, StoreError, StoreOptions};

/// A log of changes that grows beyond this is held back by a reader. Bytes.
const WAL_MAX: u64 = 64 << 20;

pub(crate) async fn examine(options: &StoreOptions) -> Vec<Finding> {
    let file = match parse(options) {
        Ok(connect) => connect.get_filename().to_path_buf(),
        Err(error) => return vec![Finding::fail("database", error.to_string(), "name a file on a local disk")],
    };
    // Not as a relay opens it: that would put right what is to be seen.
    let connect = SqliteConnectOptions::new().filename(&file);
    let mut connection = match connect.connect().await.map_err(StoreError::from) {
        Ok(connection) => connection,
        Err(error) => {
            let advice = format!("check {}, or create it with \"outboxd migrate\"", file.display());
            return vec![Finding::fail("database", error.to_string(), advice)];
        }
    };
    let mut findings = Vec::new();
    if let Err(error) = look(&mut connection, options, &file, &mut findings).await {
        findings.push(Finding::fail("database", error.to_string(), "what follows could not be examined"));
    }
    // Closing is a courtesy: all answers are there.
    let _ = connection.close().await;
    findings
}

async fn look(
    connection: &mut SqliteConnection,
    options: &StoreOptions,
    file: &Path,
    findings: &mut Vec<Finding>,
) -> Result<(), StoreError> {
    let sql = Statements::new(&Names::sqlite(&options.table).map_err(StoreError::Broken)?);
    let asked = SystemTime::now();
    let (version, journal, now_ms): (String, String, i64) =
        sqlx::query_as(AssertSqlSafe(sql.doctor_server)).fetch_one(&mut *connection).await?;
    findings.push(Finding::ok("database", format!("SQLite {version}, {}", file.display())));
    findings.push(clock(now_ms, asked, SystemTime::now()));
    findings.push(match journal.as_str() {
        "wal" => Finding::ok(
            "durability",
            match options.sqlite_synchronous {
                SqliteSynchronous::Full => "write-ahead log, each commit is on disk",
                SqliteSynchronous::Normal => "write-ahead log; a power cut may have the last messages delivered again",
            },
        ),
        other => Finding::fail(
            "durability",
            format!("the journal is {other:?}, not \"wal\": producers and relay block each other"),
            "the folder must be writable and on a local disk, for the log beside the file",
        ),
    });
    findings.push(writable(connection).await);
    findings.push(backlog(file));
    let version = schema(version_of(connection, &options.table).await);
    let is_there = version.verdict == Verdict::Ok;
    findings.push(version);
    if is_there {
        let there: Vec<(String,)> = sqlx::query_as(AssertSqlSafe(sql.doctor_table))
            .bind(options.table.table())
            .fetch_all(&mut *connection)
            .await?;
        let own = ["due", "dedup", "delivered", "dead", "waiting", "held"].map(|part| options.table.derived(part));
        let missing: Vec<String> = own.into_iter().filter(|name| !there.iter().any(|(there,)| there == name)).collect();
        findings.push(indexes(&missing));
    }
    Ok(())
}

/// Takes the lock for writing and gives it back.
async fn writable(connection: &mut SqliteConnection) -> Finding {
    const CHECK: &str = "writable";
    let locked = sqlx::raw_sql("begin immediate; rollback").execute(connection).await;
    match locked.map_err(StoreError::from) {
        Ok(_) => Finding::ok(CHECK, "the file can be locked and written"),
        Err(error) => Finding::fail(
            CHECK,
            error.to_string(),
            "file and folder must belong to the relay's user; end who holds the lock",
        ),
    }
}

/// SQLite cannot say who reads an old snapshot, only that somebody does: the log cannot be taken over while it lasts.
fn backlog(file: &Path) -> Finding {
    const CHECK: &str = "snapshot";
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let bytes = std::fs::metadata(log).map_or(0, |log| log.len());
    let found = format!("{} MiB wait in the write-ahead log", bytes >> 20);
    if bytes <= WAL_MAX {
        return Finding::ok(CHECK, found);
    }
    let advice =
        "end the reader that holds an old snapshot (lsof on the file names who has it open); then it shrinks by itself";
    Finding::warn(CHECK, found, advice)
}
