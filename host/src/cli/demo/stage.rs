//! What the demo is played on: a folder with the relay's configuration, one plugin and its manifest, and a database.

use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tempfile::TempDir;
use uuid::Uuid;

use super::DemoArgs;
use super::database::Database;

/// Everything that stands before the first order is written. Dropped or cleared, it leaves nothing.
pub(super) struct Stage {
    folder: TempDir,
    pub(super) database: Database,
    /// The key, known to the receiver and to the relay's host; the plugin knows its name.
    pub(super) key: Vec<u8>,
    pub(super) receiver_port: u16,
    admin_port: u16,
}

impl Stage {
    pub(super) async fn build(args: &DemoArgs, database: Option<&str>) -> anyhow::Result<Self> {
        let component = args.plugins.join("webhook.wasm");
        if !component.is_file() {
            bail!(
                "no plugin at {component:?}; build it with `tests/build-plugins`, or say where it is with --plugins DIR"
            );
        }
        let folder = tempfile::Builder::new().prefix("outboxd-demo-").tempdir().context("no temporary folder")?;
        let database = Database::choose(database, folder.path()).await?;
        let key = [Uuid::new_v4().into_bytes(), Uuid::new_v4().into_bytes()].concat();
        let stage = Stage { key, receiver_port: free_port()?, admin_port: free_port()?, folder, database };
        stage.write_files(&component).context("the demo's files cannot be written")?;
        Ok(stage)
    }

    fn write_files(&self, component: &Path) -> anyhow::Result<()> {
        std::fs::create_dir(self.path("plugins"))?;
        std::fs::copy(component, self.path("plugins/webhook.wasm"))?;
        std::fs::write(self.path("plugins/webhook.toml"), self.manifest())?;
        std::fs::write(self.config_file(), self.config())?;
        write_secret(&self.path("demo.key"), &format!("whsec_{}", STANDARD.encode(&self.key)))?;
        // The URL may hold a password.
        write_secret(&self.path("database.url"), self.database.url())
    }

    /// The relay's configuration.
    fn config(&self) -> String {
        let file = |name: &str| quoted(&self.path(name).display().to_string());
        format!(
            "# Written by `outboxd demo`, for this run alone.\n\
             database = {{ file = {url} }}\n\
             table = {table}\n\
             plugins = {plugins}\n\
             admin = \"127.0.0.1:{admin}\"\n\
             \n\
             [relay]\n\
             lease = \"2s\"          # 30s by default; short, so that nobody waits when the relay is killed\n\
             \n\
             [retry]\n\
             base = \"200ms\"        # 1s by default\n\
             max = \"1s\"            # 1h by default\n\
             \n\
             {sandbox}\
             \n\
             [secrets]\n\
             DEMO_KEY = {{ file = {key} }}\n",
            url = file("database.url"),
            table = quoted(self.database.table()),
            plugins = file("plugins"),
            admin = self.admin_port,
            sandbox = self.sandbox(),
            key = file("demo.key"),
        )
    }

    fn sandbox(&self) -> String {
        format!(
            "[sandbox]                              # the ceiling: no manifest grants more\n\
             hosts = [\"http://127.0.0.1:{}\"]\n\
             private_networks = [\"127.0.0.0/8\"]    # none by default: without it 127.0.0.1 is refused\n",
            self.receiver_port
        )
    }

    /// The plugin's manifest.
    fn manifest(&self) -> String {
        format!("topics = [\"orders.*\"]\n\n{}\n{}", self.grants(), self.settings())
    }

    fn grants(&self) -> String {
        format!(
            "[grants]\n\
             hosts = [\"http://127.0.0.1:{}\"]\n\
             private_networks = [\"127.0.0.0/8\"]\n\
             \n\
             [grants.secrets]\n\
             DEMO_KEY = []                          # to sign with; the plugin never sees it\n",
            self.receiver_port
        )
    }

    fn settings(&self) -> String {
        format!(
            "[settings]\n\
             url = \"http://127.0.0.1:{}/orders\"\n\
             secret = \"DEMO_KEY\"\n",
            self.receiver_port
        )
    }

