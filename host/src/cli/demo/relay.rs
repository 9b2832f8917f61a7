//! The relay as a process of its own: this very program, so that it can be killed like any other.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, bail};
use tokio::process::{Child, Command};

use super::stage::Stage;

/// How much of the log an error quotes. Lines.
const LOG_TAIL: usize = 5;

pub(super) struct RelayProcess {
    config: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl RelayProcess {
    pub(super) fn new(stage: &Stage) -> Self {
        RelayProcess { config: stage.config_file(), log: stage.relay_log(), child: None }
    }

    /// Creates the outbox table, as an operator would before the first deployment.
    pub(super) async fn migrate(&self) -> anyhow::Result<()> {
        let status = self.command("migrate")?.status().await.context("outboxd migrate cannot be started")?;
        if !status.success() {
            bail!("outboxd migrate failed ({status}): {}", self.last_words());
        }
        Ok(())
    }

    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        self.child = Some(self.command("run")?.spawn().context("outboxd run cannot be started")?);
        Ok(())
    }

    /// An error if the relay ended by itself.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(child) = &mut self.child
            && let Some(status) = child.try_wait()?
        {
            bail!("the relay ended by itself ({status}): {}", self.last_words());
        }
        Ok(())
    }

    /// SIGKILL: nothing is settled, nothing released.
    pub(super) async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It fails only for a process that has already ended, which is what was wanted.
            let _ = child.kill().await;
        }
    }

    fn command(&self, command: &str) -> anyhow::Result<Command> {
        let log = OpenOptions::new().append(true).create(true).open(&self.log)?;
        let mut process = Command::new(std::env::current_exe().context("this program's own path is unknown")?);
        process.arg(command).arg("--config").arg(&self.config).kill_on_drop(true);
        process.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // The demo's configuration alone says where its outbox is: a variable would stand above it.
        for variable in
            ["OUTBOXD_DATABASE", "OUTBOXD_TABLE", "OUTBOXD_PLUGINS", "OUTBOXD_ADMIN", "OUTBOXD_CONFIG", "DATABASE_URL"]
        {
            process.env_remove(variable);
        }
        Ok(process)
    }

    fn last_words(&self) -> String {
        let log = File::open(&self.log).and_then(std::io::read_to_string).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n")
    }
}
