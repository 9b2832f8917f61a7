//! The glue: settings in, one request out, the verdict handed to the host.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::answer::{Answer, Verdict, verdict};
use crate::settings::Settings;
use crate::signature::{signature_header, signed_content};

wit_bindgen::generate!({ path: "../../wit/v1", world: "plugin", generate_all });

use exports::outboxd::plugin::handler::{Failure, Guest, Message};
use outboxd::plugin::context;
use outboxd::plugin::http::{HttpError, Request, send};
use outboxd::plugin::messages::Retry;
use outboxd::plugin::secrets::{SignError, hmac_sha256};
use wasi::config::store;

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
            url: settings.url.clone(),
            headers: headers(&message, &settings, now)?,
            body: message.payload,
            timeout_ms: settings.timeout_ms,
        };
        let response = send(&request).map_err(|error| later(no_answer(error)))?;

        let answer = Answer { status: response.status, headers: &response.headers, body: &response.body };
        match verdict(&answer, settings.on_4xx, now) {
            Verdict::Delivered => Ok(()),
            Verdict::Retry { reason, after_ms } => Err(Failure::Retry(Retry { reason, after_ms })),
            Verdict::Cancel(reason) => Err(Failure::Cancel(reason)),
        }
    }
}

fn headers(message: &Message, settings: &Settings, now: SystemTime) -> Result<Vec<(String, String)>, Failure> {
    let timestamp = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut headers = vec![
        ("content-type".to_string(), "application/json".to_string()),
        ("user-agent".to_string(), concat!("outboxd-webhook/", env!("CARGO_PKG_VERSION")).to_string()),
        ("webhook-id".to_string(), message.id.clone()),
        ("webhook-timestamp".to_string(), timestamp.to_string()),
    ];
    if let Some(secret) = &settings.secret {
        let content = signed_content(&message.id, timestamp, &message.payload);
        let mac = hmac_sha256(secret, &content).map_err(|error| later(not_signed(secret, error)))?;
        headers.push(("webhook-signature".to_string(), signature_header(&mac)));
    }
    headers.extend(context::traceparent().map(|parent| ("traceparent".to_string(), parent)));
    for (name, value) in &settings.headers {
        headers.retain(|(known, _)| known != name);
        headers.push((name.clone(), value.clone()));
    }
    Ok(headers)
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
        SignError::WrongKind => format!("secret {secret:?} is no key for HMAC-SHA-256"),
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
