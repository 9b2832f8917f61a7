//! No room on the disk, no connection, file descriptor or memory left: work stops, says so, and goes on by itself when there is enough again.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use outboxd_test_support::disk::SmallDisk;
use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::wait_for;
use sqlx::{Connection, PgConnection};

use crate::faults::Kind;
use crate::producer::{sell_at_once, sell_large};
use crate::round::{Market, alone, block_on};
use crate::seed::Seed;
use crate::stage::{Lapses, Stage, lease};
use crate::truth;

const PATIENCE: Duration = Duration::from_secs(30);
const THINK_MAX: Duration = Duration::from_millis(40);
const STARVATIONS: usize = 5;
/// Messages that need more memory than a relay had when its limit was set: as large as may be, some for each of its calls.
const LARGE_COUNT: usize = 40;
const LARGE_BYTES: usize = 900_000;

#[test]
fn nothing_is_lost_when_the_disk_of_postgres_is_full() {
    let _alone = alone();
    let Some(disk) = SmallDisk::mount(160) else { return };
    let server = TestPostgres::start_in(disk.folder(), &["min_wal_size=32MB", "max_wal_size=48MB"]);
    let stage = Stage::new(Some(server.url()), Lapses::Many, THINK_MAX);
    let fill = || {
        disk.fill();
        write_until_it_fails(&server.url());
    };
    // A server that could not write its log has ended: someone has to start it again.
    full_again_and_again(stage, &disk, fill, || server.restart());
    assert!(server.log().contains("No space left on device"), "the disk was never full");
}

#[test]
fn nothing_is_lost_when_the_disk_of_sqlite_is_full() {
    let _alone = alone();
    let Some(disk) = SmallDisk::mount(24) else { return };
    let database = format!("sqlite:{}", disk.folder().join("outbox.db").display());
    let stage = Stage::new(Some(database.clone()), Lapses::Many, THINK_MAX);
    full_again_and_again(stage, &disk, || disk.fill(), || assert_eq!(block_on(truth::integrity(&database)), "ok"));
}

fn full_again_and_again(stage: Stage, disk: &SmallDisk, fill: impl Fn(), recover: impl Fn()) {
    let seed = Seed::of_run();
    let market = Market::open(&stage, stage.database(), seed);
    let mut relays = [stage.relay(), stage.relay()];
    relays.iter_mut().for_each(|relay| relay.start());
    let began = Instant::now();
    for _ in 0..3 {
        let before = SystemTime::now();
        assert!(wait_for(PATIENCE, || stage.sink.first_since(before, |_| true).is_some()), "nothing was delivered");

        let from = SystemTime::now();
        fill();
        // The fault itself: longer than a lease.
        sleep(lease() * 2);
        disk.clear();
        recover();
        stage.faults.note(Kind::DiskFull, None, from);
    }
    let round = market.reckon(&stage, seed, began.elapsed());
    println!("{round}");
    assert!(relays.iter_mut().all(|relay| relay.is_running()), "a relay ended: {}", stage.logs());
    assert!(round.verdict.is_clean(), "{:?}", round.verdict);
}

/// Fills the server's log, whose files are made in advance: a megabyte a statement, until one fails.
fn write_until_it_fails(url: &str) {
    const WRITE: &str = "select pg_logical_emit_message(false, 'ballast', repeat('x', 1 << 20)) is not null";
    block_on(async {
        let Ok(mut connection) = PgConnection::connect(url).await else { return };
        for _ in 0..300 {
            if sqlx::query(WRITE).execute(&mut connection).await.is_err() {
                return;
            }
        }
        panic!("300 MB of log fit on a small disk");
    });
}

#[test]
fn a_relay_that_gets_no_connection_waits_for_one() {
    let _alone = alone();
    let server = TestPostgres::start_with(&["max_connections=20"]);
    let stage = Stage::new(Some(server.url()), Lapses::Many, THINK_MAX);
    block_on(truth::create_orders(stage.database()));
    let ids = block_on(sell_at_once::<sqlx::Postgres>(stage.database(), 10));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut taken = Vec::new();
    while let Ok(connection) = runtime.block_on(PgConnection::connect(stage.database())) {
        taken.push(connection);
        assert!(taken.len() <= 20, "the server has no limit");
    }
    let mut relay = stage.relay();
    relay.start();
    assert!(wait_for(PATIENCE, || stage.logs().contains("reaching the database fails")), "{}", stage.logs());
    sleep(Duration::from_secs(2));
    assert!(relay.is_running(), "it gave up: {}", stage.logs());
    // Said once, not once a try.
    assert_eq!(stage.logs().matches("reaching the database fails").count(), 1, "{}", stage.logs());

    let freed = SystemTime::now();
    drop(taken);

    let all = || ids.iter().all(|id| stage.sink.first_since(freed, |delivery| delivery.id == *id).is_some());
    assert!(wait_for(Duration::from_secs(5), all), "{}", stage.logs());
}

