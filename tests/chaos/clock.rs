//! A relay whose clock jumps. What hosts must agree on is decided by the database's clock, and what a relay waits for by one that
//! never jumps: so nothing comes of it, not even a duplicate.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::{skip, wait_for};

use crate::faults::Kind;
use crate::round::{Market, alone};
use crate::seed::Seed;
use crate::stage::{Lapses, Stage};

const PATIENCE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);
const THINK_MAX: Duration = Duration::from_millis(60);
/// Back and forth by an hour, ten times each.
const STEPS: usize = 20;

#[test]
fn nothing_comes_of_it_when_the_clock_of_a_relay_jumps() {
    let _alone = alone();
    let Some(library) = library() else {
        return skip("libfaketime is missing; on Debian, apt-get install libfaketime");
    };
    let stage = Stage::new(Some(TestPostgres::shared().database()), Lapses::Default, THINK_MAX);
    let seed = Seed::of_run();
    let market = Market::open(&stage, stage.database(), seed);
    let offset = stage.path().join("offset");
    step(&offset, "+0");
    let (mut fooled, mut sane) = (stage.relay(), stage.relay());
    for (name, value) in [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        ("FAKETIME_TIMESTAMP_FILE", offset.to_str().expect("a plain path")),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("NO_FAKE_STAT", "1"),
    ] {
        fooled.set(name, value);
    }
    fooled.start();
    sane.start();

    let began = Instant::now();
    for number in 0..STEPS {
        let by = if number % 2 == 0 { "+3600s" } else { "-3600s" };
        let from = SystemTime::now();
        step(&offset, by);
        // A line of its log tells the time that it believes.
        fooled.swap_plugins();
        let jumped = || {
            let (told, now) = (told_last(&fooled.log()), SystemTime::now());
            let off = if number % 2 == 0 { told.duration_since(now) } else { now.duration_since(told) };
            off.is_ok_and(|off| off.abs_diff(HOUR) < Duration::from_secs(60))
        };
        assert!(wait_for(PATIENCE, jumped), "its clock did not jump by {by}: {}", fooled.log());
        stage.faults.note(Kind::ClockStepped, Some(fooled.incarnation()), from);
        let delivered = || stage.sink.first_since(from, |delivery| delivery.incarnation == fooled.incarnation());
        assert!(wait_for(PATIENCE, || delivered().is_some()), "it delivers no more: {}", fooled.log());
    }
    let round = market.reckon(&stage, seed, began.elapsed());

    println!("{round}");
    assert!(fooled.is_running() && sane.is_running(), "a relay ended: {}", stage.logs());
    assert!(round.verdict.is_clean() && round.verdict.duplicates() == 0, "{round}");
    assert!(round.verdict.ok > 10 * STEPS, "little was sold: {round}");
}

fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?;
    let library = |folder: PathBuf| folder.join("faketime/libfaketimeMT.so.1");
    folders.filter_map(|folder| Some(library(folder.ok()?.path()))).find(|library| library.exists())
}

/// Whole at any moment: it is read at each look at the clock.
fn step(offset: &Path, by: &str) {
    let aside = offset.with_extension("new");
    fs::write(&aside, by).and_then(|()| fs::rename(&aside, offset)).expect("the offset");
}

/// The time at the head of the last line.
fn told_last(log: &str) -> SystemTime {
    let line = log.lines().last().expect("a line");
    let time = line.split_whitespace().next().unwrap_or_default();
    humantime::parse_rfc3339(time).unwrap_or_else(|error| panic!("{error}: {line}"))
}
