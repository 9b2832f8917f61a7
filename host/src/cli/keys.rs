//! `outboxd keys`: the keys of topics that are ordered or limited by key, and letting one go on.

use anyhow::bail;
use outboxd_store::{Changed, KEY_DEPTH_MAX, KeyFilter, KeyState, KeySummary};

use super::args::{Global, KeysArgs, KeysCommand};
use super::output;
use super::settings::{connect, parsed};

pub async fn keys(global: &Global, args: KeysArgs) -> anyhow::Result<()> {
    match args.command {
        Some(KeysCommand::Skip { topic, key }) => {
            let changed = connect(global).await?.admin.skip_key(&topic, &key).await?;
            return report(changed, &topic, &key, "goes on; the dead letter stays one", "is not blocked");
        }
        Some(KeysCommand::Resume { topic, key }) => {
            let changed = connect(global).await?.admin.resume_key(&topic, &key).await?;
            return report(changed, &topic, &key, "goes on", "is neither paused nor waiting");
        }
        None => {}
    }
    let state = args.state.as_deref().map(parsed::<KeyState>).transpose()?;
    let filter = KeyFilter { topic: args.topic, state };
    let keys = connect(global).await?.admin.keys(&filter, args.limit).await?;
    if args.json {
        return output::json(&keys);
    }
    if keys.is_empty() {
        output::line("no keys");
        return Ok(());
    }
    let head = ["topic", "key", "state", "since", "due in", "behind", "message", "reason", "error"];
    output::line(output::table(&head, &keys.iter().map(row).collect::<Vec<_>>()));
    Ok(())
}

fn report(changed: Changed, topic: &str, key: &str, done: &str, not: &str) -> anyhow::Result<()> {
    match changed {
        Changed::Yes => output::line(format!("key {key:?} of topic {topic:?} {done}")),
        Changed::No => bail!("key {key:?} of topic {topic:?} {not}"),
    }
    Ok(())
}

fn row(key: &KeySummary) -> Vec<String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    vec![
        key.topic.clone(),
        key.key.clone(),
        key.state.clone(),
        output::relative(key.since_ms),
        key.due_in_ms.map(output::span).unwrap_or_default(),
        depth(key.depth),
        text(&key.head),
        text(&key.reason),
        text(&key.error),
    ]
}

/// Counting ends somewhere.
fn depth(depth: u64) -> String {
    if depth < KEY_DEPTH_MAX { depth.to_string() } else { format!("{KEY_DEPTH_MAX} or more") }
}
