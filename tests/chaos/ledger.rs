//! `tests/ledger.csv`: every long run that there ever was, also the failed ones.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::round::Round;
use crate::seed::Seed;
use crate::stage::{LEASE_DEFAULT, lease};

/// One line.
pub struct Entry {
    /// What was run: the commit at the start, with a plus where files had been changed since.
    commit: String,
    /// Its name, and the lease where it is not the default one.
    suite: String,
    first: Seed,
    last: Seed,
    kills: usize,
    database_crashes: usize,
    messages: usize,
    lost: usize,
    ghosts: usize,
    duplicates: usize,
    unexplained: usize,
    hours: f64,
    failed: bool,
}

/// How long to go on: `OUTBOXD_CHAOS_MINUTES`. Without it a run is one round, and not entered.
pub fn length() -> Option<Duration> {
    let text = std::env::var("OUTBOXD_CHAOS_MINUTES").ok()?;
    let minutes: f64 = text.trim().parse().expect("OUTBOXD_CHAOS_MINUTES is a number");
    Some(Duration::from_secs_f64(minutes * 60.0))
}

impl Entry {
    pub fn new(suite: &'static str, seed: Seed) -> Entry {
        Entry {
            commit: commit(),
            suite: named(suite, lease()),
            first: seed,
            last: seed,
            kills: 0,
            database_crashes: 0,
            messages: 0,
            lost: 0,
            ghosts: 0,
            duplicates: 0,
            unexplained: 0,
            hours: 0.0,
            failed: false,
        }
    }

    /// Adds a round; nothing is known of one that ended in a panic, but that it failed.
    pub fn seen(&mut self, seed: Seed, since_start: Duration, round: Option<&Round>) {
        self.last = seed;
        self.hours = since_start.as_secs_f64() / 3_600.0;
        self.failed |= round.is_none_or(|round| round.failure.is_some());
        let Some(round) = round else { return };
        self.kills += round.kills();
        self.database_crashes += round.database_crashes();
        self.messages += round.verdict.messages;
        self.lost += round.verdict.lost.len();
        self.ghosts += round.verdict.phantom.len();
        self.duplicates += round.verdict.duplicates();
        self.unexplained += round.verdict.unexplained.len();
    }

    fn line(&self, date: &str) -> String {
        let Entry {
            commit,
            suite,
            kills,
            database_crashes,
            messages,
            lost,
            ghosts,
            duplicates,
            unexplained,
            hours,
            ..
        } = self;
        let failed = if self.failed { " failed" } else { "" };
        let seeds = format!("{}..{}{failed}", self.first.0, self.last.0);
        format!(
            "{date},{commit},{suite},{seeds},{kills},{database_crashes},{messages},{lost},{ghosts},{duplicates},{unexplained},{hours:.2}"
        )
    }
}

fn named(suite: &str, lease: Duration) -> String {
    let lease = (lease != LEASE_DEFAULT).then(|| format!(" lease {}ms", lease.as_millis()));
    format!("{suite}{}", lease.unwrap_or_default())
}

pub fn append(entry: &Entry) {
    let line = entry.line(&today());
    println!("{line}");
    let mut ledger = File::options().append(true).open(path()).expect("tests/ledger.csv");
    writeln!(ledger, "{line}").expect("the ledger is written");
}

fn commit() -> String {
    let changed =
        if git(&["status", "--porcelain", "--", "host", "tests/chaos", "migrations"]).is_empty() { "" } else { "+" };
    format!("{}{changed}", git(&["rev-parse", "--short=10", "HEAD"]))
}

fn path() -> PathBuf {
    outboxd_test_support::repository().join("tests/ledger.csv")
}

/// What git says, or nothing where there is no git.
fn git(args: &[&str]) -> String {
    let output = Command::new("git").args(args).current_dir(outboxd_test_support::repository()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn today() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.split('T').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_not_the_default_is_named() {
        assert_eq!(named("sqlite", LEASE_DEFAULT), "sqlite");
        assert_eq!(named("sqlite", Duration::from_secs(3)), "sqlite lease 3000ms");
    }

    #[test]
    fn every_line_has_the_columns_of_the_first() {
        let ledger = std::fs::read_to_string(path()).unwrap();
        let columns = |line: &str| line.split(',').count();
        let mut lines = ledger.lines();
        let heading = lines.next().unwrap();

        let new = Entry::new("postgres", Seed(1)).line("2026-01-01");
        assert_eq!(columns(&new), columns(heading), "{new}");
        for line in lines {
            assert_eq!(columns(line), columns(heading), "{line}");
        }
    }
}
