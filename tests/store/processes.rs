//! Several processes on one SQLite file, and files that are not as they should be.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use outboxd_client::{NewMessage, Outbox, publish};
use outboxd_core::Transition;
use outboxd_store::{Migrated, Notify, Store, StoreError, StoreOptions, Wake, migrate};
use outboxd_test_support::skip;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, draft, lane, settlement};

const EACH: usize = 60;

/// Starts this test program again, to be `child_process` in that part.
fn child(part: &str, url: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child_process", "--ignored", "--nocapture"])
        .env("OUTBOXD_TEST_PART", part)
        .env("OUTBOXD_TEST_URL", url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What the other processes do; not a test of its own.
#[tokio::test]
#[ignore = "started by other tests"]
async fn child_process() {
    let Ok(url) = std::env::var("OUTBOXD_TEST_URL") else { return };
    match std::env::var("OUTBOXD_TEST_PART").unwrap().as_str() {
        "produce" => produce(&url, EACH, Duration::ZERO).await,
        "produce slowly" => produce(&url, 12, Duration::from_millis(250)).await,
        "relay" => relay(&url).await,
        "migrate for ever" => loop {
            migrate(&StoreOptions { url: url.clone(), ..StoreOptions::default() }).await.unwrap();
            println!("migrated");
            let undo = "begin; drop table outbox; drop table outbox_versions; drop table outbox_control;
                drop table outbox_keys; commit";
            sqlx::raw_sql(undo).execute(&mut sqlx::SqliteConnection::connect(&url).await.unwrap()).await.unwrap();
        },
        other => panic!("{other}"),
    }
}

/// Publishes as an application does, and prints when each commit was done. Microseconds since the epoch.
async fn produce(url: &str, count: usize, pause: Duration) {
    let options: SqliteConnectOptions = url.parse().unwrap();
    let mut connection = options.busy_timeout(Duration::from_secs(30)).connect().await.unwrap();
    for n in 0..count {
        tokio::time::sleep(pause).await;
        let mut transaction = connection.begin_with("begin immediate").await.unwrap();
        publish(&mut transaction, &Outbox::default(), NewMessage::from_json(TOPIC, n.to_string())).await.unwrap();
        if n % 5 == 4 && pause.is_zero() {
            transaction.rollback().await.unwrap();
            continue;
        }
        transaction.commit().await.unwrap();
        println!("committed {}", now_us());
    }
}

/// Delivers until nothing came for a while.
async fn relay(url: &str) {
    let store = Store::connect(&StoreOptions { url: url.into(), ..StoreOptions::default() }).await.unwrap();
    let mut idle = 0;
    while idle < 8 {
        let claims = store.outbox.claim(&[lane(TOPIC, 7)], LEASE, LAPSES_MAX).await.expect("claim");
        if claims.is_empty() {
            idle += 1;
            store.outbox.wait_for_work(Duration::from_millis(500)).await;
            continue;
        }
        idle = 0;
        let held: Vec<_> = claims.iter().map(crate::backend::held).collect();
        store.outbox.renew(&held, LEASE).await.expect("renew");
        let settled: Vec<_> = claims.iter().map(|claim| settlement(claim, Transition::Delivered)).collect();
        for status in store.outbox.settle(&settled).await.expect("settle") {
            println!("settled {status:?}");
        }
    }
}

fn now_us() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_producers_and_two_relays_share_a_file_without_an_error() {
    let store = TestStore::sqlite().await;
    let url = store.options.url.clone();
    let children: Vec<_> =
        std::iter::repeat_n("produce", 8).chain(["relay"; 2]).map(|part| child(part, &url)).collect();

    let mut lines = Vec::new();
    for child in children {
        let output = tokio::task::spawn_blocking(|| child.wait_with_output()).await.unwrap().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        lines.extend(text.lines().map(str::to_string));
    }

    let count = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    let committed = 8 * (EACH - EACH / 5);
    assert_eq!(count("committed "), committed);
    assert_eq!((count("settled Held"), count("settled Lost")), (committed, 0));
    assert_eq!(store.admin.stats().await.unwrap()[0].delivered, committed as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_s_commit_is_claimed_at_once_by_an_idle_relay() {
    let store = TestStore::sqlite().await;
    while store.outbox.wait_for_work(Duration::from_millis(300)).await == Wake::Notify {}
    let mut producer = child("produce slowly", &store.options.url);
    let output = BufReader::new(producer.stdout.take().unwrap());
    let committed = tokio::task::spawn_blocking(move || {
        let lines = output.lines().map_while(Result::ok);
        let times =
            lines.filter_map(|line| line.split_once("committed ").and_then(|(_, time)| time.parse::<u128>().ok()));
        times.collect::<Vec<_>>()
    });

    // As a relay does, with a poll that could never be the reason.
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut claimed = Vec::new();
    while claimed.len() < 12 {
        assert!(Instant::now() < deadline, "{} of 12 were claimed", claimed.len());
        store.outbox.wait_for_work(Duration::from_secs(600)).await;
        claimed.extend(store.claim(5).await.iter().map(|_| now_us()));
    }

    let committed = committed.await.unwrap();
    producer.wait().unwrap();
    // The producer prints when its commit has returned: the claim may even come first.
    let mut waits: Vec<_> =
        committed.iter().zip(&claimed).map(|(committed, claimed)| claimed.saturating_sub(*committed)).collect();
    waits.sort_unstable();
    println!("from commit to claim, microseconds: {waits:?}");
    assert!(waits[6] <= 20_000, "{waits:?}");
}

#[tokio::test]
async fn a_migration_killed_half_way_is_no_hindrance() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("outbox.db").display());
    let options = StoreOptions { url: url.clone(), notify: Notify::PollOnly, ..StoreOptions::default() };
    for round in 0..10u64 {
        let mut migrating = child("migrate for ever", &url);
        // Somewhere in the middle of something, after the first was done.
        let mut line = String::new();
        let mut output = BufReader::new(migrating.stdout.take().unwrap());
        while !line.contains("migrated") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0);
        }
        std::thread::sleep(Duration::from_micros(700 * round));
        migrating.kill().unwrap();
        migrating.wait().unwrap();

        migrate(&options).await.unwrap();

        Store::connect(&options).await.unwrap().outbox.due_topics().await.unwrap();
    }
}

