//! The command line as typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use super::plugin::PluginCommand;

/// A relay for the transactional outbox. Delivery is a sandboxed WebAssembly component, chosen by topic.
#[derive(Debug, Parser)]
#[command(name = "outboxd", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Over the options that every command takes.
const EVERYWHERE: &str = "Options of every command";

/// The command line of this process; one that is wrong ends it with 2. A variable that is set to nothing counts as not set.
pub fn parse() -> Cli {
    let command = without_empty_variables(Cli::command());
    Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
}

fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &clap::Arg| arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    let command = command.mut_args(|arg| if is_empty(&arg) { arg.env(None::<&str>) } else { arg });
    command.mut_subcommands(without_empty_variables)
}

/// What every command takes. Precedence: flag, environment, file, default.
#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// The configuration [default: outboxd.toml, where there is one]
    #[arg(long, global = true, value_name = "FILE", env = "OUTBOXD_CONFIG", hide_env_values = true, help_heading = EVERYWHERE)]
    pub config: Option<PathBuf>,
    /// Where the outbox is: sqlite:PATH or postgres://… [default: sqlite:outbox.db]
    #[arg(long, global = true, value_name = "URL", env = "OUTBOXD_DATABASE", hide_env_values = true, help_heading = EVERYWHERE)]
    pub database: Option<String>,
    /// The outbox table, with its schema if need be [default: outbox]
    #[arg(long, global = true, value_name = "NAME", env = "OUTBOXD_TABLE", hide_env_values = true, help_heading = EVERYWHERE)]
    pub table: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Deliver messages until stopped
    Run(RunArgs),
    /// Create or update the outbox table
    Migrate(MigrateArgs),
    /// Publish messages in a transaction of their own: for trying, and for operators
    Publish(PublishArgs),
    /// Look at messages and act on single ones
    #[command(subcommand)]
    Messages(MessagesCommand),
    /// List the keys of topics that are ordered or limited by key, those that wait longest first, or let one go on
    Keys(KeysArgs),
    /// Count each topic's messages by state
    Stats(StatsArgs),
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
    /// Print a completion script, as in: outboxd completions bash > /etc/bash_completion.d/outboxd
    Completions {
        /// The shell that will read it
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
    /// Say what is wrong with database, host and settings, and what to do
    Doctor(DoctorArgs),
    /// See the whole promise kept: a shop, a relay that is killed, a receiver that fails
    Demo(super::demo::DemoArgs),
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The folder of plugins [default: plugins]
    #[arg(long, value_name = "DIR", env = "OUTBOXD_PLUGINS", hide_env_values = true)]
    pub plugins: Option<PathBuf>,
    /// Where the admin page, health and metrics are served, or "off" [default: 127.0.0.1:8787]
    #[arg(long, value_name = "ADDR|off", env = "OUTBOXD_ADMIN", hide_env_values = true)]
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
    /// Print no begin and no commit: for migration tools, which bring their own
    #[arg(long, requires = "print")]
    pub no_transaction: bool,
}

