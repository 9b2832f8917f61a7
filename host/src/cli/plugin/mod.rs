//! `outboxd plugin`: begin a plugin, look at it, try it without a database, and see what a running relay serves.

mod args;
mod build;
mod check;
mod invoke;
mod list;
mod new;
mod templates;
mod test;

use std::path::Path;

use anyhow::anyhow;
pub use args::PluginCommand;

use super::args::Global;
use super::settings::{self, WrongSettings};
use crate::config::Config;
use crate::plugin::egress::HostPattern;
use crate::plugin::{Content, Golden, Manifest, OnePlugin, SandboxOptions, read_goldens, read_one};

pub async fn plugin(global: &Global, command: PluginCommand) -> anyhow::Result<()> {
    match command {
        PluginCommand::New { name, lang } => new::new(&name, lang),
        PluginCommand::Build { file, output } => build::build(&file, output),
        PluginCommand::Check { file, json } => check::check(global, &file, json).await,
        PluginCommand::Test { path } => test::test(global, &path).await,
        PluginCommand::Invoke(args) => invoke::invoke(global, args).await,
        PluginCommand::List { admin, json } => list::list(global, admin, json).await,
    }
}

/// The component in `file`, as the relay would load it: with the manifest beside it, under the ceiling of outboxd.toml.
/// `allow` is reachable beyond both.
async fn load(config: &Config, file: &Path, allow: Vec<HostPattern>) -> anyhow::Result<OnePlugin> {
    let (name, content) = read(file)?;
    load_content(config, file, &name, content, allow).await
}

/// What a relay would read in `file`, and the name it goes by.
fn read(file: &Path) -> anyhow::Result<(String, Content)> {
    read_one(file).map_err(|why| refused(file, &why))
}

async fn load_content(
    config: &Config,
    file: &Path,
    name: &str,
    content: Content,
    allow: Vec<HostPattern>,
) -> anyhow::Result<OnePlugin> {
    let beside = file.with_extension("toml").display().to_string();
    let text = content.manifest.as_deref().unwrap_or_default();
    let mut manifest = Manifest::parse(&beside, text, name, &config.ceiling, &config.retry).map_err(WrongSettings)?;
    manifest.grants.hosts.extend(allow);
    let options = SandboxOptions { slots: 1, ..settings::plugin_options(config, vec![]).sandbox };
    OnePlugin::load(options, None, name, content, manifest).await.map_err(|why| refused(file, &why))
}

/// The golden messages beside `file`, by name.
fn goldens(file: &Path) -> anyhow::Result<Vec<(String, Golden)>> {
    read_goldens(file).map_err(|why| anyhow!("{}: {why}", file.with_extension("tests").display()))
}

fn refused(file: &Path, why: &str) -> anyhow::Error {
    anyhow!("{file:?} would not be accepted: {why}")
}
