use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use outboxd_core::{Attempt, Claim, LeaseId, Message, MessageId, Order, Outcome, Payload, one_line, safe_text};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::egress::{AnswerBody, EgressError, RequestBody};

/// A golden message: what comes in, what the targets answer, and what must come of it. One file of `NAME.tests/*.json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Golden {
    #[serde(default)]
    message: GoldenMessage,
    /// The answers to the plugin's requests, in their order. A request beyond them finds no connection.
    #[serde(default)]
    replies: Vec<Reply>,
    expect: Expected,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GoldenMessage {
    /// A UUID.
    id: Option<String>,
    topic: Option<String>,
    key: Option<String>,
    payload: Value,
    headers: BTreeMap<String, String>,
    attempt: Option<u32>,
    created_at_ms: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Reply {
    status: Option<u16>,
    headers: BTreeMap<String, String>,
    /// Text, or JSON that is sent as text.
    body: Value,
    /// Instead of an answer: `dns`, `connect`, `tls` or `timeout`.
    error: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// `success`, `retry`, `cancel` or `fault`.
    outcome: String,
    /// Stands somewhere in the error text.
    error: Option<String>,
    /// The wait that the plugin wishes for.
    after_ms: Option<u64>,
    /// All requests, in their order.
    requests: Option<Vec<ExpectedRequest>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedRequest {
    method: String,
    url: String,
    /// These must be there; others may. Secrets stand as their placeholders.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Text is compared as it is, anything else as JSON.
    body: Option<Value>,
}

/// What a plugin sent during a golden message.
#[derive(Clone, Debug)]
struct Sent {
    method: String,
    url: String,
    headers: BTreeMap<String, String>,
    body: Bytes,
}

/// Targets that answer as a golden message says.
pub(crate) struct Script {
    replies: Mutex<VecDeque<Reply>>,
    sent: Mutex<Vec<Sent>>,
}

impl Script {
    pub(crate) async fn answer(&self, request: Request<RequestBody>) -> Result<Response<AnswerBody>, EgressError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).push(Sent {
            method: head.method.to_string(),
            url: head.uri.to_string(),
            headers: head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            body,
        });
        let reply = self.replies.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let nowhere = || EgressError::Connect("the golden message has no reply left".into());
        reply.ok_or_else(nowhere)?.to_response()
    }
}

impl Reply {
    fn to_response(&self) -> Result<Response<AnswerBody>, EgressError> {
        match self.error.as_deref() {
            None => {}
            Some("dns") => return Err(EgressError::Dns("as the golden message says".into())),
            Some("tls") => return Err(EgressError::Tls("as the golden message says".into())),
            Some("timeout") => return Err(EgressError::FirstByteTimeout),
            Some(_) => return Err(EgressError::Connect("as the golden message says".into())),
        }
        let body = Full::new(Bytes::from(text_of(&self.body))).map_err(|never| match never {}).boxed_unsync();
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(self.status.unwrap_or(200)).unwrap_or(StatusCode::OK);
        for (name, value) in &self.headers {
            let name = name.parse::<HeaderName>().ok().zip(HeaderValue::from_str(value).ok());
            let Some((name, value)) = name else {
                return Err(EgressError::Protocol("a header of the golden message's reply is none".into()));
            };
            response.headers_mut().append(name, value);
        }
        Ok(response)
    }
}

impl Golden {
    /// Reads a golden message; the text says what is wrong with it.
    pub fn parse(text: &str) -> Result<Golden, String> {
        let golden: Golden = serde_json::from_str(text).map_err(|error| {
            // It names fields, whatever they hold.
            format!("it is no golden message: {}", one_line(&error.to_string(), 300))
        })?;
        if let Some(id) = golden.message.id.as_ref().filter(|id| Uuid::parse_str(id).is_err()) {
            return Err(format!("message.id {id:?} is no UUID"));
        }
        for reply in &golden.replies {
            if let Some(status) = reply.status.filter(|status| !(200..=599).contains(status)) {
                return Err(format!("a reply's status {status} is none from 200 to 599"));
            }
            if let Some(error) =
                reply.error.as_deref().filter(|error| !["dns", "connect", "tls", "timeout"].contains(error))
            {
                return Err(format!(
                    "a reply's error {error:?} is not one of \"dns\", \"connect\", \"tls\", \"timeout\""
                ));
            }
        }
        match golden.expect.outcome.as_str() {
            "success" | "retry" | "cancel" | "fault" => Ok(golden),
            other => {
                Err(format!("expect.outcome {other:?} is not one of \"success\", \"retry\", \"cancel\", \"fault\""))
            }
        }
    }

    pub(crate) fn script(&self) -> Script {
        Script { replies: Mutex::new(self.replies.clone().into()), sent: Mutex::default() }
    }

