//! A folder with a configuration, plugins and a database, and the real binary run in it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::{guests, wait_for};
use serde_json::Value;
use tempfile::TempDir;

/// Long enough for a loaded machine; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Calls at once.
pub const CONCURRENCY: usize = 16;

pub struct Stage {
    dir: TempDir,
    pub database: String,
}

impl Stage {
    pub fn sqlite() -> Stage {
        let dir = TempDir::new().expect("a temporary folder");
        let database = format!("sqlite:{}", dir.path().join("outbox.db").display());
        Stage::new(dir, database)
    }

    pub fn postgres() -> Stage {
        let database = TestPostgres::shared().database();
        Stage::new(TempDir::new().expect("a temporary folder"), database)
    }

    /// On a database that the test has made.
    pub fn on(database: String) -> Stage {
        Stage::new(TempDir::new().expect("a temporary folder"), database)
    }

    fn new(dir: TempDir, database: String) -> Stage {
        let stage = Stage { dir, database };
        std::fs::create_dir(stage.plugins()).expect("a plugins folder");
        stage.configure("");
        stage.outboxd(&["migrate"]).ok();
        stage
    }

    /// Writes the configuration: short times, loopback allowed, and `more` at its end.
    pub fn configure(&self, more: &str) {
        let text = format!(
            "database = {:?}\nplugins = {:?}\nadmin = \"off\"\n\
             [relay]\nconcurrency = {CONCURRENCY}\nlease = \"2s\"\npoll_interval = \"200ms\"\ngrace = \"10s\"\n\
             [retry]\nmax_attempts = 3\nbase = \"50ms\"\nmax = \"200ms\"\n\
             [sandbox]\nprivate_networks = [\"127.0.0.0/8\"]\n{more}\n",
            self.database,
            self.plugins(),
        );
        std::fs::write(self.config(), text).expect("the configuration is written");
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("outboxd.toml")
    }

    pub fn plugins(&self) -> PathBuf {
        self.dir.path().join("plugins")
    }

    /// Puts a component into the plugins folder, with its manifest.
    pub fn install(&self, name: &str, component: &Path, manifest: &str) {
        std::fs::write(self.plugins().join(format!("{name}.toml")), manifest).expect("the manifest is written");
        std::fs::copy(component, self.plugins().join(format!("{name}.wasm"))).expect("the component is copied");
    }

    /// The guest that does what the payload says, for topic `verbs`; it may reach all of loopback.
    pub fn install_verbs(&self, limits: &str) {
        let manifest = format!(
            "topics = [\"verbs\"]\n[grants]\nhosts = [\"http://127.0.0.1:*\"]\nprivate_networks = [\"127.0.0.0/8\"]\n[limits]\n{limits}\n"
        );
        self.install("verbs", &guests::guest("verbs"), &manifest);
    }

