//! The outbox in memory: for simulation, and the yardstick for the databases' statements.

mod admin;
mod keys;
mod outbox;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboxd_core::{LeaseId, MessageId, PAYLOAD_BYTES_MAX_DEFAULT, State, planted};
use tokio::time::Instant;
use uuid::Uuid;

use crate::row::milliseconds;
use crate::wake::Signal;
use crate::{HistoryEntry, OnDelivered};

/// When the memory store's clock begins: 2026-01-01. Milliseconds since the epoch.
const EPOCH_MS: i64 = 1_767_225_600_000;

/// An outbox that is lost with its process. Its clock is Tokio's, so paused time moves it; nothing about it is random.
pub struct MemoryStore {
    table: Mutex<Table>,
    payload_max: u64,
    on_delivered: OnDelivered,
    signal: Signal,
}

pub(crate) struct Table {
    pub(crate) rows: BTreeMap<MessageId, Row>,
    paused: BTreeSet<String>,
    keys: BTreeMap<keys::KeyName, keys::Key>,
    started: Instant,
    /// How far [`MemoryStore::advance`] has moved the clock.
    ahead: Duration,
    ids: u64,
    leases: u64,
}

#[derive(Clone)]
pub(crate) struct Row {
    /// Its place in the order of publishing.
    seq: u64,
    topic: String,
    key: Option<String>,
    payload: Vec<u8>,
    headers: BTreeMap<String, String>,
    dedup_key: Option<String>,
    pub(crate) state: State,
    pub(crate) attempts: u32,
    available_at: i64,
    pub(crate) lease_id: Option<LeaseId>,
    lapses: u32,
    last_error: Option<String>,
    reason: Option<String>,
    expires_at: Option<i64>,
    created_at: i64,
    delivered_at: Option<i64>,
    dead_at: Option<i64>,
    history: Vec<HistoryEntry>,
}

/// What [`MemoryStore::put`] takes.
#[derive(Clone, Debug, Default)]
pub struct MemoryMessage {
    /// One that is greater than all before it is made up where none is given.
    pub id: Option<MessageId>,
    pub topic: String,
    pub key: Option<String>,
    pub payload: Vec<u8>,
    pub headers: BTreeMap<String, String>,
    pub dedup_key: Option<String>,
    pub delay: Duration,
    pub expires: Option<Duration>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(PAYLOAD_BYTES_MAX_DEFAULT, OnDelivered::Keep)
    }
}

impl MemoryStore {
    /// An empty outbox. `payload_max` in bytes.
    pub fn new(payload_max: u64, on_delivered: OnDelivered) -> Self {
        let table = Table {
            rows: BTreeMap::new(),
            paused: BTreeSet::new(),
            keys: BTreeMap::new(),
            started: Instant::now(),
            ahead: Duration::ZERO,
            ids: 0,
            leases: 0,
        };
        MemoryStore { table: Mutex::new(table), payload_max, on_delivered, signal: Signal::default() }
    }

    /// What a committed publish does elsewhere: the message is there, and a relay that waits is woken. A second message with
    /// the same topic and dedup key changes nothing and answers the first one's id.
    pub fn put(&self, message: MemoryMessage) -> MessageId {
        let mut table = self.table();
        if message.dedup_key.is_some() {
            let same_topic = |row: &Row| planted!(24, true, row.topic == message.topic);
            let same = |row: &Row| same_topic(row) && row.dedup_key == message.dedup_key;
            if let Some((id, _)) = table.rows.iter().find(|(_, row)| same(row)) {
                return *id;
            }
        }
        let now = table.now();
        table.ids += 1;
        let id = message.id.unwrap_or(MessageId(Uuid::from_u128(u128::from(table.ids))));
        let row = Row {
            seq: table.ids,
            topic: message.topic,
            key: message.key,
            payload: message.payload,
            headers: message.headers,
            dedup_key: message.dedup_key,
            state: State::Pending,
            attempts: 0,
            available_at: now + milliseconds(message.delay),
            lease_id: None,
            lapses: 0,
            last_error: None,
            reason: None,
            expires_at: message.expires.map(|expires| now + milliseconds(expires)),
            created_at: now,
            delivered_at: None,
            dead_at: None,
            history: Vec::new(),
        };
        table.rows.insert(id, row);
        drop(table);
        self.signal.raise();
        id
    }

    /// Forgets all messages, pauses and keys.
    pub fn clear(&self) {
        let mut table = self.table();
        table.rows.clear();
        table.paused.clear();
        table.keys.clear();
    }

    /// Moves the clock ahead by itself, as if the database's clock had jumped.
    pub fn advance(&self, by: Duration) {
        self.table().ahead += by;
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change is made whole under the lock or not at all.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The database's clock. Milliseconds since the epoch.
    fn now(&self) -> i64 {
        EPOCH_MS + milliseconds(self.started.elapsed() + self.ahead)
    }

    /// Never the same again, and the same in every run.
    fn next_lease(&mut self) -> LeaseId {
        self.leases += 1;
        LeaseId(Uuid::from_u128((u128::from(self.leases) << 64) | 0x6f75_7462_6f78_6421))
    }

    /// The row, if it is under this lease.
    fn held(&mut self, id: MessageId, lease_id: LeaseId) -> Option<&mut Row> {
        self.rows.get_mut(&id).filter(|row| row.state == State::Processing && row.lease_id == Some(lease_id))
    }

    fn due(&self, row: &Row, now: i64) -> bool {
        is_live(row.state) && row.available_at <= now && !self.paused.contains(&row.topic)
    }
}

/// In the claim's index.
fn is_live(state: State) -> bool {
    matches!(state, State::Pending | State::Processing)
}
