use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::{Claim, Held, KEY_FAILURES_MAX, Lane, LeaseId, LeaseStatus, Order, Settlement};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection};

use super::Sqlite;
use crate::change::Change;
use crate::outbox::{Hold, Kinds, keys_max, kinds, slots_max, window};
use crate::row::{ClaimRow, DueRow, HeldRow, claims, fence, in_order, lets_go_on, milliseconds, statuses};
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
        let Kinds { plain, ordered, limited } = kinds(lanes);
        let mut rows = Vec::new();
        for (lanes, sql) in
            [(plain, &self.sql.claim), (ordered, &self.sql.claim_ordered), (limited, &self.sql.claim_limited)]
        {
            if lanes.is_empty() {
                continue;
            }
            // What a statement before has leased must come back, whatever becomes of this one.
            match self.claim_lanes(&lanes, sql, lease, lapses_max).await {
                Ok(more) => rows.extend(more),
                Err(error) if rows.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        claims(rows, lanes)
    }

    async fn arrange(&self, lanes: &[Lane], hold: Hold) -> Result<u64, StoreError> {
        let Kinds { ordered, limited, .. } = kinds(lanes);
        let mut arranged = 0;
        if !ordered.is_empty() {
            arranged += self.arrange_ordered(&ordered, hold).await?;
        }
        if !limited.is_empty() {
            arranged += self.arrange_limited(&limited).await?;
        }
        Ok(arranged)
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<LeaseStatus>, StoreError> {
        let pairs: Vec<_> = in_order(held)
            .iter()
            .map(|held| json!({ "id": held.id.to_string(), "lease_id": lease_text(held.lease_id) }))
            .collect();
        let (sql, pairs, lease_ms) =
            (AssertSqlSafe(self.sql.renew.clone()), json!(pairs).to_string(), milliseconds(lease));
        let rows: Vec<HeldRow<String>> = self
            .write(move |connection| Box::pin(sqlx::query_as(sql).bind(pairs).bind(lease_ms).fetch_all(connection)))
            .await?;
        statuses(held.iter().copied(), rows)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let changes = Change::settles(settlements, self.on_delivered)?;
        let lets_go_on = lets_go_on(settlements);
        if !lets_go_on && changes.iter().all(Change::only_deletes) && self.delete_all(&changes).await? {
            return Ok(vec![LeaseStatus::Held; settlements.len()]);
        }
        let statements = vec![self.sql.settle.clone(), self.sql.settle_delete.clone()];
        let rows = self.change_held(&changes, statements).await?;
        if lets_go_on {
            self.signal.raise();
        }
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
    /// Claims of lanes of one kind by its statement.
    async fn claim_lanes(
        &self,
        lanes: &[&Lane],
        sql: &Arc<str>,
        lease: Duration,
        lapses_max: u32,
    ) -> Result<Vec<ClaimRow<String>>, StoreError> {
        let (slots_max, window) = (slots_max(lanes), window(lanes));
        let order = lanes.first().map(|lane| lane.order).unwrap_or_default();
        let lanes: Vec<_> = lanes.iter().map(|lane| json!({ "topic": lane.topic, "slots": lane.slots })).collect();
        let lanes = json!(lanes).to_string();
        let (sql, lease_ms, payload_max) = (AssertSqlSafe(sql.clone()), milliseconds(lease), self.payload_max);
        self.write(move |connection| {
            let query = sqlx::query_as(sql)
                .bind(lanes)
                .bind(slots_max)
                .bind(lease_ms)
                .bind(payload_max)
                .bind(i64::from(lapses_max));
            let query = match order {
                Order::None => query,
                Order::ByKey { .. } => query.bind(window),
                Order::Limited { .. } => query.bind(window).bind(i64::from(KEY_FAILURES_MAX)),
            };
            Box::pin(query.fetch_all(connection))
        })
        .await
    }

    /// Finds places in ordered lanes.
    async fn arrange_ordered(&self, lanes: &[&Lane], which: Hold) -> Result<u64, StoreError> {
        let topics = json!(lanes.iter().map(|lane| &lane.topic).collect::<Vec<_>>()).to_string();
        let (window, keys) = (window(lanes), keys_max(lanes));
        let sql = |text: &Arc<str>| AssertSqlSafe(text.clone());
        let (add_keys, forget_keys, end_turns, choose_heads, let_go, hold) = (
            sql(&self.sql.add_keys),
            sql(&self.sql.forget_keys),
            sql(&self.sql.end_turns),
            sql(&self.sql.choose_heads),
            sql(&self.sql.let_go),
            sql(&self.sql.hold),
        );
        self.write(move |connection| {
            Box::pin(async move {
                let mut transaction = connection.begin_with("begin immediate").await?;
                let topics = topics.as_str();
                sqlx::query(add_keys).bind(topics).bind(window).execute(&mut *transaction).await?;
                let ended = sqlx::query(end_turns).bind(topics).bind(window).execute(&mut *transaction).await?;
                let choose = sqlx::query_scalar(choose_heads).bind(topics).bind(window).bind(keys);
                let heads: Vec<Option<String>> = choose.fetch_all(&mut *transaction).await?;
                let heads: Vec<String> = heads.into_iter().flatten().collect();
                sqlx::query(let_go).bind(json!(heads).to_string()).execute(&mut *transaction).await?;
                let hold = sqlx::query(hold).bind(topics).bind(window).bind(which == Hold::All);
                let held = hold.execute(&mut *transaction).await?;
                // A new key's message may have been under a lost lease, and did not wait before it was held.
                let forgotten = sqlx::query(forget_keys).bind(topics).bind(keys).execute(&mut *transaction).await?;
                transaction.commit().await?;
                let places = ended.rows_affected() + heads.len() as u64 + held.rows_affected();
                Ok(places + forgotten.rows_affected())
            })
        })
        .await
    }

    /// Deletes all of them, or none and answers so: where a lease is not held, or a key has to be told. Says nothing
    /// of single messages: for hundreds, that costs more than to delete them.
    async fn delete_all(&self, changes: &[Change]) -> Result<bool, StoreError> {
        let leases: serde_json::Map<String, serde_json::Value> =
            changes.iter().map(|change| (change.id.to_string(), lease_text(change.lease_id).into())).collect();
        let (leases, count) = (json!(leases).to_string(), changes.len() as u64);
        let sql = AssertSqlSafe(self.sql.settle_unordered.clone());
        self.write(move |connection| {
            Box::pin(async move {
                let mut transaction = connection.begin_with("begin immediate").await?;
                let deleted = sqlx::query(sql).bind(leases).execute(&mut *transaction).await?.rows_affected();
                match deleted == count {
                    true => transaction.commit().await?,
                    false => transaction.rollback().await?,
                }
                Ok(deleted == count)
            })
        })
        .await
    }

    /// Runs `statements` on `changes` in one transaction; answers which of their leases were held.
    async fn change_held(
        &self,
        changes: &[Change],
        statements: Vec<Arc<str>>,
    ) -> Result<Vec<HeldRow<String>>, StoreError> {
        let told: HashMap<String, serde_json::Value> = changes
            .iter()
            .filter(|change| change.tells_key())
            .map(|change| {
                let id = change.id.to_string();
                let told = json!({
                    "id": id,
                    "frees": change.frees_key,
                    "in_order": change.in_order,
                    "rest_ms": change.rest_ms,
                    "cause": change.cause,
                    "failures": change.key_failures,
                });
                (id, told)
            })
            .collect();
        let (changes, held) = (json(changes), AssertSqlSafe(self.sql.held.clone()));
        let (free_keys, let_go) = (AssertSqlSafe(self.sql.free_keys.clone()), AssertSqlSafe(self.sql.let_go.clone()));
        self.write(move |connection| {
            Box::pin(async move {
                let mut transaction = connection.begin_with("begin immediate").await?;
                let rows: Vec<HeldRow<String>> =
                    sqlx::query_as(held).bind(changes.clone()).fetch_all(&mut *transaction).await?;
                let told: Vec<_> = rows.iter().filter_map(HeldRow::id_of_keyed).filter_map(|id| told.get(id)).collect();
                if !told.is_empty() {
                    // Before any of them is deleted.
                    let free = sqlx::query_scalar(free_keys).bind(json!(told).to_string());
                    let heads: Vec<Option<String>> = free.fetch_all(&mut *transaction).await?;
                    let heads: Vec<String> = heads.into_iter().flatten().collect();
                    if !heads.is_empty() {
                        sqlx::query(let_go).bind(json!(heads).to_string()).execute(&mut *transaction).await?;
                    }
                }
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

/// As the claim made it: hexadecimal digits alone.
fn lease_text(lease_id: LeaseId) -> String {
    lease_id.0.simple().to_string()
}

/// As the statements' `json_each` takes them.
fn json(changes: &[Change]) -> String {
    let rows: Vec<_> = changes
        .iter()
        .map(|change| {
            json!({
                "id": change.id.to_string(),
                "lease_id": lease_text(change.lease_id),
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
