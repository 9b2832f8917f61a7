use std::collections::HashSet;

use sqlx::{AssertSqlSafe, Postgres, Transaction};
use uuid::Uuid;

use crate::Outbox;
use crate::publish::{OutboxDatabase, Row, sealed, uuid};

impl sealed::Sealed for Postgres {}

impl OutboxDatabase for Postgres {
    async fn insert(
        transaction: &mut Transaction<'_, Self>,
        outbox: &Outbox,
        rows: &[Row<'_>],
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let messages = || rows.iter().map(|row| row.message);
        let inserted: Vec<(String,)> = sqlx::query_as(AssertSqlSafe(outbox.postgres.publish.clone()))
            .bind(rows.iter().map(|row| row.id).collect::<Vec<_>>())
            .bind(messages().map(|message| message.topic.as_str()).collect::<Vec<_>>())
            .bind(messages().map(|message| message.key.as_deref()).collect::<Vec<_>>())
            .bind(messages().map(|message| message.payload.as_str()).collect::<Vec<_>>())
            .bind(messages().map(|message| message.headers_json()).collect::<Vec<_>>())
            .bind(messages().map(|message| message.dedup_key.as_deref()).collect::<Vec<_>>())
            .bind(messages().map(|message| message.delay_ms()).collect::<Vec<_>>())
            .bind(messages().map(|message| message.expires_ms()).collect::<Vec<_>>())
            .persistent(outbox.prepared)
            .fetch_all(&mut **transaction)
            .await?;
        inserted.iter().map(|(id,)| uuid(id)).collect()
    }

    async fn duplicate_of(
        transaction: &mut Transaction<'_, Self>,
        outbox: &Outbox,
        topic: &str,
        dedup_key: &str,
    ) -> Result<Option<Uuid>, sqlx::Error> {
        let found: Option<(String,)> = sqlx::query_as(AssertSqlSafe(outbox.postgres.duplicate_of.clone()))
            .bind(topic)
            .bind(dedup_key)
            .persistent(outbox.prepared)
            .fetch_optional(&mut **transaction)
            .await?;
        found.map(|(id,)| uuid(&id)).transpose()
    }
}
