//! PgBouncer in transaction mode in front of a test server.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use crate::postgres::{TestPostgres, UNPRIVILEGED, is_root, new_folder, unprivileged};
use crate::process::die_with_thread;

const PORT: u16 = 6432;

/// A pooler in front of the shared server. Ends with the test process.
pub struct TestPgBouncer {
    folder: PathBuf,
}

impl TestPgBouncer {
    /// The one pooler of this process; nothing where PgBouncer is not installed.
    pub fn shared() -> Option<&'static TestPgBouncer> {
        static SHARED: OnceLock<Option<TestPgBouncer>> = OnceLock::new();
        SHARED.get_or_init(|| program().map(|program| Self::start(&program, TestPostgres::shared()))).as_ref()
    }

    /// The URL of a server's database, through the pooler.
    pub fn url_of(&self, url: &str) -> String {
        let socket = TestPostgres::shared().socket_folder().display().to_string();
        format!("{}&port={PORT}", url.replace(&socket, &self.folder.display().to_string()))
    }

    fn start(program: &Path, server: &TestPostgres) -> Self {
        let folder = new_folder(&std::env::temp_dir());
        let settings = format!(
            "[databases]\n* = host={} user=postgres\n[pgbouncer]\nlisten_addr =\nunix_socket_dir = {}\nlisten_port = {PORT}\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 500\nlogfile = {}\n",
            server.socket_folder().display(),
            folder.display(),
            folder.join("log").display(),
        );
        let file = folder.join("pgbouncer.ini");
        fs::write(&file, settings).expect("write the settings");
        if is_root() {
            chown(&file, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).expect("change the owner");
        }
        let mut command = Command::new(program);
        command.arg("--quiet").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        unprivileged(&mut command);
        die_with_thread(&mut command, libc::SIGINT);
        keep(command);
        let socket = folder.join(format!(".s.PGSQL.{PORT}"));
        let deadline = Instant::now() + Duration::from_secs(20);
        while !socket.exists() {
            assert!(
                Instant::now() < deadline,
                "PgBouncer does not start: {:?}",
                fs::read_to_string(folder.join("log"))
            );
            thread::sleep(Duration::from_millis(10));
        }
        TestPgBouncer { folder }
    }
}

/// Starts the command on a thread that lives as long as the process: the parent-death signal belongs to the thread.
fn keep(mut command: Command) {
    let (started, starts) = channel();
    let work = move || {
        let child: std::io::Result<Child> = command.spawn();
        let _ = started.send(child.as_ref().map(Child::id).map_err(|error| error.to_string()));
        if let Ok(mut child) = child {
            let _ = child.wait();
        }
    };
    thread::Builder::new().name("keep pgbouncer".into()).spawn(work).expect("spawn");
    starts.recv().expect("the keeper answers").expect("start pgbouncer");
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .map(|folder| folder.join("pgbouncer"))
        .find(|file| file.exists())
}
