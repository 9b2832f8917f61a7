use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::{MessageId, Reason, State, planted};

use super::keys::Told;
use super::{MemoryStore, Row, is_live};
use crate::admin::PAYLOAD_SHOWN_BYTES_MAX;
use crate::row::milliseconds;
use crate::{
    Changed, Finished, KeyFilter, KeySummary, MessageDetail, MessageFilter, MessageSummary, OutboxAdmin, Selection,
    SpacedTopic, StoreError, TopicStats,
};

#[async_trait]
impl OutboxAdmin for MemoryStore {
    async fn list(
        &self,
        filter: &MessageFilter,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<Vec<MessageSummary>, StoreError> {
        let table = self.table();
        let matches = |row: &Row| {
            filter.state.is_none_or(|state| row.state == state)
                && filter.topic.as_ref().is_none_or(|topic| row.topic == *topic)
                && (filter.reason.is_none() || row.reason == filter.reason)
        };
        let before = table.rows.iter().rev().filter(|(id, _)| after.is_none_or(|after| **id < after));
        Ok(before.filter(|(_, row)| matches(row)).take(limit as usize).map(|(id, row)| summary(*id, row)).collect())
    }

    async fn show(&self, id: MessageId) -> Result<Option<MessageDetail>, StoreError> {
        let table = self.table();
        Ok(table.rows.get(&id).map(|row| MessageDetail {
            summary: summary(id, row),
            dedup_key: row.dedup_key.clone(),
            headers: serde_json::json!(row.headers),
            payload: (row.payload.len() as i64 <= PAYLOAD_SHOWN_BYTES_MAX)
                .then(|| String::from_utf8_lossy(&row.payload).into_owned()),
            payload_bytes: row.payload.len() as u64,
            history: row.history.clone(),
        }))
    }

    async fn stats(&self) -> Result<Vec<TopicStats>, StoreError> {
        let table = self.table();
        let now = table.now();
        let mut topics: BTreeMap<&str, (TopicStats, Option<(i64, MessageId)>)> = BTreeMap::new();
        for topic in &table.paused {
            topics.entry(topic).or_default().0.paused = true;
        }
        for (id, row) in &table.rows {
            let (stats, failed_last) = topics.entry(&row.topic).or_default();
            *match row.state {
                State::Pending => &mut stats.pending,
                State::Processing => &mut stats.processing,
                State::Held => &mut stats.held,
                State::Delivered => &mut stats.delivered,
                State::Dead => &mut stats.dead,
            } += 1;
            if is_live(row.state) && row.available_at <= now {
                let waited = (now - row.available_at) as u64;
                stats.oldest_due_ms = stats.oldest_due_ms.max(Some(waited));
            }
            let failed = Some((row.history.last().map_or(0, |entry| entry.at_ms), *id));
            if row.last_error.is_some() && row.state != State::Delivered && failed >= *failed_last {
                *failed_last = failed;
                stats.last_error = row.last_error.clone();
            }
        }
        let named = topics.into_iter().map(|(topic, (stats, _))| TopicStats {
            topic: topic.into(),
            blocked_keys: table.blocked_keys(topic),
            resting_keys: table.resting_keys(topic, now),
            ..stats
        });
        Ok(named.collect())
    }

    async fn redrive(
        &self,
        selection: &Selection,
        limit: u32,
        first_after: Duration,
        spacing: Duration,
    ) -> Result<u64, StoreError> {
        let mut table = self.table();
        let now = table.now();
        let dead = |row: &Row| planted!(21, row.state != State::Delivered, row.state == State::Dead);
        let mut dead: Vec<(Option<i64>, &MessageId, &mut Row)> = table
            .rows
            .iter_mut()
            .filter(|(id, row)| dead(row) && chosen(selection, id, row))
            .map(|(id, row)| (row.dead_at, id, row))
            .collect();
        dead.sort_by_key(|(dead_at, id, _)| (*dead_at, **id));
        dead.truncate(limit as usize);
        let count = dead.len() as u64;
        for (place, (_, _, row)) in dead.into_iter().enumerate() {
            row.state = State::Pending;
            row.attempts = 0;
            row.lapses = 0;
            row.lease_id = None;
            row.dead_at = None;
            row.expires_at = row.expires_at.filter(|expires_at| *expires_at > now);
            row.available_at = now + milliseconds(first_after) + milliseconds(spacing.saturating_mul(place as u32));
        }
        drop(table);
        self.signal.raise();
        Ok(count)
    }

    async fn discard(&self, selection: &Selection, limit: u32) -> Result<u64, StoreError> {
        let mut table = self.table();
        let now = table.now();
        let may = |row: &Row| match selection {
            Selection::Ids(_) => is_live(row.state) || row.state == State::Held,
            Selection::Matching { .. } => matches!(row.state, State::Pending | State::Held),
        };
        let discarded = change(&mut table.rows, selection, limit, may, |row| {
            row.state = State::Dead;
            row.lease_id = None;
            row.reason = Some(Reason::Discarded.as_str().into());
            row.last_error = Some("discarded by a person".into());
            row.dead_at = Some(now);
        });
        let told = discarded.iter().filter_map(|id| Some((table.key_of_turn(*id)?, Told::frees(*id))));
        let told = told.collect();
        table.tell_keys(told);
        drop(table);
        self.signal.raise();
        Ok(discarded.len() as u64)
    }

    async fn retry_now(&self, selection: &Selection, limit: u32) -> Result<u64, StoreError> {
        let mut table = self.table();
        let now = table.now();
        let counts = |row: &Row| matches!(selection, Selection::Ids(_)) || row.available_at > now;
        let may = |row: &Row| row.state == State::Pending && counts(row);
        let changed =
            change(&mut table.rows, selection, limit, may, |row| row.available_at = row.available_at.min(now));
        drop(table);
        self.signal.raise();
        Ok(changed.len() as u64)
    }

    async fn purge(&self, state: Finished, older_than: Duration, limit: u32) -> Result<u64, StoreError> {
        let mut table = self.table();
        let before = table.now() - milliseconds(older_than);
        let finished = |row: &Row| match state {
            Finished::Delivered => planted!(
                22 | 23,
                planted!(22, Some(row.created_at), row.delivered_at.or(row.dead_at)),
                row.delivered_at.filter(|_| row.state == State::Delivered),
            ),
            Finished::Dead => row.dead_at.filter(|_| row.state == State::Dead),
        };
        let mut old: Vec<(i64, MessageId)> = table
            .rows
            .iter()
            .filter(|(id, _)| !table.blocks(**id))
            .filter_map(|(id, row)| finished(row).filter(|at| *at <= before).map(|at| (at, *id)))
            .collect();
        old.sort_unstable();
        old.truncate(limit as usize);
        for (_, id) in &old {
            table.rows.remove(id);
        }
        Ok(old.len() as u64)
    }

    async fn pause(&self, topic: &str) -> Result<Changed, StoreError> {
        let changed = self.table().paused.insert(topic.into());
        Ok(Changed::from_rows(u64::from(changed)))
    }

    async fn resume(&self, topic: &str) -> Result<Changed, StoreError> {
        let changed = self.table().paused.remove(topic);
        self.signal.raise();
        Ok(Changed::from_rows(u64::from(changed)))
    }

    async fn keys(&self, filter: &KeyFilter, limit: u32) -> Result<Vec<KeySummary>, StoreError> {
        Ok(self.table().key_summaries(filter, limit))
    }

    async fn skip_key(&self, topic: &str, key: &str) -> Result<Changed, StoreError> {
        let skipped = self.table().skip_key(topic, key);
        self.signal.raise();
        Ok(Changed::from_rows(u64::from(skipped)))
    }

    async fn resume_key(&self, topic: &str, key: &str) -> Result<Changed, StoreError> {
        let resumed = self.table().resume_key(topic, key);
        self.signal.raise();
        Ok(Changed::from_rows(u64::from(resumed)))
    }

    async fn spaced(&self) -> Result<Vec<SpacedTopic>, StoreError> {
        Ok(self.table().spaced())
    }

    async fn ordered_topics(&self) -> Result<Vec<String>, StoreError> {
        let topics: BTreeSet<String> = self.table().keys.keys().map(|(topic, _)| topic.clone()).collect();
        Ok(topics.into_iter().collect())
    }

    async fn unorder(&self, topic: &str, limit: u32) -> Result<u64, StoreError> {
        let changed = self.table().unorder(topic, limit);
        self.signal.raise();
        Ok(changed)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn chosen(selection: &Selection, id: &MessageId, row: &Row) -> bool {
    match selection {
        Selection::Ids(ids) => ids.contains(id),
        Selection::Matching { topic, reason } => {
            topic.as_ref().is_none_or(|topic| row.topic == *topic)
                && reason.is_none_or(|reason| row.reason.as_deref() == Some(reason.as_str()))
        }
    }
}

/// Changes at most `limit` of the chosen rows that may be changed, oldest first, and answers which.
fn change(
    rows: &mut BTreeMap<MessageId, Row>,
    selection: &Selection,
    limit: u32,
    may: impl Fn(&Row) -> bool,
    change: impl Fn(&mut Row),
) -> Vec<MessageId> {
    let rows = rows.iter_mut().filter(|(id, row)| chosen(selection, id, row) && may(row));
    let changed = rows.take(limit as usize).map(|(id, row)| {
        change(row);
        *id
    });
    changed.collect()
}

fn summary(id: MessageId, row: &Row) -> MessageSummary {
    MessageSummary {
        id: id.to_string(),
        topic: row.topic.clone(),
        key: row.key.clone(),
        state: row.state.as_str().into(),
        attempts: row.attempts,
        lapses: row.lapses,
        reason: row.reason.clone(),
        last_error: row.last_error.clone(),
        created_at_ms: row.created_at,
        available_at_ms: row.available_at,
        expires_at_ms: row.expires_at,
        delivered_at_ms: row.delivered_at,
        dead_at_ms: row.dead_at,
    }
}
