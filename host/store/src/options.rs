use std::fmt;
use std::time::Duration;

use outboxd_core::{PAYLOAD_BYTES_MAX_DEFAULT, TableName};

/// Where the outbox is and how to treat it.
#[derive(Clone)]
pub struct StoreOptions {
    /// `sqlite:PATH` or `postgres://…`. Default `sqlite:outbox.db`.
    pub url: String,
    /// Default `outbox`.
    pub table: TableName,
    /// A larger payload is not loaded. Bytes. Default 1 MiB.
    pub payload_max: u64,
    /// Default [`OnDelivered::Keep`].
    pub on_delivered: OnDelivered,
    /// Default [`Notify::Listen`].
    pub notify: Notify,
    /// Default [`Pooler::None`].
    pub pooler: Pooler,
    /// Default [`SqliteSynchronous::Full`]. SQLite only.
    pub sqlite_synchronous: SqliteSynchronous,
    /// A direct URL for LISTEN, where `url` leads to a pooler. PostgreSQL only.
    pub listen_url: Option<String>,
    /// The server ends a statement after it; 2 s later its caller gives up and closes the connection. Default 5 s.
    pub statement_timeout: Duration,
    /// The server ends a wait for a lock after it. Default 2 s.
    pub lock_timeout: Duration,
    /// How many connections the claims, the settles and people's commands may each open. Default 2. PostgreSQL only.
    pub connections_max: usize,
}

/// What becomes of a row that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDelivered {
    /// It stays until it is purged.
    Keep,
    /// It is deleted by the settle: `retention.delivered = "0s"`.
    Delete,
}

/// What may end a wait before its time is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// NOTIFY on PostgreSQL, a change of the WAL file on SQLite.
    Listen,
    /// Nothing: only the poll finds new messages.
    PollOnly,
}

/// What stands between us and PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooler {
    None,
    /// A pooler that lends a server connection for one transaction: each statement goes in a transaction of its own, nothing
    /// is prepared or set for longer.
    Transaction,
}

/// What a commit of ours on SQLite waits for. Those of producers wait as their own connections say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqliteSynchronous {
    /// For the disk: what was settled stays settled.
    Full,
    /// For nothing. A power cut may take back what was written last, so that messages are delivered once more; none is lost.
    Normal,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            url: "sqlite:outbox.db".into(),
            table: TableName::default(),
            payload_max: PAYLOAD_BYTES_MAX_DEFAULT,
            on_delivered: OnDelivered::Keep,
            notify: Notify::Listen,
            pooler: Pooler::None,
            sqlite_synchronous: SqliteSynchronous::Full,
            listen_url: None,
            statement_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            connections_max: 2,
        }
    }
}

/// Without the URLs: they may hold a password.
impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions")
            .field("table", &self.table)
            .field("payload_max", &self.payload_max)
            .field("on_delivered", &self.on_delivered)
            .field("notify", &self.notify)
            .field("pooler", &self.pooler)
            .field("sqlite_synchronous", &self.sqlite_synchronous)
            .field("statement_timeout", &self.statement_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .field("connections_max", &self.connections_max)
            .finish_non_exhaustive()
    }
}
