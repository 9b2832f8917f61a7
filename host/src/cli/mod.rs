//! The command line: the only place that reads settings, builds the parts and prints.

mod args;
mod configuration;
mod demo;
mod doctor;
mod keys;
mod message_texts;
mod messages;
mod once;
mod output;
mod plugin;
mod progress;
mod publish;
mod purge;
mod redrive;
mod relay_api;
mod reload;
mod run;
mod settings;
mod shell;
mod stats;
mod topics;

use std::process::ExitCode;
use std::time::Duration;

use args::{Cli, Command};
// For tests/fuzz.
#[doc(hidden)]
pub use message_texts::{story, without_password};
pub use settings::WrongSettings;

use crate::logging;

/// Parses the command line, runs the command, and answers the exit code: 0 done, 1 failed, 2 wrong usage or configuration.
pub fn main() -> ExitCode {
    // Before anything else of this process exists: a compiler of untrusted components has no use for it.
    if let Some(code) = crate::plugin::child_main() {
        return code;
    }
    let cli = args::parse();
    logging::start();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("cannot start the runtime")),
    };
    let code = match runtime.block_on(command(cli)) {
        Ok(code) => code,
        Err(error) => fail(&error),
    };
    // Bounded: work that a thread is stuck in ends with the process.
    runtime.shutdown_timeout(Duration::from_secs(2));
    logging::flush();
    code
}

async fn command(cli: Cli) -> anyhow::Result<ExitCode> {
    let global = cli.global;
    match cli.command {
        Command::Run(args) => return run::run(&global, args).await,
        Command::Demo(args) => return demo::run(&global, args).await,
        Command::Doctor(args) => return doctor::doctor(&global, args).await,
        Command::Completions { shell } => shell::completions(shell),
        Command::Man => shell::man()?,
        Command::Migrate(args) => settings::migrate(&global, args).await?,
        Command::Publish(args) => publish::publish(&global, args).await?,
        Command::Messages(command) => messages::messages(&global, command).await?,
        Command::Keys(args) => keys::keys(&global, args).await?,
        Command::Stats(args) => stats::stats(&global, args).await?,
        Command::Redrive(args) => redrive::redrive(&global, args).await?,
        Command::Purge(args) => purge::purge(&global, args).await?,
        Command::Pause(args) => topics::pause(&global, &args.topic).await?,
        Command::Resume(args) => topics::resume(&global, &args.topic).await?,
        Command::Plugin(command) => plugin::plugin(&global, command).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// One line for each cause; wrong settings have a line for each mistake already.
fn fail(error: &anyhow::Error) -> ExitCode {
    let (text, code) = match error.downcast_ref::<WrongSettings>() {
        Some(wrong) => (wrong.to_string(), ExitCode::from(2)),
        None => (format!("outboxd: {error:#}"), ExitCode::FAILURE),
    };
    logging::say(&text);
    logging::flush();
    code
}
