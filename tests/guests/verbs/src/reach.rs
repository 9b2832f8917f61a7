//! Everything that reaches, or tries to reach, out of the sandbox.

use std::net::TcpStream;

use serde_json::json;

use super::outboxd::plugin::http::{Request, send};
use super::{Failure, Message, Order, retry};

/// POSTs the message's id; anything but a 2xx is tried again.
pub fn post_id(message: &Message, url: &str) -> Result<(), Failure> {
    let headers = vec![("x-attempt".into(), message.attempt.to_string())];
    let body = message.id.clone().into_bytes();
    match send(&Request { method: "POST".into(), url: url.into(), headers, body, timeout_ms: None }) {
        Ok(response) if (200..300).contains(&response.status) => Ok(()),
        Ok(response) => Err(retry(&format!("answered {}", response.status), None)),
        Err(error) => Err(retry(&format!("{error:?}"), None)),
    }
}

/// GETs again and again; the first refusal ends the message, with how many were allowed.
pub fn many(url: &str, count: u64) -> Result<(), Failure> {
    for sent in 0..count {
        let request =
            Request { method: "GET".into(), url: url.into(), headers: vec![], body: vec![], timeout_ms: None };
        if let Err(error) = send(&request) {
            return Err(Failure::Cancel(format!("{sent} allowed, then {error:?}")));
        }
    }
    Ok(())
}

/// Sends what the order says ("method", "url", "headers", "body", "ms") and answers with what came back, as JSON.
pub fn echo(order: &Order) -> Failure {
    let headers = order.0["headers"].as_object().into_iter().flatten();
    let headers = headers.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().into())).collect();
    let request = Request {
        method: order.text("method", "GET").into(),
        url: order.text("url", "").into(),
        headers,
        body: order.text("body", "").into(),
        timeout_ms: order.optional_number("ms"),
    };
    let seen = match send(&request) {
        Ok(response) => json!({
            "status": response.status,
            "headers": response.headers.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "body": String::from_utf8_lossy(&response.body),
        }),
        Err(error) => json!({ "error": format!("{error:?}") }),
    };
    Failure::Cancel(seen.to_string())
}

pub fn file(path: &str) -> Failure {
    match std::fs::read(path) {
        Ok(bytes) => Failure::Cancel(format!("read {} bytes", bytes.len())),
        Err(error) => Failure::Cancel(format!("refused: {error}")),
    }
}

pub fn socket(address: &str) -> Failure {
    match TcpStream::connect(address) {
        Ok(_) => Failure::Cancel("connected".into()),
        Err(error) => Failure::Cancel(format!("refused: {error}")),
    }
}
