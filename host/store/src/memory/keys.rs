//! Order by key: whose turn it is.

use std::collections::BTreeSet;

use outboxd_core::{MessageId, State};

use super::{Row, Table, is_live};
use crate::{KEY_DEPTH_MAX, KeyFilter, KeyState, KeySummary};

/// A topic and a key of it.
pub(super) type KeyName = (String, String);

/// A key of an ordered topic that has messages.
pub(super) struct Key {
    /// The only message of the key that may be claimed.
    pub(super) head: Option<MessageId>,
    /// Since when there is none; in the future where the key rests.
    free_at: i64,
}

impl Row {
    fn key_name(&self) -> Option<KeyName> {
        Some((self.topic.clone(), self.key.clone()?))
    }

    fn waits(&self) -> bool {
        matches!(self.state, State::Pending | State::Held)
    }
}

impl Table {
    /// As the databases' statements do it: of each topic `window` due messages are looked at, and `keys_max` free keys.
    pub(super) fn arrange(&mut self, topics: &[&str], window: usize, keys_max: usize) -> u64 {
        let now = self.now();
        let mut due: Vec<MessageId> = Vec::new();
        let mut asked: BTreeSet<KeyName> = BTreeSet::new();
        for topic in topics {
            due.extend(self.oldest_due(topic, now, window));
        }
        let names: BTreeSet<KeyName> = due.iter().filter_map(|id| self.rows[id].key_name()).collect();
        for name in &names {
            self.keys.entry(name.clone()).or_insert(Key { head: None, free_at: now });
        }
        for topic in topics {
            let mut free: Vec<(i64, KeyName)> = self.free_keys(now).filter(|(_, name)| name.0 == *topic).collect();
            free.sort_unstable();
            asked.extend(free.into_iter().map(|(_, name)| name).take(keys_max));
        }
        asked.extend(names.iter().cloned());

        let mut arranged = 0;
        for name in asked {
            if self.keys.get(&name).is_none_or(|key| key.head.is_some() || key.free_at > now) {
                continue;
            }
            let Some(first) = self.first_of(&name) else {
                // One under a lost lease does not wait yet: it is held below, and needs its key.
                if !names.contains(&name) {
                    self.keys.remove(&name);
                }
                continue;
            };
            if let Some(row) = self.rows.get_mut(&first) {
                row.state = State::Pending;
            }
            if let Some(key) = self.keys.get_mut(&name) {
                key.head = Some(first);
            }
            arranged += 1;
        }
        for id in due {
            if self.is_at_head(id) {
                continue;
            }
            let Some(row) = self.rows.get_mut(&id) else { continue };
            // One that is being processed is under a lease that was lost, from before its topic was ordered.
            row.lapses = row.lapses.saturating_add(u32::from(row.state == State::Processing));
            row.lease_id = None;
            row.state = State::Held;
            arranged += 1;
        }
        arranged
    }

    fn oldest_due(&self, topic: &str, now: i64, limit: usize) -> Vec<MessageId> {
        let due = |row: &Row| row.topic == topic && is_live(row.state) && row.available_at <= now;
        let mut oldest: Vec<_> =
            self.rows.iter().filter(|(_, row)| due(row)).map(|(id, row)| (row.available_at, *id)).collect();
        oldest.sort_unstable();
        oldest.into_iter().map(|(_, id)| id).take(limit).collect()
    }

    /// The keys at whose head nothing is, and since when; not those that rest.
    pub(super) fn free_keys(&self, now: i64) -> impl Iterator<Item = (i64, KeyName)> {
        self.keys
            .iter()
            .filter(move |(_, key)| key.head.is_none() && key.free_at <= now)
            .map(|(name, key)| (key.free_at, name.clone()))
    }

    /// The first in publish order of those that wait.
    fn first_of(&self, name: &KeyName) -> Option<MessageId> {
        let of_key = |row: &&Row| row.waits() && row.topic == name.0 && row.key.as_deref() == Some(&name.1);
        self.rows.iter().filter(|(_, row)| of_key(row)).min_by_key(|(id, row)| (row.seq, **id)).map(|(id, _)| *id)
    }

    /// Whether an ordered lane may claim it: it has no key, or its turn has come.
    pub(super) fn is_at_head(&self, id: MessageId) -> bool {
        let Some(name) = self.rows.get(&id).and_then(Row::key_name) else { return true };
        self.keys.get(&name).is_some_and(|key| key.head == Some(id))
    }

