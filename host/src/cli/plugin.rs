//! `outboxd plugin`: what a running relay serves, and whether a file would be accepted.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::args::{Global, PluginCommand};
use super::output;
use super::settings::{self, WrongSettings};
use crate::config::{Overrides, Purpose};
use crate::plugin::{Manifest, OnePlugin, SandboxOptions};

/// How long a relay may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn plugin(global: &Global, command: PluginCommand) -> anyhow::Result<()> {
    match command {
        PluginCommand::List { admin, json } => list(global, admin, json).await,
        PluginCommand::Check { file, json } => check(global, &file, json).await,
    }
}

async fn list(global: &Global, admin: Option<String>, json: bool) -> anyhow::Result<()> {
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

/// What `plugin check` found.
#[derive(Serialize)]
struct Checked {
    file: String,
    bytes: usize,
    digest: String,
    topics: Vec<String>,
    hosts: Vec<String>,
    private_networks: Vec<String>,
    secrets: Vec<String>,
    memory_bytes: u64,
    load_ms: u128,
}

async fn check(global: &Global, file: &Path, json: bool) -> anyhow::Result<()> {
    let config = settings::load_plain(global)?;
    let Some(stem) = file.file_stem().and_then(|stem| stem.to_str()) else { bail!("{file:?} is no plugin's name") };
    let component = std::fs::read(file).with_context(|| format!("cannot read {file:?}"))?;
    let bytes = component.len();
    let beside = file.with_extension("toml");
    let text = match std::fs::read_to_string(&beside) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => bail!("cannot read {beside:?}: {error}"),
    };
    let manifest = Manifest::parse(&beside.display().to_string(), &text, stem, &config.ceiling, &config.retry)
        .map_err(WrongSettings)?;
    let options = SandboxOptions { slots: 1, ..settings::plugin_options(&config, vec![]).sandbox };
    let started = std::time::Instant::now();
    let one = OnePlugin::load(options, None, stem, component, manifest)
        .await
        .map_err(|error| anyhow!("{file:?} would not be accepted: {error}"))?;
    let manifest = &one.manifest;
    let checked = Checked {
        file: file.display().to_string(),
        bytes,
        digest: one.digest.clone(),
        topics: manifest.topics.iter().map(ToString::to_string).collect(),
        hosts: manifest.grants.hosts.iter().map(ToString::to_string).collect(),
        private_networks: manifest.grants.private_networks.iter().map(ToString::to_string).collect(),
        secrets: manifest.grants.secrets.keys().cloned().collect(),
        memory_bytes: manifest.limits.memory,
        load_ms: started.elapsed().as_millis(),
    };
    if json {
        return output::json(&checked);
    }
    let or_nothing = |list: &[String]| if list.is_empty() { "nothing".to_owned() } else { list.join(" ") };
    output::line(format!("{} would be accepted", checked.file));
    output::line(format!("handles   {}", or_nothing(&checked.topics)));
    output::line(format!("reaches   {}", or_nothing(&checked.hosts)));
    output::line(format!("secrets   {}", or_nothing(&checked.secrets)));
    output::line(format!("memory    {} MiB a call at most", checked.memory_bytes >> 20));
    output::line(format!("size      {} bytes, compiled and tried out in {} ms", checked.bytes, checked.load_ms));
    output::line(format!("digest    {}", checked.digest));
    Ok(())
}
