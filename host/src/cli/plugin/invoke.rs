use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;
use outboxd_core::{Attempt, Claim, LeaseId, Message, MessageId, Order, Outcome, Payload, one_line};
use serde_json::json;
use uuid::Uuid;

use super::args::InvokeArgs;
use crate::cli::args::Global;
use crate::cli::output;
use crate::cli::settings::{self, WrongSettings};
use crate::plugin::{Exchange, Invoked};

/// Hands one message to a component. Its requests really go out; what it logs goes to stderr.
pub async fn invoke(global: &Global, args: InvokeArgs) -> anyhow::Result<()> {
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&args.payload) {
        return Err(WrongSettings::one(format!("--payload is not JSON: {error}")));
    }
    let config = settings::load_plain(global)?;
    let one = super::load(&config, &args.file, args.allow.clone()).await?;
    let stem = args.file.file_stem().unwrap_or_default().to_string_lossy();
    let topic = args.topic.clone().unwrap_or_else(|| one.manifest.default_topic(&stem).to_owned());
    let claim = claim(&args, topic);
    let invoked = one.invoke(&claim).await.map_err(anyhow::Error::msg)?;
    let (word, error, after) = said(&invoked.outcome);
    if args.json {
        output::json(&json!({
            "outcome": word,
            "error": error,
            "after_ms": after.map(|after| after.as_millis() as u64),
            "requests": invoked.requests,
            "response_excerpt": invoked.response_excerpt,
            "cpu_us": invoked.cpu.as_micros() as u64,
            "memory_bytes": invoked.memory_bytes,
        }))?;
    } else {
        print(&invoked, word, error, after);
    }
    if word == "success" { Ok(()) } else { bail!("the message was not delivered") }
}

fn print(invoked: &Invoked, word: &str, error: Option<&str>, after: Option<std::time::Duration>) {
    let error = error.map(|error| format!(": {}", one_line(error, 2000))).unwrap_or_default();
    let after = after.map(|after| format!(", again after {}", humantime::format_duration(after))).unwrap_or_default();
    output::line(format!("outcome   {word}{error}{after}"));
    for Exchange { method, url, answer, ms } in &invoked.requests {
        let (method, url) = (one_line(method, 20), one_line(url, 500));
        output::line(format!("request   {method} {url} -> {} in {ms} ms", one_line(answer, 200)));
    }
    if let Some(excerpt) = &invoked.response_excerpt {
        output::line(format!("answer    {}", one_line(excerpt, 500)));
    }
    output::line(format!("cpu       {:.2} ms", invoked.cpu.as_secs_f64() * 1000.0));
    output::line(format!("memory    {:.1} MiB", invoked.memory_bytes as f64 / f64::from(1 << 20)));
}

fn said(outcome: &Outcome) -> (&'static str, Option<&str>, Option<std::time::Duration>) {
    match outcome {
        Outcome::Success => ("success", None, None),
        Outcome::Retry { error, after } => ("retry", Some(error), *after),
        Outcome::Cancel { error } => ("cancel", Some(error), None),
        Outcome::Fault { error, .. } | Outcome::Refused { error, .. } => ("fault", Some(error), None),
    }
}

fn claim(args: &InvokeArgs, topic: String) -> Claim {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Claim {
        message: Message {
            id: MessageId(Uuid::now_v7()),
            topic,
            key: args.key.clone(),
            payload: Payload::Bytes(args.payload.clone().into_bytes()),
            headers: by_name(&args.headers),
            created_at_ms: now.as_millis() as u64,
        },
        lease_id: LeaseId(Uuid::new_v4()),
        attempt: Attempt(args.attempt.max(1)),
        lapses: 0,
        lapsed: false,
        order: Order::None,
        key_failures: 0,
        expired: false,
    }
}

fn by_name(headers: &[(String, String)]) -> Vec<(String, String)> {
    let mut headers = headers.to_vec();
    headers.sort();
    headers
}
