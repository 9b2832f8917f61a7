//! The command line: the only place that reads settings, builds the parts and prints.

mod args;
mod demo;
mod message_texts;
mod messages;
mod output;
mod plugin;
mod publish;
mod purge;
mod redrive;
mod run;
mod settings;
mod stats;
mod topics;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
pub use settings::WrongSettings;

/// Parses the command line, runs the command, and answers the exit code: 0 done, 1 failed, 2 wrong usage or configuration.
pub fn main() -> ExitCode {
    // Before anything else of this process exists: a compiler of untrusted components has no use for it.
    if let Some(code) = crate::plugin::child_main() {
        return code;
    }
    let cli = Cli::parse();
    start_logging();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("cannot start the runtime")),
    };
    match runtime.block_on(command(cli)) {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

async fn command(cli: Cli) -> anyhow::Result<ExitCode> {
    let global = cli.global;
    match cli.command {
        Command::Run(args) => return run::run(&global, args).await,
        Command::Demo(args) => return demo::run(&global, args).await,
        Command::Migrate(args) => settings::migrate(&global, args).await?,
        Command::Publish(args) => publish::publish(&global, args).await?,
        Command::Messages(command) => messages::messages(&global, command).await?,
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
    match error.downcast_ref::<WrongSettings>() {
        Some(wrong) => {
            eprintln!("{wrong}");
            ExitCode::from(2)
        }
        None => {
            eprintln!("outboxd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs go to stderr; `OUTBOXD_LOG` filters them as in `debug` or `outboxd=debug,guest=info`.
fn start_logging() {
    use std::io::IsTerminal;
    use tracing_subscriber::EnvFilter;

    let filter = std::env::var("OUTBOXD_LOG").unwrap_or_else(|_| "info".into());
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|error| {
        eprintln!("outboxd: OUTBOXD_LOG={filter:?} is no filter ({error}); using \"info\"");
        EnvFilter::new("info")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
