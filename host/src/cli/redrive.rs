//! `outboxd redrive`: dead letters go round again, spread over time.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use outboxd_core::MessageId;
use outboxd_store::Selection;

use super::args::{Global, RedriveArgs};
use super::output;
use super::progress::Progress;
use super::settings::{WrongSettings, connect, parsed};
use crate::bulk::{self, Change};

pub async fn redrive(global: &Global, args: RedriveArgs) -> anyhow::Result<()> {
    let selection = selection(&args)?;
    let store = connect(global).await?;
    let spacing = Duration::try_from_secs_f64(1.0 / args.rate).unwrap_or(Duration::MAX);
    let progress = Progress::new("redriving");
    let change = Change::Redrive { spacing };
    let done = bulk::change(&*store.admin, change, &selection, u64::MAX, &|count| progress.at(count)).await?;
    drop(progress);
    output::line(said(done.changed, spacing));
    if let Selection::Ids(ids) = selection
        && done.changed < ids.len() as u64
    {
        bail!("{} of {} are no dead letters and were left as they are", ids.len() as u64 - done.changed, ids.len());
    }
    Ok(())
}

fn said(total: u64, spacing: Duration) -> String {
    let spread = || output::span(u64::try_from(bulk::times(spacing, total).as_millis()).unwrap_or(u64::MAX));
    match total {
        0 => "no dead letter matches".into(),
        1 => "1 dead letter goes round again".into(),
        _ => format!("{total} dead letters go round again, spread over {}", spread()),
    }
}

fn selection(args: &RedriveArgs) -> anyhow::Result<Selection> {
    if !args.ids.is_empty() {
        let ids: BTreeSet<MessageId> = args.ids.iter().copied().map(MessageId).collect();
        return Ok(Selection::Ids(ids.into_iter().collect()));
    }
    if args.topic.is_none() && args.reason.is_none() && !args.all {
        return Err(WrongSettings::one("say which dead letters: ids, --topic, --reason or --all"));
    }
    let reason = args.reason.as_deref().map(parsed).transpose()?;
    Ok(Selection::Matching { topic: args.topic.clone(), reason })
}
