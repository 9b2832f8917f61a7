//! What can only be learned by trying it: whether a pooler is in between, whether a notification arrives.

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgListener};
use sqlx::{ConnectOptions, Connection};
use tokio::time::timeout;
use uuid::Uuid;

use super::super::connect::plain;
use super::within;
use crate::doctor::Finding;
use crate::{Notify, Pooler, StoreError, StoreOptions};

/// Two connections that are served by one backend process have a transaction pooler in between.
const TRIES: usize = 3;

pub(super) async fn pooler(connection: &mut PgConnection, options: &StoreOptions) -> Finding {
    const CHECK: &str = "pooler";
    let shared = match within(shares_a_backend(connection, options)).await {
        Ok(shared) => shared,
        Err(error) => return Finding::warn(CHECK, format!("could not be looked for: {error}"), "try again"),
    };
    match (shared, options.pooler) {
        (true, Pooler::None) => Finding::fail(
            CHECK,
            "the URL leads to a pooler in transaction mode",
            "set pooler = \"transaction\", and listen_database to a URL that leads straight to the server",
        ),
        (true, Pooler::Transaction) if options.listen_url.is_none() && options.notify == Notify::Listen => {
            Finding::warn(
                CHECK,
                "in transaction mode, as configured; publishing cannot wake a relay through it",
                "set listen_database to a URL that leads straight to the server; until then the poll finds messages",
            )
        }
        (true, Pooler::Transaction) => Finding::ok(CHECK, "in transaction mode, as configured"),
        (false, Pooler::None) => Finding::ok(CHECK, "none"),
        (false, Pooler::Transaction) => Finding::ok(CHECK, "none was seen; pooler = \"none\" would save round trips"),
    }
}

async fn shares_a_backend(connection: &mut PgConnection, options: &StoreOptions) -> Result<bool, StoreError> {
    let mut other = plain(&options.url)?.connect().await?;
    let mut shared = false;
    for _ in 0..TRIES {
        // Not at the same time: the pooler lends the backend that the first one has just given back.
        shared |= backend(connection).await? == backend(&mut other).await?;
    }
    let _ = other.close().await;
    Ok(shared)
}

async fn backend(connection: &mut PgConnection) -> Result<i32, StoreError> {
    let (pid,): (i32,) = sqlx::query_as("select pg_backend_pid()").persistent(false).fetch_one(connection).await?;
    Ok(pid)
}

/// Sends a notification the way a publish does and waits for it the way a relay does, on a channel of its own.
pub(super) async fn listener(connection: &mut PgConnection, options: &StoreOptions, listeners: i64) -> Finding {
    const CHECK: &str = "wake-up";
    let relays = match listeners {
        0 => "no relay listens now".into(),
        1 => "1 relay listens now".into(),
        many => format!("{many} relays listen now"),
    };
    if options.notify == Notify::PollOnly {
        return Finding::ok(CHECK, "relay.notify is off: the poll finds messages");
    }
    match within(hears(connection, options)).await {
        Ok(true) => Finding::ok(CHECK, format!("a notification arrives; {relays}")),
        Ok(false) | Err(_) => Finding::warn(
            CHECK,
            format!("no notification arrives; {relays}"),
            "set listen_database to a URL that leads straight to the server; until then the poll finds messages",
        ),
    }
}

async fn hears(connection: &mut PgConnection, options: &StoreOptions) -> Result<bool, StoreError> {
    const ARRIVES_WITHIN: Duration = Duration::from_secs(2);
    let url = options.listen_url.as_deref().unwrap_or(&options.url);
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_lazy_with(plain(url)?);
    let mut listener = PgListener::connect_with(&pool).await?;
    let channel = format!("outboxd_doctor_{}", Uuid::new_v4().simple());
    listener.listen(&channel).await?;
    sqlx::query("select pg_notify($1, '')").bind(&channel).persistent(false).execute(connection).await?;
    Ok(matches!(timeout(ARRIVES_WITHIN, listener.try_recv()).await, Ok(Ok(Some(_)))))
}
