use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::{Claim, Held, KEY_FAILURES_MAX, Lane, LeaseStatus, Order, Settlement, planted};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::Postgres;
use crate::change::Change;
use crate::outbox::{Hold, Kinds, keys_max, kinds, per_key, window};
use crate::row::{ClaimRow, DueRow, HeldRow, claims, fence, in_order, lets_go_on, milliseconds, statuses};
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
        if let Some(listener) = self.listener.as_ref().filter(|_| !rows.is_empty()) {
            listener.claimed();
        }
        self.made_dead(rows.len() as u64);
        claims(rows, lanes)
    }

    async fn arrange(&self, lanes: &[Lane], hold: Hold) -> Result<u64, StoreError> {
        let Kinds { ordered, limited, .. } = kinds(lanes);
        let mut arranged = 0;
        if !ordered.is_empty() {
            arranged += self.arrange_lanes(&ordered, Arrange::Ordered(hold)).await?;
        }
        if !limited.is_empty() {
            let per_key = limited.iter().map(|lane| per_key(lane)).collect();
            arranged += self.arrange_lanes(&limited, Arrange::Limited { per_key }).await?;
        }
        self.made_dead(arranged);
        Ok(arranged)
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<LeaseStatus>, StoreError> {
        let (ids, lease_ids): (Vec<Uuid>, Vec<Uuid>) =
            in_order(held).iter().map(|held| (held.id.0, held.lease_id.0)).unzip();
        let (sql, lease_ms) = (AssertSqlSafe(self.sql.renew.clone()), lease_ms(lease));
        let prepared = self.prepared;
        let rows: Vec<HeldRow<Uuid>> = self
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
        self.made_dead(rows.len() as u64);
        statuses(held.iter().copied(), rows)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let changes = Change::settles(settlements, self.on_delivered)?;
        let rows = if changes.iter().all(Change::only_deletes) {
            self.delete(&changes).await?
        } else {
            self.settle_any(changes).await?
        };
        self.made_dead(rows.len() as u64);
        if lets_go_on(settlements) {
            self.signal.raise();
        }
        statuses(settlements.iter().map(fence), rows)
    }

    async fn release(&self, released: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let changes = Columns::from(Change::releases(released)?);
        let sql = AssertSqlSafe(self.sql.release.clone());
        let prepared = self.prepared;
        let rows: Vec<HeldRow<Uuid>> = self
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
        self.made_dead(rows.len() as u64);
        statuses(released.iter().map(fence), rows)
    }

    async fn wait_for_work(&self, at_most: Duration) -> Wake {
        if let Some(listener) = &self.listener {
            listener.asleep(at_most);
        }
        self.signal.wait(at_most).await
    }
}

