//! `outboxd messages`: list, show, discard, retry now.

use std::collections::BTreeSet;

use anyhow::bail;
use outboxd_core::{MessageId, Reason, State};
use outboxd_store::{MessageFilter, MessageSummary, Selection};
use uuid::Uuid;

use super::args::{Global, MessagesCommand};
use super::settings::{connect, parsed};
use super::{message_texts, output};

pub async fn messages(global: &Global, command: MessagesCommand) -> anyhow::Result<()> {
    match command {
        MessagesCommand::List { state, topic, reason, limit, after, json } => {
            let state = state.as_deref().map(parsed::<State>).transpose()?;
            let reason = reason.as_deref().map(parsed::<Reason>).transpose()?.map(|reason| reason.as_str().to_owned());
            let filter = MessageFilter { state, topic, reason };
            let messages = connect(global).await?.admin.list(&filter, after.map(MessageId), limit).await?;
            if json {
                return output::json(&messages);
            }
            if messages.is_empty() {
                output::line("no messages");
                return Ok(());
            }
            let head = ["id", "topic", "key", "state", "attempts", "published", "reason", "error"];
            output::line(output::table(&head, &messages.iter().map(row).collect::<Vec<_>>()));
        }
        MessagesCommand::Show { id, json } => {
            let Some(message) = connect(global).await?.admin.show(MessageId(id)).await? else {
                bail!("there is no message {id}");
            };
            if json {
                return output::json(&message);
            }
            output::line(message_texts::story(&message));
        }
        MessagesCommand::Discard { ids } => {
            let ids = message_ids(&ids);
            let asked = ids.len();
            let count = connect(global).await?.admin.discard(&Selection::Ids(ids), u32::MAX).await?;
            report(count, asked, "discarded", "only live messages can be")?;
        }
        MessagesCommand::RetryNow { ids } => {
            let ids = message_ids(&ids);
            let asked = ids.len();
            let count = connect(global).await?.admin.retry_now(&Selection::Ids(ids), u32::MAX).await?;
            report(count, asked, "due now", "only pending messages can be")?;
        }
    }
    Ok(())
}

fn report(count: u64, asked: usize, done: &str, why_not: &str) -> anyhow::Result<()> {
    output::line(format!("{done}: {count} of {asked}"));
    if count < asked as u64 {
        bail!("left as they are: {} of {asked}; {why_not}", asked as u64 - count);
    }
    Ok(())
}

/// Each once, whoever wrote one twice.
fn message_ids(ids: &[Uuid]) -> Vec<MessageId> {
    ids.iter().copied().map(MessageId).collect::<BTreeSet<_>>().into_iter().collect()
}

fn row(message: &MessageSummary) -> Vec<String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    vec![
        message.id.clone(),
        message.topic.clone(),
        text(&message.key),
        message.state.clone(),
        message.attempts.to_string(),
        output::relative(message.created_at_ms),
        text(&message.reason),
        text(&message.last_error),
    ]
}
