//! Publishing with nothing beside it, for tools: trying things out, and operators.
//!
//! An application has no use for it: a message that does not share its transaction with the rows it tells about may be
//! published without them, or they without it.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use crate::{NewMessage, Outbox, OutboxDatabase, PublishError, Published, publish_all};

/// How long SQLite's writer may be another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Publishes `messages` in one transaction of their own. `url` is `sqlite:PATH` or `postgres://…`, `payload_max` in bytes.
pub async fn publish(
    url: &str,
    table: &str,
    payload_max: u64,
    messages: Vec<NewMessage>,
) -> Result<Vec<Published>, PublishError> {
    // What a pooler would refuse is not needed for one transaction.
    let outbox = Outbox::new(table)?.payload_max(payload_max).behind_pooler();
    match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("postgres" | "postgresql") => {
            let options = PgConnectOptions::from_str(url)?.application_name("outboxd publish");
            let options = options.extra_float_digits(None);
            in_transaction(options.connect().await?, "begin", &outbox, &messages).await
        }
        Some("sqlite") => {
            let options = SqliteConnectOptions::from_str(url)?.busy_timeout(BUSY_TIMEOUT);
            in_transaction(options.connect().await?, "begin immediate", &outbox, &messages).await
        }
        _ => Err(PublishError::Invalid("the database URL must begin with \"sqlite:\" or \"postgres://\"".into())),
    }
}

async fn in_transaction<C>(
    mut connection: C,
    begin: &'static str,
    outbox: &Outbox,
    messages: &[NewMessage],
) -> Result<Vec<Published>, PublishError>
where
    C: Connection,
    C::Database: OutboxDatabase,
{
    let mut transaction = connection.begin_with(begin).await?;
    let published = publish_all(&mut transaction, outbox, messages).await?;
    transaction.commit().await?;
    // The messages are committed; how the connection ends changes nothing.
    let _ = connection.close().await;
    Ok(published)
}
