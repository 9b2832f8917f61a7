//! SIGHUP: reads `outboxd.toml` and the plugins folder again. What can change without a restart does: `[secrets]`,
//! `[retention]` and the value of `admin_token`. What cannot is named. A file that is wrong changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use secrecy::SecretString;
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
    pub token: Arc<ArcSwapOption<SecretString>>,
    pub plugins: Arc<PluginHost>,
}

impl Reload {
    pub async fn at_each(mut self, mut hangup: Signal, end: CancellationToken) {
        while let Some(Some(())) = end.run_until_cancelled(hangup.recv()).await {
            service::reloading();
            self.reload();
            self.plugins.scan_anew().await;
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
            info!("SIGHUP: secrets, admin_token and retention are as the configuration says now");
        } else {
            warn!(
                "SIGHUP: secrets, admin_token and retention are as the configuration says now, but a restart is needed for {}",
                restart.join(", ")
            );
        }
        self.config.secrets.replace_with(&read.secrets);
        // Never taken away: where it was required it still is, whatever the file says of the address.
        if let (Some(_), Some(token)) = (&self.config.admin_token, &read.admin_token) {
            self.token.store(Some(Arc::new(token.clone())));
        }
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
    let (old, new) = (entries(running), entries(read));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let stays = |key: &&String| match key.as_str() {
        "retention.delivered" => deletes_at_once(running) != deletes_at_once(read),
        "retention.dead" => false,
        key => old.get(key) != new.get(key),
    };
    let token = (running.admin_token.is_some() != read.admin_token.is_some()).then(|| "admin_token".to_owned());
    token.into_iter().chain(keys.into_iter().filter(stays).cloned()).collect()
}

fn deletes_at_once(config: &Config) -> bool {
    config.retention.delivered == Some(Duration::ZERO)
}

/// Each value under its whole key, `relay.lease`. Secrets are not among them: the text never shows one.
fn entries(config: &Config) -> BTreeMap<String, toml::Value> {
    let text = configuration(config);
    let table: toml::Table = text.parse().expect("what is printed of a configuration is one");
    let mut entries = BTreeMap::new();
    for (key, value) in table {
        match value {
            toml::Value::Table(section) => {
                entries.extend(section.into_iter().map(|(inner, value)| (format!("{key}.{inner}"), value)));
            }
            value => {
                entries.insert(key, value);
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::plugin::PluginOptions;

    /// A relay's share in a reload, and the folder that its configuration is in.
    fn running(text: &str) -> (Reload, TempDir) {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("outboxd.toml");
        std::fs::write(&file, text).unwrap();
        let global = Global { config: Some(file), ..Global::default() };
        let overrides = Overrides { plugins: Some(dir.path().join("plugins")), ..Overrides::default() };
        let config = settings::load(&global, overrides.clone(), Purpose::Plugins).unwrap();
        let options = PluginOptions { cache_dir: None, ..settings::plugin_options(&config, vec![]) };
        let plugins = PluginHost::start(options).unwrap();
        let retention = Arc::new(ArcSwap::from_pointee(config.retention));
        let token = Arc::new(ArcSwapOption::from_pointee(config.admin_token.clone()));
        (Reload { global, overrides, config, retention, token, plugins }, dir)
    }

    /// What the retention is after `text` was written over the configuration and SIGHUP came, and what waits for a restart.
    fn reload(reload: &mut Reload, text: &str) -> (Retention, Vec<String>) {
        let before = reload.config.clone();
        std::fs::write(reload.global.config.as_ref().unwrap(), text).unwrap();
        let read = settings::load(&reload.global, reload.overrides.clone(), Purpose::Plugins);
        let restart = read.map(|read| needs_restart(&before, &read)).unwrap_or_default();
        reload.reload();
        (**reload.retention.load(), restart)
    }

    const HOUR: Option<Duration> = Some(Duration::from_secs(3600));

    #[tokio::test]
    async fn retention_is_as_the_file_says_after_a_hangup() {
        let (mut relay, _dir) = running("[retention]\ndelivered = \"7d\"");

        let changed = reload(&mut relay, "[retention]\ndelivered = \"1h\"\ndead = \"1h\"");
        let wrong = reload(&mut relay, "[retention]\ndelivered = \"soon\"");

        assert_eq!(changed, (Retention { delivered: HOUR, dead: HOUR }, vec![]));
        assert_eq!(wrong.0, changed.0, "a file that is wrong changes nothing");
    }

    #[tokio::test]
    async fn to_delete_at_once_or_no_longer_waits_for_a_restart_and_the_rest_does_not() {
        let (mut keeps, _dir) = running("[retention]\ndelivered = \"1h\"");
        let (mut deletes, _other) = running("[retention]\ndelivered = \"0s\"");

        let keeps = reload(&mut keeps, "[retention]\ndelivered = \"0s\"\ndead = \"1h\"");
        let deletes = reload(&mut deletes, "[retention]\ndelivered = \"1h\"\ndead = \"1h\"");

        let restart = vec!["retention.delivered".to_owned()];
        assert_eq!(keeps, (Retention { delivered: HOUR, dead: HOUR }, restart.clone()));
        assert_eq!(deletes, (Retention { delivered: Some(Duration::ZERO), dead: HOUR }, restart));
    }

    #[tokio::test]
    async fn a_new_admin_token_counts_and_one_that_is_gone_is_still_required() {
        use secrecy::ExposeSecret as _;

        let secret = tempfile::NamedTempFile::new().unwrap();
        let with_token = format!("admin_token = {{ file = {:?} }}", secret.path());
        std::fs::write(secret.path(), "old").unwrap();
        let (mut relay, _dir) = running(&with_token);
        let token = |relay: &Reload| relay.token.load_full().map(|token| token.expose_secret().to_owned());

        std::fs::write(secret.path(), "new").unwrap();
        reload(&mut relay, &with_token);
        assert_eq!(token(&relay).as_deref(), Some("new"));

        let (_, restart) = reload(&mut relay, "");
        assert_eq!(token(&relay).as_deref(), Some("new"));
        assert_eq!(restart, ["admin_token"]);
    }

    #[tokio::test]
    async fn what_waits_for_a_restart_is_named_by_its_key_and_a_new_secret_is_not() {
        let (mut relay, dir) = running("watch = \"off\"");
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "s3cret-canary").unwrap();

        let text = format!(
            "listen_database = \"postgres://b\"\nsqlite_synchronous = \"normal\"\n[relay]\ngrace = \"9s\"\n[sandbox]\nhosts = [\"https://a.example\"]\n\
             [secrets]\nKEY = {{ file = {secret:?} }}"
        );
        let (_, restart) = reload(&mut relay, &text);

        assert_eq!(restart, ["listen_database", "relay.grace", "sandbox.hosts", "sqlite_synchronous", "watch"]);
    }
}
