use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::{Claim, Held, Lane, LeaseStatus, Settlement};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::Postgres;
use crate::row::{Change, ClaimRow, DueRow, HeldRow, claims, fence, in_order, milliseconds, statuses};
use crate::{DueTopic, OutboxStore, StoreError, Wake};

#[async_trait]
impl OutboxStore for Postgres {
    async fn due_topics(&self) -> Result<Vec<DueTopic>, StoreError> {
        let sql = AssertSqlSafe(self.sql.due_topics.clone());
        let prepared = self.prepared;
        let rows: Vec<DueRow> = self
            .claims
            .run(move |connection| Box::pin(sqlx::query_as(sql).persistent(prepared).fetch_all(connection)))
            .await?;
        Ok(rows.into_iter().map(DueTopic::from).collect())
    }

    async fn claim(&self, lanes: &[Lane], lease: Duration, lapses_max: u32) -> Result<Vec<Claim>, StoreError> {
        let topics: Vec<String> = lanes.iter().map(|lane| lane.topic.clone()).collect();
        let slots: Vec<i64> = lanes.iter().map(|lane| i64::from(lane.slots)).collect();
        let (sql, lease_ms, payload_max) =
            (AssertSqlSafe(self.sql.claim.clone()), milliseconds(lease), self.payload_max);
        let prepared = self.prepared;
        let rows: Vec<ClaimRow> = self
            .claims
            .run(move |connection| {
                let query = sqlx::query_as(sql)
                    .persistent(prepared)
                    .bind(topics)
                    .bind(slots)
                    .bind(lease_ms)
                    .bind(payload_max)
                    .bind(i64::from(lapses_max));
                Box::pin(query.fetch_all(connection))
            })
            .await?;
        if let Some(listener) = self.listener.as_ref().filter(|_| !rows.is_empty()) {
            listener.claimed();
        }
        claims(rows)
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<LeaseStatus>, StoreError> {
        let (ids, lease_ids): (Vec<Uuid>, Vec<Uuid>) =
            in_order(held).iter().map(|held| (held.id.0, held.lease_id.0)).unzip();
        let (sql, lease_ms) = (AssertSqlSafe(self.sql.renew.clone()), milliseconds(lease));
        let prepared = self.prepared;
        let rows: Vec<HeldRow> = self
            .settles
            .run(move |connection| {
                Box::pin(
                    sqlx::query_as(sql)
                        .persistent(prepared)
                        .bind(ids)
                        .bind(lease_ids)
                        .bind(lease_ms)
                        .fetch_all(connection),
                )
            })
            .await?;
        statuses(held.iter().copied(), rows)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let changes = Columns::from(Change::settles(settlements, self.on_delivered)?);
        let sql = AssertSqlSafe(self.sql.settle.clone());
        let prepared = self.prepared;
        let rows: Vec<HeldRow> = self
            .settles
            .run(move |connection| {
                let query = sqlx::query_as(sql)
                    .persistent(prepared)
                    .bind(changes.ids)
                    .bind(changes.lease_ids)
                    .bind(changes.states);
                let query =
                    query.bind(changes.after_ms).bind(changes.reasons).bind(changes.errors).bind(changes.entries);
                Box::pin(query.fetch_all(connection))
            })
            .await?;
        statuses(settlements.iter().map(fence), rows)
    }

    async fn release(&self, released: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let changes = Columns::from(Change::releases(released)?);
        let sql = AssertSqlSafe(self.sql.release.clone());
        let prepared = self.prepared;
        let rows: Vec<HeldRow> = self
            .settles
            .run(move |connection| {
                let query = sqlx::query_as(sql)
                    .persistent(prepared)
                    .bind(changes.ids)
                    .bind(changes.lease_ids)
                    .bind(changes.after_ms);
                let query = query.bind(changes.reasons).bind(changes.errors).bind(changes.entries);
                Box::pin(query.fetch_all(connection))
            })
            .await?;
        statuses(released.iter().map(fence), rows)
    }

    async fn wait_for_work(&self, at_most: Duration) -> Wake {
        if let Some(listener) = &self.listener {
            listener.asleep();
        }
        self.signal.wait(at_most).await
    }
}

/// Changes as arrays, one a bind.
#[derive(Default)]
struct Columns {
    ids: Vec<Uuid>,
    lease_ids: Vec<Uuid>,
    states: Vec<&'static str>,
    after_ms: Vec<i64>,
    reasons: Vec<Option<&'static str>>,
    errors: Vec<Option<String>>,
    entries: Vec<String>,
}

impl From<Vec<Change>> for Columns {
    fn from(changes: Vec<Change>) -> Self {
        let mut columns = Columns::default();
        for change in changes {
            columns.ids.push(change.id.0);
            columns.lease_ids.push(change.lease_id.0);
            columns.states.push(change.state);
            columns.after_ms.push(change.after_ms);
            columns.reasons.push(change.reason);
            columns.errors.push(change.error);
            columns.entries.push(change.entry.text());
        }
        columns
    }
}
