//! From flags, environment and file to a configuration, and from there to a store.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use outboxd_store::{OnDelivered, Printed, Store, StoreOptions, TableName};

use super::args::{Global, MigrateArgs};
use super::output;
use crate::config::{self, Config, Environment, Notify, Overrides, Pooler, Purpose, SqliteSynchronous};
use crate::plugin::{Compiler, PluginOptions, SandboxOptions};
use crate::toml_reader::ConfigError;

/// Everything that is wrong with the settings, a line each.
#[derive(Debug)]
pub struct WrongSettings(pub Vec<ConfigError>);

impl WrongSettings {
    /// A mistake that stands in no file.
    pub fn one(message: impl fmt::Display) -> anyhow::Error {
        let error = ConfigError { file: "outboxd".into(), line: 0, key: String::new(), message: message.to_string() };
        WrongSettings(vec![error]).into()
    }
}

impl fmt::Display for WrongSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for WrongSettings {}

/// A word of the command line, as what it names.
pub fn parsed<T: FromStr<Err = String>>(text: &str) -> anyhow::Result<T> {
    text.parse().map_err(WrongSettings::one)
}

/// Reads the configuration. A file that was named must be there; `outboxd.toml` may be absent.
pub fn load(global: &Global, mut overrides: Overrides, purpose: Purpose) -> anyhow::Result<Config> {
    overrides.database = global.database.clone();
    overrides.table = global.table.clone();
    let path = global.config.clone().unwrap_or_else(|| PathBuf::from("outboxd.toml"));
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && global.config.is_none() => None,
        Err(error) => return Err(WrongSettings::one(format!("cannot read {path:?}: {error}"))),
    };
    let file = text.as_deref().map(|text| (path.as_path(), text));
    config::resolve(file, overrides, &Environment::of_process(), purpose).map_err(|errors| WrongSettings(errors).into())
}

/// The configuration of a command that looks at the outbox.
pub fn load_plain(global: &Global) -> anyhow::Result<Config> {
    load(global, Overrides::default(), Purpose::Outbox)
}

pub fn store_options(config: &Config) -> anyhow::Result<StoreOptions> {
    let table = TableName::parse(&config.table).map_err(WrongSettings::one)?;
    if !["sqlite:", "postgres:", "postgresql:"].iter().any(|scheme| config.database.starts_with(scheme)) {
        return Err(WrongSettings::one("the database URL must begin with \"sqlite:\" or \"postgres://\""));
    }
    Ok(StoreOptions {
        url: config.database.clone(),
        table,
        payload_max: config.payload_max,
        on_delivered: match config.retention.delivered {
            Some(Duration::ZERO) => OnDelivered::Delete,
            _ => OnDelivered::Keep,
        },
        notify: match config.notify {
            Notify::On => outboxd_store::Notify::Listen,
            Notify::Off => outboxd_store::Notify::PollOnly,
        },
        pooler: match config.pooler {
            Pooler::None => outboxd_store::Pooler::None,
            Pooler::Transaction => outboxd_store::Pooler::Transaction,
        },
        listen_url: config.listen_database.clone(),
        sqlite_synchronous: match config.sqlite_synchronous {
            SqliteSynchronous::Full => outboxd_store::SqliteSynchronous::Full,
            SqliteSynchronous::Normal => outboxd_store::SqliteSynchronous::Normal,
        },
        statement_timeout: config.statement_timeout(),
        ..StoreOptions::default()
    })
}

/// A store for one command: an answer or an error, no waiting for a database that is away.
pub async fn connect(global: &Global) -> anyhow::Result<Store> {
    let config = load_plain(global)?;
    let options = StoreOptions { notify: outboxd_store::Notify::PollOnly, ..store_options(&config)? };
    Ok(Store::connect(&options).await?)
}

pub async fn migrate(global: &Global, args: MigrateArgs) -> anyhow::Result<()> {
    let config = load_plain(global)?;
    let options = store_options(&config)?;
    if args.print {
        let printed = if args.no_transaction { Printed::Statements } else { Printed::Transaction };
        output::line(outboxd_store::print_migrations(&options, printed)?);
        return Ok(());
    }
    let migrated = outboxd_store::migrate(&options).await.context("cannot migrate")?;
    match (migrated.from, migrated.to) {
        (from, to) if from == to => output::line(format!("table {} is up to date, version {to}", config.table)),
        (from, to) => output::line(format!("table {} is at version {to} now, was at {from}", config.table)),
    }
    Ok(())
}

/// Where compiled plugins are cached: never in the plugins folder.
fn cache_dir() -> PathBuf {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = from("OUTBOXD_CACHE")
        .or_else(|| from("CACHE_DIRECTORY"))
        .or_else(|| from("XDG_CACHE_HOME").map(|dir| dir.join("outboxd")))
        .or_else(|| from("HOME").map(|dir| dir.join(".cache/outboxd")))
        .unwrap_or_else(|| Path::new("/var/cache/outboxd").into());
    dir.join("compiled")
}

/// The sandbox of the configuration. `refused_addresses` stay out of every plugin's reach: our own listeners, the database.
pub fn plugin_options(config: &Config, refused_addresses: Vec<SocketAddr>) -> PluginOptions {
    PluginOptions {
        dir: config.plugins.clone(),
        cache_dir: Some(cache_dir()),
        watch: config.watch,
        trust: config.trust.clone(),
        ceiling: config.ceiling.clone(),
        default_policy: config.retry.clone(),
        default_concurrency: (config.relay.concurrency / 4).max(1),
        sandbox: SandboxOptions {
            pooling: config.pooling,
            slots: config.relay.concurrency,
            secrets: config.secrets.clone(),
            refused_addresses,
            roots: config.roots.clone(),
            payload_bytes_max: config.payload_max,
            compiler: compiler(),
            ..SandboxOptions::default()
        },
    }
}

/// Plugins are compiled in a child of this program, so that one that is made to exhaust a compiler dies there.
fn compiler() -> Compiler {
    Compiler::child_of_this_program().unwrap_or_else(|error| {
        tracing::warn!("this program does not know where it lies ({error}); plugins are compiled in this very process");
        Compiler::InProcess
    })
}
