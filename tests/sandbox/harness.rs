//! One call of one guest, with the host's own API.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use outboxd::handler::{CallControl, Handled};
use outboxd::plugin::{Ceiling, Content, Manifest, OnePlugin, SandboxOptions, Secrets};
use outboxd_core::{Attempt, Blame, Claim, LeaseId, Message, MessageId, Order, Outcome, Payload, Reason, RetryPolicy};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::guest;

/// The value of the secret `API_KEY`. Every secret of these tests has `canary-` in it.
pub(crate) const SECRET: &str = "canary-0123456789-value";

/// The ceiling of tests: loopback may be granted.
pub(crate) fn ceiling() -> Ceiling {
    Ceiling { private_networks: vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()], ..Ceiling::default() }
}

pub(crate) fn manifest(text: &str) -> Manifest {
    Manifest::parse("guest.toml", text, "guest", &ceiling(), &RetryPolicy::default())
        .unwrap_or_else(|errors| panic!("{errors:?}"))
}

pub(crate) fn options() -> SandboxOptions {
    let secrets = [("API_KEY", SECRET), ("OTHER", "canary-other-9876543210")];
    SandboxOptions {
        slots: 8,
        secrets: secrets.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect::<Secrets>(),
        ..SandboxOptions::default()
    }
}

/// Loads a guest's text under a manifest.
pub(crate) async fn load(text: &str, manifest_text: &str) -> Result<OnePlugin, String> {
    load_with(options(), text, manifest_text).await
}

pub(crate) async fn load_with(options: SandboxOptions, text: &str, manifest_text: &str) -> Result<OnePlugin, String> {
    let content = Content::new(guest::build(text).into(), Some(manifest_text.into()));
    OnePlugin::load(options, Some(cache()), "guest", content, manifest(manifest_text)).await
}

/// Compiled guests, kept for the length of the test run.
pub(crate) fn cache() -> &'static std::path::Path {
    static CACHE: OnceLock<tempfile::TempDir> = OnceLock::new();
    CACHE.get_or_init(|| tempfile::tempdir().expect("a temporary folder")).path()
}

pub(crate) fn claim(payload: &str) -> Claim {
    let message = Message {
        id: MessageId(Uuid::now_v7()),
        topic: "guest".into(),
        key: None,
        payload: Payload::Bytes(payload.as_bytes().to_vec()),
        headers: vec![("traceparent".into(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into())],
        created_at_ms: 1_700_000_000_000,
    };
    Claim {
        message,
        lease_id: LeaseId(Uuid::new_v4()),
        attempt: Attempt(1),
        lapses: 0,
        lapsed: false,
        expired: false,
        order: Order::None,
        key_failures: 0,
    }
}

pub(crate) async fn call(plugin: &OnePlugin, payload: &str) -> Handled {
    let control = CallControl { stop: CancellationToken::new() };
    plugin.handler.handle(&claim(payload), control).await
}

/// What a call came to, in one word: `success`, or the reason.
pub(crate) fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::Retry { .. } => Reason::Retry.as_str(),
        Outcome::Cancel { .. } => Reason::Cancelled.as_str(),
        Outcome::Fault { reason, .. } | Outcome::Refused { reason, .. } => reason.as_str(),
    }
}

pub(crate) fn error(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Success => "",
        Outcome::Retry { error, .. }
        | Outcome::Cancel { error }
        | Outcome::Fault { error, .. }
        | Outcome::Refused { error, .. } => error,
    }
}

pub(crate) fn blame(outcome: &Outcome) -> Option<Blame> {
    match outcome {
        Outcome::Fault { blame, .. } => Some(*blame),
        _ => None,
    }
}

/// Loads and calls in one go, and says how long the call took.
pub(crate) async fn run(text: &str, manifest_text: &str) -> (Outcome, Duration) {
    let plugin = load(text, manifest_text).await.unwrap_or_else(|error| panic!("{error}"));
    let started = Instant::now();
    let handled = call(&plugin, "{}").await;
    (handled.outcome, started.elapsed())
}

/// Everything that this process logs, at TRACE: how many lines, which of them hold a secret, and which a test's mark.
#[derive(Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Logged>>);

#[derive(Default)]
struct Logged {
    lines: usize,
    secret: Vec<String>,
    marked: Vec<String>,
}

impl Logs {
    pub(crate) fn lines(&self) -> usize {
        self.0.lock().unwrap().lines
    }

    /// The lines with `mark-` in them.
    pub(crate) fn marked(&self) -> Vec<String> {
        self.0.lock().unwrap().marked.clone()
    }

    pub(crate) fn hits(&self) -> Vec<String> {
        self.0.lock().unwrap().secret.clone()
    }
}

impl std::io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut logs = self.0.lock().unwrap();
        logs.lines += 1;
        let text = String::from_utf8_lossy(bytes);
        if text.contains("mark-") {
            logs.marked.push(text.to_string());
        }
        if text.contains("canary-") {
            logs.secret.push(text.into_owned());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Watches the logs of the whole process from the first call on.
pub(crate) fn watch_logs() -> Logs {
    static LOGS: OnceLock<Logs> = OnceLock::new();
    let watch = || {
        let logs = Logs::default();
        let writer = logs.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("no other subscriber in this process");
        logs
    };
    LOGS.get_or_init(watch).clone()
}
