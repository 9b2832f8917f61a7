//! What a guest can see of its message, its host and itself.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use super::outboxd::plugin::{context, secrets};
use super::wasi::config::store;
use super::wasi::logging::logging;
use super::{Failure, Message};

pub fn message(message: &Message) -> Failure {
    let seen = json!({
        "id": message.id,
        "topic": message.topic,
        "key": message.key,
        "payload": String::from_utf8_lossy(&message.payload),
        "headers": message.headers,
        "attempt": message.attempt,
        "created_at_ms": message.created_at_ms,
    });
    Failure::Cancel(seen.to_string())
}

pub fn context() -> Failure {
    let seen = json!({
        "max_attempts": context::max_attempts(),
        "deadline_ms": context::deadline_ms(),
        "idempotency_key": context::idempotency_key(),
        "traceparent": context::traceparent(),
    });
    Failure::Cancel(seen.to_string())
}

pub fn setting(key: &str) -> Failure {
    Failure::Cancel(format!("{:?}", store::get(key)))
}

/// The signature in hexadecimal.
pub fn sign(secret: &str, data: &str) -> Failure {
    match secrets::hmac_sha256(secret, data.as_bytes()) {
        Ok(mac) => Failure::Cancel(mac.iter().map(|byte| format!("{byte:02x}")).collect()),
        Err(error) => Failure::Cancel(format!("{error:?}")),
    }
}

/// The names of environment variables and arguments: there must be none.
pub fn environment() -> Failure {
    let names: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
    Failure::Cancel(json!({ "variables": names, "arguments": std::env::args().collect::<Vec<_>>() }).to_string())
}

pub fn log(text: &str) -> Result<(), Failure> {
    logging::log(logging::Level::Warn, "verbs", text);
    eprintln!("{text}");
    Ok(())
}

pub fn pause_key(ms: u64) -> Result<(), Failure> {
    context::pause_key(ms);
    Ok(())
}

/// How many messages this instance has seen: always 1 where every message gets a fresh one.
pub fn count() -> Failure {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    Failure::Cancel((SEEN.fetch_add(1, Ordering::Relaxed) + 1).to_string())
}
