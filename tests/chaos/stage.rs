//! Relays of the real binary, each with a folder of its own, and the target they deliver to.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use outboxd_test_support::process::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Starter, send_signal};
use outboxd_test_support::{guests, wait_for};
use tempfile::TempDir;

use crate::faults::{FaultLog, Kind};
use crate::sink::Sink;

/// The topic of most messages.
pub const TOPIC: &str = "chaos";
/// The topic of those that are delivered in order by key.
pub const ORDERED_TOPIC: &str = "order";
pub const LEASE_DEFAULT: Duration = Duration::from_secs(2);

/// How long a message stays claimed when its relay dies: 2 s, or `OUTBOXD_CHAOS_LEASE_MS` on a machine that is busy with
/// other things. What the checker allows to a relay that is paused, or has lost its database, grows with it, so the ledger
/// names another lease than the default.
pub fn lease() -> Duration {
    static LEASE: LazyLock<Duration> = LazyLock::new(|| match std::env::var("OUTBOXD_CHAOS_LEASE_MS") {
        Ok(text) => Duration::from_millis(text.trim().parse().expect("OUTBOXD_CHAOS_LEASE_MS is a whole number")),
        Err(_) => LEASE_DEFAULT,
    });
    *LEASE
}
pub const POLL: Duration = Duration::from_millis(200);
/// Calls of one relay at once.
pub const CONCURRENCY: usize = 8;
/// Calls that are under way in a relay, or ended and are not written yet, at most.
pub const HELD_MAX: usize = 16 * CONCURRENCY;
/// Longer than any call takes here, so that a stop interrupts none.
const GRACE: Duration = Duration::from_secs(10);
/// The longest a relay may take to leave: its calls, then a settle that waits for the database.
const LEAVES_WITHIN: Duration = Duration::from_secs(30);

/// A new version of a plugin serves soon after its file was written, on a busy machine too. A relay that has just started
/// serves the old one first.
const LIVE_WITHIN: Duration = Duration::from_secs(20);

/// How often a message may lose its lease before it is `crashed`.
#[derive(Clone, Copy)]
pub enum Lapses {
    /// As shipped: 3.
    Default,
    /// Kills come so thick that sound messages would be declared poison.
    Many,
}

/// The process ids of relays, by incarnation.
#[derive(Default)]
pub struct Pids(Mutex<Vec<u32>>);

impl Pids {
    pub fn of(&self, incarnation: u32) -> Option<u32> {
        self.lock().get(incarnation as usize).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where everything of one run is.
pub struct Stage {
    dir: TempDir,
    database: String,
    lapses: Lapses,
    pub sink: Sink,
    pub faults: Arc<FaultLog>,
    starter: Starter,
    pids: Arc<Pids>,
    relays: AtomicU32,
}

impl Stage {
    /// `database` is a URL, or nothing for an SQLite file in the stage's folder.
    pub fn new(database: Option<String>, lapses: Lapses, think_max: Duration) -> Stage {
        let dir = TempDir::new().expect("a temporary folder");
        let database = database.unwrap_or_else(|| format!("sqlite:{}", dir.path().join("outbox.db").display()));
        let sink = Sink::start(&dir.path().join("deliveries.csv"), think_max);
        let stage = Stage {
            dir,
            database,
            lapses,
            sink,
            faults: Arc::default(),
            starter: Starter::new(),
            pids: Arc::default(),
            relays: AtomicU32::new(0),
        };
        let migrated = stage.command(stage.path()).arg("migrate").status().expect("outboxd starts");
        assert!(migrated.success(), "outboxd migrate fails");
        stage
    }

    pub fn database(&self) -> &str {
        &self.database
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The relay processes so far.
    pub fn pids(&self) -> Arc<Pids> {
        self.pids.clone()
    }

    /// A relay that reaches the database by `database`, not started yet.
    pub fn relay_by(&self, database: &str) -> Relay<'_> {
        let number = self.relays.fetch_add(1, Ordering::Relaxed);
        let folder = self.path().join(format!("relay-{number}"));
        fs::create_dir_all(folder.join("plugins")).expect("a folder");
        for name in ["webhook", "ordered"] {
            fs::copy(guests::plugin("webhook"), folder.join(format!("plugins/{name}.wasm"))).expect("the plugin");
        }
        let lapses = match self.lapses {
            Lapses::Default => "",
            Lapses::Many => "max_lapses = 1000",
        };
        let config = format!(
            "database = {database:?}\nplugins = \"plugins\"\nadmin = \"off\"\n\
             [relay]\nlease = \"{}ms\"\npoll_interval = \"{}ms\"\ngrace = \"{}s\"\nconcurrency = {CONCURRENCY}\n{lapses}\n\
             [retry]\nmax_attempts = 1000\nbase = \"50ms\"\nmax = \"500ms\"\n\
             [sandbox]\nprivate_networks = [\"127.0.0.0/8\"]\n",
            lease().as_millis(),
            POLL.as_millis(),
            GRACE.as_secs(),
        );
        fs::write(folder.join("outboxd.toml"), config).expect("the configuration");
        Relay { stage: self, number, folder, child: None, incarnation: 0, plugin_version: 0, environment: Vec::new() }
    }

    pub fn relay(&self) -> Relay<'_> {
        self.relay_by(&self.database)
    }

    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboxd"));
        // As a service runs, without backtraces: to write one, memory is needed.
        command
            .current_dir(folder)
            .env_remove("RUST_BACKTRACE")
            .env_remove("DATABASE_URL")
            .env("OUTBOXD_DATABASE", &self.database);
        command.env("OUTBOXD_CACHE", std::env::temp_dir().join("outboxd-test-cache")).stdin(Stdio::null());
        command
    }

