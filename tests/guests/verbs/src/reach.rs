//! Everything that reaches, or tries to reach, out of the sandbox.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::Mutex;

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

/// Connects to "address", or else to "or" if there is one, as often as "times" says, each time while the ones before are open. Over each it sends "send", or so
/// many bytes, and reads until "read" bytes have come. Answers with what was read, or with what went wrong and how often it
/// went well before.
pub fn tcp(order: &Order) -> Failure {
    let mut open = vec![];
    for well in 0..order.number("times", 1) {
        match talk(order) {
            Ok(connection) => open.push(connection),
            Err(error) => return Failure::Cancel(format!("{well} times, then {error}")),
        }
    }
    let read: Vec<&str> = open.iter().map(|(_, read)| read.as_str()).collect();
    Failure::Cancel(format!("read {}", read.join(" ")))
}

fn talk(order: &Order) -> std::io::Result<(TcpStream, String)> {
    let mut connection =
        TcpStream::connect(order.text("address", "")).or_else(|error| match order.0["or"].as_str() {
            Some(other) => TcpStream::connect(other),
            None => Err(error),
        })?;
    let sent = match order.optional_number("send") {
        Some(bytes) => "x".repeat(usize::try_from(bytes).unwrap_or_default()),
        None => order.text("send", "").to_owned(),
    };
    connection.write_all(sent.as_bytes())?;
    let mut read = vec![];
    (&mut connection).take(order.number("read", 0)).read_to_end(&mut read)?;
    Ok((connection, String::from_utf8_lossy(&read).into_owned()))
}

/// Looks "address" up as often as "times" says, and answers with how often that went well.
pub fn look_up(order: &Order) -> Failure {
    for well in 0..order.number("times", 1) {
        if let Err(error) = order.text("address", "").to_socket_addrs() {
            return Failure::Cancel(format!("{well} times, then {error}"));
        }
    }
    Failure::Cancel("every time".into())
}

/// Keeps one connection from message to message, and answers with what came over it this time.
pub fn tcp_kept(order: &Order) -> Failure {
    static KEPT: Mutex<Option<TcpStream>> = Mutex::new(None);
    let answer = || -> std::io::Result<String> {
        let mut kept = KEPT.lock().unwrap();
        let connection = match &mut *kept {
            Some(connection) => connection,
            none => none.insert(TcpStream::connect(order.text("address", ""))?),
        };
        connection.write_all(order.text("send", "").as_bytes())?;
        let mut read = vec![0; usize::try_from(order.number("read", 0)).unwrap_or_default()];
        connection.read_exact(&mut read)?;
        Ok(String::from_utf8_lossy(&read).into_owned())
    };
    Failure::Cancel(answer().map_or_else(|error| format!("failed: {error}"), |read| format!("read {read}")))
}

/// Waits for a visitor at "address".
pub fn listen(order: &Order) -> Failure {
    match TcpListener::bind(order.text("address", "")) {
        Ok(_) => Failure::Cancel("it listens".into()),
        Err(error) => Failure::Cancel(format!("refused: {error}")),
    }
}
