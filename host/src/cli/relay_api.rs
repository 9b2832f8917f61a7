//! What a running relay tells of itself, asked at its admin address.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// One small GET of our own API.
pub async fn get(
    address: SocketAddr,
    path: &str,
    token: Option<&SecretString>,
    patience: Duration,
) -> anyhow::Result<Value> {
    timeout(patience, ask(address, path, token))
        .await
        .with_context(|| format!("the relay at {address} did not answer within {} s", patience.as_secs()))?
}

async fn ask(address: SocketAddr, path: &str, token: Option<&SecretString>) -> anyhow::Result<Value> {
    let mut stream = TcpStream::connect(address)
        .await
        .map_err(|error| anyhow!("no relay answers at {address} ({error}); is `outboxd run` under way?"))?;
    let authorization = token.map(|token| format!("Authorization: Bearer {}\r\n", token.expose_secret()));
    let authorization = authorization.unwrap_or_default();
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
