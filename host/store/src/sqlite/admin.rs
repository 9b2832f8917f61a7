use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::MessageId;
use sqlx::{AssertSqlSafe, Connection as _};

use super::Sqlite;
use crate::admin::PAYLOAD_SHOWN_BYTES_MAX;
use crate::row::{DetailRow, KeyRow, SpacedRow, StatsRow, SummaryRow, milliseconds};
use crate::{
    Changed, Finished, KEY_DEPTH_MAX, KeyFilter, KeyState, KeySummary, MessageDetail, MessageFilter, MessageSummary,
    OutboxAdmin, Selection, SpacedTopic, StoreError, TopicStats,
};

#[async_trait]
impl OutboxAdmin for Sqlite {
    async fn list(
        &self,
        filter: &MessageFilter,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<Vec<MessageSummary>, StoreError> {
        let (sql, filter) = (AssertSqlSafe(self.sql.list.clone()), filter.clone());
        let rows: Vec<SummaryRow> = self
            .read(move |connection| {
                let state = filter.state.map(|state| state.as_str());
                let query = sqlx::query_as(sql).bind(state).bind(filter.topic).bind(filter.reason);
                Box::pin(query.bind(after.map(|id| id.to_string())).bind(i64::from(limit)).fetch_all(connection))
            })
            .await?;
        Ok(rows.into_iter().map(MessageSummary::from).collect())
    }

    async fn show(&self, id: MessageId) -> Result<Option<MessageDetail>, StoreError> {
        let sql = AssertSqlSafe(self.sql.show.clone());
        let row: Option<DetailRow> = self
            .read(move |connection| {
                Box::pin(
                    sqlx::query_as(sql).bind(id.to_string()).bind(PAYLOAD_SHOWN_BYTES_MAX).fetch_optional(connection),
                )
            })
            .await?;
        Ok(row.map(MessageDetail::from))
    }

    async fn stats(&self) -> Result<Vec<TopicStats>, StoreError> {
        let sql = AssertSqlSafe(self.sql.stats.clone());
        let rows: Vec<StatsRow> =
            self.read(move |connection| Box::pin(sqlx::query_as(sql).fetch_all(connection))).await?;
        Ok(rows.into_iter().map(TopicStats::from).collect())
    }

    async fn redrive(
        &self,
        selection: &Selection,
        limit: u32,
        first_after: Duration,
        spacing: Duration,
    ) -> Result<u64, StoreError> {
        let (limit, first_ms, spacing_ms) = (i64::from(limit), milliseconds(first_after), milliseconds(spacing));
        match selection.clone() {
            Selection::Ids(ids) => {
                let (sql, ids) = (AssertSqlSafe(self.sql.redrive_ids.clone()), json(&ids));
                self.change(move || sqlx::query(sql).bind(ids).bind(limit).bind(spacing_ms).bind(first_ms)).await
            }
            Selection::Matching { topic, reason } => {
                let (sql, reason) = (AssertSqlSafe(self.sql.redrive.clone()), reason.map(|reason| reason.as_str()));
                self.change(move || {
                    sqlx::query(sql).bind(topic).bind(reason).bind(limit).bind(spacing_ms).bind(first_ms)
                })
                .await
            }
        }
    }

    async fn discard(&self, selection: &Selection, limit: u32) -> Result<u64, StoreError> {
        let (ids, matching) = (self.sql.discard_ids.clone(), self.sql.discard.clone());
        let free_keys = AssertSqlSafe(self.sql.free_keys.clone());
        let (selection, limit) = (selection.clone(), i64::from(limit));
        self.write(move |connection| {
            Box::pin(async move {
                let mut transaction = connection.begin_with("begin immediate").await?;
                let query = match selection {
                    Selection::Ids(chosen) => sqlx::query_scalar(AssertSqlSafe(ids)).bind(json(&chosen)),
                    Selection::Matching { topic, reason } => {
                        let reason = reason.map(|reason| reason.as_str());
                        sqlx::query_scalar(AssertSqlSafe(matching)).bind(topic).bind(reason)
                    }
                };
                let discarded: Vec<String> = query.bind(limit).fetch_all(&mut *transaction).await?;
                let ended = discarded.iter().map(|id| serde_json::json!({ "id": id, "frees": true, "rest_ms": 0 }));
                let ended = serde_json::json!(ended.collect::<Vec<_>>()).to_string();
                sqlx::query(free_keys).bind(ended).execute(&mut *transaction).await?;
                transaction.commit().await?;
                Ok(discarded.len() as u64)
            })
        })
        .await
        .inspect(|_| self.signal.raise())
    }

    async fn retry_now(&self, selection: &Selection, limit: u32) -> Result<u64, StoreError> {
        self.change_selected(selection, limit, &self.sql.retry_now_ids, &self.sql.retry_now).await
    }

    async fn purge(&self, state: Finished, older_than: Duration, limit: u32) -> Result<u64, StoreError> {
        let sql = match state {
            Finished::Delivered => AssertSqlSafe(self.sql.purge_delivered.clone()),
            Finished::Dead => AssertSqlSafe(self.sql.purge_dead.clone()),
        };
        let older_than_ms = milliseconds(older_than);
        self.change(move || sqlx::query(sql).bind(older_than_ms).bind(i64::from(limit))).await
    }

    async fn pause(&self, topic: &str) -> Result<Changed, StoreError> {
        let (sql, topic) = (AssertSqlSafe(self.sql.pause.clone()), topic.to_string());
        self.change(move || sqlx::query(sql).bind(topic)).await.map(Changed::from_rows)
    }

    async fn resume(&self, topic: &str) -> Result<Changed, StoreError> {
        let (sql, topic) = (AssertSqlSafe(self.sql.resume.clone()), topic.to_string());
        let changed = self.change(move || sqlx::query(sql).bind(topic)).await.map(Changed::from_rows);
        self.signal.raise();
        changed
    }

    async fn keys(&self, filter: &KeyFilter, limit: u32) -> Result<Vec<KeySummary>, StoreError> {
        let (sql, filter) = (AssertSqlSafe(self.sql.keys.clone()), filter.clone());
        let rows: Vec<KeyRow> = self
            .read(move |connection| {
                let query = sqlx::query_as(sql).bind(filter.topic).bind(filter.state.map(KeyState::as_str));
                Box::pin(query.bind(i64::from(limit)).bind(KEY_DEPTH_MAX as i64).fetch_all(connection))
            })
            .await?;
        Ok(rows.into_iter().map(KeySummary::from).collect())
    }

    async fn skip_key(&self, topic: &str, key: &str) -> Result<Changed, StoreError> {
        let (sql, topic, key) = (AssertSqlSafe(self.sql.skip_key.clone()), topic.to_string(), key.to_string());
        let changed = self.change(move || sqlx::query(sql).bind(topic).bind(key)).await.map(Changed::from_rows);
        self.signal.raise();
        changed
    }

    async fn resume_key(&self, topic: &str, key: &str) -> Result<Changed, StoreError> {
        let (rest, head) = (AssertSqlSafe(self.sql.resume_key.clone()), AssertSqlSafe(self.sql.resume_head.clone()));
        let (topic, key) = (topic.to_string(), key.to_string());
        self.write(move |connection| {
            Box::pin(async move {
                let mut transaction = connection.begin_with("begin immediate").await?;
                let mut changed = 0;
                for statement in [rest, head] {
                    let query = sqlx::query(statement).bind(&topic).bind(&key);
                    changed += query.execute(&mut *transaction).await?.rows_affected();
                }
                transaction.commit().await?;
                Ok(Changed::from_rows(changed))
            })
        })
        .await
        .inspect(|_| self.signal.raise())
    }

    async fn spaced(&self) -> Result<Vec<SpacedTopic>, StoreError> {
        let sql = AssertSqlSafe(self.sql.spaced.clone());
        let rows: Vec<SpacedRow> =
            self.read(move |connection| Box::pin(sqlx::query_as(sql).fetch_all(connection))).await?;
        Ok(rows.into_iter().map(SpacedTopic::from).collect())
    }

    async fn ordered_topics(&self) -> Result<Vec<String>, StoreError> {
        let sql = AssertSqlSafe(self.sql.ordered_topics.clone());
        self.read(move |connection| Box::pin(sqlx::query_scalar(sql).fetch_all(connection))).await
    }

    async fn unorder(&self, topic: &str, limit: u32) -> Result<u64, StoreError> {
        let (unorder, keys) = (AssertSqlSafe(self.sql.unorder.clone()), AssertSqlSafe(self.sql.unorder_keys.clone()));
        let (topic, limit) = (topic.to_string(), i64::from(limit));
        self.write(move |connection| {
            Box::pin(async move {
                let mut transaction = connection.begin_with("begin immediate").await?;
                let freed = sqlx::query(unorder).bind(&topic).bind(limit).execute(&mut *transaction).await?;
                let mut changed = freed.rows_affected();
                // Only once all of them were found.
                if changed < limit as u64 {
                    changed +=
                        sqlx::query(keys).bind(&topic).bind(limit).execute(&mut *transaction).await?.rows_affected();
                }
                transaction.commit().await?;
                Ok(changed)
            })
        })
        .await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let sql = AssertSqlSafe(self.sql.ping.clone());
        self.change(move || sqlx::query(sql)).await.map(|_| ())
    }
}

type Query = sqlx::query::Query<'static, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

impl Sqlite {
    /// Runs one of two statements: the one that takes ids, or the one that takes topic and reason.
    async fn change_selected(
        &self,
        selection: &Selection,
        limit: u32,
        ids: &str,
        matching: &str,
    ) -> Result<u64, StoreError> {
        let limit = i64::from(limit);
        match selection.clone() {
            Selection::Ids(chosen) => {
                let (sql, chosen) = (AssertSqlSafe(ids.to_owned()), json(&chosen));
                self.change(move || sqlx::query(sql).bind(chosen).bind(limit)).await
            }
            Selection::Matching { topic, reason } => {
                let (sql, reason) = (AssertSqlSafe(matching.to_owned()), reason.map(|reason| reason.as_str()));
                self.change(move || sqlx::query(sql).bind(topic).bind(reason).bind(limit)).await
            }
        }
    }

    /// Runs one statement for a person and answers how many rows it changed.
    async fn change(&self, query: impl FnOnce() -> Query + Send + 'static) -> Result<u64, StoreError> {
        self.write(move |connection| Box::pin(async move { Ok(query().execute(connection).await?.rows_affected()) }))
            .await
    }
}

/// As the statements' `json_each` takes them.
fn json(ids: &[MessageId]) -> String {
    serde_json::json!(ids.iter().map(MessageId::to_string).collect::<Vec<_>>()).to_string()
}
