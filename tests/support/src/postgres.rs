//! A real PostgreSQL as a child of the test process.
//!
//! It listens on a Unix socket in a folder of its own, ends with the thread that keeps it (also when the tests are killed),
//! and runs under another uid where the tests run as root: PostgreSQL refuses that.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::clock::FakeClock;
use crate::process::{die_with_thread, send_signal};

/// `nobody`, whom every system has.
pub(crate) const UNPRIVILEGED: u32 = 65534;
const READY_WITHIN: Duration = Duration::from_secs(60);

pub const SIGSTOP: i32 = libc::SIGSTOP;
pub const SIGCONT: i32 = libc::SIGCONT;

const FOLDER_PREFIX: &str = "obx-";

/// A server of one's own, to be killed, frozen and restarted. Removed when dropped.
pub struct TestPostgres {
    folder: PathBuf,
    keeper: Mutex<Sender<Order>>,
    databases: AtomicU32,
}

/// Whether the server waits for its disk. Only a server that no test crashes may do without.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sync {
    On,
    Off,
}

impl TestPostgres {
    /// Starts a server and waits until it answers.
    pub fn start() -> Self {
        Self::with_sync(Sync::On, &[], &std::env::temp_dir())
    }

    /// The same with further settings, each `name=value`.
    pub fn start_with(settings: &[&str]) -> Self {
        Self::with_sync(Sync::On, settings, &std::env::temp_dir())
    }

    /// The same with its data under the folder `parent`, on a small disk, say. A short path: it holds a socket.
    pub fn start_in(parent: &Path, settings: &[&str]) -> Self {
        Self::with_sync(Sync::On, settings, parent)
    }

    /// A server that goes by another clock than the machine's. Not to be crashed: it does not wait for its disk.
    pub fn start_by(clock: &FakeClock) -> Self {
        Self::with(Sync::Off, &[], &std::env::temp_dir(), clock.environment().into())
    }

