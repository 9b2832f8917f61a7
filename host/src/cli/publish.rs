//! `outboxd publish`: for trying, and for operators.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use outboxd_client::{NewMessage, PublishError};

use super::args::{Global, PublishArgs};
use super::{output, settings};

pub async fn publish(global: &Global, args: PublishArgs) -> anyhow::Result<()> {
    let config = settings::load_plain(global)?;
    settings::store_options(&config)?;
    let payloads = payloads(&args)?;
    let messages: Vec<NewMessage> = payloads.into_iter().map(|payload| message(&args, payload)).collect();
    let published = outboxd_client::standalone::publish(&config.database, &config.table, config.payload_max, messages);
    let published = published.await.map_err(without_table)?;
    if args.json {
        return output::json(&published);
    }
    for message in published {
        output::line(message.id);
    }
    Ok(())
}

/// The database's own words for a missing file or table tell a newcomer nothing.
fn without_table(error: PublishError) -> anyhow::Error {
    let text = error.to_string();
    if ["unable to open database file", "no such table", "does not exist"].iter().any(|words| text.contains(words)) {
        return anyhow!("the outbox is not there yet; create it by `outboxd migrate` ({text})");
    }
    error.into()
}

fn message(args: &PublishArgs, payload: String) -> NewMessage {
    let mut message = NewMessage::from_json(&args.topic, payload);
    if let Some(key) = &args.key {
        message = message.key(key);
    }
    for (name, value) in &args.headers {
        message = message.header(name, value);
    }
    if let Some(dedup_key) = &args.dedup_key {
        message = message.dedup_key(dedup_key);
    }
    if let Some(delay) = args.delay {
        message = message.delay(delay);
    }
    if let Some(expires) = args.expires {
        message = message.expires(expires);
    }
    message
}

fn payloads(args: &PublishArgs) -> anyhow::Result<Vec<String>> {
    if args.lines {
        let text = read(Path::new("-"))?;
        let lines: Vec<_> = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()).collect();
        for (line, number) in &lines {
            serde_json::from_str::<serde::de::IgnoredAny>(line)
                .with_context(|| format!("line {number} is not JSON; nothing is published"))?;
        }
        return Ok(lines.into_iter().map(|(line, _)| line.to_owned()).collect());
    }
    match (&args.payload, &args.file) {
        (Some(payload), _) => Ok(vec![payload.clone()]),
        (None, Some(file)) => Ok(vec![read(file)?]),
        (None, None) => {
            Err(settings::WrongSettings::one("say what to publish: --payload JSON, --file FILE or --lines"))
        }
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read {path:?}"))
}
