use std::fmt;

use uuid::Uuid;

/// The identity of a message: a UUID, the same on every attempt, never used again. Receivers use it as idempotency key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub Uuid);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the producer wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: MessageId,
    pub topic: String,
    pub key: Option<String>,
    pub payload: Payload,
    /// In the order of their names.
    pub headers: Vec<(String, String)>,
    /// Milliseconds since the epoch, on the database's clock.
    pub created_at_ms: u64,
}

/// The payload as the claim found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The very bytes the producer wrote.
    Bytes(Vec<u8>),
    /// Larger than the store's limit: left in the database, only its length was read.
    TooLarge { bytes: u64 },
}

impl Payload {
    /// The bytes, or nothing where they were left in the database.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Payload::Bytes(bytes) => bytes,
            Payload::TooLarge { .. } => &[],
        }
    }
}
