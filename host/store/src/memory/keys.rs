//! Order by key and limits by key: whose turn it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outboxd_core::{Lane, MessageId, RestCause, State};

use super::{Row, Table, is_live};
use crate::limited::{Astray, LimitedKey};
use crate::outbox::{Hold, per_key};
use crate::{KEY_DEPTH_MAX, KeyFilter, KeyState, KeySummary, SpacedTopic};

/// A topic and a key of it.
pub(super) type KeyName = (String, String);

/// A key that has messages, of a topic where keys are a unit of delivery.
#[derive(Default)]
pub(super) struct Key {
    /// The only message of an ordered key that may be claimed.
    head: Option<MessageId>,
    /// Where so many may be under way at once: those whose turn it is.
    turns: Vec<MessageId>,
    /// Since when there is no head; in the future where the key rests.
    free_at: i64,
    /// How many calls its target has failed in a row.
    failures: u32,
    /// Why it rests, or rested last.
    cause: Option<&'static str>,
}

/// What a message tells its key.
pub(super) struct Told {
    pub(super) id: MessageId,
    pub(super) frees: bool,
    /// The next has its turn at once, where the key does not rest.
    pub(super) in_order: bool,
    pub(super) rest_ms: i64,
    pub(super) cause: Option<&'static str>,
    /// How many calls its target has failed in a row, where that is known.
    pub(super) failures: Option<u32>,
}

impl Told {
    /// Its turn has ended, and that is all.
    pub(super) fn frees(id: MessageId) -> Told {
        Told { id, frees: true, in_order: false, rest_ms: 0, cause: None, failures: None }
    }
}

impl Row {
    fn key_name(&self) -> Option<KeyName> {
        Some((self.topic.clone(), self.key.clone()?))
    }

    fn waits(&self) -> bool {
        matches!(self.state, State::Pending | State::Held)
    }

    /// It has to wait for its key. One that is being processed is under a lease that was lost.
    fn hold(&mut self) {
        self.lapses = self.lapses.saturating_add(u32::from(self.state == State::Processing));
        self.lease_id = None;
        self.state = State::Held;
    }
}

impl Key {
    fn as_limited(&self, now: i64) -> LimitedKey<MessageId> {
        let rests = self.free_at > now;
        LimitedKey { head: self.head, turns: self.turns.clone(), failures: self.failures, rests }
    }
}

impl Table {
    /// As the databases' statements do it: of each topic `window` due messages are looked at, and `keys_max` free keys.
    pub(super) fn arrange(&mut self, topics: &[&str], window: usize, keys_max: usize, hold: Hold) -> u64 {
        let now = self.now();
        let mut due: Vec<MessageId> = Vec::new();
        let mut asked: BTreeSet<KeyName> = BTreeSet::new();
        for topic in topics {
            due.extend(self.oldest_due(topic, now, window));
        }
        let names: BTreeSet<KeyName> = due.iter().filter_map(|id| self.rows[id].key_name()).collect();
        for name in &names {
            self.keys.entry(name.clone()).or_insert(Key { free_at: now, ..Key::default() });
        }
        for topic in topics {
            let mut free: Vec<(i64, KeyName)> = self.free_keys(now).filter(|(_, name)| name.0 == *topic).collect();
            free.sort_unstable();
            asked.extend(free.into_iter().map(|(_, name)| name).take(keys_max));
        }
        asked.extend(names.iter().cloned());

        let mut arranged = 0;
        for name in asked {
            // From before the topic was ordered: there the head alone has its turn.
            if let Some(key) = self.keys.get_mut(&name).filter(|key| !key.turns.is_empty()) {
                key.turns.clear();
                arranged += 1;
            }
            if self.keys.get(&name).is_none_or(|key| key.head.is_some() || key.free_at > now) {
                continue;
            }
            // One under a lost lease does not wait yet: it is held below, and needs its key.
            match self.go_on(&name) {
                true => arranged += 1,
                false if !names.contains(&name) => arranged += u64::from(self.keys.remove(&name).is_some()),
                false => {}
            }
        }
        for id in due {
            if self.is_at_head(id) || hold == Hold::Headless && self.is_behind(id) {
                continue;
            }
            self.rows.entry(id).and_modify(Row::hold);
            arranged += 1;
        }
        arranged
    }

    /// Gives the next message of a key its turn; answers whether there is one.
    fn go_on(&mut self, name: &KeyName) -> bool {
        let Some(first) = self.first_of(name) else { return false };
        if let Some(row) = self.rows.get_mut(&first) {
            row.state = State::Pending;
        }
        self.keys.entry(name.clone()).and_modify(|key| key.head = Some(first));
        true
    }