#[test]
fn a_relay_without_a_free_file_descriptor_goes_on_when_it_has_some() {
    let _alone = alone();
    let stage = Stage::new(Some(TestPostgres::shared().database()), Lapses::Many, THINK_MAX);
    block_on(truth::create_orders(stage.database()));
    let mut relay = stage.relay();
    relay.start();
    assert!(wait_for(PATIENCE, || stage.logs().contains(" serves ")), "{}", stage.logs());
    // Those it has it keeps; to reach the target it needs another.
    limit(relay.pid(), "--nofile=3:");
    let ids = block_on(sell_at_once::<sqlx::Postgres>(stage.database(), 40));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let noticed = || {
        let errors = runtime.block_on(truth::last_errors(stage.database()));
        (stage.logs() + &errors).contains("Too many open files")
    };
    assert!(wait_for(PATIENCE, noticed), "{}", stage.logs());
    sleep(lease() * 2);
    assert!(relay.is_running(), "it ended: {}", stage.logs());

    let freed = SystemTime::now();
    limit(relay.pid(), "--nofile=1024:");

    let all = || ids.iter().all(|id| stage.sink.first_since(freed, |delivery| delivery.id == *id).is_some());
    assert!(wait_for(PATIENCE, all), "{}", stage.logs());
}

#[test]
fn nothing_is_lost_when_a_relay_gets_no_more_memory() {
    let _alone = alone();
    let stage = Stage::new(Some(TestPostgres::shared().database()), Lapses::Many, THINK_MAX);
    let seed = Seed::of_run();
    let market = Market::open(&stage, stage.database(), seed);
    let (mut starved, mut fed) = (stage.relay(), stage.relay());
    starved.start();
    fed.start();
    let began = Instant::now();
    let (mut died, mut refused) = (0, 0);
    for _ in 0..STARVATIONS {
        let before = SystemTime::now();
        let delivers =
            || stage.sink.first_since(before, |delivery| delivery.incarnation == starved.incarnation()).is_some();
        assert!(wait_for(PATIENCE, delivers), "it delivers nothing: {}", starved.log());

        let (from, said) = (SystemTime::now(), starved.log().len());
        limit(starved.pid(), &format!("--data={}:", data_bytes(starved.pid())));
        // More than it has room for.
        let large = block_on(sell_large(stage.database(), LARGE_COUNT, LARGE_BYTES));
        let all = || large.iter().all(|id| stage.sink.first_since(from, |delivery| delivery.id == *id).is_some());
        wait_for(lease() * 2, || !starved.is_running() || all());
        if starved.is_running() {
            refused += usize::from(starved.log()[said..].to_lowercase().contains("memory"));
            limit(starved.pid(), "--data=unlimited:");
        } else {
            died += 1;
        }
        stage.faults.note(Kind::MemoryTaken, Some(starved.incarnation()), from);
        starved.revive();
    }
    let round = market.reckon(&stage, seed, began.elapsed());

    println!("{round}  it died {died} times of {STARVATIONS}, and refused {refused} times");
    assert!(starved.is_running() && fed.is_running(), "a relay ended: {}", stage.logs());
    assert!(died + refused > 0, "it always had enough memory: {}", stage.logs());
    assert!(round.verdict.is_clean(), "{:?}", round.verdict);
}

/// Sets a soft limit of a process that runs, as prlimit says it; what it has it keeps.
fn limit(pid: u32, which: &str) {
    let limited = Command::new("prlimit").args([&format!("--pid={pid}"), which]).status();
    assert!(limited.expect("prlimit, of util-linux").success());
}

/// What RLIMIT_DATA counts of a process.
fn data_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process that runs");
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:")).expect("how much data it has");
    let kilobytes: u64 = data.trim().trim_end_matches(" kB").parse().expect("a number of kB");
    kilobytes * 1024
}
