//! What a settlement writes.

use std::time::Duration;

use outboxd_core::{
    ERROR_BYTES_MAX, LeaseId, MessageId, Order, Rest, RestCause, Settlement, Transition, planted, safe_text,
};
use serde::Serialize;

use crate::row::milliseconds;
use crate::{HistoryEntry, OnDelivered, StoreError};

/// With 20 entries in `history`, every error as long as it may be and each byte escaped, a row stays under 64 KiB.
const HISTORY_ERROR_BYTES_MAX: usize = 1024;
const HISTORY_RESPONSE_BYTES_MAX: usize = 256;
const HISTORY_DIGEST_BYTES_MAX: usize = 100;

/// A settlement as the statements take it.
#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) id: MessageId,
    pub(crate) lease_id: LeaseId,
    pub(crate) state: &'static str,
    pub(crate) after_ms: i64,
    pub(crate) reason: Option<&'static str>,
    pub(crate) error: Option<String>,
    pub(crate) entry: Entry,
    /// The next message of its key may go.
    pub(crate) frees_key: bool,
    /// And has its turn at once, where its key does not rest.
    pub(crate) in_order: bool,
    pub(crate) rest_ms: i64,
    /// Why it rests.
    pub(crate) cause: Option<&'static str>,
    pub(crate) key_failures: Option<u32>,
}

/// What `history` gets; the statement adds `at_ms`.
#[derive(Clone, Serialize)]
pub(crate) struct Entry {
    pub(crate) attempt: u32,
    took_ms: u64,
    pub(crate) result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
}

impl Change {
    fn new(settlement: &Settlement, on_delivered: OnDelivered) -> Self {
        let transition = &settlement.transition;
        let (state, after) = match transition {
            Transition::Delivered if on_delivered == OnDelivered::Delete => ("deleted", Duration::ZERO),
            Transition::Delivered => ("delivered", Duration::ZERO),
            Transition::Pending { after, .. } | Transition::Released { after, .. } => ("pending", *after),
            Transition::Dead { .. } => ("dead", Duration::ZERO),
        };
        let cause = transition.cause();
        // What is given back keeps its turn, and waits by itself as long as its key would rest.
        let rest = match transition {
            Transition::Released { .. } => Rest::default(),
            _ => settlement.rest.clone(),
        };
        let record = &settlement.record;
        let short = |text: &str, bytes_max| planted!(28, text.to_owned(), safe_text(text, bytes_max));
        Change {
            id: settlement.id,
            lease_id: settlement.lease_id,
            state,
            frees_key: settlement.order.frees_key(transition),
            in_order: matches!(settlement.order, Order::ByKey { .. }),
            rest_ms: milliseconds(rest.time),
            cause: rest.cause.map(RestCause::as_str),
            key_failures: rest.failures,
            after_ms: milliseconds(after),
            reason: cause.map(|(reason, _)| reason.as_str()),
            error: cause.map(|(_, error)| short(error, ERROR_BYTES_MAX)),
            entry: Entry {
                attempt: record.attempt.0,
                took_ms: milliseconds(record.took) as u64,
                result: transition.result(),
                reason: cause.map(|(reason, _)| reason.as_str()),
                error: cause.map(|(_, error)| short(error, HISTORY_ERROR_BYTES_MAX)),
                http_status: record.http_status,
                response: record.response_excerpt.as_deref().map(|text| short(text, HISTORY_RESPONSE_BYTES_MAX)),
                digest: record.digest.as_deref().map(|text| short(text, HISTORY_DIGEST_BYTES_MAX)),
            },
        }
    }

    /// Whether it deletes its message, and has its key told nothing but that.
    pub(crate) fn only_deletes(&self) -> bool {
        self.state == "deleted" && self.rest_ms == 0 && self.key_failures.unwrap_or(0) == 0
    }

    /// Whether its key is told something.
    pub(crate) fn tells_key(&self) -> bool {
        self.frees_key || self.rest_ms > 0 || self.key_failures.is_some()
    }

    /// What a settle takes, in the order of the ids. A release among them is a mistake of the caller's.
    pub(crate) fn settles(settlements: &[Settlement], on_delivered: OnDelivered) -> Result<Vec<Self>, StoreError> {
        if settlements.iter().any(|settlement| matches!(settlement.transition, Transition::Released { .. })) {
            return Err(StoreError::Broken("a release was handed to settle; this is a bug of outboxd".into()));
        }
        Ok(Self::in_order(settlements, on_delivered))
    }

    /// What a release takes, in the order of the ids. Anything else among them is a mistake of the caller's.
    pub(crate) fn releases(released: &[Settlement]) -> Result<Vec<Self>, StoreError> {
        if released.iter().any(|settlement| !matches!(settlement.transition, Transition::Released { .. })) {
            return Err(StoreError::Broken("a settle was handed to release; this is a bug of outboxd".into()));
        }
        Ok(Self::in_order(released, OnDelivered::Keep))
    }

    fn in_order(settlements: &[Settlement], on_delivered: OnDelivered) -> Vec<Self> {
        let mut changes: Vec<_> = settlements.iter().map(|settlement| Change::new(settlement, on_delivered)).collect();
        changes.sort_by_key(|change| change.id);
        changes
    }
}

impl Entry {
    /// What stands in the row, with the database's time put in.
    pub(crate) fn at(&self, at_ms: i64) -> HistoryEntry {
        HistoryEntry {
            at_ms,
            attempt: self.attempt,
            took_ms: self.took_ms,
            result: self.result.into(),
            reason: self.reason.map(str::to_string),
            error: self.error.clone(),
            http_status: self.http_status,
            response: self.response.clone(),
            digest: self.digest.clone(),
        }
    }

    /// As JSON.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| "{}".into())
    }
}