    /// What lets the relay reach 127.0.0.1, for people to read.
    pub(super) fn ceiling(&self) -> String {
        let part = |file: &str, text: &str| {
            let lines = text.lines().map(|line| format!("    {line}").trim_end().to_owned());
            format!("{}\n{}", self.path(file).display(), lines.collect::<Vec<_>>().join("\n"))
        };
        format!(
            "What the relay may reach is the operator's to say. For this run:\n\n{}\n\n{}\n",
            part("outboxd.toml", &self.sandbox()),
            part("plugins/webhook.toml", &self.grants())
        )
    }

    /// For `--keep`.
    pub(super) fn what_to_look_at(&self) -> anyhow::Result<String> {
        let program = std::env::current_exe()?;
        let program = program.display();
        Ok(format!(
            "\nStill up. Everything is in {folder}:\n\
             \x20   outboxd.toml, plugins/webhook.toml    the configuration and the manifest\n\
             \x20   relay.log                             what the relay said\n\
             The relay's health and metrics: http://127.0.0.1:{admin}/healthz and /metrics\n\n\
             In another terminal:\n\
             \x20   export OUTBOXD_CONFIG={config}\n\
             \x20   {program} stats\n\
             \x20   {program} messages list --limit 5\n\
             \x20   {program} publish orders.created --payload '{{\"order\": 1}}'\n\n\
             Ctrl-C ends it and removes everything.",
            folder = self.folder.path().display(),
            admin = self.admin_port,
            config = self.config_file().display(),
        ))
    }

    pub(super) fn config_file(&self) -> PathBuf {
        self.path("outboxd.toml")
    }

    pub(super) fn relay_log(&self) -> PathBuf {
        self.path("relay.log")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Removes tables and folder. What cannot be removed is named: it is the only trace.
    pub(super) async fn clear(self) {
        if let Err(error) = self.database.clear().await {
            eprintln!("the demo's tables are left behind: {error:#}");
        }
        let path = self.folder.path().to_owned();
        if let Err(error) = self.folder.close() {
            eprintln!("{path:?} is left behind: {error}");
        }
    }
}

/// A port that was free a moment ago. Each is used within milliseconds; a rare loser of that race sees an error at start.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

/// As a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn write_secret(path: &Path, secret: &str) -> anyhow::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(file.write_all(secret.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn arguments(plugins: &Path) -> DemoArgs {
        DemoArgs { plugins: plugins.to_owned(), orders: 100, keep: false }
    }

    #[tokio::test]
    async fn the_files_are_valid_and_name_only_this_machine() {
        let plugins = tempfile::tempdir().unwrap();
        std::fs::write(plugins.path().join("webhook.wasm"), "component").unwrap();

        let stage = Stage::build(&arguments(plugins.path()), None).await.unwrap();

        let read = |name| std::fs::read_to_string(stage.path(name)).unwrap().parse::<toml::Table>().unwrap();
        let (config, manifest) = (read("outboxd.toml"), read("plugins/webhook.toml"));
        let target = format!("http://127.0.0.1:{}", stage.receiver_port);
        assert_eq!(config["sandbox"]["hosts"][0].as_str(), Some(target.as_str()));
        assert_eq!(config["sandbox"]["hosts"], manifest["grants"]["hosts"]);
        assert_eq!(config["secrets"]["DEMO_KEY"]["file"].as_str(), stage.path("demo.key").to_str());
        assert_eq!(manifest["settings"]["url"].as_str(), Some(format!("{target}/orders").as_str()));
        let mode = |name| std::fs::metadata(stage.path(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode("demo.key"), mode("database.url")], [0o600, 0o600]);
    }

    #[tokio::test]
    async fn a_missing_plugin_is_an_error_that_says_how_to_build_it() {
        let empty = tempfile::tempdir().unwrap();

        let error = Stage::build(&arguments(empty.path()), None).await.err().unwrap().to_string();

        assert!(error.contains("webhook.wasm") && error.contains("tests/build-plugins"), "{error}");
    }

    #[tokio::test]
    async fn nothing_is_left_behind() {
        let plugins = tempfile::tempdir().unwrap();
        std::fs::write(plugins.path().join("webhook.wasm"), "component").unwrap();
        let stage = Stage::build(&arguments(plugins.path()), None).await.unwrap();
        let folder = stage.folder.path().to_owned();

        stage.clear().await;

        assert!(!folder.exists());
    }
}
