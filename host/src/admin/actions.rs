//! What a person may do to messages and topics, the same from the page and from the API.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outboxd_core::{MessageId, Reason, State};
use outboxd_store::{Changed, MessageFilter, Selection, StoreError, TopicStats};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Admin;
use super::error::Problem;
use crate::metrics::Snapshot;

/// Messages that one request changes, at most. The answer says whether more may match.
pub const MESSAGES_MAX: u64 = 10_000;

/// Rows in one statement, at most.
const BATCH: u32 = 500;

/// Between two redriven messages, so that a target that has just recovered isn't overrun: 100 a second.
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

/// Which messages: these, or all that match.
#[derive(Debug)]
pub enum Which {
    Ids(Vec<MessageId>),
    Matching { topic: Option<String>, reason: Option<Reason> },
}

/// What an action came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Done {
    pub changed: u64,
    /// It stopped at [`MESSAGES_MAX`]: more may match.
    pub more: bool,
}

impl Which {
    /// From what a request says: ids, or a filter, or `all` of them said in so many words.
    pub fn asked(ids: &[String], topic: Option<String>, reason: Option<String>, all: bool) -> Result<Which, Problem> {
        let (topic, reason) = (given(topic), given(reason));
        match (ids, all || topic.is_some() || reason.is_some()) {
            ([], false) => Err(Problem::Asked("say which messages: ids, a topic, a reason, or all".into())),
            ([], true) => {
                let reason = reason.as_deref().map(parse_reason).transpose()?;
                Ok(Which::Matching { topic, reason })
            }
            (ids, false) => Ok(Which::Ids(
                ids.iter().map(|id| parse_id(id)).collect::<Result<BTreeSet<_>, _>>()?.into_iter().collect(),
            )),
            (_, true) => Err(Problem::Asked("say ids or a filter, not both".into())),
        }
    }
}

/// Carries `action` out.
pub async fn act(admin: &Admin, action: Action, which: Which) -> Result<Done, Problem> {
    match (action, which) {
        (Action::Redrive, Which::Ids(ids)) => redrive(admin, Selection::Ids(ids)).await,
        (Action::Redrive, Which::Matching { topic, reason }) => {
            redrive(admin, Selection::Matching { topic, reason }).await
        }
        (Action::RetryNow, Which::Ids(ids)) => all_of(admin.store.retry_now(&ids).await?),
        (Action::Discard, Which::Ids(ids)) => all_of(admin.store.discard(&ids).await?),
        (Action::RetryNow, Which::Matching { topic, reason }) => {
            each_pending(admin, topic, reason, |ids| async move { admin.store.retry_now(&ids).await }).await
        }
        (Action::Discard, Which::Matching { topic, reason }) => {
            each_pending(admin, topic, reason, |ids| async move { admin.store.discard(&ids).await }).await
        }
    }
}

fn all_of(changed: u64) -> Result<Done, Problem> {
    Ok(Done { changed, more: false })
}

async fn redrive(admin: &Admin, selection: Selection) -> Result<Done, Problem> {
    let mut changed = 0;
    while changed < MESSAGES_MAX {
        let first_after = SPACING * u32::try_from(changed).unwrap_or(u32::MAX);
        let batch = admin.store.redrive(&selection, BATCH, first_after, SPACING).await?;
        changed += batch;
        if batch < u64::from(BATCH) {
            return all_of(changed);
        }
    }
    Ok(Done { changed, more: true })
}

/// Changes pending messages that match, page by page. What is being processed just now is left to its attempt.
async fn each_pending<F>(
    admin: &Admin,
    topic: Option<String>,
    reason: Option<Reason>,
    change: impl Fn(Vec<MessageId>) -> F,
) -> Result<Done, Problem>
where
    F: Future<Output = Result<u64, StoreError>>,
{
    let reason = reason.map(|reason| reason.as_str().to_owned());
    let filter = MessageFilter { state: Some(State::Pending), topic, reason };
    let (mut after, mut seen, mut changed) = (None, 0, 0);
    while seen < MESSAGES_MAX {
        let page = admin.store.list(&filter, after, BATCH).await?;
        let ids = page.iter().map(|message| parse_id(&message.id)).collect::<Result<Vec<_>, _>>()?;
        let is_last = ids.len() < BATCH as usize;
        seen += ids.len() as u64;
        after = ids.last().copied();
        changed += change(ids).await?;
        if is_last {
            return all_of(changed);
        }
    }
    Ok(Done { changed, more: true })
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
        let mut topics = last.topics.clone();
        match topics.iter_mut().find(|stats| stats.topic == topic) {
            Some(stats) => stats.paused = paused,
            None if paused => topics.push(TopicStats { topic: topic.into(), paused, ..TopicStats::default() }),
            None => {}
        }
        Arc::new(Snapshot { at: last.at, topics })
    });
    all_of(u64::from(changed == Changed::Yes))
}

pub fn parse_id(text: &str) -> Result<MessageId, Problem> {
    text.parse::<Uuid>().map(MessageId).map_err(|_| Problem::Asked(format!("{text:?} is no message id")))
}

pub fn parse_state(text: &str) -> Result<State, Problem> {
    State::parse(text).ok_or_else(|| {
        Problem::Asked(format!("state {text:?} is not one of {}", State::ALL.map(State::as_str).join(", ")))
    })
}

pub fn parse_reason(text: &str) -> Result<Reason, Problem> {
    Reason::ALL.iter().copied().find(|reason| reason.as_str() == text).ok_or_else(|| {
        let known: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        Problem::Asked(format!("reason {text:?} is not one of {}", known.join(", ")))
    })
}

/// A form sends empty text for a field that was left alone.
pub fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}
