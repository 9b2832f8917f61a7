//! `outboxd stats`: each topic's numbers.

use std::path::Path;

use outboxd_core::TopicPattern;
use outboxd_store::TopicStats;
use serde::Serialize;

use super::args::{Global, StatsArgs};
use super::{output, settings};
use crate::config::{Overrides, Purpose};
use crate::toml_reader::Reader;

/// A topic's numbers, and whether this host's plugins folder routes it.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    stats: TopicStats,
    /// No plugin in the folder handles it: its messages wait and spend no attempt.
    unrouted: bool,
}

pub async fn stats(global: &Global, args: StatsArgs) -> anyhow::Result<()> {
    let overrides = Overrides { plugins: args.plugins, ..Overrides::default() };
    let config = settings::load(global, overrides, Purpose::Outbox)?;
    let store = settings::connect(global).await?;
    let routed = routed_topics(&config.plugins);
    let rows: Vec<Row> = store.admin.stats().await?.into_iter().map(|stats| row(stats, &routed)).collect();
    if args.json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        output::line("no messages");
        return Ok(());
    }
    let head = ["topic", "pending", "processing", "held", "delivered", "dead", "oldest due", "note"];
    output::line(output::table(&head, &rows.iter().map(cells).collect::<Vec<_>>()));
    Ok(())
}

/// The topics that the plugins in `folder` say they handle; whether each would be accepted is the relay's to say.
fn routed_topics(folder: &Path) -> Vec<TopicPattern> {
    let Ok(entries) = std::fs::read_dir(folder) else { return vec![] };
    let components = entries.filter_map(|entry| Some(entry.ok()?.path()));
    components
        .filter(|path| path.extension().is_some_and(|extension| extension == "wasm"))
        .flat_map(|path| topics_of(&path))
        .collect()
}

fn topics_of(component: &Path) -> Vec<TopicPattern> {
    let Some(stem) = component.file_stem().and_then(|stem| stem.to_str()) else { return vec![] };
    let manifest = std::fs::read_to_string(component.with_extension("toml")).unwrap_or_default();
    let written = Reader::parse(stem, &manifest).ok().and_then(|reader| reader.strings("topics"));
    let topics = written.unwrap_or_else(|| vec![stem.to_owned()]);
    topics.iter().filter_map(|topic| TopicPattern::parse(topic).ok()).collect()
}

fn row(stats: TopicStats, routed: &[TopicPattern]) -> Row {
    let unrouted = !routed.iter().any(|pattern| pattern.matches(&stats.topic));
    Row { stats, unrouted }
}

fn cells(row: &Row) -> Vec<String> {
    let stats = &row.stats;
    let mut notes = Vec::new();
    if stats.paused {
        notes.push("paused".to_owned());
    }
    if stats.blocked_keys > 0 {
        notes.push(format!("keys blocked by a dead letter: {}", stats.blocked_keys));
    }
    if row.unrouted && stats.live() > 0 {
        notes.push("unrouted: no plugin handles it".to_owned());
    }
    if let Some(error) = stats.last_error.as_ref().filter(|_| stats.live() + stats.dead > 0) {
        notes.push(error.clone());
    }
    let counts = [stats.pending, stats.processing, stats.held, stats.delivered, stats.dead];
    let oldest = stats.oldest_due_ms.map(output::span).unwrap_or_default();
    let counts = counts.iter().map(u64::to_string);
    std::iter::once(stats.topic.clone()).chain(counts).chain([oldest, notes.join("; ")]).collect()
}
