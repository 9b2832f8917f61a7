//! SIGHUP: reads `outboxd.toml` and the plugins folder again. What can change without a restart does: `[secrets]` and
//! `[retention]`. What cannot is named. A file that is wrong changes nothing.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::args::Global;
use super::configuration::configuration;
use super::settings;
use crate::config::{Config, Overrides, Purpose};
use crate::plugin::PluginHost;
use crate::purger::Retention;
use crate::service;

pub struct Reload {
    pub global: Global,
    pub overrides: Overrides,
    /// What runs.
    pub config: Config,
    pub retention: Arc<ArcSwap<Retention>>,
    pub plugins: Arc<PluginHost>,
}

impl Reload {
    pub async fn at_each(mut self, mut hangup: Signal, end: CancellationToken) {
        while let Some(Some(())) = end.run_until_cancelled(hangup.recv()).await {
            service::reloading();
            self.reload();
            self.plugins.scan_once().await;
            service::ready();
        }
    }

    fn reload(&mut self) {
        let read = match settings::load(&self.global, self.overrides.clone(), Purpose::Plugins) {
            Ok(read) => read,
            Err(error) => {
                let error = format!("{error:#}").replace('\n', "; ");
                warn!("SIGHUP: the configuration is wrong and the old one stays: {error}");
                return;
            }
        };
        let restart = needs_restart(&self.config, &read);
        if restart.is_empty() {
            info!("SIGHUP: secrets and retention are as the configuration says now");
        } else {
            warn!(
                "SIGHUP: secrets and retention are as the configuration says now; a restart is needed for {}",
                restart.join(", ")
            );
        }
        self.config.secrets.replace_with(&read.secrets);
        // Deleting at once is the settle's way of writing, for as long as the process lives.
        if deletes_at_once(&self.config) == deletes_at_once(&read) {
            self.config.retention.delivered = read.retention.delivered;
        }
        self.config.retention.dead = read.retention.dead;
        self.retention.store(Arc::new(self.config.retention));
    }
}

/// The keys that differ and cannot change in a running relay, as `run --check` names them.
fn needs_restart(running: &Config, read: &Config) -> Vec<String> {
    let (old, new) = (entries(&configuration(running)), entries(&configuration(read)));
    let changed =
        old.iter().filter(|entry| !new.contains(entry)).chain(new.iter().filter(|entry| !old.contains(entry)));
    let mut keys: Vec<String> =
        changed.map(|(key, _)| key.clone()).filter(|key| !key.starts_with("retention.")).collect();
    if deletes_at_once(running) != deletes_at_once(read) {
        keys.push("retention.delivered".into());
    }
    keys.sort();
    keys.dedup();
    keys
}

fn deletes_at_once(config: &Config) -> bool {
    config.retention.delivered == Some(Duration::ZERO)
}

/// Each `key = value` with its section. Comments, secrets among them, are not keys.
fn entries(text: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut entries = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = format!("{name}.");
        } else if let Some((key, value)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            entries.push((format!("{section}{key}"), value.to_owned()));
        }
    }
    entries
}
