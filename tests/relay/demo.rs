//! `outboxd demo`, smaller than the README's but otherwise the same.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::{guests, wait_for};
use tempfile::TempDir;

use crate::stage::{PATIENCE, cache};

/// A plugin folder, and a folder for temporary files that must be empty in the end.
struct Place {
    plugins: TempDir,
    temporary: TempDir,
}

impl Place {
    fn new() -> Place {
        let plugins = TempDir::new().expect("a temporary folder");
        std::fs::copy(guests::plugin("webhook"), plugins.path().join("webhook.wasm")).expect("copied");
        Place { plugins, temporary: TempDir::new().expect("a temporary folder") }
    }

    fn demo(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboxd"));
        command.args(["demo", "--plugins"]).arg(self.plugins.path()).args(args).current_dir(self.temporary.path());
        command.env("TMPDIR", self.temporary.path()).env("OUTBOXD_CACHE", cache()).stdin(Stdio::null());
        // What the user's shell says must not lead the demo's relay elsewhere.
        command.env("DATABASE_URL", "postgres://nowhere.invalid/production").env("OUTBOXD_TABLE", "production");
        command
    }

    fn left_behind(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.temporary.path()).expect("the folder");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }
}

fn keeps_its_promise(output: &Output) {
    let (table, story) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{story}\n{table}");
    let number = |name: &str| {
        let line = table.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{table}"));
        line.trim_start()[name.len()..].split_whitespace().next().unwrap_or_default().to_owned()
    };
    assert_eq!([number("committed"), number("rolled back"), number("delivered")], ["270", "30", "270"], "{table}");
    assert_eq!(
        [number("lost"), number("phantom"), number("bad signatures"), number("unfinished")],
        ["0"; 4],
        "{table}"
    );
    assert_ne!(number("retried"), "0", "every twentieth first try is refused\n{table}");
    assert!(story.contains("the receiver is killed") && story.contains("the relay is killed"), "{story}");
    assert!(story.contains("private_networks"), "the ceiling is shown\n{story}");
}

#[test]
fn on_sqlite_it_keeps_its_promise_and_leaves_nothing_behind() {
    let place = Place::new();

    let output = place.demo(&["--orders", "300"]).output().expect("outboxd starts");

    keeps_its_promise(&output);
    assert_eq!(place.left_behind(), Vec::<PathBuf>::new());
}

#[test]
fn on_postgres_it_keeps_its_promise_and_leaves_nothing_behind() {
    let (place, url) = (Place::new(), TestPostgres::shared().database());

    let output = place.demo(&["--orders", "300", "--database", &url]).output().expect("outboxd starts");

    keeps_its_promise(&output);
    assert_eq!(place.left_behind(), Vec::<PathBuf>::new());
    assert_eq!(schemas(&url), Vec::<String>::new());
}

/// The demo's schemas in a database.
fn schemas(url: &str) -> Vec<String> {
    use sqlx::Connection as _;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection = sqlx::PgConnection::connect(url).await.expect("connects");
        sqlx::query_scalar("select nspname::text from pg_namespace where nspname like 'outboxd%'")
            .fetch_all(&mut connection)
            .await
            .expect("answers")
    })
}

#[test]
fn interrupted_it_ends_its_relay_and_leaves_nothing_behind() {
    let place = Place::new();
    let log = place.plugins.path().join("story");
    let story = std::fs::File::create(&log).expect("a file");
    let mut demo =
        place.demo(&["--orders", "100000"]).stdout(Stdio::null()).stderr(story).spawn().expect("outboxd starts");
    let said = |text: &str| std::fs::read_to_string(&log).unwrap_or_default().contains(text);
    assert!(wait_for(PATIENCE, || said("the shop opens")), "{:?}", std::fs::read_to_string(&log));
    let relays = relays_of(place.temporary.path());

    let signalled = Command::new("kill").args(["-INT", &demo.id().to_string()]).status().expect("kill runs");
    let status = demo.wait().expect("our child");

    assert!(signalled.success());
    assert_eq!(status.code(), Some(1), "{:?}", std::fs::read_to_string(&log));
    assert_eq!(relays.len(), 1, "one relay was running");
    assert_eq!(relays_of(place.temporary.path()), Vec::<u32>::new());
    assert_eq!(place.left_behind(), Vec::<PathBuf>::new());
}

/// Running processes whose configuration lies in `folder`.
fn relays_of(folder: &Path) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("a process list").filter_map(|entry| {
        let entry = entry.ok()?;
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let arguments = std::fs::read(entry.path().join("cmdline")).ok()?;
        let mut arguments = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        arguments
            .any(|argument| argument.starts_with(&*folder.to_string_lossy()) && argument.ends_with("outboxd.toml"))
            .then_some(pid)
    });
    processes.collect()
}

#[test]
fn without_the_plugin_it_says_how_to_build_it() {
    let place = Place::new();
    std::fs::remove_file(place.plugins.path().join("webhook.wasm")).expect("removed");

    let output = place.demo(&[]).output().expect("outboxd starts");

    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("tests/build-plugins"));
}
