//! The glue: settings in, one request out, the verdict handed to the host.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::answer::{Answer, Verdict, verdict};
use crate::settings::Settings;
use crate::signature::{signed_content, v1, v1a};
use crate::template::Fields;

wit_bindgen::generate!({ path: "../../wit/v1", world: "plugin", generate_all });

use exports::outboxd::plugin::handler::{Failure, Guest, Message};
use outboxd::plugin::context;
use outboxd::plugin::http::{HttpError, Request, send};
use outboxd::plugin::messages::Retry;
use outboxd::plugin::secrets::{SignError, ed25519, hmac_sha256};
use wasi::config::store;

/// How long the other messages of a key rest when the target asked for patience without a `Retry-After`. Milliseconds.
const REST_MS: u64 = 5_000;

struct Webhook;

export!(Webhook);

impl Guest for Webhook {
    fn handle(message: Message) -> Result<(), Failure> {
        let entries = store::get_all().map_err(|error| later(format!("settings cannot be read: {error:?}")))?;
        // Wrong settings are the operator's to correct, and no reason to lose a message.
        let settings = Settings::parse(entries).map_err(later)?;
        let now = SystemTime::now();

        let request = Request {
            method: "POST".into(),
            url: settings.url.url(&fields(&message)).map_err(Failure::Cancel)?,
            headers: headers(&message, &settings, now)?,
            body: message.payload,
            timeout_ms: settings.timeout_ms,
        };
        let response = send(&request).map_err(|error| later(no_answer(error)))?;

        let answer = Answer { status: response.status, headers: &response.headers, body: &response.body };
        match verdict(&answer, settings.on_4xx, now) {
            Verdict::Delivered => Ok(()),
            Verdict::Retry { reason, after_ms } => Err(Failure::Retry(Retry { reason, after_ms })),
            Verdict::Throttled { reason, after_ms } => {
                context::pause_key(after_ms.unwrap_or(REST_MS));
                Err(Failure::Retry(Retry { reason, after_ms }))
            }
            Verdict::Cancel(reason) => Err(Failure::Cancel(reason)),
        }
    }
}

fn fields(message: &Message) -> Fields<'_> {
    Fields { id: &message.id, topic: &message.topic, key: message.key.as_deref(), headers: &message.headers }
}

fn headers(message: &Message, settings: &Settings, now: SystemTime) -> Result<Vec<(String, String)>, Failure> {
    let timestamp = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let header = |name: &str, value: String| (name.to_string(), value);
    let mut headers = vec![
        header("content-type", "application/json".into()),
        header("user-agent", concat!("outboxd-webhook/", env!("CARGO_PKG_VERSION")).into()),
        header("idempotency-key", context::idempotency_key()),
        header("webhook-id", message.id.clone()),
        header("webhook-timestamp", timestamp.to_string()),
    ];
    if !settings.secrets.is_empty() {
        let content = signed_content(&message.id, timestamp, &message.payload);
        let signatures: Result<Vec<String>, Failure> =
            settings.secrets.iter().map(|secret| signature(secret, &content)).collect();
        headers.push(header("webhook-signature", signatures?.join(" ")));
    }
    headers.extend(context::traceparent().map(|parent| header("traceparent", parent)));
    for (name, value) in &settings.headers {
        let value = value.header(&fields(message)).map_err(Failure::Cancel)?;
        headers.retain(|(known, _)| known != name);
        headers.push((name.clone(), value));
    }
    Ok(headers)
}

/// One signature: the secret itself says of which kind, a private key is written `whsk_…`.
fn signature(secret: &str, content: &[u8]) -> Result<String, Failure> {
    let signed = match hmac_sha256(secret, content) {
        Err(SignError::WrongKind) => ed25519(secret, content).map(|signature| v1a(&signature)),
        mac => mac.map(|mac| v1(&mac)),
    };
    signed.map_err(|error| later(not_signed(secret, error)))
}

fn later(reason: String) -> Failure {
    Failure::Retry(Retry { reason, after_ms: None })
}

fn not_signed(secret: &str, error: SignError) -> String {
    match error {
        SignError::Unavailable => {
            format!(
                "no secret {secret:?}: set it in [secrets] of outboxd.toml and grant it in [grants.secrets] of the manifest"
            )
        }
        SignError::WrongKind => format!("secret {secret:?} is no key: whsec_… and whsk_… are followed by base64"),
    }
}

fn no_answer(error: HttpError) -> String {
    match error {
        HttpError::Denied(what) => format!("denied: {what}"),
        HttpError::Dns => "no answer: the host's name could not be resolved".into(),
        HttpError::Connect => "no answer: connection refused or unreachable".into(),
        HttpError::Tls => "no answer: the TLS handshake failed".into(),
        HttpError::Timeout => "no answer in time".into(),
        HttpError::TooLarge => "the answer was too large".into(),
        HttpError::Protocol(what) => format!("no usable answer: {what}"),
    }
}
