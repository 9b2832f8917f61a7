use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};

use super::Statements;
use super::wake::WalWatch;
use crate::connections::Connections;
use crate::table::Names;
use crate::wake::Signal;
use crate::{Notify, OnDelivered, StoreError, StoreOptions};

/// Beyond the wait for a lock: the disk's own time.
const GIVE_UP_MARGIN: Duration = Duration::from_secs(2);

/// The outbox in an SQLite file. One connection writes: SQLite has one writer at a time anyway, and so our own statements
/// never wait for each other inside SQLite. Another one reads.
pub(crate) struct Sqlite {
    pub(crate) sql: Statements,
    pub(crate) writes: Connections<SqliteConnection>,
    pub(crate) reads: Connections<SqliteConnection>,
    pub(crate) payload_max: i64,
    pub(crate) on_delivered: OnDelivered,
    pub(crate) signal: Arc<Signal>,
    pub(crate) watch: Option<WalWatch>,
}

impl Sqlite {
    /// Opens nothing yet: each statement does when it must.
    pub(crate) fn connect(options: &StoreOptions) -> Result<Self, StoreError> {
        let connect = parse(options)?;
        let signal = Arc::new(Signal::default());
        let watch = match options.notify {
            Notify::Listen => Some(WalWatch::new(connect.get_filename(), signal.clone())),
            Notify::PollOnly => None,
        };
        let give_up_after = options.statement_timeout + GIVE_UP_MARGIN;
        Ok(Sqlite {
            sql: Statements::new(&Names::sqlite(&options.table).map_err(StoreError::Broken)?),
            writes: Connections::new(connect.clone(), 1, give_up_after),
            reads: Connections::new(connect, 1, give_up_after),
            payload_max: i64::try_from(options.payload_max).unwrap_or(i64::MAX),
            on_delivered: options.on_delivered,
            signal,
            watch,
        })
    }
}

/// WAL, so that readers and the writer do not wait for each other; every commit is on disk before it is answered.
pub(crate) fn parse(options: &StoreOptions) -> Result<SqliteConnectOptions, StoreError> {
    if options.url.contains(":memory:") || options.url.contains("mode=memory") {
        return Err(StoreError::Broken("an SQLite database in memory is lost with its connection; name a file".into()));
    }
    let connect = SqliteConnectOptions::from_str(&options.url)
        .map_err(|error| StoreError::Broken(format!("the database URL is not valid: {error}")))?;
    Ok(connect
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(options.statement_timeout))
}
