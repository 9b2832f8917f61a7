//! A database that is away, frozen, locked, full or read-only: an error in bounded time, and work again soon after.

use std::cell::Cell;
use std::time::{Duration, Instant};

use outboxd_core::{LeaseStatus, Transition};
use outboxd_store::{Notify, OutboxStore, Pooler, Store, StoreError, StoreOptions, Wake, migrate};
use outboxd_test_support::postgres::TestPostgres;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, draft, held, lane, settlement};

const TIMEOUT: Duration = Duration::from_secs(1);

/// What design and driver add to the timeout before a silent server is given up, and what a busy machine adds.
const GIVEN_UP: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_millis(1500);
const RESUMES_WITHIN: Duration = Duration::from_secs(2);

/// A server of the test's own, and an outbox in it.
async fn own_server(settings: &[&str]) -> (TestPostgres, StoreOptions, Store) {
    let settings: Vec<String> = settings.iter().map(|setting| setting.to_string()).collect();
    let server = tokio::task::spawn_blocking(move || {
        TestPostgres::start_with(&settings.iter().map(String::as_str).collect::<Vec<_>>())
    })
    .await
    .unwrap();
    let options = StoreOptions {
        url: server.url(),
        statement_timeout: TIMEOUT,
        lock_timeout: TIMEOUT / 2,
        ..StoreOptions::default()
    };
    migrate(&options).await.unwrap();
    let store = Store::connect(&options).await.unwrap();
    (server, options, store)
}

async fn publish(options: &StoreOptions) {
    let message = outboxd_client::NewMessage::from_json(TOPIC, "{}");
    outboxd_client::standalone::publish(&options.url, &options.table.to_string(), 1 << 20, vec![message])
        .await
        .unwrap();
}

async fn claim(store: &Store) -> Result<Vec<outboxd_core::Claim>, StoreError> {
    store.outbox.claim(&[lane(TOPIC, 1)], LEASE, LAPSES_MAX).await
}

fn unavailable<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Unavailable(text)) => text,
        other => panic!("not unavailable: {other:?}"),
    }
}

