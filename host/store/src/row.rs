use std::collections::{BTreeMap, HashSet};
use std::str::FromStr;
use std::time::Duration;

use outboxd_core::{Attempt, Claim, Held, Lane, LeaseId, LeaseStatus, Message, MessageId, Order, Payload, Settlement};
use sqlx::FromRow;
use uuid::Uuid;

use crate::{DueTopic, KeySummary, MessageDetail, MessageSummary, SpacedTopic, StoreError, TopicStats};

/// No wait is longer: intervals and timestamps have ends.
const WAIT_MS_MAX: u64 = 100 * 365 * 24 * 3600 * 1000;

/// A duration as the statements take it.
pub(crate) fn milliseconds(duration: Duration) -> i64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(WAIT_MS_MAX) as i64
}

#[derive(FromRow)]
pub(crate) struct DueRow {
    topic: String,
    oldest_due_ms: i64,
}

impl From<DueRow> for DueTopic {
    fn from(row: DueRow) -> Self {
        DueTopic { topic: row.topic, oldest_due: Duration::from_millis(row.oldest_due_ms.max(0) as u64) }
    }
}

#[derive(FromRow)]
pub(crate) struct SpacedRow {
    topic: String,
    wait_ms: i64,
}

impl From<SpacedRow> for SpacedTopic {
    fn from(row: SpacedRow) -> Self {
        SpacedTopic { topic: row.topic, wait: Duration::from_millis(row.wait_ms.max(0) as u64) }
    }
}

/// An id as a database stores it: a UUID, or its text.
pub(crate) trait RowId {
    fn uuid(self) -> Result<Uuid, StoreError>;
}

impl RowId for Uuid {
    fn uuid(self) -> Result<Uuid, StoreError> {
        Ok(self)
    }
}

impl RowId for String {
    fn uuid(self) -> Result<Uuid, StoreError> {
        Uuid::from_str(&self)
            .map_err(|_| StoreError::Broken(format!("the table holds the id {self:?}, which is no UUID")))
    }
}

#[derive(FromRow)]
pub(crate) struct ClaimRow<Id> {
    id: Id,
    topic: String,
    key: Option<String>,
    payload: Option<Vec<u8>>,
    payload_bytes: i64,
    headers: String,
    created_at_ms: i64,
    lease_id: Id,
    attempts: i64,
    lapses: i64,
    lapsed: bool,
    expired: bool,
    /// Where the statement says so.
    #[sqlx(default)]
    key_failures: i64,
}

impl<Id: RowId> TryFrom<ClaimRow<Id>> for Claim {
    type Error = StoreError;

    fn try_from(row: ClaimRow<Id>) -> Result<Self, StoreError> {
        Ok(Claim {
            message: Message {
                id: MessageId(row.id.uuid()?),
                topic: row.topic,
                key: row.key,
                payload: match row.payload {
                    Some(bytes) => Payload::Bytes(bytes),
                    None => Payload::TooLarge { bytes: row.payload_bytes.max(0) as u64 },
                },
                headers: headers(&row.headers),
                created_at_ms: row.created_at_ms.max(0) as u64,
            },
            lease_id: LeaseId(row.lease_id.uuid()?),
            attempt: Attempt(count(row.attempts)),
            lapses: count(row.lapses),
            lapsed: row.lapsed,
            order: Order::None,
            key_failures: count(row.key_failures),
            expired: row.expired,
        })
    }
}

/// Claims of `lanes` in the order of their ids, which is about the order of their publishing: the statement's own order is
/// chance.
pub(crate) fn claims<Id: RowId>(rows: Vec<ClaimRow<Id>>, lanes: &[Lane]) -> Result<Vec<Claim>, StoreError> {
    let mut claims = rows.into_iter().map(Claim::try_from).collect::<Result<Vec<_>, _>>()?;
    for claim in &mut claims {
        let lane = lanes.iter().find(|lane| lane.topic == claim.message.topic);
        claim.order = lane.map_or(Order::None, |lane| lane.order);
    }
    claims.sort_by_key(|claim| claim.message.id);
    Ok(claims)
}

/// A lease that a statement found.
#[derive(FromRow)]
pub(crate) struct HeldRow<Id> {
    id: Id,
    lease_id: Id,
    /// The message has a key; where the statement says so.
    #[sqlx(default)]
    keyed: bool,
}

impl HeldRow<String> {
    pub(crate) fn id_of_keyed(&self) -> Option<&str> {
        self.keyed.then_some(&self.id)
    }
}

/// For each asked lease whether it was found. By both ids: one call may hold an old lease of a row beside its new one.
pub(crate) fn statuses<Id: RowId>(
    asked: impl ExactSizeIterator<Item = Held>,
    rows: Vec<HeldRow<Id>>,
) -> Result<Vec<LeaseStatus>, StoreError> {
    // As a rule. No lease is asked for, or found, twice.
    if rows.len() == asked.len() {
        return Ok(vec![LeaseStatus::Held; rows.len()]);
    }
    let mut found = HashSet::with_capacity(rows.len());
    for row in rows {
        found.insert(Held { id: MessageId(row.id.uuid()?), lease_id: LeaseId(row.lease_id.uuid()?) });
    }
    Ok(asked.map(|asked| if found.contains(&asked) { LeaseStatus::Held } else { LeaseStatus::Lost }).collect())
}