#[tokio::test]
async fn a_terminated_migration_on_postgres_leaves_nothing_behind() {
    let store = TestStore::postgres().await;
    let options =
        StoreOptions { table: outboxd_store::TableName::parse("shop.other").unwrap(), ..store.options.clone() };
    let mut connection = store.postgres_connection().await;
    // Held up at its last statement but one.
    let mut lock = connection.begin().await.unwrap();
    sqlx::raw_sql("create table shop.other_control (topic text)").execute(&mut *lock).await.unwrap();
    let migrating = tokio::spawn({
        let options = options.clone();
        async move { migrate(&options).await }
    });
    let mut other = store.postgres_connection().await;
    let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and application_name = 'outboxd' and wait_event_type = 'Lock'";
    for _ in 0..500 {
        let (ended,): (i64,) = sqlx::query_as(sql).fetch_one(&mut other).await.unwrap();
        if ended > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(matches!(migrating.await.unwrap(), Err(StoreError::Unavailable(_))));
    lock.rollback().await.unwrap();

    assert_eq!(migrate(&options).await.unwrap(), Migrated { from: 0, to: 3 });
}

#[tokio::test]
async fn a_file_that_cannot_be_used_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(
        path("text.db"),
        "this is no database, but long enough to be read as a header of one.........................",
    )
    .unwrap();
    std::fs::create_dir(path("folder.db")).unwrap();
    let file = |name: &str| format!("sqlite:{}", path(name).display());
    for (url, why) in [
        (file("missing.db"), "cannot be opened"),
        (file("text.db"), "not a database"),
        (file("folder.db"), "cannot be opened"),
        (file("none/outbox.db"), "check its folder"),
    ] {
        let store = Store::connect(&StoreOptions { url: url.clone(), ..StoreOptions::default() }).await.unwrap();
        let Err(StoreError::Broken(text)) = store.admin.ping().await else { panic!("{url} works") };
        assert!(text.contains(why), "{url}: {text}");
    }
    for url in ["sqlite::memory:", "sqlite:x?mode=memory"] {
        assert!(Store::connect(&StoreOptions { url: url.into(), ..StoreOptions::default() }).await.is_err());
    }
    let options = StoreOptions { url: file("good.db"), ..StoreOptions::default() };
    migrate(&options).await.unwrap();
    let read_only = StoreOptions { url: format!("{}?mode=ro", options.url), ..options };
    let store = Store::connect(&read_only).await.unwrap();
    let Err(StoreError::Broken(text)) = store.outbox.claim(&[lane("a", 1)], LEASE, LAPSES_MAX).await else {
        panic!("it is read-only")
    };
    assert!(text.contains("read-only"), "{text}");
}