    /// The plugin `webhook` for topic `orders`, which posts to `url` on loopback.
    pub fn install_webhook(&self, url: &str) {
        let manifest = format!(
            "topics = [\"orders\"]\n[grants]\nhosts = [\"http://127.0.0.1:*\"]\nprivate_networks = [\"127.0.0.0/8\"]\n\
             [settings]\nurl = \"{url}\"\n"
        );
        self.install("webhook", &guests::plugin("webhook"), &manifest);
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboxd"));
        command.args(args).arg("--config").arg(self.config()).current_dir(self.path());
        command.env("OUTBOXD_CACHE", cache()).env_remove("DATABASE_URL").stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub fn outboxd(&self, args: &[&str]) -> Finished {
        let output = self.command(args).output().expect("outboxd starts");
        Finished {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Publishes one message and answers its id.
    pub fn publish(&self, topic: &str, payload: &str) -> String {
        self.outboxd(&["publish", topic, "--payload", payload]).ok().trim().to_owned()
    }

    /// Publishes one message for each payload, all in one transaction, and answers their ids.
    pub fn publish_lines(&self, topic: &str, payloads: &[String]) -> Vec<String> {
        self.publish_each(&["publish", topic, "--lines"], payloads)
    }

    pub fn publish_lines_of_key(&self, topic: &str, key: &str, payloads: &[String]) -> Vec<String> {
        self.publish_each(&["publish", topic, "--key", key, "--lines"], payloads)
    }

    fn publish_each(&self, args: &[&str], payloads: &[String]) -> Vec<String> {
        use std::io::Write as _;
        let mut command = self.command(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("outboxd starts");
        child.stdin.take().expect("a pipe").write_all(payloads.join("\n").as_bytes()).expect("written");
        let output = child.wait_with_output().expect("outboxd ends");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    pub fn show(&self, id: &str) -> Value {
        serde_json::from_str(&self.outboxd(&["messages", "show", id, "--json"]).ok()).expect("JSON")
    }

    /// Waits until the message is in `state` and answers it.
    pub fn wait_until(&self, id: &str, state: &str) -> Value {
        let mut last = Value::Null;
        let found = wait_for(PATIENCE, || {
            last = self.show(id);
            last["state"] == state
        });
        assert!(found, "message {id} never became {state}: {last:#}");
        last
    }

    /// Starts a relay that works until it is stopped or dropped. Its log goes to a file that a failing test shows.
    pub fn relay(&self) -> RelayProcess {
        self.relay_with(&[])
    }

    pub fn relay_with(&self, args: &[&str]) -> RelayProcess {
        self.start(args, &[])
    }

    /// Starts a relay with more in its environment.
    pub fn relay_in(&self, environment: &[(&str, &str)]) -> RelayProcess {
        self.start(&[], environment)
    }

    /// Starts a relay with more arguments and more in its environment.
    pub fn start(&self, args: &[&str], environment: &[(&str, &str)]) -> RelayProcess {
        let mut command = self.command(&["run"]);
        command.args(args).envs(environment.iter().copied());
        self.spawn(command)
    }

    /// Starts a relay by a command that becomes one.
    pub fn spawn(&self, mut command: Command) -> RelayProcess {
        let number = std::fs::read_dir(self.path()).expect("the folder").count();
        let log = self.path().join(format!("relay-{number}.log"));
        let stderr = std::fs::File::create(&log).expect("a log file");
        let child = command.stdout(Stdio::null()).stderr(stderr).spawn().expect("outboxd starts");
        RelayProcess { child, log }
    }
}

/// Compiled plugins, shared by all tests of this machine.
pub fn cache() -> PathBuf {
    std::env::temp_dir().join("outboxd-test-cache")
}

pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// What it printed; it must have ended well.
    pub fn ok(self) -> String {
        assert!(self.status.success(), "exit {:?}\n{}\n{}", self.status.code(), self.stdout, self.stderr);
        self.stdout
    }

    /// What it complained; it must have ended with `code`.
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.status.code(), Some(code), "{}\n{}", self.stdout, self.stderr);
        self.stderr
    }
}

pub struct RelayProcess {
    child: Child,
    log: PathBuf,
}

impl RelayProcess {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn wait_for_log(&self, text: &str) {
        assert!(wait_for(PATIENCE, || self.log().contains(text)), "the log never said {text:?}:\n{}", self.log());
    }

    /// Where its admin page is served.
    pub fn admin(&self) -> String {
        self.wait_for_log("delivering from");
        self.health()
    }

    /// Where it tells how it is, from its first moment.
    pub fn health(&self) -> String {
        const SERVED: &str = "are served at http://";
        self.wait_for_log(SERVED);
        let log = self.log();
        let (_, address) = log.split_once(SERVED).expect("the address");
        address.chars().take_while(|char| char.is_ascii_digit() || matches!(char, '.' | ':')).collect()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_none()
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(status.success());
    }

    /// SIGTERM, then waits for its end.
    pub fn terminate(mut self) -> (ExitStatus, Duration) {
        let asked = Instant::now();
        self.signal("-TERM");
        let mut status = None;
        let ended = wait_for(PATIENCE, || {
            status = self.child.try_wait().expect("our child");
            status.is_some()
        });
        assert!(ended, "it did not stop:\n{}", self.log());
        (status.expect("ended"), asked.elapsed())
    }

    /// SIGKILL, and reaps it.
    pub fn kill(mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let log = self.log();
            let last: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- the end of {}", self.log.display());
            last.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// Expands each behaviour into one test a database.
macro_rules! on_every_database {
    ($($behaviour:ident,)*) => {
        mod sqlite {
            $(#[test] fn $behaviour() { super::$behaviour(crate::stage::Stage::sqlite()); })*
        }
        mod postgres {
            $(#[test] fn $behaviour() { super::$behaviour(crate::stage::Stage::postgres()); })*
        }
    };
}
pub(crate) use on_every_database;
