use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::MessageId;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::Postgres;
use super::wake::Listener;
use crate::admin::PAYLOAD_SHOWN_BYTES_MAX;
use crate::row::{DetailRow, KeyRow, SpacedRow, StatsRow, SummaryRow, milliseconds};
use crate::{
    Changed, Finished, KEY_DEPTH_MAX, KeyFilter, KeyState, KeySummary, Listening, MessageDetail, MessageFilter,
    MessageSummary, OutboxAdmin, Selection, SnapshotHolder, SpacedTopic, StoreError, TopicStats,
};

#[async_trait]
impl OutboxAdmin for Postgres {
    async fn list(
        &self,
        filter: &MessageFilter,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<Vec<MessageSummary>, StoreError> {
        let (sql, filter) = (AssertSqlSafe(self.sql.list.clone()), filter.clone());
        let prepared = self.prepared;
        let rows: Vec<SummaryRow> = self
            .people
            .run(move |connection| {
                let state = filter.state.map(|state| state.as_str());
                let query = sqlx::query_as(sql).persistent(prepared).bind(state).bind(filter.topic).bind(filter.reason);
                Box::pin(query.bind(after.map(|id| id.0)).bind(i64::from(limit)).fetch_all(connection))
            })
            .await?;
        Ok(rows.into_iter().map(MessageSummary::from).collect())
    }

    async fn show(&self, id: MessageId) -> Result<Option<MessageDetail>, StoreError> {
        let sql = AssertSqlSafe(self.sql.show.clone());
        let prepared = self.prepared;
        let row: Option<DetailRow> = self
            .people
            .run(move |connection| {
                Box::pin(
                    sqlx::query_as(sql)
                        .persistent(prepared)
                        .bind(id.0)
                        .bind(PAYLOAD_SHOWN_BYTES_MAX)
                        .fetch_optional(connection),
                )
            })
            .await?;
        Ok(row.map(MessageDetail::from))
    }

    async fn stats(&self) -> Result<Vec<TopicStats>, StoreError> {
        let sql = AssertSqlSafe(self.sql.stats.clone());
        let prepared = self.prepared;
        let rows: Vec<StatsRow> = self
            .people
            .run(move |connection| Box::pin(sqlx::query_as(sql).persistent(prepared).fetch_all(connection)))
            .await?;
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
        let redriven = match selection.clone() {
            Selection::Ids(ids) => {
                let (sql, ids) = (AssertSqlSafe(self.sql.redrive_ids.clone()), uuids(&ids));
                self.change(move || sqlx::query(sql).bind(ids).bind(limit).bind(spacing_ms).bind(first_ms)).await
            }
            Selection::Matching { topic, reason } => {
                let (sql, reason) = (AssertSqlSafe(self.sql.redrive.clone()), reason.map(|reason| reason.as_str()));
                self.change(move || {
                    sqlx::query(sql).bind(topic).bind(reason).bind(limit).bind(spacing_ms).bind(first_ms)
                })
                .await
            }
        };
        redriven.inspect(|count| self.made_dead(*count))
    }

    async fn discard(&self, selection: &Selection, limit: u32) -> Result<u64, StoreError> {
        let (ids, matching) = (AssertSqlSafe(self.sql.discard_ids.clone()), AssertSqlSafe(self.sql.discard.clone()));
        let free_discarded = AssertSqlSafe(self.sql.free_discarded.clone());
        let (selection, limit, prepared) = (selection.clone(), i64::from(limit), self.prepared);
        let discarded = self
            .people
            .transact(move |connection| {
                Box::pin(async move {
                    let query = match selection {
                        Selection::Ids(chosen) => sqlx::query_scalar(ids).bind(uuids(&chosen)),
                        Selection::Matching { topic, reason } => {
                            sqlx::query_scalar(matching).bind(topic).bind(reason.map(|reason| reason.as_str()))
                        }
                    };
                    let discarded: Vec<Uuid> =
                        query.bind(limit).persistent(prepared).fetch_all(&mut *connection).await?;
                    let count = discarded.len() as u64;
                    if count > 0 {
                        let freed = sqlx::query(free_discarded).bind(discarded).persistent(prepared);
                        freed.execute(&mut *connection).await?;
                    }
                    Ok(count)
                })
            })
            .await;
        // A key may go on, whatever the answer was.
        self.signal.raise();
        discarded.inspect(|count| self.made_dead(*count))
    }

    async fn retry_now(&self, selection: &Selection, limit: u32) -> Result<u64, StoreError> {
        let changed = self.change_selected(selection, limit, &self.sql.retry_now_ids, &self.sql.retry_now).await;
        changed.inspect(|count| self.made_dead(*count))
    }

    async fn purge(&self, state: Finished, older_than: Duration, limit: u32) -> Result<u64, StoreError> {
        let sql = match state {
            Finished::Delivered => AssertSqlSafe(self.sql.purge_delivered.clone()),
            Finished::Dead => AssertSqlSafe(self.sql.purge_dead.clone()),
        };
        let older_than_ms = milliseconds(older_than);
        let purged = self.change(move || sqlx::query(sql).bind(older_than_ms).bind(i64::from(limit))).await;
        purged.inspect(|count| self.made_dead(*count))
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
        let (sql, prepared, filter) = (AssertSqlSafe(self.sql.keys.clone()), self.prepared, filter.clone());
        let rows: Vec<KeyRow> = self
            .people
            .run(move |connection| {
                let state = filter.state.map(KeyState::as_str);
                let query = sqlx::query_as(sql).persistent(prepared).bind(filter.topic).bind(state);
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
        let (sql, topic, key) = (AssertSqlSafe(self.sql.resume_key.clone()), topic.to_string(), key.to_string());
        let changed = self.change(move || sqlx::query(sql).bind(topic).bind(key)).await.map(Changed::from_rows);
        self.signal.raise();
        changed
    }

    async fn spaced(&self) -> Result<Vec<SpacedTopic>, StoreError> {
        let (sql, prepared) = (AssertSqlSafe(self.sql.spaced.clone()), self.prepared);
        let rows: Vec<SpacedRow> = self
            .people
            .run(move |connection| Box::pin(sqlx::query_as(sql).persistent(prepared).fetch_all(connection)))
            .await?;
        Ok(rows.into_iter().map(SpacedTopic::from).collect())
    }

    async fn ordered_topics(&self) -> Result<Vec<String>, StoreError> {
        let (sql, prepared) = (AssertSqlSafe(self.sql.ordered_topics.clone()), self.prepared);
        self.people
            .run(move |connection| Box::pin(sqlx::query_scalar(sql).persistent(prepared).fetch_all(connection)))
            .await
    }

    async fn unorder(&self, topic: &str, limit: u32) -> Result<u64, StoreError> {
        let (sql, prepared, topic) = (AssertSqlSafe(self.sql.unorder.clone()), self.prepared, topic.to_string());
        let changed: i64 = self
            .people
            .run(move |connection| {
                let query = sqlx::query_scalar(sql).persistent(prepared).bind(topic).bind(i64::from(limit));
                Box::pin(query.fetch_one(connection))
            })
            .await?;
        Ok(changed.max(0) as u64)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let sql = AssertSqlSafe(self.sql.ping.clone());
        self.change(move || sqlx::query(sql)).await.map(|_| ())
    }

    async fn oldest_snapshot(&self) -> Result<Option<SnapshotHolder>, StoreError> {
        let sql = AssertSqlSafe(self.sql.oldest_snapshot.clone());
        let prepared = self.prepared;
        self.people
            .run(move |connection| Box::pin(sqlx::query_as(sql).persistent(prepared).fetch_optional(connection)))
            .await
    }

    fn listening(&self) -> Listening {
        self.listener.as_ref().map_or(Listening::Never, Listener::state)
    }
}

type Query = sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments>;

impl Postgres {
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
                let (sql, chosen) = (AssertSqlSafe(ids.to_owned()), uuids(&chosen));
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
        let prepared = self.prepared;
        self.people
            .run(move |connection| {
                Box::pin(async move { Ok(query().persistent(prepared).execute(connection).await?.rows_affected()) })
            })
            .await
    }
}

fn uuids(ids: &[MessageId]) -> Vec<Uuid> {
    ids.iter().map(|id| id.0).collect()
}