/// Whether another message of a key may be claimed now.
pub(crate) fn lets_go_on(settlements: &[Settlement]) -> bool {
    let frees = |one: &Settlement| one.order != Order::None && one.order.frees_key(&one.transition);
    settlements.iter().any(frees)
}

/// What a settlement is fenced by.
pub(crate) fn fence(settlement: &Settlement) -> Held {
    Held { id: settlement.id, lease_id: settlement.lease_id }
}

/// The held leases in the order of their ids, so that two statements that touch the same rows lock them in the same order.
pub(crate) fn in_order(held: &[Held]) -> Vec<Held> {
    let mut held = held.to_vec();
    held.sort_by_key(|held| held.id);
    held
}

#[derive(FromRow)]
pub(crate) struct SummaryRow {
    id: String,
    topic: String,
    key: Option<String>,
    state: String,
    attempts: i64,
    lapses: i64,
    reason: Option<String>,
    last_error: Option<String>,
    created_at_ms: i64,
    available_at_ms: i64,
    expires_at_ms: Option<i64>,
    delivered_at_ms: Option<i64>,
    dead_at_ms: Option<i64>,
}

impl From<SummaryRow> for MessageSummary {
    fn from(row: SummaryRow) -> Self {
        MessageSummary {
            id: row.id,
            topic: row.topic,
            key: row.key,
            state: row.state,
            attempts: count(row.attempts),
            lapses: count(row.lapses),
            reason: row.reason,
            last_error: row.last_error,
            created_at_ms: row.created_at_ms,
            available_at_ms: row.available_at_ms,
            expires_at_ms: row.expires_at_ms,
            delivered_at_ms: row.delivered_at_ms,
            dead_at_ms: row.dead_at_ms,
        }
    }
}

#[derive(FromRow)]
pub(crate) struct DetailRow {
    #[sqlx(flatten)]
    summary: SummaryRow,
    dedup_key: Option<String>,
    headers: String,
    payload: Option<Vec<u8>>,
    payload_bytes: i64,
    history: String,
}

impl From<DetailRow> for MessageDetail {
    fn from(row: DetailRow) -> Self {
        MessageDetail {
            summary: row.summary.into(),
            dedup_key: row.dedup_key,
            headers: serde_json::from_str(&row.headers).unwrap_or_default(),
            payload: row.payload.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            payload_bytes: row.payload_bytes.max(0) as u64,
            // A person may have written into it: what is no entry is left out.
            history: serde_json::from_str::<Vec<serde_json::Value>>(&row.history)
                .unwrap_or_default()
                .into_iter()
                .filter_map(|entry| serde_json::from_value(entry).ok())
                .collect(),
        }
    }
}

#[derive(FromRow)]
pub(crate) struct StatsRow {
    topic: String,
    pending: i64,
    processing: i64,
    held: i64,
    delivered: i64,
    dead: i64,
    oldest_due_ms: Option<i64>,
    blocked_keys: i64,
    resting_keys: i64,
    paused: bool,
    last_error: Option<String>,
}

impl From<StatsRow> for TopicStats {
    fn from(row: StatsRow) -> Self {
        let natural = |number: i64| number.max(0) as u64;
        TopicStats {
            topic: row.topic,
            pending: natural(row.pending),
            processing: natural(row.processing),
            held: natural(row.held),
            delivered: natural(row.delivered),
            dead: natural(row.dead),
            oldest_due_ms: row.oldest_due_ms.map(natural),
            blocked_keys: natural(row.blocked_keys),
            resting_keys: natural(row.resting_keys),
            paused: row.paused,
            last_error: row.last_error,
        }
    }
}

#[derive(FromRow)]
pub(crate) struct KeyRow {
    topic: String,
    key: String,
    state: String,
    head: Option<String>,
    since_ms: i64,
    reason: Option<String>,
    error: Option<String>,
    due_in_ms: Option<i64>,
    depth: i64,
}

impl From<KeyRow> for KeySummary {
    fn from(row: KeyRow) -> Self {
        KeySummary {
            topic: row.topic,
            key: row.key,
            state: row.state,
            head: row.head,
            since_ms: row.since_ms,
            reason: row.reason,
            error: row.error,
            due_in_ms: row.due_in_ms.map(|ms| ms.max(0) as u64),
            depth: row.depth.max(0) as u64,
        }
    }
}

#[derive(FromRow)]
pub(crate) struct VersionRow {
    pub(crate) version: i64,
    pub(crate) works_with: i64,
}

fn count(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

/// Headers in the order of their names. A producer that bypassed the client may have written other values than text: those
/// are given as JSON.
fn headers(text: &str) -> Vec<(String, String)> {
    let map: BTreeMap<String, serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
    map.into_iter()
        .map(|(name, value)| match value {
            serde_json::Value::String(value) => (name, value),
            other => (name, other.to_string()),
        })
        .collect()
}
