use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous as Synchronous};

use super::Statements;
use super::file::{DatabaseFile, refuse_network_share};
use super::wake::WalWatch;
use crate::connections::{Connections, Work};
use crate::table::Names;
use crate::wake::Signal;
use crate::{Notify, OnDelivered, SqliteSynchronous, StoreError, StoreOptions};

/// Beyond the wait for a lock: the disk's own time.
const GIVE_UP_MARGIN: Duration = Duration::from_secs(2);

/// More rows than a claim returns with usual settings. Beyond, SQLite's thread stops for their reader each time so many are on
/// their way, with the database locked.
const ROWS_MAX: usize = 1024;

/// The outbox in an SQLite file. One connection writes: SQLite has one writer at a time anyway, and so our own statements
/// never wait for each other inside SQLite. Another one reads.
pub(crate) struct Sqlite {
    pub(crate) sql: Statements,
    writes: Connections<SqliteConnection>,
    reads: Connections<SqliteConnection>,
    file: DatabaseFile,
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
            file: DatabaseFile::new(connect.get_filename()),
            reads: Connections::new(connect, 1, give_up_after),
            payload_max: i64::try_from(options.payload_max).unwrap_or(i64::MAX),
            on_delivered: options.on_delivered,
            signal,
            watch,
        })
    }

    /// Does `work`, which writes.
    pub(crate) async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> Work<'c, T> + Send + 'static,
    {
        self.check_file()?;
        self.writes.run(work).await
    }

    /// Does `work`, which only reads.
    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> Work<'c, T> + Send + 'static,
    {
        self.check_file()?;
        self.reads.run(work).await
    }

    /// Lets go of a file that was replaced or removed under us: the next statement opens what is there then.
    fn check_file(&self) -> Result<(), StoreError> {
        self.file.check().inspect_err(|_| {
            self.writes.close();
            self.reads.close();
        })
    }
}

/// WAL, so that readers and the writer do not wait for each other. Its log is synced before it is written into the file, whatever
/// our commits wait for: a power cut takes back the last of them and damages nothing.
pub(crate) fn parse(options: &StoreOptions) -> Result<SqliteConnectOptions, StoreError> {
    if options.url.contains(":memory:") || options.url.contains("mode=memory") {
        return Err(StoreError::Broken("an SQLite database in memory is lost with its connection; name a file".into()));
    }
    let connect = SqliteConnectOptions::from_str(&options.url)
        .map_err(|error| StoreError::Broken(format!("the database URL is not valid: {error}")))?;
    refuse_network_share(connect.get_filename())?;
    Ok(connect
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(match options.sqlite_synchronous {
            SqliteSynchronous::Full => Synchronous::Full,
            SqliteSynchronous::Normal => Synchronous::Normal,
        })
        .row_buffer_size(ROWS_MAX)
        .busy_timeout(options.statement_timeout))
}

#[cfg(test)]
mod tests {
    use sqlx::ConnectOptions;

    use super::*;

    #[tokio::test]
    async fn a_commit_waits_for_the_disk_unless_it_is_told_not_to() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("outbox.db").display());
        for (sqlite_synchronous, pragma) in [(SqliteSynchronous::Full, 2), (SqliteSynchronous::Normal, 1)] {
            let options = StoreOptions { url: url.clone(), sqlite_synchronous, ..StoreOptions::default() };

            let mut connection = parse(&options).unwrap().connect().await.unwrap();

            let said: i64 = sqlx::query_scalar("pragma synchronous").fetch_one(&mut connection).await.unwrap();
            assert_eq!(said, pragma, "{sqlite_synchronous:?}");
        }
    }
}
