use std::collections::HashSet;

use serde_json::json;
use sqlx::{AssertSqlSafe, Sqlite, Transaction};
use uuid::Uuid;

use crate::Outbox;
use crate::publish::{OutboxDatabase, Row, sealed, uuid};

impl sealed::Sealed for Sqlite {}

impl OutboxDatabase for Sqlite {
    async fn insert(
        transaction: &mut Transaction<'_, Self>,
        outbox: &Outbox,
        rows: &[Row<'_>],
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let messages: Vec<_> = rows
            .iter()
            .map(|Row { id, message }| {
                json!({
                    "id": id.to_string(),
                    "topic": message.topic,
                    "key": message.key,
                    "payload": message.payload,
                    "headers": message.headers_json(),
                    "dedup_key": message.dedup_key,
                    "delay_ms": message.delay_ms(),
                    "expires_ms": message.expires_ms(),
                })
            })
            .collect();
        let inserted: Vec<(String,)> = sqlx::query_as(AssertSqlSafe(outbox.sqlite.publish.clone()))
            .bind(json!(messages).to_string())
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
        let found: Option<(String,)> = sqlx::query_as(AssertSqlSafe(outbox.sqlite.duplicate_of.clone()))
            .bind(topic.to_string())
            .bind(dedup_key.to_string())
            .fetch_optional(&mut **transaction)
            .await?;
        found.map(|(id,)| uuid(&id)).transpose()
    }
}
