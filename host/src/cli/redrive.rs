//! `outboxd redrive`: dead letters go round again, spread over time.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::bail;
use outboxd_core::{MessageId, Reason};
use outboxd_store::Selection;
use uuid::Uuid;

use super::args::{Global, RedriveArgs};
use super::output;
use super::settings::{WrongSettings, connect};

/// Rows in one statement, at most.
const BATCH: u32 = 1000;

pub async fn redrive(global: &Global, args: RedriveArgs) -> anyhow::Result<()> {
    let selection = selection(&args)?;
    let asked: HashSet<Uuid> = args.ids.iter().copied().collect();
    let store = connect(global).await?;
    let spacing = Duration::try_from_secs_f64(1.0 / args.rate).unwrap_or(Duration::MAX);
    let dead: u64 = store.admin.stats().await?.iter().map(|topic| topic.dead).sum();
    let mut total = 0;
    // What dies again meanwhile is not sent round once more.
    while total < dead {
        let redriven = store.admin.redrive(&selection, BATCH, times(spacing, total), spacing).await?;
        total += redriven;
        if redriven < u64::from(BATCH) {
            break;
        }
    }
    output::line(said(total, spacing));
    if total < asked.len() as u64 {
        bail!("{} of {} are no dead letters and were left as they are", asked.len() as u64 - total, asked.len());
    }
    Ok(())
}

fn said(total: u64, spacing: Duration) -> String {
    let spread = || output::span(u64::try_from(times(spacing, total).as_millis()).unwrap_or(u64::MAX));
    match total {
        0 => "no dead letter matches".into(),
        1 => "1 dead letter goes round again".into(),
        _ => format!("{total} dead letters go round again, spread over {}", spread()),
    }
}

fn times(spacing: Duration, count: u64) -> Duration {
    spacing.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

fn selection(args: &RedriveArgs) -> anyhow::Result<Selection> {
    if !args.ids.is_empty() {
        return Ok(Selection::Ids(args.ids.iter().copied().map(MessageId).collect()));
    }
    if args.topic.is_none() && args.reason.is_none() && !args.all {
        return Err(WrongSettings::one("say which dead letters: ids, --topic, --reason or --all"));
    }
    let reason = args.reason.as_deref().map(parse_reason).transpose()?;
    Ok(Selection::Matching { topic: args.topic.clone(), reason })
}

pub(super) fn parse_reason(text: &str) -> anyhow::Result<Reason> {
    Reason::ALL.iter().copied().find(|reason| reason.as_str() == text).ok_or_else(|| {
        let known: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        WrongSettings::one(format!("reason {text:?} is not one of {}", known.join(", ")))
    })
}
