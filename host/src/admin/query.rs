//! What requests say of messages: which to list, which to change.

use std::collections::BTreeSet;

use outboxd_core::{MessageId, Reason};
use outboxd_store::{KeyFilter, MessageFilter, Selection};
use serde::{Deserialize, Deserializer};
use uuid::Uuid;

use super::error::Problem;

/// Which messages a list shows, as it stands in the URL; `after` is the last id of the page before.
#[derive(Deserialize)]
pub struct ListQuery {
    #[serde(default, deserialize_with = "given")]
    pub state: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub topic: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub reason: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub after: Option<String>,
}

impl ListQuery {
    /// As the store takes it.
    pub fn filter(&self) -> Result<(MessageFilter, Option<MessageId>), Problem> {
        let filter = MessageFilter {
            state: self.state.as_deref().map(str::parse).transpose().map_err(Problem::Asked)?,
            topic: self.topic.clone(),
            reason: self.reason.as_deref().map(parse_reason).transpose()?.map(|reason| reason.as_str().into()),
        };
        Ok((filter, self.after.as_deref().map(parse_id).transpose()?))
    }
}

/// Which keys a list shows, as it stands in the URL.
#[derive(Deserialize)]
pub struct KeysQuery {
    #[serde(default, deserialize_with = "given")]
    pub topic: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub state: Option<String>,
}

impl KeysQuery {
    /// As the store takes it.
    pub fn filter(&self) -> Result<KeyFilter, Problem> {
        let state = self.state.as_deref().map(str::parse).transpose().map_err(Problem::Asked)?;
        Ok(KeyFilter { topic: self.topic.clone(), state })
    }
}

/// A form sends empty text for a field that was left alone.
fn given<'de, D: Deserializer<'de>>(field: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(field)?.filter(|text| !text.is_empty()))
}

/// Which messages to change: ids, or all that match.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActRequest {
    #[serde(default)]
    pub ids: Vec<String>,
    #[serde(default, deserialize_with = "given")]
    pub topic: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub reason: Option<String>,
    /// Said in so many words, since it is every message.
    #[serde(default)]
    pub all: bool,
}

impl ActRequest {
    pub fn selection(self) -> Result<Selection, Problem> {
        match (&self.ids[..], self.all || self.topic.is_some() || self.reason.is_some()) {
            ([], false) => Err(Problem::Asked("say which messages: ids, a topic, a reason, or all".into())),
            ([], true) => {
                let reason = self.reason.as_deref().map(parse_reason).transpose()?;
                Ok(Selection::Matching { topic: self.topic, reason })
            }
            (ids, false) => {
                let ids = ids.iter().map(|id| parse_id(id)).collect::<Result<BTreeSet<_>, _>>()?;
                Ok(Selection::Ids(ids.into_iter().collect()))
            }
            (_, true) => Err(Problem::Asked("say ids or a filter, not both".into())),
        }
    }
}

pub fn parse_id(text: &str) -> Result<MessageId, Problem> {
    text.parse::<Uuid>().map(MessageId).map_err(|_| Problem::Asked(format!("{text:?} is no message id")))
}

fn parse_reason(text: &str) -> Result<Reason, Problem> {
    text.parse().map_err(Problem::Asked)
}
