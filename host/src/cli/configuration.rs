//! `outboxd run --check`: the resolved configuration, every key of it, as a file that means the same. Secrets are not shown.

use std::fmt::Display;
use std::time::Duration;

use super::message_texts::without_password;
use crate::config::{Config, MigrateMode, Notify, Pooler, SqliteSynchronous};
use crate::plugin::egress::RootsBase;
use crate::plugin::{Pooling, Watch};

pub fn configuration(config: &Config) -> String {
    let Config { relay, retry, retention, ceiling, roots, trust, .. } = config;
    let mut lines = vec![
        format!("database = {}", quoted(without_password(&config.database))),
        format!("table = {}", quoted(&config.table)),
        format!("plugins = {}", quoted(config.plugins.display())),
        format!("admin = {}", quoted(config.admin.map_or("off".into(), |address| address.to_string()))),
        format!("# admin_token: {}", if config.admin_token.is_some() { "set" } else { "none" }),
        format!("migrate = {}", quoted(if config.migrate == MigrateMode::Auto { "auto" } else { "off" })),
        format!("pooler = {}", quoted(if config.pooler == Pooler::None { "none" } else { "transaction" })),
    ];
    if let Some(url) = &config.listen_database {
        lines.push(format!("listen_database = {}", quoted(without_password(url))));
    }
    if let Some(collector) = &config.traces {
        lines.push(format!("traces = {}", quoted(collector)));
    }
    let pooling = match config.pooling {
        Pooling::Auto => "auto",
        Pooling::On => "on",
        Pooling::Off => "off",
    };
    let watch = match config.watch {
        Watch::Auto => "auto",
        Watch::Poll => "poll",
        Watch::Off => "off",
    };
    let synchronous = match config.sqlite_synchronous {
        SqliteSynchronous::Full => "full",
        SqliteSynchronous::Normal => "normal",
    };
    lines.extend([
        format!("sqlite_synchronous = {}", quoted(synchronous)),
        format!("payload_max = \"{}B\"", config.payload_max),
        format!("watch = {}", quoted(watch)),
        format!("pooling = {}", quoted(pooling)),
        String::new(),
        "[relay]".into(),
        format!("concurrency = {}", relay.concurrency),
        format!("poll_interval = {}", time(relay.poll_interval)),
        format!("lease = {}", time(relay.lease)),
        format!("grace = {}", time(relay.grace)),
        format!("notify = {}", config.notify == Notify::On),
        format!("max_lapses = {}", relay.max_lapses),
        format!("# statement timeout: {}", time(config.statement_timeout())),
        String::new(),
        "[retry]".into(),
        format!("max_attempts = {}", retry.max_attempts),
        format!("base = {}", time(retry.backoff.base)),
        format!("max = {}", time(retry.backoff.max)),
        format!("jitter = {:?}", retry.backoff.jitter),
        String::new(),
        "[retention]".into(),
        format!("delivered = {}", retention.delivered.map_or_else(|| quoted("never"), time)),
        format!("dead = {}", retention.dead.map_or_else(|| quoted("never"), time)),
        String::new(),
        "[sandbox]".into(),
        format!("hosts = {}", list(&ceiling.hosts)),
        format!("private_networks = {}", list(&ceiling.private_networks)),
        format!("tcp = {}", list(&ceiling.tcp)),
        format!("memory = \"{}B\"", ceiling.memory),
        format!("cpu = {}", time(ceiling.cpu)),
        format!("deadline = {}", time(ceiling.deadline)),
        format!("tls_roots = {}", quoted(if roots.base == RootsBase::Webpki { "webpki" } else { "native" })),
        format!("extra_ca = {}", list(roots.extra_ca.iter().map(|path| path.display()))),
    ]);
    lines.extend([String::new(), "[trust]".into(), format!("require_pins = {}", trust.require_pins)]);
    lines.extend(trust.minisign_key.iter().map(|key| format!("minisign_key = {}", quoted(key))));
    if !trust.pins.is_empty() {
        lines.extend([String::new(), "[trust.pins]".into()]);
        lines.extend(trust.pins.iter().map(|(name, digests)| format!("{} = {}", quoted(name), list(digests))));
    }
    for name in config.secrets.names() {
        lines.push(format!("# secret {}: set", quoted(name)));
    }
    lines.join("\n")
}

fn time(time: Duration) -> String {
    quoted(humantime::format_duration(time))
}

fn list(items: impl IntoIterator<Item = impl Display>) -> String {
    format!("[{}]", items.into_iter().map(quoted).collect::<Vec<_>>().join(", "))
}

fn quoted(text: impl Display) -> String {
    toml::Value::String(text.to_string()).to_string()
}