/// How long until a claim succeeds.
async fn until_it_works(store: &Store) -> Duration {
    let started = Instant::now();
    while let Err(error) = claim(store).await {
        assert!(started.elapsed() < Duration::from_secs(20), "still: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    started.elapsed()
}

/// Waits as a relay does, until a publish has woken it.
async fn woken(outbox: &dyn OutboxStore, at_most: Duration) -> bool {
    let deadline = Instant::now() + at_most;
    while Instant::now() < deadline {
        if outbox.wait_for_work(Duration::from_millis(200)).await == Wake::Notify {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn a_frozen_server_is_an_error_in_bounded_time_and_work_resumes_when_it_thaws() {
    let (server, options, store) = own_server(&[]).await;
    publish(&options).await;
    let claims = claim(&store).await.unwrap();
    server.freeze();

    let started = Instant::now();
    let delivered = settlement(&claims[0], Transition::Delivered);
    let (claimed, settled, pinged) =
        tokio::join!(claim(&store), store.outbox.settle(std::slice::from_ref(&delivered)), store.admin.ping());

    let took = started.elapsed();
    for text in [unavailable(claimed), unavailable(settled), unavailable(pinged)] {
        assert!(text.contains("no answer within 3.0 s"), "{text}");
    }
    assert!(took >= GIVEN_UP - SLACK && took < GIVEN_UP + SLACK, "{took:?}");
    server.thaw();
    assert!(until_it_works(&store).await < RESUMES_WITHIN);
    // Whether the settle landed before the connection was closed is unknown; the second try tells.
    let again = store.outbox.settle(&[delivered]).await.unwrap();
    let state = store.admin.show(claims[0].message.id).await.unwrap().unwrap().summary.state;
    assert!(
        state == "delivered" && (again == [LeaseStatus::Held] || again == [LeaseStatus::Lost]),
        "{state} {again:?}"
    );
}

#[tokio::test]
async fn a_killed_server_is_an_error_and_work_resumes_when_it_is_back() {
    let (server, options, store) = own_server(&[]).await;
    publish(&options).await;
    claim(&store).await.unwrap();

    for _ in 0..3 {
        server.kill();
        unavailable(claim(&store).await);
        unavailable(store.admin.stats().await);
        server.restart();

        assert!(until_it_works(&store).await < RESUMES_WITHIN);
        while woken(&*store.outbox, Duration::from_millis(400)).await {}
        publish(&options).await;
        assert!(woken(&*store.outbox, Duration::from_secs(12)).await, "the listener is back");
    }
}

#[tokio::test]
async fn terminated_connections_are_opened_again() {
    let (_server, options, store) = own_server(&[]).await;
    publish(&options).await;
    let claims = claim(&store).await.unwrap();
    let mut connection = PgConnection::connect(&options.url).await.unwrap();
    for _ in 0..5 {
        let sql =
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name like 'outboxd%'";
        let (ended,): (i64,) = sqlx::query_as(sql).fetch_one(&mut connection).await.unwrap();
        assert!(ended > 0);

        assert!(until_it_works(&store).await < RESUMES_WITHIN);
        let renewed = match store.outbox.renew(&[held(&claims[0])], LEASE).await {
            Ok(statuses) => statuses,
            Err(_) => store.outbox.renew(&[held(&claims[0])], LEASE).await.unwrap(),
        };
        assert_eq!(renewed, [LeaseStatus::Held]);
    }
}

#[tokio::test]
async fn slow_claims_do_not_keep_a_result_from_being_settled() {
    let (_server, options, store) = own_server(&[]).await;
    publish(&options).await;
    let claims = claim(&store).await.unwrap();
    let mut connection = PgConnection::connect(&options.url).await.unwrap();
    let mut lock = connection.begin().await.unwrap();
    // Claims read it, settles do not.
    sqlx::query("lock table outbox_control in access exclusive mode").execute(&mut *lock).await.unwrap();
    let slow: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { claim(&store).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;

    let started = Instant::now();
    let renewed = store.outbox.renew(&[held(&claims[0])], LEASE).await.unwrap();
    let settled = store.outbox.settle(&[settlement(&claims[0], Transition::Delivered)]).await.unwrap();

    assert_eq!([renewed, settled].concat(), [LeaseStatus::Held; 2]);
    assert!(started.elapsed() < Duration::from_millis(400), "{:?}", started.elapsed());
    lock.rollback().await.unwrap();
    for claim in slow {
        // Those that had waited for the lock too long, or for a connection.
        if let Err(error) = claim.await.unwrap() {
            unavailable::<()>(Err(error));
        }
    }
}

#[tokio::test]
async fn a_locked_table_is_an_error_after_the_lock_timeout() {
    let (_server, options, store) = own_server(&[]).await;
    let mut connection = PgConnection::connect(&options.url).await.unwrap();
    let mut lock = connection.begin().await.unwrap();
    sqlx::query("lock table outbox in access exclusive mode").execute(&mut *lock).await.unwrap();

    let started = Instant::now();
    let text = unavailable(claim(&store).await);

    assert!(text.contains("55P03"), "{text}");
    assert!(started.elapsed() < TIMEOUT + SLACK);
    lock.rollback().await.unwrap();
    claim(&store).await.unwrap();
}

#[tokio::test]
async fn a_server_without_a_free_connection_is_unavailable() {
    let (server, options, store) = own_server(&["max_connections=8", "superuser_reserved_connections=0"]).await;
    let mut taken = Vec::new();
    while let Ok(connection) = PgConnection::connect(&server.url()).await {
        taken.push(connection);
    }
    let other = Store::connect(&StoreOptions { notify: Notify::PollOnly, ..options }).await.unwrap();

    let text = unavailable(claim(&other).await);

    assert!(text.contains("53300"), "{text}");
    drop(taken);
    assert!(until_it_works(&other).await < RESUMES_WITHIN);
    drop(store);
}

#[tokio::test]
async fn a_read_only_server_is_waited_for() {
    let (server, _options, store) = own_server(&[]).await;
    let mut connection = PgConnection::connect(&server.url()).await.unwrap();
    let mut set = async |value: &str| {
        let sql = format!("alter system set default_transaction_read_only = {value}");
        sqlx::query("set transaction_read_only = off").execute(&mut connection).await.unwrap();
        sqlx::query("set default_transaction_read_only = off").execute(&mut connection).await.unwrap();
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        sqlx::query("select pg_reload_conf()").execute(&mut connection).await.unwrap();
    };
    set("on").await;
    let deadline = Instant::now() + Duration::from_secs(10);
    let text = loop {
        match claim(&store).await {
            Err(error) => break unavailable::<()>(Err(error)),
            Ok(_) => assert!(Instant::now() < deadline, "never read-only"),
        }
    };

    assert!(text.contains("25006"), "{text}");
    set("off").await;
    assert!(until_it_works(&store).await < RESUMES_WITHIN);
}

#[tokio::test]
async fn a_revoked_privilege_is_named_and_a_grant_heals_it() {
    let (server, options, _) = own_server(&[]).await;
    let mut connection = PgConnection::connect(&server.url()).await.unwrap();
    let mut run = async |sql: &'static str| sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    run("create role relay login; grant usage on schema public to relay;
        grant select, update, delete on outbox to relay;
        grant select, insert, update, delete on outbox_control, outbox_keys, outbox_sleepers, outbox_versions to relay;
        grant select, update on sequence outbox_asleep to relay")
    .await;
    let url = options.url.replace("user=postgres", "user=relay");
    let options = StoreOptions { url, ..options };
    let store = Store::connect(&options).await.unwrap();
    // What such a role can do is enough for a relay.
    outboxd_store::check_version(&options).await.unwrap();
    assert_eq!(migrate(&options).await.unwrap().from, 3);
    claim(&store).await.unwrap();

    run("revoke update on outbox from relay").await;
    let Err(StoreError::Broken(text)) = claim(&store).await else { panic!("it must be broken") };
    run("grant update on outbox to relay").await;

    assert!(text.contains("permission denied") && text.contains("42501"), "{text}");
    claim(&store).await.unwrap();
}

#[tokio::test]
async fn a_half_open_listener_is_found_and_replaced() {
    let (server, options, store) = own_server(&[]).await;
    publish(&options).await;
    store.outbox.wait_for_work(Duration::from_secs(5)).await;
    let mut connection = PgConnection::connect(&options.url).await.unwrap();
    let sql = "select pid from pg_stat_activity where application_name = 'outboxd listener'";
    let (pid,): (i32,) = sqlx::query_as(sql).fetch_one(&mut connection).await.unwrap();
    while woken(&*store.outbox, Duration::from_millis(400)).await {}
    server.signal(pid as u32, outboxd_test_support::postgres::SIGSTOP);

    // A probe after five seconds, two until it is given up; a new connection raises the signal.
    assert!(woken(&*store.outbox, Duration::from_secs(10)).await);
    while woken(&*store.outbox, Duration::from_millis(400)).await {}
    publish(&options).await;

    assert!(woken(&*store.outbox, Duration::from_secs(5)).await);
    server.signal(pid as u32, outboxd_test_support::postgres::SIGCONT);
}

#[tokio::test]
async fn a_long_outage_is_logged_once_and_so_is_its_end() {
    let (server, options, store) = own_server(&[]).await;
    // For the whole program, counted by thread: this test's tasks all run on its own.
    let _ = tracing::subscriber::set_global_default(CountLines);
    LINES.set(0);
    store.outbox.wait_for_work(Duration::from_secs(1)).await;

    server.kill();
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        unavailable(claim(&store).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let lost = LINES.get();
    server.restart();
    until_it_works(&store).await;
    while woken(&*store.outbox, Duration::from_millis(400)).await {}
    publish(&options).await;
    assert!(woken(&*store.outbox, Duration::from_secs(12)).await);

    assert_eq!((lost, LINES.get()), (1, 2));
}

thread_local! {
    static LINES: Cell<u32> = const { Cell::new(0) };
}

/// Counts what our own crates log at info and above.
struct CountLines;

impl tracing::Subscriber for CountLines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO && metadata.target().starts_with("outboxd")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        LINES.set(LINES.get() + 1);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_no_transaction_open() {
    for pooler in [Pooler::None, Pooler::Transaction] {
        let store = TestStore::postgres().await.reconnect(|options| options.pooler = pooler).await;
        store.publish(vec![draft(TOPIC); 50]).await;
        for micros in (0..3_000).step_by(100) {
            let lanes = [lane(TOPIC, 1)];
            let claim = store.outbox.claim(&lanes, LEASE, LAPSES_MAX);
            // Dropped wherever it is just then.
            let _ = tokio::time::timeout(Duration::from_micros(micros), claim).await;
        }

        store.claim(1).await;

        let sql = "select count(*) from pg_stat_activity
            where datname = current_database() and application_name like 'outboxd%' and state like 'idle in transaction%'";
        let (open,): (i64,) = sqlx::query_as(sql).fetch_one(&mut store.postgres_connection().await).await.unwrap();
        assert_eq!(open, 0);
    }
}

#[tokio::test]
async fn a_store_may_be_made_while_the_server_is_down() {
    let options = StoreOptions { url: "postgres:///nowhere?host=/nonexistent".into(), ..StoreOptions::default() };

    let store = Store::connect(&options).await.unwrap();

    unavailable(claim(&store).await);
    unavailable(migrate(&options).await);
    assert_eq!(store.outbox.wait_for_work(Duration::from_millis(10)).await, Wake::Poll);
}
