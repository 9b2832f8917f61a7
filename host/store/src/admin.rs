use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::{MessageId, Reason, State};
use serde::Serialize;

use crate::StoreError;

/// [`OutboxAdmin::show`] loads no larger payload. Bytes.
pub(crate) const PAYLOAD_SHOWN_BYTES_MAX: i64 = 64 << 10;

/// What people ask of the outbox: look, redrive, purge, pause.
#[async_trait]
pub trait OutboxAdmin: Send + Sync {
    /// The messages that match, newest first; `after` continues behind the last row of the page before.
    async fn list(
        &self,
        filter: &MessageFilter,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<Vec<MessageSummary>, StoreError>;

    /// One message with payload, headers and history, or nothing.
    async fn show(&self, id: MessageId) -> Result<Option<MessageDetail>, StoreError>;

    /// Every topic that has a message or is paused, by name.
    async fn stats(&self) -> Result<Vec<TopicStats>, StoreError>;

    /// Sends at most `limit` dead letters round again, oldest death first: attempts and lapses start anew, the id stays.
    /// The first is due after `first_after` and each further one `spacing` later. Answers how many; live messages are never
    /// touched.
    async fn redrive(
        &self,
        selection: &Selection,
        limit: u32,
        first_after: Duration,
        spacing: Duration,
    ) -> Result<u64, StoreError>;

    /// Makes at most `limit` messages dead with reason `discarded`. Of those that are named, every live one: one that is being
    /// processed loses its lease. Of those that match, the pending and held ones, oldest first: what is being processed is left
    /// to its attempt. In an ordered topic their keys go on without them. Answers how many.
    async fn discard(&self, selection: &Selection, limit: u32) -> Result<u64, StoreError>;

    /// Makes at most `limit` pending messages due now; one that is overdue keeps its place. Answers how many: of those that
    /// are named, all that are due then; of those that match, oldest first, the ones that were not due before.
    async fn retry_now(&self, selection: &Selection, limit: u32) -> Result<u64, StoreError>;

    /// Deletes at most `limit` finished messages of `state` that finished more than `older_than` ago, but none that blocks its
    /// key. Answers how many.
    async fn purge(&self, state: Finished, older_than: Duration, limit: u32) -> Result<u64, StoreError>;

    /// Stops the claiming of `topic` in the whole fleet until it is resumed. Answers whether that changed anything.
    async fn pause(&self, topic: &str) -> Result<Changed, StoreError>;

    /// Ends a pause. Answers whether that changed anything.
    async fn resume(&self, topic: &str) -> Result<Changed, StoreError>;

    /// The keys of topics that are ordered or limited by key that have messages, those that wait longest first.
    async fn keys(&self, filter: &KeyFilter, limit: u32) -> Result<Vec<KeySummary>, StoreError>;

    /// Lets the next message of a blocked key go; the dead one stays dead. Answers whether the key was blocked.
    async fn skip_key(&self, topic: &str, key: &str) -> Result<Changed, StoreError>;

    /// Ends the rest of a key, and makes the message at its head due, if it waits. Answers whether it did wait.
    async fn resume_key(&self, topic: &str, key: &str) -> Result<Changed, StoreError>;

    /// The topics of which something is due that only waits until the next call of its key may begin; not those that are paused.
    async fn spaced(&self) -> Result<Vec<SpacedTopic>, StoreError>;

    /// The topics that have keys which are, or were, a unit of delivery. Costs an index probe a topic.
    async fn ordered_topics(&self) -> Result<Vec<String>, StoreError>;

    /// For a topic that is not ordered any more: makes at most `limit` of its held messages pending, and forgets keys. Answers
    /// how many rows it changed: none when nothing of the order is left.
    async fn unorder(&self, topic: &str, limit: u32) -> Result<u64, StoreError>;

    /// Answers when the database does.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Who holds the oldest snapshot, whose end dead rows wait for. Nobody where the database has no such thing.
    async fn oldest_snapshot(&self) -> Result<Option<SnapshotHolder>, StoreError> {
        Ok(None)
    }

    /// Whether notifications reach this process. Asks nobody.
    fn listening(&self) -> Listening {
        Listening::Never
    }
}

/// Who holds the oldest snapshot of a database.
#[derive(Clone, Debug, PartialEq, sqlx::FromRow)]
pub struct SnapshotHolder {
    /// A session by its pid, a prepared transaction or a replication slot by its name.
    pub holder: String,
    /// For how long. Seconds. Nothing where it cannot be known: of a slot, or where the role may not see it.
    pub age_s: Option<f64>,
    /// What it runs, or ran last.
    pub query: Option<String>,
}

impl SnapshotHolder {
    /// Who, for how long, and with which query, on one line.
    pub fn told(&self) -> String {
        let age = self.age_s.map_or("for an unknown time".into(), |age| format!("for {}", spoken(age)));
        let query = self.query.as_deref().map(|query| query.split_whitespace().collect::<Vec<_>>().join(" "));
        let query = query.map(|query| format!(": {}", query.chars().take(120).collect::<String>())).unwrap_or_default();
        format!("{age} by {}{query}", self.holder)
    }
}

/// A time as people say it.
pub(crate) fn spoken(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

/// Whether a relay is told of new messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listening {
    /// It is not meant to be told by a connection: settings or the database say so.
    #[default]
    Never,
    Yes,
    /// The connection is gone and a new one is tried; the poll finds what is due.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Yes,
    No,
}

impl Changed {
    pub(crate) fn from_rows(rows: u64) -> Self {
        if rows > 0 { Changed::Yes } else { Changed::No }
    }
}

/// The two states that a purge may delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    Delivered,
    Dead,
}