#[tokio::test]
async fn a_full_disk_is_said_and_survived() {
    let Some(disk) = SmallDisk::new() else { return skip("no small disk can be mounted") };
    let url = format!("sqlite:{}", disk.0.path().join("outbox.db").display());
    let options = StoreOptions { url, notify: Notify::PollOnly, ..StoreOptions::default() };
    migrate(&options).await.unwrap();
    let store = Store::connect(&options).await.unwrap();
    outboxd_client::standalone::publish(&options.url, "outbox", 1 << 20, vec![NewMessage::from_json(TOPIC, "{}")])
        .await
        .unwrap();
    let filler = disk.0.path().join("filler");
    let _ = std::fs::write(&filler, vec![0u8; 4 << 20]);

    let Err(StoreError::Unavailable(text)) = store.outbox.claim(&[lane(TOPIC, 1)], LEASE, LAPSES_MAX).await else {
        panic!("the disk is not full")
    };
    std::fs::remove_file(&filler).unwrap();

    assert!(text.contains("disk is full") || text.contains("disk may be full"), "{text}");
    assert_eq!(store.outbox.claim(&[lane(TOPIC, 1)], LEASE, LAPSES_MAX).await.unwrap().len(), 1);
}

/// A disk of two megabytes in memory.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().ok()?;
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(folder.path()).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(SmallDisk(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[tokio::test]
async fn a_file_that_is_replaced_or_removed_under_us_is_noticed() {
    let store = TestStore::sqlite().await;
    store.publish_one(draft(TOPIC)).await;
    store.claim_one().await;
    let path = store.options.url.strip_prefix("sqlite:").unwrap().to_string();
    let claim = async || store.outbox.claim(&[lane(TOPIC, 5)], LEASE, LAPSES_MAX).await;
    let other = TestStore::sqlite().await;
    let mine = other.publish_one(draft(TOPIC)).await;
    drop(other.another().await);
    sqlx::raw_sql("pragma wal_checkpoint(truncate)").execute(&mut other.sqlite_connection().await).await.unwrap();

    remove(&path);
    std::fs::copy(other.options.url.strip_prefix("sqlite:").unwrap(), &path).unwrap();
    let Err(StoreError::Unavailable(text)) = claim().await else { panic!("it was replaced") };
    assert!(text.contains("was replaced"), "{text}");
    assert_eq!(claim().await.unwrap()[0].message.id, mine);

    remove(&path);
    let Err(StoreError::Unavailable(text)) = claim().await else { panic!("it was removed") };
    assert!(text.contains("was removed"), "{text}");
    let Err(StoreError::Broken(text)) = claim().await else { panic!("it is gone") };
    assert!(text.contains("cannot be opened"), "{text}");
}

fn remove(path: &str) {
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(Path::new(&format!("{path}{end}")));
    }
}

#[tokio::test]
async fn a_producer_s_long_transaction_is_waited_for_and_named_when_it_lasts() {
    let store = TestStore::sqlite().await;
    let store = store.reconnect(|options| options.statement_timeout = Duration::from_secs(1)).await;
    store.publish_one(draft(TOPIC)).await;
    let mut connection = store.sqlite_connection().await;
    let long = connection.begin_with("begin immediate").await.unwrap();

    let Err(StoreError::Unavailable(text)) = store.outbox.claim(&[lane(TOPIC, 1)], LEASE, LAPSES_MAX).await else {
        panic!("it is locked")
    };
    assert!(text.contains("stayed locked"), "{text}");
    let waiting = store.outbox.clone();
    let waiting = tokio::spawn(async move { waiting.claim(&[lane(TOPIC, 1)], LEASE, LAPSES_MAX).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    long.rollback().await.unwrap();

    assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
}
