use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::{Claim, Held, Lane, LeaseStatus, Settlement};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection};

use super::Sqlite;
use crate::row::{Change, ClaimRow, DueRow, HeldRow, claims, fence, in_order, milliseconds, statuses};
use crate::{DueTopic, OutboxStore, StoreError, Wake};

#[async_trait]
impl OutboxStore for Sqlite {
    async fn due_topics(&self) -> Result<Vec<DueTopic>, StoreError> {
        let sql = AssertSqlSafe(self.sql.due_topics.clone());
        let rows: Vec<DueRow> =
            self.read(move |connection| Box::pin(sqlx::query_as(sql).fetch_all(connection))).await?;
        Ok(rows.into_iter().map(DueTopic::from).collect())
    }

    async fn claim(&self, lanes: &[Lane], lease: Duration, lapses_max: u32) -> Result<Vec<Claim>, StoreError> {
        let slots_max = i64::from(lanes.iter().map(|lane| lane.slots).max().unwrap_or(0));
        let lanes: Vec<_> = lanes.iter().map(|lane| json!({ "topic": lane.topic, "slots": lane.slots })).collect();
        let lanes = json!(lanes).to_string();
        let (sql, lease_ms, payload_max) =
            (AssertSqlSafe(self.sql.claim.clone()), milliseconds(lease), self.payload_max);
        let rows: Vec<ClaimRow> = self
            .write(move |connection| {
                let query = sqlx::query_as(sql)
                    .bind(lanes)
                    .bind(slots_max)
                    .bind(lease_ms)
                    .bind(payload_max)
                    .bind(i64::from(lapses_max));
                Box::pin(query.fetch_all(connection))
            })
            .await?;
        claims(rows)
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<LeaseStatus>, StoreError> {
        let pairs: Vec<_> = in_order(held)
            .iter()
            .map(|held| json!({ "id": held.id.to_string(), "lease_id": held.lease_id.0.simple().to_string() }))
            .collect();
        let (sql, pairs, lease_ms) =
            (AssertSqlSafe(self.sql.renew.clone()), json!(pairs).to_string(), milliseconds(lease));
        let rows: Vec<HeldRow> = self
            .write(move |connection| Box::pin(sqlx::query_as(sql).bind(pairs).bind(lease_ms).fetch_all(connection)))
            .await?;
        statuses(held.iter().copied(), rows)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let changes = Change::settles(settlements, self.on_delivered)?;
        let deletes = changes.iter().any(|change| change.state == "deleted").then(|| self.sql.settle_delete.clone());
        let rows =
            self.change_held(&changes, std::iter::once(self.sql.settle.clone()).chain(deletes).collect()).await?;
        statuses(settlements.iter().map(fence), rows)
    }

    async fn release(&self, released: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let changes = Change::releases(released)?;
        let rows = self.change_held(&changes, vec![self.sql.release.clone()]).await?;
        statuses(released.iter().map(fence), rows)
    }

    async fn wait_for_work(&self, at_most: Duration) -> Wake {
        let Some(watch) = &self.watch else { return self.signal.wait(at_most).await };
        watch.ensure();
        let soon = watch.look_again().unwrap_or(at_most);
        self.signal.wait(at_most.min(soon)).await
    }
}

impl Sqlite {
    /// Runs `statements` on `changes` in one transaction; answers which of their leases were held.
    async fn change_held(&self, changes: &[Change], statements: Vec<Arc<str>>) -> Result<Vec<HeldRow>, StoreError> {
        let (changes, held) = (json(changes), AssertSqlSafe(self.sql.held.clone()));
        self.write(move |connection| {
            Box::pin(async move {
                let mut transaction = connection.begin_with("begin immediate").await?;
                let rows = sqlx::query_as(held).bind(changes.clone()).fetch_all(&mut *transaction).await?;
                for statement in statements {
                    sqlx::query(AssertSqlSafe(statement)).bind(changes.clone()).execute(&mut *transaction).await?;
                }
                transaction.commit().await?;
                Ok(rows)
            })
        })
        .await
    }
}

/// As the statements' `json_each` takes them.
fn json(changes: &[Change]) -> String {
    let rows: Vec<_> = changes
        .iter()
        .map(|change| {
            json!({
                "id": change.id.to_string(),
                "lease_id": change.lease_id.0.simple().to_string(),
                "state": change.state,
                "after_ms": change.after_ms,
                "reason": change.reason,
                "error": change.error,
                "entry": change.entry,
            })
        })
        .collect();
    json!(rows).to_string()
}
