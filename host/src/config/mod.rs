//! The configuration as meant: every key has a default, every value a type. Read by `cli` alone.

mod resolve;
mod sandbox;
mod secret;
mod trust;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use outboxd_core::RetryPolicy;

use crate::plugin::egress::TlsRoots;
use crate::plugin::{Ceiling, Pooling, Secrets, Trust, Watch};
use crate::purger::Retention;
use crate::relay::RelayOptions;

pub use resolve::{Environment, Overrides, Purpose, resolve};

/// What `outboxd.toml`, the environment and flags come to.
#[derive(Clone, Debug)]
pub struct Config {
    /// `sqlite:PATH` or `postgres://…`. Default `sqlite:outbox.db`. May hold a password: never shown whole.
    pub database: String,
    /// Default `outbox`.
    pub table: String,
    /// The folder of plugins. Default `plugins`.
    pub plugins: PathBuf,
    /// Where health, metrics and plugin states are served. Default `127.0.0.1:8787`; nothing where it is "off".
    pub admin: Option<SocketAddr>,
    /// Required where `admin` is not a loopback address.
    pub admin_token: Option<secrecy::SecretString>,
    pub migrate: MigrateMode,
    pub pooler: Pooler,
    /// Where LISTEN goes when `database` is behind a transaction pooler.
    pub listen_database: Option<String>,
    /// What our commits to an SQLite file wait for. Default: the disk.
    pub sqlite_synchronous: SqliteSynchronous,
    /// A larger payload is refused at publish and dead at claim. Bytes. Default 1 MiB.
    pub payload_max: u64,
    pub watch: Watch,
    /// Which plugins may be loaded at all. Default: whatever lies in the folder.
    pub trust: Trust,
    pub pooling: Pooling,
    pub relay: RelayOptions,
    /// Whether publishing wakes this relay. Default true; the poll finds the rest.
    pub notify: Notify,
    pub retry: RetryPolicy,
    pub retention: Retention,
    /// What no manifest can exceed.
    pub ceiling: Ceiling,
    /// Whose certificates plugins' requests trust. Default: Mozilla's, compiled in.
    pub roots: TlsRoots,
    pub secrets: Secrets,
    /// The collector that spans of attempts go to, as `http://127.0.0.1:4318`. Default: none, and nothing is traced.
    pub traces: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrateMode {
    /// `run` migrates by itself. The default.
    Auto,
    /// Someone else does: `run` only checks.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooler {
    None,
    /// PgBouncer and the like in transaction mode.
    Transaction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqliteSynchronous {
    Full,
    /// Not for the disk: faster, and a power cut may have the last messages delivered again.
    Normal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    On,
    Off,
}

impl Config {
    /// The statement timeout that fits the lease: a third of it, 10 s at most, so that a renewal that hangs is noticed
    /// while the lease can still be saved.
    pub fn statement_timeout(&self) -> Duration {
        (self.relay.lease / 3).min(Duration::from_secs(10))
    }
}
