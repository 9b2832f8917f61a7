use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::cli::args::Global;
use crate::cli::output;
use crate::cli::settings::{self, WrongSettings};
use crate::config::{Overrides, Purpose};

/// How long a relay may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn list(global: &Global, admin: Option<String>, json: bool) -> anyhow::Result<()> {
    use secrecy::ExposeSecret as _;

    let config = settings::load(global, Overrides { admin, ..Overrides::default() }, Purpose::Outbox)?;
    let Some(address) = config.admin else {
        return Err(WrongSettings::one("the relay's admin address is \"off\"; give the one to ask by --admin"));
    };
    let token = config.admin_token.as_ref().map(|token| token.expose_secret().to_owned());
    let plugins = tokio::time::timeout(PATIENCE, get(address, "/api/plugins", token.as_deref()))
        .await
        .with_context(|| format!("the relay at {address} did not answer within {} s", PATIENCE.as_secs()))??;
    if json {
        return output::json(&plugins);
    }
    let rows: Vec<Vec<String>> = plugins.as_array().into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        output::line("no plugins");
        return Ok(());
    }
    let head = ["name", "state", "topics", "reaches", "digest", "calls", "faults", "error"];
    output::line(output::table(&head, &rows));
    Ok(())
}

fn row(plugin: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| {
        let items = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        items.collect::<Vec<_>>().join(" ")
    };
    let error = if plugin["error"].is_string() { &plugin["error"] } else { &plugin["last_error"] };
    vec![
        text(&plugin["name"]),
        text(&plugin["state"]),
        list(&plugin["topics"]),
        list(&plugin["hosts"]),
        text(&plugin["digest"]).chars().take(12).collect(),
        plugin["calls"].to_string(),
        plugin["faults"].to_string(),
        text(error),
    ]
}

/// One small GET of our own API.
async fn get(address: SocketAddr, path: &str, token: Option<&str>) -> anyhow::Result<Value> {
    let mut stream = TcpStream::connect(address)
        .await
        .map_err(|error| anyhow!("no relay answers at {address} ({error}); is `outboxd run` under way?"))?;
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(64 << 20).read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the relay's answer is no HTTP")?;
    if !head.lines().next().is_some_and(|status| status.contains(" 200")) {
        bail!("the relay at {address} answered: {}", body.trim());
    }
    serde_json::from_str(body).context("the relay's answer is no JSON")
}
