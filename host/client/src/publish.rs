use std::collections::HashSet;
use std::future::Future;

use serde::{Serialize, Serializer};
use sqlx::{Database, Transaction};
use uuid::Uuid;

use crate::{NewMessage, Outbox, PublishError};

/// One INSERT takes at most so many messages.
const BATCH_MAX: usize = 1000;

/// The row that holds a dedup key may vanish between insert and look-up: then both are tried again, so often.
const TRIES_MAX: usize = 10;

/// A message that is in the outbox once the transaction has committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Published {
    /// The message's id; of a duplicate, the id of the message that was there first.
    #[serde(serialize_with = "as_text")]
    pub id: Uuid,
    pub insertion: Insertion,
}

/// Whether a publish wrote a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Insertion {
    Inserted,
    /// A message with the same topic and dedup key is there.
    Duplicate,
}

/// Publishes one message in the caller's own open transaction: it is delivered if that commits, and never was if it does not.
pub async fn publish<DB: OutboxDatabase>(
    transaction: &mut Transaction<'_, DB>,
    outbox: &Outbox,
    message: NewMessage,
) -> Result<Published, PublishError> {
    let published = publish_all(transaction, outbox, std::slice::from_ref(&message)).await?;
    published.first().copied().ok_or_else(|| PublishError::Invalid("nothing was published".into()))
}

/// Publishes many messages at once, in their order; answers in the same order. All are checked before the first is written.
pub async fn publish_all<DB: OutboxDatabase>(
    transaction: &mut Transaction<'_, DB>,
    outbox: &Outbox,
    messages: &[NewMessage],
) -> Result<Vec<Published>, PublishError> {
    for message in messages {
        message.check(outbox.payload_max)?;
    }
    let mut published = Vec::with_capacity(messages.len());
    for batch in messages.chunks(BATCH_MAX) {
        // Made here and not by the database: so the answers can be told apart, and one process's ids rise.
        let rows: Vec<Row<'_>> = batch.iter().map(|message| Row { id: Uuid::now_v7(), message }).collect();
        let inserted = DB::insert(transaction, outbox, &rows).await?;
        for row in &rows {
            published.push(match inserted.contains(&row.id) {
                true => Published { id: row.id, insertion: Insertion::Inserted },
                false => duplicate(transaction, outbox, row).await?,
            });
        }
    }
    Ok(published)
}

/// Finds who holds the dedup key. A statement of its own: the insert's snapshot may not see the other row.
async fn duplicate<DB: OutboxDatabase>(
    transaction: &mut Transaction<'_, DB>,
    outbox: &Outbox,
    row: &Row<'_>,
) -> Result<Published, PublishError> {
    let dedup_key = row.message.dedup_key.as_deref().unwrap_or_default();
    for _ in 0..TRIES_MAX {
        if let Some(id) = DB::duplicate_of(transaction, outbox, &row.message.topic, dedup_key).await? {
            return Ok(Published { id, insertion: Insertion::Duplicate });
        }
        if DB::insert(transaction, outbox, &[Row { id: row.id, message: row.message }]).await?.contains(&row.id) {
            return Ok(Published { id: row.id, insertion: Insertion::Inserted });
        }
    }
    Err(PublishError::DedupKeyUnsettled(dedup_key.into()))
}

/// A message with its id. Not for use outside this crate.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    pub(crate) id: Uuid,
    pub(crate) message: &'a NewMessage,
}

/// The databases that can hold an outbox: [`sqlx::Postgres`] and [`sqlx::Sqlite`].
pub trait OutboxDatabase: Database + sealed::Sealed {
    /// Inserts what no dedup key forbids; answers the ids of the inserted.
    #[doc(hidden)]
    fn insert(
        transaction: &mut Transaction<'_, Self>,
        outbox: &Outbox,
        rows: &[Row<'_>],
    ) -> impl Future<Output = Result<HashSet<Uuid>, sqlx::Error>> + Send;

    /// The id of the message that holds a dedup key.
    #[doc(hidden)]
    fn duplicate_of(
        transaction: &mut Transaction<'_, Self>,
        outbox: &Outbox,
        topic: &str,
        dedup_key: &str,
    ) -> impl Future<Output = Result<Option<Uuid>, sqlx::Error>> + Send;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

fn as_text<S: Serializer>(id: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

/// An id as the statements return it.
pub(crate) fn uuid(text: &str) -> Result<Uuid, sqlx::Error> {
    Uuid::parse_str(text).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
