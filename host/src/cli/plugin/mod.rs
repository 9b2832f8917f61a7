//! `outboxd plugin`: begin a plugin, look at it, try it without a database, and see what a running relay serves.

mod check;
mod invoke;
mod list;
mod new;
mod templates;
mod test;

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};

use super::args::{Global, PluginCommand};
use super::settings::{self, WrongSettings};
use crate::config::Config;
use crate::plugin::egress::HostPattern;
use crate::plugin::{Manifest, OnePlugin, SandboxOptions};

pub async fn plugin(global: &Global, command: PluginCommand) -> anyhow::Result<()> {
    match command {
        PluginCommand::New { name, lang } => new::new(&name, lang),
        PluginCommand::Check { file, json } => check::check(global, &file, json).await,
        PluginCommand::Test { path } => test::test(global, &path).await,
        PluginCommand::Invoke(args) => invoke::invoke(global, args).await,
        PluginCommand::List { admin, json } => list::list(global, admin, json).await,
    }
}

/// The component in `file`, as the relay would load it: with the manifest beside it, under the ceiling of outboxd.toml.
/// `allow` is reachable beyond both.
async fn load(config: &Config, file: &Path, allow: Vec<HostPattern>) -> anyhow::Result<OnePlugin> {
    let Some(stem) = file.file_stem().and_then(|stem| stem.to_str()) else { bail!("{file:?} is no plugin's name") };
    let component = std::fs::read(file).with_context(|| format!("cannot read {file:?}"))?;
    let beside = file.with_extension("toml");
    let text = match std::fs::read_to_string(&beside) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => bail!("cannot read {beside:?}: {error}"),
    };
    let mut manifest = Manifest::parse(&beside.display().to_string(), &text, stem, &config.ceiling, &config.retry)
        .map_err(WrongSettings)?;
    manifest.grants.hosts.extend(allow);
    let options = SandboxOptions { slots: 1, ..settings::plugin_options(config, vec![]).sandbox };
    let loaded = OnePlugin::load(options, None, stem, component, manifest).await;
    loaded.map_err(|error| anyhow!("{file:?} would not be accepted: {error}"))
}