    /// Keeps the folder of a run that failed, and says where.
    pub fn keep(self) -> PathBuf {
        let faults: Vec<String> = self.faults.all().iter().map(ToString::to_string).collect();
        let _ = fs::write(self.path().join("faults.csv"), faults.join("\n"));
        let Stage { dir, .. } = self;
        dir.keep()
    }

    /// What the relays have said.
    pub fn logs(&self) -> String {
        let of = |number| fs::read(self.path().join(format!("relay-{number}/log"))).unwrap_or_default();
        let relays = self.relays.load(Ordering::Relaxed);
        (0..relays).map(|number| String::from_utf8_lossy(&of(number)).into_owned()).collect()
    }
}

/// A relay's place, filled by one process after another. Every process has a number of its own, the incarnation, by which
/// the sink tells who delivered.
pub struct Relay<'s> {
    stage: &'s Stage,
    pub number: u32,
    folder: PathBuf,
    child: Option<Child>,
    incarnation: u32,
    plugin_version: u32,
    /// What its environment holds beside the usual.
    environment: Vec<(String, String)>,
}

impl Relay<'_> {
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "relay {} runs", self.number);
        let mut pids = self.stage.pids.lock();
        self.incarnation = u32::try_from(pids.len()).expect("fewer processes");
        self.write_manifests();
        let log = File::options().create(true).append(true).open(self.folder.join("log")).expect("a log file");
        let mut command = self.stage.command(&self.folder);
        command.envs(self.environment.iter().cloned());
        command.env_remove("OUTBOXD_DATABASE").arg("run").stdout(Stdio::null()).stderr(log);
        let child = self.stage.starter.start(command).expect("outboxd starts");
        pids.push(child.id());
        self.child = Some(child);
    }

    /// The manifests of the plugins, each whole at any moment.
    fn write_manifests(&self) {
        let manifest = |topic, order| {
            format!(
                "topics = [{topic:?}]\n{order}\n[grants]\nhosts = [\"http://127.0.0.1:*\"]\nprivate_networks = [\"127.0.0.0/8\"]\n\
             [limits]\nconcurrency = {CONCURRENCY}\n[settings]\nurl = {:?}\n\"header.x-version\" = \"{}\"\n",
                self.stage.sink.url(self.incarnation),
                self.plugin_version,
            )
        };
        let aside = self.folder.join("manifest");
        for (name, manifest) in
            [("webhook", manifest(TOPIC, "")), ("ordered", manifest(ORDERED_TOPIC, "ordered = true"))]
        {
            let place = self.folder.join(format!("plugins/{name}.toml"));
            fs::write(&aside, manifest).and_then(|()| fs::rename(&aside, place)).expect("the manifest");
        }
    }

    /// Replaces the plugins by other versions while calls of these are under way, and waits until one serves.
    pub fn swap_plugins(&mut self) {
        let from = SystemTime::now();
        let before = self.log().matches(" serves ").count();
        self.plugin_version += 1;
        self.write_manifests();
        let served = || self.log().matches(" serves ").count();
        assert!(wait_for(LIVE_WITHIN, || served() > before), "relay {} does not swap its plugins", self.number);
        self.stage.faults.note(Kind::Swapped, Some(self.incarnation), from);
    }

    /// Sets a variable of the processes that are started from now on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.into(), value.into()));
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("log")).unwrap_or_default()).into_owned()
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a relay that was started").id()
    }

    /// SIGKILL, and reaps it.
    pub fn kill(&mut self) {
        let from = SystemTime::now();
        let mut child = self.running();
        send_signal(child.id(), SIGKILL);
        child.wait().expect("our child");
        self.stage.faults.note(Kind::Killed, Some(self.incarnation), from);
    }

    /// SIGSTOP for so long, then SIGCONT.
    pub fn pause(&mut self, duration: Duration) {
        let from = SystemTime::now();
        let child = self.running();
        send_signal(child.id(), SIGSTOP);
        // The fault itself, not a wait for something.
        std::thread::sleep(duration);
        send_signal(child.id(), SIGCONT);
        self.stage.faults.note(Kind::Paused, Some(self.incarnation), from);
        if self.stage.database.starts_with("sqlite") {
            self.stage.faults.note(Kind::WriterPaused, None, from);
        }
        self.child = Some(child);
    }

    /// SIGTERM, and waits until it has left.
    pub fn leave(&mut self) -> ExitStatus {
        let from = SystemTime::now();
        let mut child = self.running();
        send_signal(child.id(), SIGTERM);
        let mut status = None;
        let left = wait_for(LEAVES_WITHIN, || {
            status = child.try_wait().expect("our child");
            status.is_some()
        });
        assert!(left, "relay {} (incarnation {}) did not leave", self.number, self.incarnation);
        self.stage.faults.note(Kind::Left, Some(self.incarnation), from);
        status.expect("it left")
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Starts it again where the process has ended, as a supervisor would.
    pub fn revive(&mut self) {
        if !self.is_running() {
            self.child = None;
            self.start();
        }
    }

    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Takes the process out of its place. A relay that ended by itself is a broken promise.
    fn running(&mut self) -> Child {
        let mut child = self.child.take().expect("a relay that was started");
        let ended = child.try_wait().expect("our child");
        assert!(ended.is_none(), "relay {} ended by itself: {ended:?}, see {:?}", self.number, self.folder.join("log"));
        child
    }
}

impl Drop for Relay<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            send_signal(child.id(), SIGKILL);
            let _ = child.wait();
        }
    }
}