    /// One server that all tests of this process share, for tests that only need a database of their own.
    pub fn shared() -> &'static TestPostgres {
        static SHARED: OnceLock<TestPostgres> = OnceLock::new();
        SHARED.get_or_init(|| Self::with_sync(Sync::Off, &[], &std::env::temp_dir()))
    }

    /// Where the server's programs are: `OUTBOXD_TEST_PG_BIN`, then PATH, then where Debian puts them.
    pub fn programs() -> Option<PathBuf> {
        let named = std::env::var_os("OUTBOXD_TEST_PG_BIN").map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let debian =
            fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
        named
            .into_iter()
            .chain(debian)
            .chain(std::env::split_paths(&path))
            .find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
    }

    /// The URL of the server's first database.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Makes a new database and answers its URL.
    pub fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let (url, create) = (self.url(), format!("create database {name} strategy file_copy"));
        block_on(async move {
            let mut connection = PgConnection::connect(&url).await.expect("connect to the test server");
            sqlx::query(AssertSqlSafe(create)).execute(&mut connection).await.expect("create a database");
            connection.close().await.expect("close");
        });
        self.url_of(&name)
    }

    /// The folder of the server's Unix socket.
    pub fn socket_folder(&self) -> &Path {
        &self.folder
    }

    /// The postmaster's process id.
    pub fn pid(&self) -> u32 {
        self.ask(Task::Pid)
    }

    /// Kills the postmaster (signal 9) and waits until it is gone. Its backends notice soon after.
    pub fn kill(&self) {
        self.stop_with(libc::SIGKILL);
    }

    /// Ends the postmaster with a signal of PostgreSQL's meaning (SIGINT fast, SIGQUIT immediate) and waits until it is gone.
    pub fn stop_with(&self, signal: i32) {
        self.ask(Task::Stop(signal));
    }

    /// Starts the server again after a kill, and waits until it answers.
    pub fn restart(&self) {
        self.ask(Task::Start);
        self.wait_until_ready();
    }

    /// Stops postmaster and backends in their tracks (SIGSTOP): connections stay open and nothing answers.
    pub fn freeze(&self) {
        self.signal_all(libc::SIGSTOP);
    }

    /// Sends a signal to one of the server's processes.
    pub fn signal(&self, pid: u32, signal: i32) {
        send_signal(pid, signal);
    }

    /// Ends a freeze.
    pub fn thaw(&self) {
        self.signal_all(libc::SIGCONT);
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn with_sync(sync: Sync, settings: &[&str], parent: &Path) -> Self {
        Self::with(sync, settings, parent, Vec::new())
    }

    fn with(sync: Sync, settings: &[&str], parent: &Path, environment: Vec<(&'static str, String)>) -> Self {
        let programs = Self::programs().expect(
            "no PostgreSQL found: install the server (Debian: apt-get install postgresql) or set OUTBOXD_TEST_PG_BIN",
        );
        let folder = new_folder(parent);
        run(Command::new("cp").arg("-a").arg(template(&programs)).arg(folder.join("data")));
        let (orders, received) = channel();
        let server = Server {
            programs,
            folder: folder.clone(),
            sync,
            settings: settings.iter().map(|setting| setting.to_string()).collect(),
            environment,
            child: None,
        };
        // The parent-death signal belongs to the thread that starts the child: this one lives as long as the fixture.
        thread::Builder::new().name("keep postgres".into()).spawn(move || server.obey(&received)).expect("spawn");
        let postgres = TestPostgres { folder, keeper: Mutex::new(orders), databases: AtomicU32::new(0) };
        postgres.restart();
        postgres
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres:///{database}?host={}&user=postgres", self.folder.display())
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let url = self.url();
            let answered = block_on(async move {
                let mut connection = PgConnection::connect(&url).await?;
                sqlx::query("select 1").execute(&mut connection).await?;
                connection.close().await
            });
            match answered {
                Ok(()) => return,
                Err(error) if Instant::now() > deadline => panic!("PostgreSQL is not ready: {error}\n{}", self.log()),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
            // Backends of a killed postmaster may still have held the shared memory when the new one tried.
            self.ask(Task::Start);
        }
    }

    fn signal_all(&self, signal: i32) {
        let postmaster = self.pid();
        for pid in children(postmaster).into_iter().chain([postmaster]) {
            send_signal(pid, signal);
        }
    }

    fn ask(&self, task: Task) -> u32 {
        let (answer, answered) = channel();
        let keeper = self.keeper.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        keeper.send(Order { task, answer }).expect("the keeper lives");
        drop(keeper);
        answered.recv().expect("the keeper answers")
    }
}

impl Drop for TestPostgres {
    fn drop(&mut self) {
        self.thaw();
        self.stop_with(libc::SIGQUIT);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

struct Order {
    task: Task,
    answer: Sender<u32>,
}

enum Task {
    Start,
    Stop(i32),
    Pid,
}

/// What the keeper's thread owns.
struct Server {
    programs: PathBuf,
    folder: PathBuf,
    sync: Sync,
    settings: Vec<String>,
    /// What its environment holds beside the usual.
    environment: Vec<(&'static str, String)>,
    child: Option<Child>,
}

impl Server {
    fn obey(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            match order.task {
                Task::Start => self.start(),
                Task::Stop(signal) => self.stop(signal),
                Task::Pid => {}
            }
            let _ = order.answer.send(self.child.as_ref().map_or(0, Child::id));
        }
        self.stop(libc::SIGQUIT);
    }

    fn start(&mut self) {
        if self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            return;
        }
        let log = fs::File::options().create(true).append(true).open(self.folder.join("log")).expect("open the log");
        let mut command = Command::new(self.programs.join("postgres"));
        command.arg("-D").arg(self.folder.join("data")).arg("-k").arg(&self.folder);
        let mut settings =
            vec!["listen_addresses=", "max_connections=200", "shared_buffers=64MB", "max_prepared_transactions=10"];
        if self.sync == Sync::Off {
            settings.extend(["fsync=off", "full_page_writes=off", "synchronous_commit=off"]);
        }
        settings.extend(self.settings.iter().map(String::as_str));
        for setting in settings {
            command.arg("-c").arg(setting);
        }
        command.envs(self.environment.iter().cloned());
        command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(log.try_clone().expect("clone")).stderr(log);
        unprivileged(&mut command);
        die_with_thread(&mut command, libc::SIGINT);
        self.child = Some(command.spawn().expect("start postgres"));
    }

    fn stop(&mut self, signal: i32) {
        if let Some(mut child) = self.child.take() {
            send_signal(child.id(), signal);
            // Waited for: an unreaped postmaster keeps its lock file.
            let _ = child.wait();
        }
    }
}

/// A freshly initialised data folder, made once a process and copied for each server.
fn template(programs: &Path) -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let folder = new_folder(&std::env::temp_dir());
        let data = folder.join("data");
        let mut command = Command::new(programs.join("initdb"));
        command.arg("-D").arg(&data).args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-N",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-instructions",
        ]);
        command.env("LC_ALL", "C");
        unprivileged(&mut command);
        run(&mut command);
        data
    })
}

/// A folder that belongs to who runs the server. Short: a socket's path has at most 107 bytes.
pub(crate) fn new_folder(parent: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    static SWEEP: OnceLock<()> = OnceLock::new();
    SWEEP.get_or_init(sweep);
    let name = format!("{FOLDER_PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = parent.join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).expect("create a folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("set permissions");
    if is_root() {
        chown(&folder, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).expect("change the owner");
    }
    folder
}

/// Removes what earlier processes left: a shared server's folder outlives its process.
fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(FOLDER_PREFIX)) else { continue };
        let Some(pid) = rest.split('-').next().and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

pub(crate) fn unprivileged(command: &mut Command) {
    if is_root() {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
}

/// The processes that a process has started.
fn children(parent: u32) -> Vec<u32> {
    let tasks = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    tasks.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// On a thread of its own, so that it works within a test's runtime too.
fn block_on<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let work =
        move || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime").block_on(work);
    thread::spawn(work).join().expect("the thread ends well")
}