/// Which messages to list. Empty fields match everything.
#[derive(Clone, Debug, Default)]
pub struct MessageFilter {
    pub state: Option<State>,
    pub topic: Option<String>,
    pub reason: Option<String>,
}

/// Which keys to list. Empty fields match everything.
#[derive(Clone, Debug, Default)]
pub struct KeyFilter {
    pub topic: Option<String>,
    pub state: Option<KeyState>,
}

/// What a key of a topic is doing that is ordered or limited by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Its next message may be claimed.
    Ready,
    Processing,
    /// Its next message is due later: a retry, or one that was published with a delay.
    Waiting,
    /// It rests: its plugin or its target asked for that, its target failed too often, or its calls are spaced.
    Paused,
    /// A dead letter is in the way.
    Blocked,
}

impl KeyState {
    pub const ALL: [KeyState; 5] =
        [KeyState::Ready, KeyState::Processing, KeyState::Waiting, KeyState::Paused, KeyState::Blocked];

    pub fn as_str(self) -> &'static str {
        match self {
            KeyState::Ready => "ready",
            KeyState::Processing => "processing",
            KeyState::Waiting => "waiting",
            KeyState::Paused => "paused",
            KeyState::Blocked => "blocked",
        }
    }
}

impl FromStr for KeyState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        KeyState::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| format!("state {text:?} is not one of {}", KeyState::ALL.map(KeyState::as_str).join(", ")))
    }
}

/// A key of a topic that is ordered or limited by key. Times are milliseconds since the epoch; waits are on the database's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeySummary {
    pub topic: String,
    pub key: String,
    /// `ready`, `processing`, `waiting`, `paused` or `blocked`.
    pub state: String,
    /// The id of the message whose turn it is, or which blocks.
    pub head: Option<String>,
    /// When that died, or else was published; of a key without a head, since when.
    pub since_ms: i64,
    /// Why the key rests; else why that message failed last.
    pub reason: Option<String>,
    pub error: Option<String>,
    /// How long it still waits, or the key rests. Milliseconds.
    pub due_in_ms: Option<u64>,
    /// How many messages wait behind it, as far as they were counted: [`KEY_DEPTH_MAX`].
    pub depth: u64,
}

/// No more messages of one key are counted.
pub const KEY_DEPTH_MAX: u64 = 100_000;

/// Which messages to change.
#[derive(Clone, Debug)]
pub enum Selection {
    Ids(Vec<MessageId>),
    /// Both empty: all of them.
    Matching {
        topic: Option<String>,
        reason: Option<Reason>,
    },
}

/// A message without its payload. Times are milliseconds since the epoch; ages and waits are on the database's clock.
#[derive(Clone, Debug, Serialize)]
pub struct MessageSummary {
    pub id: String,
    pub topic: String,
    pub key: Option<String>,
    pub state: String,
    pub attempts: u32,
    pub lapses: u32,
    pub reason: Option<String>,
    pub last_error: Option<String>,
    pub created_at_ms: i64,
    /// When it is due, or when its lease ends.
    pub available_at_ms: i64,
    pub expires_at_ms: Option<i64>,
    pub delivered_at_ms: Option<i64>,
    pub dead_at_ms: Option<i64>,
}

/// The whole story of one message.
#[derive(Clone, Debug, Serialize)]
pub struct MessageDetail {
    #[serde(flatten)]
    pub summary: MessageSummary,
    pub dedup_key: Option<String>,
    pub headers: serde_json::Value,
    /// As text; bytes that are no UTF-8 are replaced. Nothing where it is larger than 64 KiB.
    pub payload: Option<String>,
    pub payload_bytes: u64,
    pub history: Vec<HistoryEntry>,
}

/// One attempt, as the row's `history` keeps it.
#[derive(Clone, Debug, Serialize, serde::Deserialize)]
pub struct HistoryEntry {
    /// When it was settled: milliseconds since the epoch, on the database's clock.
    pub at_ms: i64,
    pub attempt: u32,
    /// How long the attempt took. Milliseconds.
    pub took_ms: u64,
    /// `delivered`, `retry`, `released` or `dead`.
    pub result: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// A topic of which something is due that waits for the spacing of its key's calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpacedTopic {
    pub topic: String,
    /// Until the first of its keys may go on, on the database's clock.
    pub wait: Duration,
}

/// The numbers of one topic.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TopicStats {
    pub topic: String,
    pub pending: u64,
    pub processing: u64,
    pub held: u64,
    pub delivered: u64,
    pub dead: u64,
    /// How long the oldest due message has been waiting. Milliseconds.
    pub oldest_due_ms: Option<u64>,
    /// Keys whose messages wait behind a dead letter.
    pub blocked_keys: u64,
    /// Keys whose target rests: it asked for that, its plugin did, or its calls failed in a row.
    pub resting_keys: u64,
    /// A person paused it.
    pub paused: bool,
    /// The error of the message that failed last and is still live or dead.
    pub last_error: Option<String>,
}

impl TopicStats {
    /// How many are not finished.
    pub fn live(&self) -> u64 {
        self.pending + self.processing + self.held
    }
}
