//! What a person may do to messages and topics, the same from the page and from the API.

use std::sync::Arc;
use std::time::Duration;

use outboxd_store::{Changed, Selection, TopicStats};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Admin;
use super::error::Problem;
use crate::bulk::{self, Change, Done};
use crate::metrics::Snapshot;

/// Messages that one request changes, at most. The answer says whether more may match.
const MESSAGES_MAX: u64 = 10_000;

/// Between two redriven messages: 100 a second.
const SPACING: Duration = Duration::from_millis(10);

/// What is done to messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    Redrive,
    RetryNow,
    Discard,
}

/// What is done to a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopicAction {
    Pause,
    Resume,
}

/// What is done to a key of a topic that is ordered or limited by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyAction {
    Skip,
    ResumeKey,
}

/// Carries `action` out.
pub async fn act(admin: &Admin, action: Action, selection: Selection) -> Result<Done, Problem> {
    let change = match action {
        Action::Redrive => Change::Redrive { spacing: SPACING },
        Action::RetryNow => Change::RetryNow,
        Action::Discard => Change::Discard,
    };
    Ok(bulk::change(&*admin.store, change, &selection, MESSAGES_MAX, &|_| {}).await?)
}

/// Carries `action` out.
pub async fn act_on_key(admin: &Admin, action: KeyAction, topic: &str, key: &str) -> Result<Done, Problem> {
    if topic.is_empty() {
        return Err(Problem::Asked("say which topic".into()));
    }
    let changed = match action {
        KeyAction::Skip => admin.store.skip_key(topic, key).await?,
        KeyAction::ResumeKey => admin.store.resume_key(topic, key).await?,
    };
    Ok(Done { changed: u64::from(changed == Changed::Yes), more: false })
}

/// Carries `action` out. The numbers in memory are put right at once, since people look there next.
pub async fn act_on_topic(admin: &Admin, action: TopicAction, topic: &str) -> Result<Done, Problem> {
    if topic.is_empty() {
        return Err(Problem::Asked("say which topic".into()));
    }
    let changed = match action {
        TopicAction::Pause => admin.store.pause(topic).await?,
        TopicAction::Resume => admin.store.resume(topic).await?,
    };
    let paused = action == TopicAction::Pause;
    admin.snapshot.rcu(|last| {
        let mut snapshot = Snapshot { changed_at: Some(Instant::now()), ..Snapshot::clone(last) };
        match snapshot.topics.iter_mut().find(|stats| stats.topic == topic) {
            Some(stats) => stats.paused = paused,
            None if paused => snapshot.topics.push(TopicStats { topic: topic.into(), paused, ..TopicStats::default() }),
            None => {}
        }
        Arc::new(snapshot)
    });
    Ok(Done { changed: u64::from(changed == Changed::Yes), more: false })
}