impl Postgres {
    /// Claims of lanes of one kind by its statement.
    async fn claim_lanes(
        &self,
        lanes: &[&Lane],
        sql: &Arc<str>,
        lease: Duration,
        lapses_max: u32,
    ) -> Result<Vec<ClaimRow<Uuid>>, StoreError> {
        let topics: Vec<String> = lanes.iter().map(|lane| lane.topic.clone()).collect();
        let slots: Vec<i64> = lanes.iter().map(|lane| i64::from(lane.slots)).collect();
        let order = lanes.first().map(|lane| lane.order).unwrap_or_default();
        let (sql, lease_ms, payload_max) = (AssertSqlSafe(sql.clone()), lease_ms(lease), self.payload_max);
        let (prepared, window) = (self.prepared, window(lanes));
        self.claims
            .run(move |connection| {
                let query = sqlx::query_as(sql)
                    .persistent(prepared)
                    .bind(topics)
                    .bind(slots)
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

    /// Finds places in lanes of one kind by its statement.
    async fn arrange_lanes(&self, lanes: &[&Lane], arrange: Arrange) -> Result<u64, StoreError> {
        let topics: Vec<String> = lanes.iter().map(|lane| lane.topic.clone()).collect();
        let (window, keys) = (window(lanes), keys_max(lanes));
        let once = || self.arrange_once(arrange.clone(), topics.clone(), window, keys);
        let (unknown, arranged) = once().await?;
        if unknown == 0 {
            return Ok(arranged);
        }
        let (add_keys, prepared, asked) = (AssertSqlSafe(self.sql.add_keys.clone()), self.prepared, topics.clone());
        self.claims
            .run(move |connection| {
                Box::pin(sqlx::query(add_keys).persistent(prepared).bind(asked).bind(window).execute(connection))
            })
            .await?;
        // Only a statement that begins now sees the keys.
        Ok(arranged + once().await?.1)
    }

    /// How many due messages have a key that is not there yet, and how many messages found their place.
    async fn arrange_once(
        &self,
        arrange: Arrange,
        topics: Vec<String>,
        window: i64,
        keys: i64,
    ) -> Result<(i64, u64), StoreError> {
        let sql = match &arrange {
            Arrange::Ordered(_) => &self.sql.arrange,
            Arrange::Limited { .. } => &self.sql.arrange_limited,
        };
        let (sql, prepared) = (AssertSqlSafe(sql.clone()), self.prepared);
        let (unknown, arranged): (i64, i64) = self
            .claims
            .run(move |connection| {
                let query = sqlx::query_as(sql).persistent(prepared).bind(topics);
                let query = match arrange {
                    Arrange::Ordered(hold) => query.bind(window).bind(keys).bind(hold == Hold::All),
                    Arrange::Limited { per_key } => {
                        query.bind(per_key).bind(window).bind(keys).bind(i64::from(KEY_FAILURES_MAX))
                    }
                };
                Box::pin(query.fetch_one(connection))
            })
            .await?;
        Ok((unknown, arranged.max(0) as u64))
    }

    /// Settles whatever it is; answers which of the leases were held.
    async fn settle_any(&self, changes: Vec<Change>) -> Result<Vec<HeldRow<Uuid>>, StoreError> {
        let changes = Columns::from(changes);
        let (sql, prepared) = (AssertSqlSafe(self.sql.settle.clone()), self.prepared);
        self.settles
            .run(move |connection| {
                let query = sqlx::query_as(sql)
                    .persistent(prepared)
                    .bind(changes.ids)
                    .bind(changes.lease_ids)
                    .bind(changes.states);
                let query =
                    query.bind(changes.after_ms).bind(changes.reasons).bind(changes.errors).bind(changes.entries);
                let query = query.bind(changes.frees_key).bind(changes.rest_ms);
                let query = query.bind(changes.causes).bind(changes.key_failures).bind(changes.in_order);
                Box::pin(query.fetch_all(connection))
            })
            .await
    }

    /// Settles what is only deleted; answers which of the leases were held.
    async fn delete(&self, changes: &[Change]) -> Result<Vec<HeldRow<Uuid>>, StoreError> {
        let (ids, lease_ids): (Vec<Uuid>, Vec<Uuid>) =
            changes.iter().map(|change| (change.id.0, change.lease_id.0)).unzip();
        let in_order: Vec<bool> = changes.iter().map(|change| change.in_order).collect();
        let (sql, prepared) = (AssertSqlSafe(self.sql.settle_delete.clone()), self.prepared);
        self.settles
            .run(move |connection| {
                let query = sqlx::query_as(sql).persistent(prepared).bind(ids).bind(lease_ids).bind(in_order);
                Box::pin(query.fetch_all(connection))
            })
            .await
    }
}

/// How messages of lanes of one kind find their places.
#[derive(Clone)]
enum Arrange {
    Ordered(Hold),
    /// So many messages of a key of each topic at a time.
    Limited {
        per_key: Vec<i64>,
    },
}

/// A lease as the statements take it: how long, never until when.
fn lease_ms(lease: Duration) -> i64 {
    planted!(13, crate::planted::end_by_the_hosts_clock(lease), milliseconds(lease))
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
    frees_key: Vec<bool>,
    rest_ms: Vec<i64>,
    causes: Vec<Option<&'static str>>,
    key_failures: Vec<Option<i64>>,
    in_order: Vec<bool>,
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
            columns.frees_key.push(change.frees_key);
            columns.rest_ms.push(change.rest_ms);
            columns.causes.push(change.cause);
            columns.key_failures.push(change.key_failures.map(i64::from));
            columns.in_order.push(change.in_order);
        }
        columns
    }
}