    /// Another message is at the head of its key.
    fn is_behind(&self, id: MessageId) -> bool {
        let Some(name) = self.rows.get(&id).and_then(Row::key_name) else { return false };
        self.keys.get(&name).is_some_and(|key| key.head.is_some_and(|head| head != id))
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
        self.keys.get(&name).is_some_and(|key| key.head == Some(id) && key.turns.is_empty())
    }

    /// The key of a message whose turn it is.
    pub(super) fn key_of_turn(&self, id: MessageId) -> Option<KeyName> {
        let name = self.rows.get(&id).and_then(Row::key_name)?;
        let key = self.keys.get(&name)?;
        (key.head == Some(id) || key.turns.contains(&id)).then_some(name)
    }

    /// Writes what messages tell their keys whose turn it is. One statement may tell of several messages of one key: their parts
    /// are added up first. Before the messages change: what is settled is not what goes on.
    pub(super) fn tell_keys(&mut self, told: Vec<(KeyName, Told)>) {
        let now = self.now();
        let mut by_key: BTreeMap<KeyName, Vec<Told>> = BTreeMap::new();
        for (name, told) in told {
            by_key.entry(name).or_default().push(told);
        }
        for (name, told) in by_key {
            let Some(key) = self.keys.get_mut(&name) else { continue };
            let frees = told.iter().any(|one| one.frees);
            if frees {
                key.head = None;
                key.turns.retain(|id| !told.iter().any(|one| one.frees && one.id == *id));
            }
            let longest = told.iter().max_by_key(|one| one.rest_ms).filter(|one| one.rest_ms > 0);
            let until = now + longest.map_or(0, |one| one.rest_ms);
            if let Some(longest) = longest.filter(|_| until >= key.free_at) {
                key.cause = longest.cause;
            }
            if frees || longest.is_some() {
                key.free_at = key.free_at.max(until);
            }
            let goes_on = frees && told.iter().all(|one| one.in_order) && key.turns.is_empty() && key.free_at <= now;
            let failures: Vec<u32> = told.iter().filter_map(|one| one.failures).collect();
            key.failures = match (failures.contains(&0), failures.iter().max()) {
                (true, _) => 0,
                (false, Some(most)) => key.failures.max(*most),
                (false, None) => key.failures,
            };
            if goes_on {
                self.go_on(&name);
            }
        }
    }

    /// How many calls of a message's key the target has failed in a row.
    pub(super) fn key_failures(&self, id: MessageId) -> u32 {
        let name = self.rows.get(&id).and_then(Row::key_name);
        name.and_then(|name| self.keys.get(&name)).map_or(0, |key| key.failures)
    }

    /// As the databases' statements do it: of each topic `window` due messages are looked at, and `keys_max` free keys.
    pub(super) fn arrange_limited(&mut self, lanes: &[&Lane], window: usize, keys_max: usize) -> u64 {
        let now = self.now();
        let mut asked: BTreeMap<KeyName, (usize, Vec<Astray<MessageId>>)> = BTreeMap::new();
        for lane in lanes {
            let most = per_key(lane) as usize;
            for id in self.oldest_due(&lane.topic, now, window) {
                let row = &self.rows[&id];
                let Some(name) = row.key_name() else { continue };
                let astray = Astray { id, place: row.seq as i64, waits: row.state == State::Pending };
                self.keys.entry(name.clone()).or_insert(Key { free_at: now, ..Key::default() });
                if !self.has_turn(id, now) {
                    asked.entry(name).or_insert((most, Vec::new())).1.push(astray);
                }
            }
            let mut free: Vec<(i64, KeyName)> = self.free_keys(now).filter(|(_, name)| name.0 == lane.topic).collect();
            free.sort_unstable();
            for (_, name) in free.into_iter().take(keys_max) {
                asked.entry(name).or_insert((most, Vec::new()));
            }
        }

        let mut arranged = 0;
        for (name, (most, astray)) in asked {
            let mut key = self.keys[&name].as_limited(now);
            // Others were held or ended while the topic was ordered, or were deleted, and nobody told the key.
            key.turns.retain(|id| self.rows.get(id).is_some_and(|row| is_live(row.state)));
            let room = key.room(most);
            let of_key = |row: &Row| row.topic == name.0 && row.key.as_deref() == Some(&name.1);
            let mut held: Vec<(i64, MessageId)> = self
                .rows
                .iter()
                .filter(|(_, row)| row.state == State::Held && of_key(row))
                .map(|(id, row)| (row.seq as i64, *id))
                .collect();
            held.sort_unstable();
            held.truncate(room);
            let places = key.arrange(room, held, &astray);
            let later = (room > 0 && places.turns.is_empty()).then(|| self.first_of(&name)).flatten();
            if room > 0 && places.turns.is_empty() && later.is_none() && astray.is_empty() {
                self.keys.remove(&name);
                arranged += 1;
                continue;
            }
            let head = key.head_of(&places, later);
            arranged += (places.given.len() + places.behind.len()) as u64;
            for id in places.given {
                self.rows.entry(id).and_modify(|row| row.state = State::Pending);
            }
            for id in places.behind {
                self.rows.entry(id).and_modify(Row::hold);
            }
            self.keys.entry(name).and_modify(|key| (key.head, key.turns) = (head, places.turns));
        }
        arranged
    }