    /// Lets the next message of a key go at whose head this one is, when the key has rested.
    pub(super) fn free_key(&mut self, id: MessageId, rest_ms: i64) {
        let free_at = self.now() + rest_ms;
        let Some(name) = self.rows.get(&id).and_then(Row::key_name) else { return };
        if let Some(key) = self.keys.get_mut(&name).filter(|key| key.head == Some(id)) {
            *key = Key { head: None, free_at };
        }
    }

    /// Whether a dead message is in the way of its key.
    pub(super) fn blocks(&self, id: MessageId) -> bool {
        self.rows.get(&id).is_some_and(|row| row.key.is_some() && row.state == State::Dead) && self.is_at_head(id)
    }

    pub(super) fn skip_key(&mut self, topic: &str, key: &str) -> bool {
        let now = self.now();
        let name = (topic.to_owned(), key.to_owned());
        let blocked = self.keys.get(&name).is_some_and(|key| self.is_blocked(key));
        if blocked {
            self.keys.insert(name, Key { head: None, free_at: now });
        }
        blocked
    }

    /// What is at its head is dead, or was deleted.
    fn is_blocked(&self, key: &Key) -> bool {
        let is_live = |id| self.rows.get(id).is_some_and(|row| row.waits() || row.state == State::Processing);
        key.head.as_ref().is_some_and(|id| !is_live(id))
    }

    pub(super) fn resume_key(&mut self, topic: &str, key: &str) -> bool {
        let now = self.now();
        let Some(key) = self.keys.get_mut(&(topic.to_owned(), key.to_owned())) else { return false };
        let Some(head) = key.head else {
            let rested = key.free_at > now;
            key.free_at = key.free_at.min(now);
            return rested;
        };
        let waiting = |row: &&mut Row| row.state == State::Pending && row.available_at > now;
        let Some(row) = self.rows.get_mut(&head).filter(waiting) else { return false };
        row.available_at = now;
        true
    }

    pub(super) fn key_summaries(&self, filter: &KeyFilter, limit: u32) -> Vec<KeySummary> {
        let wanted = |key: &KeySummary| {
            filter.topic.as_ref().is_none_or(|topic| key.topic == *topic)
                && filter.state.is_none_or(|state| key.state == state.as_str())
        };
        let mut keys: Vec<KeySummary> =
            self.keys.iter().map(|(name, key)| self.key_summary(name, key)).filter(wanted).collect();
        keys.sort_by(|a, b| (a.since_ms, &a.topic, &a.key).cmp(&(b.since_ms, &b.topic, &b.key)));
        keys.truncate(limit as usize);
        keys
    }

    fn key_summary(&self, name: &KeyName, key: &Key) -> KeySummary {
        let now = self.now();
        let row = key.head.and_then(|id| self.rows.get(&id));
        let later = row.filter(|row| row.waits() && row.available_at > now);
        let state = match (key.head, row) {
            (None, _) if key.free_at > now => KeyState::Paused,
            (None, _) => KeyState::Ready,
            (_, Some(_)) if later.is_some() => KeyState::Waiting,
            (_, Some(row)) if row.waits() => KeyState::Ready,
            (_, Some(row)) if row.state == State::Processing => KeyState::Processing,
            _ => KeyState::Blocked,
        };
        let behind = self
            .rows
            .iter()
            .filter(|(id, row)| row.waits() && row.key_name().as_ref() == Some(name) && key.head != Some(**id));
        KeySummary {
            topic: name.0.clone(),
            key: name.1.clone(),
            state: state.as_str().into(),
            head: key.head.map(|id| id.to_string()),
            since_ms: match (key.head, row) {
                (Some(_), Some(row)) => row.dead_at.unwrap_or(row.created_at),
                _ => key.free_at.min(now),
            },
            reason: row.and_then(|row| row.reason.clone()),
            error: row.and_then(|row| row.last_error.clone()),
            due_in_ms: match key.head {
                None => u64::try_from(key.free_at - now).ok().filter(|ms| *ms > 0),
                Some(_) => later.map(|row| (row.available_at - now) as u64),
            },
            depth: (behind.count() as u64).min(KEY_DEPTH_MAX),
        }
    }

    pub(super) fn unorder(&mut self, topic: &str, limit: u32) -> u64 {
        let held = self.rows.values_mut().filter(|row| row.topic == topic && row.state == State::Held);
        let changed = held.take(limit as usize).map(|row| row.state = State::Pending).count() as u64;
        if changed > 0 {
            return changed;
        }
        let before = self.keys.len();
        self.keys.retain(|name, _| name.0 != topic);
        (before - self.keys.len()) as u64
    }

    pub(super) fn blocked_keys(&self, topic: &str) -> u64 {
        self.keys.iter().filter(|(name, key)| name.0 == topic && self.is_blocked(key)).count() as u64
    }
}
