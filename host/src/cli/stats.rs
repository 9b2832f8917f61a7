//! `outboxd stats`: each topic's numbers.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use outboxd_core::TopicPattern;
use outboxd_store::TopicStats;
use serde::Serialize;
use tracing::warn;

use super::args::{Global, StatsArgs};
use super::message_texts::whole_name;
use super::{output, relay_api, settings};
use crate::config::{Config, Overrides, Purpose};
use crate::toml_reader::Reader;

/// How long a relay may take to tell what it has parked. Without it the numbers are as good.
const PATIENCE: Duration = Duration::from_secs(2);

/// A topic's numbers, whether this host's plugins folder routes it, and whether its relay lets it wait.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    stats: TopicStats,
    /// No plugin in the folder handles it: its messages wait and spend no attempt.
    unrouted: bool,
    /// Its plugin is unhealthy on the relay at the admin address. Nothing where no relay of this outbox answers there.
    parked: Option<bool>,
}

pub async fn stats(global: &Global, args: StatsArgs) -> anyhow::Result<()> {
    let asked = args.admin.clone().filter(|admin| admin != "off");
    let overrides = Overrides { plugins: args.plugins, admin: args.admin, ..Overrides::default() };
    let config = settings::load(global, overrides, Purpose::Outbox)?;
    let store = settings::connect(global).await?;
    let routed = routed_topics(&config.plugins);
    let stats = store.admin.stats().await?;
    let parked = parked_topics(&config).await;
    // Only where it was asked for by name: most who look at the numbers have no relay on their host.
    if let (Some(admin), None) = (asked, &parked) {
        warn!("what is parked is not known: at {admin} no relay of this outbox answers, or it refuses the admin_token");
    }
    let rows: Vec<Row> = stats.into_iter().map(|stats| row(stats, &routed, parked.as_ref())).collect();
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

/// What the relay at the admin address has parked; nothing where none answers, or one of another outbox.
async fn parked_topics(config: &Config) -> Option<HashSet<String>> {
    let ask = async |path| relay_api::get(config.admin?, path, config.admin_token.as_ref(), PATIENCE).await.ok();
    let relay = ask("/api/relay").await?;
    if relay["database"] != whole_name(&config.database) || relay["table"] != config.table {
        return None;
    }
    let topics = ask("/api/stats").await?;
    let parked = topics.as_array()?.iter().filter(|topic| topic["parked"] == true);
    Some(parked.filter_map(|topic| topic["topic"].as_str().map(str::to_owned)).collect())
}

fn row(stats: TopicStats, routed: &[TopicPattern], parked: Option<&HashSet<String>>) -> Row {
    let unrouted = !routed.iter().any(|pattern| pattern.matches(&stats.topic));
    let parked = parked.map(|parked| parked.contains(&stats.topic));
    Row { stats, unrouted, parked }
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
    if stats.resting_keys > 0 {
        notes.push(format!("keys whose target rests: {}", stats.resting_keys));
    }
    if row.parked == Some(true) {
        notes.push("parked: its plugin is unhealthy".to_owned());
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
