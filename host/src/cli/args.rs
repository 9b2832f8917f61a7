//! The command line as typed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// A relay for the transactional outbox. Delivery is a sandboxed WebAssembly component, chosen by topic.
#[derive(Debug, Parser)]
#[command(name = "outboxd", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes. Precedence: flag, environment, file, default.
#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// The configuration [default: outboxd.toml, where there is one]
    #[arg(long, global = true, value_name = "FILE", env = "OUTBOXD_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where the outbox is: sqlite:PATH or postgres://… [default: sqlite:outbox.db]
    #[arg(long, global = true, value_name = "URL", env = "OUTBOXD_DATABASE", hide_env_values = true)]
    pub database: Option<String>,
    /// The outbox table, with its schema if need be [default: outbox]
    #[arg(long, global = true, value_name = "NAME", env = "OUTBOXD_TABLE")]
    pub table: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Deliver messages until stopped
    Run(RunArgs),
    /// Create or update the outbox table
    Migrate(MigrateArgs),
    /// Publish messages, each call in a transaction that holds nothing else: for trying, and for operators
    Publish(PublishArgs),
    /// Look at messages and act on single ones
    #[command(subcommand)]
    Messages(MessagesCommand),
    /// Count each topic's messages by state
    Stats(JsonArgs),
    /// Send dead letters round again
    Redrive(RedriveArgs),
    /// Delete finished messages
    Purge(PurgeArgs),
    /// Stop the claiming of a topic in the whole fleet
    Pause(TopicArgs),
    /// End a pause
    Resume(TopicArgs),
    /// Look at plugins
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// See the whole promise kept: a shop, a relay that is killed, a receiver that fails
    Demo(super::demo::DemoArgs),
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The folder of plugins [default: plugins]
    #[arg(long, value_name = "DIR", env = "OUTBOXD_PLUGINS")]
    pub plugins: Option<PathBuf>,
    /// Where health and metrics are served, or "off" [default: 127.0.0.1:8787]
    #[arg(long, value_name = "ADDR|off", env = "OUTBOXD_ADMIN")]
    pub admin: Option<String>,
    /// Deliver what is due, then exit
    #[arg(long)]
    pub once: bool,
    /// Print the resolved configuration, then exit
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Print the statements instead of running them
    #[arg(long)]
    pub print: bool,
}

#[derive(Debug, Args)]
pub struct PublishArgs {
    pub topic: String,
    /// The payload, JSON
    #[arg(long, value_name = "JSON", conflicts_with_all = ["file", "lines"])]
    pub payload: Option<String>,
    /// A file that holds the payload; "-" is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "lines")]
    pub file: Option<PathBuf>,
    /// One message for each line of standard input, all in one transaction
    #[arg(long)]
    pub lines: bool,
    #[arg(long)]
    pub key: Option<String>,
    /// A header, as name=value; may be given again
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub headers: Vec<(String, String)>,
    /// A second publish with the same topic and dedup key inserts nothing
    #[arg(long)]
    pub dedup_key: Option<String>,
    /// Not before so long from now
    #[arg(long, value_parser = duration)]
    pub delay: Option<Duration>,
    /// Not later than so long from now: after that it is dead
    #[arg(long, value_parser = duration)]
    pub expires: Option<Duration>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum MessagesCommand {
    /// List messages, newest first
    List {
        /// pending, processing, held, delivered or dead
        #[arg(long)]
        state: Option<String>,
        #[arg(long)]
        topic: Option<String>,
        #[arg(long)]
        reason: Option<String>,
        #[arg(long, default_value_t = 50)]
        limit: u32,
        /// Continue behind this message, the last of the page before
        #[arg(long, value_name = "ID")]
        after: Option<uuid::Uuid>,
        #[arg(long)]
        json: bool,
    },
    /// Show everything about one message
    Show {
        id: uuid::Uuid,
        #[arg(long)]
        json: bool,
    },
    /// Make live messages dead, reason "discarded"
    Discard {
        #[arg(required = true)]
        ids: Vec<uuid::Uuid>,
    },
    /// Make pending messages due now
    RetryNow {
        #[arg(required = true)]
        ids: Vec<uuid::Uuid>,
    },
}

#[derive(Debug, Args)]
pub struct JsonArgs {
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RedriveArgs {
    #[arg(conflicts_with_all = ["topic", "reason", "all"])]
    pub ids: Vec<uuid::Uuid>,
    #[arg(long)]
    pub topic: Option<String>,
    #[arg(long)]
    pub reason: Option<String>,
    /// Every dead letter
    #[arg(long, conflicts_with_all = ["topic", "reason"])]
    pub all: bool,
    /// Spread them over time, as in 20/s
    #[arg(long, value_parser = rate, default_value = "100/s")]
    pub rate: f64,
}

#[derive(Debug, Args)]
pub struct PurgeArgs {
    /// delivered or dead
    #[arg(long, default_value = "delivered")]
    pub state: String,
    /// Finished longer ago than this
    #[arg(long, value_parser = duration, default_value = "7d")]
    pub older_than: Duration,
}

#[derive(Debug, Args)]
pub struct TopicArgs {
    pub topic: String,
}

#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// List the plugins of a running relay, as its admin address tells them
    List {
        #[arg(long, value_name = "ADDR", env = "OUTBOXD_ADMIN")]
        admin: Option<SocketAddr>,
        #[arg(long)]
        json: bool,
    },
    /// Say whether a file would be accepted as a plugin, and what it could reach
    Check {
        file: PathBuf,
        #[arg(long)]
        json: bool,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it as in 5s, 10m, 7d"))
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write it as name=value".into()),
    }
}

/// Messages a second.
fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").and_then(|number| number.parse::<f64>().ok());
    number.filter(|rate| *rate > 0.0 && rate.is_finite()).ok_or_else(|| "write it as in 20/s".into())
}
