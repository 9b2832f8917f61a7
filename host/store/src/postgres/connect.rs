use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};

use tokio::net::lookup_host;
use tokio::time::timeout;

use super::Statements;
use super::vacuum::Vacuum;
use super::wake::Listener;
use crate::connections::{Connections, Work};
use crate::table::Names;
use crate::wake::Signal;
use crate::{Notify, OnDelivered, Pooler, StoreError, StoreOptions};

/// A server that is alive ends a statement after `statement_timeout`; one that is silent this much longer is frozen.
pub(crate) const GIVE_UP_MARGIN: Duration = Duration::from_secs(2);

/// The outbox in PostgreSQL. Three groups of connections, so that slow claims and people's commands never keep a result
/// from being settled or a lease from being renewed; listening and vacuuming have one each.
pub(crate) struct Postgres {
    pub(crate) sql: Statements,
    pub(crate) claims: Group,
    pub(crate) settles: Group,
    pub(crate) people: Group,
    /// Statements are prepared by name, once a connection. Not behind a pooler, which would mix them up.
    pub(crate) prepared: bool,
    pub(crate) payload_max: i64,
    pub(crate) on_delivered: OnDelivered,
    pub(crate) signal: Arc<Signal>,
    pub(crate) listener: Option<Listener>,
    vacuum: Option<Arc<Vacuum>>,
}

/// What a group of connections is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Claims,
    Settles,
    People,
    Vacuum,
}

impl Postgres {
    /// Opens nothing yet: each statement connects when it must.
    pub(crate) fn connect(options: &StoreOptions) -> Result<Self, StoreError> {
        let signal = Arc::new(Signal::default());
        let listener = match options.notify {
            Notify::Listen => Some(Listener::start(options, signal.clone())?),
            Notify::PollOnly => None,
        };
        Ok(Postgres {
            sql: Statements::new(&Names::postgres(&options.table)),
            claims: Group::new(options, Purpose::Claims)?,
            settles: Group::new(options, Purpose::Settles)?,
            people: Group::new(options, Purpose::People)?,
            prepared: options.pooler == Pooler::None,
            payload_max: i64::try_from(options.payload_max).unwrap_or(i64::MAX),
            on_delivered: options.on_delivered,
            signal,
            listener,
            vacuum: Vacuum::new(options)?,
        })
    }

    /// So many messages were updated or deleted: their old versions are dead rows.
    pub(super) fn made_dead(&self, rows: u64) {
        if let Some(vacuum) = &self.vacuum {
            vacuum.made_dead(rows);
        }
    }
}

/// Connections that are set alike.
pub(crate) struct Group {
    connections: Connections<PgConnection>,
    /// What begins the transaction around each statement, behind a pooler.
    begin: Option<Arc<str>>,
}

impl Group {
    fn new(options: &StoreOptions, purpose: Purpose) -> Result<Self, StoreError> {
        let settings = settings(options, purpose);
        let (connect, begin) = match options.pooler {
            Pooler::None => (parse(&options.url)?.options(settings), None),
            Pooler::Transaction => {
                let mut begin = String::from("begin isolation level read committed");
                for (name, value) in settings.iter().filter(|(name, _)| *name != "default_transaction_isolation") {
                    begin.push_str(&format!("; set local {name} = '{value}'"));
                }
                (plain(&options.url)?, Some(begin.into()))
            }
        };
        let give_up_after = options.statement_timeout + GIVE_UP_MARGIN;
        Ok(Group { connections: Connections::new(connect, options.connections_max, give_up_after), begin })
    }

    /// Does `work` on a connection of this group. Behind a pooler all of it is one transaction.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
    {
        match self.begin.clone() {
            None => self.connections.run(work).await,
            // Only a transaction pins a server connection behind the pooler. It ends with the work.
            Some(begin) => self.within(begin, work).await,
        }
    }

    /// Does `work`, several statements, as one transaction.
    pub(crate) async fn transact<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
    {
        self.within(self.begin.clone().unwrap_or_else(|| "begin".into()), work).await
    }

    /// Work that fails ends with its connection, and so does its transaction.
    async fn within<T, F>(&self, begin: Arc<str>, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
    {
        self.connections
            .run(move |connection| {
                Box::pin(async move {
                    sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut *connection).await?;
                    let answer = work(&mut *connection).await?;
                    sqlx::raw_sql("commit").execute(&mut *connection).await?;
                    Ok(answer)
                })
            })
            .await
    }
}

/// Read a URL without ever showing it.
pub(crate) fn parse(url: &str) -> Result<PgConnectOptions, StoreError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| StoreError::Broken(format!("the database URL is not valid: {error}")))?;
    Ok(options.application_name("outboxd"))
}

/// Read a URL, and ask for nothing that a pooler would refuse at the start of a connection.
pub(crate) fn plain(url: &str) -> Result<PgConnectOptions, StoreError> {
    Ok(parse(url)?.extra_float_digits(None))
}

/// The URL that leads to the server without a pooler in transaction mode, if there is one.
pub(crate) fn direct_url(options: &StoreOptions) -> Option<&str> {
    match options.pooler {
        Pooler::None => Some(&options.url),
        Pooler::Transaction => options.listen_url.as_deref(),
    }
}

/// Where the servers of both URLs listen, as far as their names can be looked up within a moment; a Unix socket has no address.
pub(crate) async fn addresses(options: &StoreOptions) -> Result<Vec<SocketAddr>, StoreError> {
    const AT_MOST: Duration = Duration::from_secs(2);
    let mut addresses = Vec::new();
    for url in [Some(&options.url), options.listen_url.as_ref()].into_iter().flatten() {
        let options = parse(url)?;
        if options.get_socket().is_some() {
            continue;
        }
        if let Ok(Ok(found)) = timeout(AT_MOST, lookup_host((options.get_host(), options.get_port()))).await {
            addresses.extend(found);
        }
    }
    Ok(addresses)
}

pub(super) fn settings(options: &StoreOptions, purpose: Purpose) -> Vec<(&'static str, String)> {
    let milliseconds = |duration: Duration| duration.as_millis().clamp(1, i32::MAX as u128).to_string();
    let mut settings = vec![
        ("default_transaction_isolation", "read committed".into()),
        ("statement_timeout", milliseconds(options.statement_timeout)),
        ("lock_timeout", milliseconds(options.lock_timeout)),
        // Compiling takes longer than any of these statements.
        ("jit", "off".into()),
    ];
    // A relay's statements touch many rows at once, by index. Planned for an empty table and kept, such a plan searched the wrong
    // index for each id once the table was full: so each execution is planned, for the table as it is. And no
    // claim may read the whole table, no settle compare each row with each settlement: that was seen to take 140 ms for 500, where
    // the hash join takes 5.
    let planned: &[(&'static str, &str)] = match purpose {
        // A claim whose commit is lost in a server crash never happened: the row is due again, and the relay that still works on
        // it is fenced, as after any crash. A settle that follows waits for the disk, and the log is written in order: no
        // settled message rests on a claim that was lost.
        Purpose::Claims => {
            &[("plan_cache_mode", "force_custom_plan"), ("enable_seqscan", "off"), ("synchronous_commit", "off")]
        }
        Purpose::Settles => &[
            ("plan_cache_mode", "force_custom_plan"),
            ("enable_seqscan", "off"),
            ("enable_nestloop", "off"),
            ("enable_hashjoin", "on"),
        ],
        Purpose::People => &[],
        // That somebody else vacuums already is no warning.
        Purpose::Vacuum => &[("client_min_messages", "error")],
    };
    settings.extend(planned.iter().map(|(name, value)| (*name, (*value).to_owned())));
    settings
}
