use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::{
    Attempt, Claim, HISTORY_ENTRIES_MAX, Held, LAPSED_ERROR, Lane, LeaseStatus, Message, MessageId, Order, Payload,
    Reason, Settlement, State, planted,
};

use super::keys::Told;
use super::{MemoryStore, Row};
use crate::change::Change;
use crate::outbox::{Hold, Kinds, keys_max, kinds, window};
use crate::row::{lets_go_on, milliseconds};
use crate::{DueTopic, OutboxStore, StoreError, Wake};

#[async_trait]
impl OutboxStore for MemoryStore {
    async fn due_topics(&self) -> Result<Vec<DueTopic>, StoreError> {
        let table = self.table();
        let now = table.now();
        let mut oldest: BTreeMap<&str, i64> = BTreeMap::new();
        for row in table.rows.values().filter(|row| table.due(row, now)) {
            let due = oldest.entry(&row.topic).or_insert(row.available_at);
            *due = row.available_at.min(*due);
        }
        let free: Vec<_> = table.free_keys(now).filter(|(_, name)| !table.paused.contains(&name.0)).collect();
        for (free_at, (topic, _)) in &free {
            let due = oldest.entry(topic).or_insert(*free_at);
            *due = (*free_at).min(*due);
        }
        let mut topics: Vec<_> = oldest.into_iter().collect();
        topics.sort_by_key(|&(topic, due)| (due, topic));
        let waited = |due: i64| Duration::from_millis((now - due).max(0) as u64);
        Ok(topics.into_iter().map(|(topic, due)| DueTopic { topic: topic.into(), oldest_due: waited(due) }).collect())
    }

    async fn arrange(&self, lanes: &[Lane], hold: Hold) -> Result<u64, StoreError> {
        let Kinds { ordered, limited, .. } = kinds(lanes);
        let topics: Vec<&str> = ordered.iter().map(|lane| lane.topic.as_str()).collect();
        let mut table = self.table();
        let arranged = table.arrange(&topics, window(&ordered) as usize, keys_max(&ordered) as usize, hold);
        Ok(arranged + table.arrange_limited(&limited, window(&limited) as usize, keys_max(&limited) as usize))
    }

    async fn claim(&self, lanes: &[Lane], lease: Duration, lapses_max: u32) -> Result<Vec<Claim>, StoreError> {
        let mut table = self.table();
        let now = table.now();
        let mut claims = Vec::new();
        for lane in lanes {
            let mut due: Vec<(i64, MessageId)> = table
                .rows
                .iter()
                .filter(|(_, row)| row.topic == lane.topic && table.due(row, now))
                .filter(|(id, _)| match lane.order {
                    Order::None => true,
                    Order::ByKey { .. } => table.is_at_head(**id),
                    Order::Limited { .. } => table.has_turn(**id, now),
                })
                .filter(|(_, row)| row.lapses.saturating_add(u32::from(row.state == State::Processing)) <= lapses_max)
                .map(|(id, row)| (row.available_at, *id))
                .collect();
            due.sort_unstable();
            for (_, id) in due.into_iter().take(lane.slots as usize) {
                let lease_id = table.next_lease();
                let key_failures = if lane.order == Order::None { 0 } else { table.key_failures(id) };
                let Some(row) = table.rows.get_mut(&id) else { continue };
                row.attempts = row.attempts.saturating_add(1);
                let lapsed = row.state == State::Processing;
                if lapsed {
                    row.lapses = row.lapses.saturating_add(planted!(15, 2, 1));
                    row.reason = Some(Reason::Lapsed.as_str().into());
                    row.last_error = Some(LAPSED_ERROR.into());
                }
                row.state = State::Processing;
                row.available_at = now + milliseconds(lease);
                row.lease_id = Some(lease_id);
                let claim = claimed(id, row, now, self.payload_max);
                claims.push(Claim { lapsed, order: lane.order, key_failures, ..claim });
            }
        }
        claims.sort_by_key(|claim| claim.message.id);
        Ok(claims)
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<LeaseStatus>, StoreError> {
        let mut table = self.table();
        let end = table.now() + milliseconds(lease);
        Ok(held
            .iter()
            .map(|held| match table.held(held.id, held.lease_id) {
                Some(row) => {
                    row.available_at = end;
                    LeaseStatus::Held
                }
                None => LeaseStatus::Lost,
            })
            .collect())
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let changes = Change::settles(settlements, self.on_delivered)?;
        let statuses = self.apply(settlements, changes, |row| row.lapses = planted!(14, row.lapses, 0));
        if lets_go_on(settlements) {
            self.signal.raise();
        }
        Ok(statuses)
    }

    async fn release(&self, released: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        let changes = Change::releases(released)?;
        Ok(self.apply(released, changes, |row| row.attempts = row.attempts.saturating_sub(planted!(17, 0, 1))))
    }

    async fn wait_for_work(&self, at_most: Duration) -> Wake {
        self.signal.wait(at_most).await
    }
}

impl MemoryStore {
    /// Writes each change whose lease is still held; answers in the order of `asked`.
    fn apply(&self, asked: &[Settlement], changes: Vec<Change>, also: impl Fn(&mut Row)) -> Vec<LeaseStatus> {
        let mut table = self.table();
        let now = table.now();
        let (mut held, mut told, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        for change in changes {
            let row = planted!(1..=4, table.held_by_a_wrong_fence(&change), table.held(change.id, change.lease_id));
            if row.is_none() {
                continue;
            }
            held.push((change.id, change.lease_id));
            if let Some(name) = table.key_of_turn(change.id).filter(|_| change.tells_key()) {
                let Change { id, frees_key: frees, in_order, rest_ms, cause, key_failures: failures, .. } = change;
                told.push((name, Told { id, frees, in_order, rest_ms, cause, failures }));
            }
            changed.push(change);
        }
        table.tell_keys(told);
        for change in changed {
            let Some(state) = State::parse(change.state) else {
                table.rows.remove(&change.id);
                continue;
            };
            let Some(row) = table.rows.get_mut(&change.id) else { continue };
            row.state = state;
            if state == State::Pending {
                row.available_at = now + change.after_ms;
            }
            row.lease_id = None;
            row.reason = change.reason.map(str::to_string);
            row.last_error = change.error;
            row.delivered_at = (state == State::Delivered).then_some(now);
            row.dead_at = (state == State::Dead).then_some(now);
            if row.history.len() >= HISTORY_ENTRIES_MAX {
                row.history.remove(0);
            }
            row.history.push(change.entry.at(now));
            also(row);
        }
        asked
            .iter()
            .map(|one| if held.contains(&(one.id, one.lease_id)) { LeaseStatus::Held } else { LeaseStatus::Lost })
            .collect()
    }
}

fn claimed(id: MessageId, row: &Row, now: i64, payload_max: u64) -> Claim {
    let bytes = row.payload.len() as u64;
    Claim {
        message: Message {
            id,
            topic: row.topic.clone(),
            key: row.key.clone(),
            payload: if bytes > payload_max {
                Payload::TooLarge { bytes }
            } else {
                Payload::Bytes(row.payload.clone())
            },
            headers: row.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            created_at_ms: row.created_at.max(0) as u64,
        },
        lease_id: row.lease_id.unwrap_or(outboxd_core::LeaseId(uuid::Uuid::nil())),
        attempt: Attempt(row.attempts),
        lapses: row.lapses,
        lapsed: false,
        order: Order::None,
        key_failures: 0,
        expired: row.expires_at.is_some_and(|expires_at| expires_at <= now),
    }
}