    /// Whether a limited lane may claim it: it has no key, or its turn has come.
    pub(super) fn has_turn(&self, id: MessageId, now: i64) -> bool {
        let Some(name) = self.rows.get(&id).and_then(Row::key_name) else { return true };
        self.keys.get(&name).is_some_and(|key| key.as_limited(now).may_start(&id))
    }

    /// Whether a dead message is in the way of its key.
    pub(super) fn blocks(&self, id: MessageId) -> bool {
        let Some(row) = self.rows.get(&id).filter(|row| row.state == State::Dead) else { return false };
        row.key_name().and_then(|name| self.keys.get(&name)).is_some_and(|key| key.head == Some(id))
    }

    pub(super) fn skip_key(&mut self, topic: &str, key: &str) -> bool {
        let now = self.now();
        let name = (topic.to_owned(), key.to_owned());
        let blocked = self.keys.get(&name).is_some_and(|key| self.is_blocked(key));
        if blocked {
            self.keys.entry(name).and_modify(|key| (key.head, key.free_at) = (None, key.free_at.max(now)));
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
        let rested = key.free_at > now;
        key.free_at = key.free_at.min(now);
        let head = key.head;
        let waiting = |row: &&mut Row| row.state == State::Pending && row.available_at > now;
        let Some(row) = head.and_then(|head| self.rows.get_mut(&head)).filter(waiting) else { return rested };
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
        let rests = key.free_at > now && row.is_none_or(|row| row.state != State::Dead);
        let state = match (key.head, row) {
            _ if rests => KeyState::Paused,
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
            reason: match rests {
                true => key.cause.map(str::to_owned),
                false => row.and_then(|row| row.reason.clone()),
            },
            error: row.and_then(|row| row.last_error.clone()),
            due_in_ms: match rests {
                true => Some((key.free_at - now) as u64),
                false => later.map(|row| (row.available_at - now) as u64),
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

    pub(super) fn spaced(&self) -> Vec<SpacedTopic> {
        let now = self.now();
        let is_spaced =
            |key: &Key| key.head.is_none() && key.free_at > now && key.cause == Some(RestCause::Rate.as_str());
        let has_due = |name: &KeyName| {
            self.rows
                .values()
                .any(|row| row.waits() && row.available_at <= now && row.key_name().as_ref() == Some(name))
        };
        let mut first: BTreeMap<&str, i64> = BTreeMap::new();
        for (name, key) in self.keys.iter().filter(|(name, key)| is_spaced(key) && has_due(name)) {
            if !self.paused.contains(&name.0) {
                let until = first.entry(&name.0).or_insert(key.free_at);
                *until = key.free_at.min(*until);
            }
        }
        let wait = |until: i64| Duration::from_millis((until - now).max(0) as u64);
        first.into_iter().map(|(topic, until)| SpacedTopic { topic: topic.into(), wait: wait(until) }).collect()
    }

    pub(super) fn resting_keys(&self, topic: &str, now: i64) -> u64 {
        let is_sick = |key: &Key| key.cause.is_some_and(|cause| cause != RestCause::Rate.as_str());
        let rests = |key: &Key| key.free_at > now && is_sick(key) && !self.is_blocked(key);
        self.keys.iter().filter(|(name, key)| name.0 == topic && rests(key)).count() as u64
    }

    pub(super) fn blocked_keys(&self, topic: &str) -> u64 {
        self.keys.iter().filter(|(name, key)| name.0 == topic && self.is_blocked(key)).count() as u64
    }
}