    pub(crate) fn claim(&self, default_topic: &str) -> Claim {
        let GoldenMessage { id, topic, key, payload, headers, attempt, created_at_ms } = self.message.clone();
        let message = Message {
            // Anything else was refused by `parse`.
            id: MessageId(id.and_then(|id| Uuid::parse_str(&id).ok()).unwrap_or(Uuid::nil())),
            topic: topic.unwrap_or_else(|| default_topic.into()),
            key,
            payload: Payload::Bytes(payload.to_string().into_bytes()),
            headers: headers.into_iter().collect(),
            created_at_ms,
        };
        Claim {
            message,
            lease_id: LeaseId(Uuid::nil()),
            attempt: Attempt(attempt.unwrap_or(1)),
            lapses: 0,
            lapsed: false,
            order: Order::None,
            key_failures: 0,
            expired: false,
        }
    }

    /// Compares what came with what was expected.
    pub(crate) fn judge(&self, outcome: &Outcome, script: &Script) -> Result<(), String> {
        let (came, error, after) = match outcome {
            Outcome::Success => ("success", "", None),
            Outcome::Retry { error, after } => ("retry", error.as_str(), *after),
            Outcome::Cancel { error } => ("cancel", error.as_str(), None),
            Outcome::Fault { error, .. } | Outcome::Refused { error, .. } => ("fault", error.as_str(), None),
        };
        let expect = &self.expect;
        if came != expect.outcome {
            return Err(format!("expected {}, came to {came}: {}", expect.outcome, safe_text(error, 500)));
        }
        if let Some(words) = expect.error.as_ref().filter(|words| !error.contains(*words)) {
            return Err(format!("expected {words:?} in the error text {:?}", safe_text(error, 500)));
        }
        let after_ms = after.map(|after| after.as_millis() as u64);
        if expect.after_ms.is_some() && expect.after_ms != after_ms {
            return Err(format!("expected a wait of {:?} ms, came to {after_ms:?}", expect.after_ms));
        }
        let Some(requests) = &expect.requests else { return Ok(()) };
        let sent = script.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.len() != sent.len() {
            return Err(format!("expected {} requests, came to {}", requests.len(), sent.len()));
        }
        requests.iter().zip(sent.iter()).enumerate().try_for_each(|(n, (expected, sent))| {
            expected.judge(sent).map_err(|why| format!("request {}: {why}", n + 1))
        })
    }
}

impl ExpectedRequest {
    fn judge(&self, sent: &Sent) -> Result<(), String> {
        // `https://a` and `https://a/` are one; `https://a/b` and `https://a/b/` are not.
        let plain = |url: &str| url.parse::<http::Uri>().map_or_else(|_| url.into(), |uri| uri.to_string());
        if self.method != sent.method || plain(&self.url) != plain(&sent.url) {
            return Err(format!("expected {} {}, came to {} {}", self.method, self.url, sent.method, sent.url));
        }
        for (name, value) in &self.headers {
            let came = sent.headers.get(&name.to_ascii_lowercase());
            if came != Some(value) {
                return Err(format!("expected header {name}: {value}, came to {came:?}"));
            }
        }
        let same = match &self.body {
            None => true,
            Some(Value::String(text)) => sent.body == text.as_bytes(),
            Some(json) => serde_json::from_slice::<Value>(&sent.body).is_ok_and(|body| body == *json),
        };
        let shown = || safe_text(&String::from_utf8_lossy(&sent.body), 500);
        if same { Ok(()) } else { Err(format!("expected another body than {}", shown())) }
    }
}

/// Text as it is, nothing as nothing, anything else as JSON.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        json => json.to_string(),
    }
}

/// A folder has at most so many golden messages, of so many bytes.
const FILES_MAX: usize = 100;
const FILE_BYTES_MAX: u64 = 2 << 20;

/// The golden messages beside a component, by file name. No folder: none.
pub fn read(component: &Path) -> Result<Vec<(String, Golden)>, String> {
    let dir = component.with_extension("tests");
    // Only what is not there is none: what cannot be read may be what a version fails.
    let unreadable = |error: std::io::Error| format!("its golden messages in {dir:?} cannot be read: {error}");
    let entries = match std::fs::read_dir(&dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(unreadable)?,
    };
    let files: std::io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut files = files.map_err(unreadable)?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    if files.len() > FILES_MAX {
        return Err(format!("{dir:?} has more than {FILES_MAX} golden messages"));
    }
    let read = |path: &std::path::PathBuf| {
        let name = safe_text(&path.file_name().unwrap_or_default().to_string_lossy(), 200);
        let meta = std::fs::metadata(path).map_err(|error| format!("{name}: {error}"))?;
        if !meta.is_file() || meta.len() > FILE_BYTES_MAX {
            return Err(format!("{name}: a golden message is a file of at most 2 MiB"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        Ok((name.clone(), Golden::parse(&text).map_err(|why| format!("{name}: {why}"))?))
    };
    files.iter().map(read).collect()
}