#[derive(Debug, Args)]
pub struct PublishArgs {
    /// The kind of message; it chooses the plugin
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
    /// Messages of one topic and key belong to one target
    #[arg(long)]
    pub key: Option<String>,
    /// A header, as name=value; may be given again
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub headers: Vec<(String, String)>,
    /// A second publish with the same topic and dedup key inserts nothing
    #[arg(long, value_name = "KEY")]
    pub dedup_key: Option<String>,
    /// Not before so long from now, as in 5s or 2h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub delay: Option<Duration>,
    /// Not later than so long from now, as in 10m: after that it is dead
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub expires: Option<Duration>,
    /// Answer as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum MessagesCommand {
    /// List messages, newest first
    List {
        /// Only those that are pending, processing, held, delivered or dead
        #[arg(long)]
        state: Option<String>,
        /// Only those of this topic
        #[arg(long)]
        topic: Option<String>,
        /// Only those that failed for this reason, as in cancelled or exhausted
        #[arg(long)]
        reason: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Continue behind this message, the last of the page before
        #[arg(long, value_name = "ID")]
        after: Option<uuid::Uuid>,
        /// Answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show everything about one message
    Show {
        /// The message's id
        id: uuid::Uuid,
        /// Answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Make live messages dead, reason "discarded"
    Discard {
        /// The messages' ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<uuid::Uuid>,
    },
    /// Make pending messages due now
    RetryNow {
        /// The messages' ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<uuid::Uuid>,
    },
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct KeysArgs {
    #[command(subcommand)]
    pub command: Option<KeysCommand>,
    /// Only those of this topic
    #[arg(long)]
    pub topic: Option<String>,
    /// Only those that are ready, processing, waiting, paused or blocked
    #[arg(long)]
    pub state: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Answer as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Let the next message of a blocked key go; the dead letter that blocks it stays one
    Skip {
        /// The topic's whole name
        topic: String,
        /// The key
        key: String,
    },
    /// End a key's rest, or the wait of the message at its head
    Resume {
        /// The topic's whole name
        topic: String,
        /// The key
        key: String,
    },
}

#[derive(Debug, Args)]
pub struct StatsArgs {
    /// The folder of plugins, to say which topics none handles [default: plugins]
    #[arg(long, value_name = "DIR", env = "OUTBOXD_PLUGINS", hide_env_values = true)]
    pub plugins: Option<PathBuf>,
    /// Where a relay is asked which topics it has parked [default: 127.0.0.1:8787]
    #[arg(long, value_name = "ADDR|off", env = "OUTBOXD_ADMIN", hide_env_values = true)]
    pub admin: Option<String>,
    /// Answer as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The folder of plugins [default: plugins]
    #[arg(long, value_name = "DIR", env = "OUTBOXD_PLUGINS", hide_env_values = true)]
    pub plugins: Option<PathBuf>,
    /// Warn of a snapshot that somebody has held for longer than this
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1m")]
    pub snapshot_max: Duration,
    /// Answer as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RedriveArgs {
    /// Only these
    #[arg(value_name = "ID", conflicts_with_all = ["topic", "reason", "all"])]
    pub ids: Vec<uuid::Uuid>,
    /// Every dead letter of this topic
    #[arg(long)]
    pub topic: Option<String>,
    /// Every dead letter that died for this reason, as in cancelled or exhausted
    #[arg(long)]
    pub reason: Option<String>,
    /// Every dead letter
    #[arg(long, conflicts_with_all = ["topic", "reason"])]
    pub all: bool,
    /// Spread them over time, as in 20/s
    #[arg(long, value_name = "N/s", value_parser = rate, default_value = "100/s")]
    pub rate: f64,
}

#[derive(Debug, Args)]
pub struct PurgeArgs {
    /// delivered or dead
    #[arg(long, default_value = "delivered")]
    pub state: String,
    /// Finished longer ago than this
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "7d")]
    pub older_than: Duration,
}

#[derive(Debug, Args)]
pub struct TopicArgs {
    /// The topic's whole name
    pub topic: String,
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it as in 5s, 10m, 7d"))
}

pub fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write it as name=value".into()),
    }
}

/// Messages a second.
fn rate(text: &str) -> Result<f64, String> {
    crate::toml_reader::parse_rate(text).ok_or_else(|| "write it as in 20/s or 30/m".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_help(command: &clap::Command) -> Vec<String> {
        let here = command.get_arguments().filter(|arg| arg.get_help().is_none()).map(|arg| arg.get_id().to_string());
        let name = command.get_name();
        let mut found: Vec<String> = here.map(|arg| format!("{name}: {arg}")).collect();
        found.extend(command.get_subcommands().flat_map(without_help));
        found
    }

    #[test]
    fn every_argument_of_every_command_is_explained() {
        let command = Cli::command();
        command.clone().debug_assert();

        assert_eq!(without_help(&command), Vec::<String>::new());
    }
}
