//! What the statements cost: index rows read, not milliseconds. On 400,000 rows that a claim must not touch
//! (`OUTBOXD_PLANNER_ROWS` of each kind; default 100,000).

use std::collections::BTreeMap;
use std::time::Duration;

use outboxd_store::{Finished, Selection};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::OnceCell;

use crate::backend::{LAPSES_MAX, LEASE, TestStore, lane};

pub const ROWS: u64 = 100_000;

/// A database that a claim of topic `busy` should find its few rows in: finished, future and other topics' rows by the
/// hundred thousand. Made once.
async fn populated() -> &'static TestStore {
    static STORE: OnceCell<TestStore> = OnceCell::const_new();
    STORE
        .get_or_init(|| async {
            let store = TestStore::postgres().await;
            let rows = std::env::var("OUTBOXD_PLANNER_ROWS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROWS);
            let fill = format!(
                "alter table outbox disable trigger user;
                 insert into outbox (topic, payload, state, delivered_at)
                     select 'busy', '{{}}', 'delivered', now() - n * interval '1 second' from generate_series(1, {rows}) n;
                 insert into outbox (topic, payload, state, dead_at, reason)
                     select 'busy', '{{}}', 'dead', now() - n * interval '1 second', 'trap' from generate_series(1, {rows}) n;
                 insert into outbox (topic, payload, available_at)
                     select 'busy', '{{}}', now() + interval '1 day' + n * interval '1 second' from generate_series(1, {rows}) n;
                 insert into outbox (topic, payload) select 'other', '{{}}' from generate_series(1, {rows});
                 insert into outbox (topic, payload) select 'busy', '{{}}' from generate_series(1, 1000);
                 alter table outbox enable trigger user;"
            );
            store.execute(&fill).await.expect("fill the table");
            store.execute("vacuum analyze outbox").await.expect("analyze");
            store
        })
        .await
}

/// A statement of the store with the test table's names.
fn statement(text: &str) -> String {
    text.replace("{table}", "shop.outbox")
        .replace("{control}", "shop.outbox_control")
        .replace("{keys}", "shop.outbox_keys")
}

const CLAIM: &str = include_str!("../../host/store/src/postgres/sql/claim.sql");
const DUE_TOPICS: &str = include_str!("../../host/store/src/postgres/sql/due_topics.sql");
pub const SETTLE: &str = include_str!("../../host/store/src/postgres/sql/settle.sql");
const RELEASE: &str = include_str!("../../host/store/src/postgres/sql/release.sql");
const RENEW: &str = include_str!("../../host/store/src/postgres/sql/renew.sql");
const PURGE: &str = include_str!("../../host/store/src/postgres/sql/purge_delivered.sql");
const REDRIVE: &str = include_str!("../../host/store/src/postgres/sql/redrive.sql");

/// What a plan did to the outbox table, and to its keys.
#[derive(Debug, Default)]
pub struct Cost {
    /// Rows that its scans looked at, whether they kept them or not.
    pub rows_read: f64,
    /// The same of the table of keys.
    pub keys_read: f64,
    /// Pairs that its joins looked at and that did not belong together: many where it compares each with each.
    pub mismatches: f64,
    /// The kinds of its scans.
    scans: BTreeMap<String, u32>,
}

impl Cost {
    /// Explains one execution within a transaction that is rolled back.
    pub async fn of(connection: &mut PgConnection, execute: &str) -> (Cost, Value) {
        let mut transaction = connection.begin().await.unwrap();
        let explain = format!("explain (analyze, format json, timing off) {execute}");
        let (plan,): (Value,) = sqlx::query_as(AssertSqlSafe(explain)).fetch_one(&mut *transaction).await.unwrap();
        transaction.rollback().await.unwrap();
        let mut cost = Cost::default();
        cost.add(&plan[0]["Plan"]);
        (cost, plan)
    }

    fn add(&mut self, node: &Value) {
        let kind = node["Node Type"].as_str().unwrap_or_default();
        let number = |name: &str| node[name].as_f64().unwrap_or(0.0);
        self.mismatches += number("Rows Removed by Join Filter") * number("Actual Loops");
        if kind.ends_with("Scan") {
            let each =
                number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Index Recheck");
            match node["Relation Name"].as_str() {
                Some("outbox") => {
                    self.rows_read += each * number("Actual Loops");
                    *self.scans.entry(kind.to_string()).or_default() += 1;
                }
                Some("outbox_keys") => self.keys_read += each * number("Actual Loops"),
                _ => {}
            }
        }
        for child in node["Plans"].as_array().into_iter().flatten() {
            self.add(child);
        }
    }

    pub fn assert_reads_at_most(&self, rows: f64, plan: &Value) {
        assert!(self.rows_read <= rows, "{} rows were read, {rows} expected at most:\n{plan:#}", self.rows_read);
        assert!(!self.scans.contains_key("Seq Scan"), "the whole table was read:\n{plan:#}");
    }
}

#[tokio::test]
async fn a_claim_reads_only_what_it_takes_whatever_else_lies_in_the_table() {
    let store = populated().await;
    let mut connection = store.postgres_connection().await;
    prepare(&mut connection, "claim (text[], bigint[], bigint, bigint, bigint)", CLAIM).await;

    for cache in ["auto", "force_generic_plan", "force_custom_plan"] {
        set(&mut connection, "plan_cache_mode", cache).await;
        for execution in 1..=20 {
            let claim = "execute claim ('{busy,nothing}', '{100,100}', 30000, 1048576, 4294967295)";
            let (cost, plan) = Cost::of(&mut connection, claim).await;
            // Once by the index of what is due, once by id to update it; one more may be looked at to see the end.
            cost.assert_reads_at_most(202.0, &plan);
            assert_eq!(
                plan[0]["Plan"]["Actual Rows"].as_f64(),
                Some(100.0),
                "execution {execution}, {cache}:\n{plan:#}"
            );
        }
    }
}

#[tokio::test]
async fn settles_renewals_and_releases_search_by_id() {
    let store = populated().await;
    let mut connection = store.postgres_connection().await;
    sqlx::raw_sql(
        "create temp table held as
             select array_agg(id) as ids, array_agg(gen_random_uuid()) as leases,
                 array_agg('delivered'::text) as states, array_agg(0::bigint) as waits, array_agg(null::text) as nothing,
                 array_agg('{}'::text) as entries,
                 array_agg(true) as frees
             from (select id from shop.outbox where topic = 'other' limit 100) rows",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    prepare(
        &mut connection,
        "settle (uuid[], uuid[], text[], bigint[], text[], text[], text[], boolean[], bigint[], text[], bigint[], boolean[])",
        SETTLE,
    )
    .await;
    prepare(&mut connection, "release (uuid[], uuid[], bigint[], text[], text[], text[])", RELEASE).await;
    prepare(&mut connection, "renew (uuid[], uuid[], bigint)", RENEW).await;
    let column = async |connection: &mut PgConnection, column: &str| -> String {
        let sql = format!("select quote_literal({column}::text) from held");
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.unwrap()
    };
    let mut columns = BTreeMap::new();
    for name in ["ids", "leases", "states", "waits", "nothing", "entries", "frees"] {
        columns.insert(name, column(&mut connection, name).await);
    }
    let arguments = |names: &[&str]| names.iter().map(|name| columns[name].as_str()).collect::<Vec<_>>().join(", ");

    for cache in ["auto", "force_generic_plan"] {
        set(&mut connection, "plan_cache_mode", cache).await;
        for (statement, arguments) in [
            (
                "settle",
                arguments(&[
                    "ids", "leases", "states", "waits", "nothing", "nothing", "entries", "frees", "waits", "nothing",
                    "waits", "frees",
                ]),
            ),
            ("release", arguments(&["ids", "leases", "waits", "nothing", "nothing", "entries"])),
            ("renew", format!("{}, 30000", arguments(&["ids", "leases"]))),
        ] {
            for _ in 0..7 {
                let (cost, plan) = Cost::of(&mut connection, &format!("execute {statement} ({arguments})")).await;
                // A settle looks twice: for what to delete and for what to update.
                cost.assert_reads_at_most(200.0, &plan);
            }
        }
    }
}

#[tokio::test]
async fn due_topics_cost_an_index_probe_each() {
    let store = populated().await;
    let mut connection = store.postgres_connection().await;
    prepare(&mut connection, "due", DUE_TOPICS).await;

    for _ in 0..7 {
        let (cost, plan) = Cost::of(&mut connection, "execute due").await;
        cost.assert_reads_at_most(6.0, &plan);
    }
}

#[tokio::test]
async fn thousands_of_topics_cost_probes_and_not_rows() {
    let store = TestStore::postgres().await;
    let fill = "alter table outbox disable trigger user;
        insert into outbox (topic, payload) select 'topic.' || n % 3000, '{}' from generate_series(1, 30000) n;
        alter table outbox enable trigger user;";
    store.execute(fill).await.unwrap();
    store.execute("analyze outbox").await.unwrap();
    let mut connection = store.postgres_connection().await;
    prepare(&mut connection, "due", DUE_TOPICS).await;

    let (cost, plan) = Cost::of(&mut connection, "execute due").await;

    assert_eq!(store.outbox.due_topics().await.unwrap().len(), 3000);
    cost.assert_reads_at_most(3.0 * 3000.0, &plan);
}

#[tokio::test]
async fn purge_and_redrive_read_only_what_they_take() {
    let store = populated().await;
    let mut connection = store.postgres_connection().await;
    prepare(&mut connection, "purge (bigint, bigint)", PURGE).await;
    prepare(&mut connection, "redrive (text, text, bigint, bigint, bigint)", REDRIVE).await;

    for execute in ["execute purge (60000, 100)", "execute redrive (null, null, 100, 0, 0)"] {
        for _ in 0..7 {
            let (cost, plan) = Cost::of(&mut connection, execute).await;
            // The order within one moment is by id, so a few more may be read.
            cost.assert_reads_at_most(400.0, &plan);
        }
    }
}

/// Every way to take tools from the planner, with and without statistics, with generic and custom plans.
#[tokio::test]
async fn no_planner_setting_makes_a_claim_take_too_many() {
    const SWITCHES: [&str; 8] = [
        "enable_hashjoin",
        "enable_mergejoin",
        "enable_material",
        "enable_nestloop",
        "enable_indexscan",
        "enable_bitmapscan",
        "enable_hashagg",
        "enable_sort",
    ];
    let store = TestStore::postgres().await;
    store.execute("alter table outbox set (autovacuum_enabled = off)").await.unwrap();
    store.execute("insert into outbox (topic, payload) select 'ab'::char(2)::text || n % 5, '{}' from generate_series(1, 500) n").await.unwrap();
    store.execute("insert into outbox_control (topic, paused_at) values ('ab4', now())").await.unwrap();
    #[cfg(not(feature = "planted-bugs"))]
    let claim = statement(CLAIM);
    #[cfg(feature = "planted-bugs")]
    let claim = statement(&outboxd_store::planted_statement("postgres", "claim", CLAIM));
    let mut claims = 0;
    for statistics in [false, true] {
        if statistics {
            store.execute("analyze outbox").await.unwrap();
        }
        for switches in 0..1u32 << SWITCHES.len() {
            let mut connection = store.postgres_connection().await;
            set(&mut connection, "jit", "off").await;
            let off: Vec<_> =
                (0..SWITCHES.len()).filter(|bit| switches & 1 << bit != 0).map(|bit| SWITCHES[bit]).collect();
            for switch in &off {
                set(&mut connection, switch, "off").await;
            }
            set(&mut connection, "plan_cache_mode", if switches % 2 == 0 { "force_generic_plan" } else { "auto" })
                .await;
            let mut transaction = connection.begin().await.unwrap();
            for round in 0..6i64 {
                let slots = vec![3 + round, 0, 1, 2, 5];
                let topics: Vec<String> = sqlx::query_scalar(AssertSqlSafe(format!(
                    "with taken as ({}) select topic from taken",
                    claim.trim_start_matches(|char| char != '\n')
                )))
                .bind(vec!["ab0", "ab1", "ab2", "missing", "ab4"])
                .bind(&slots)
                .bind(30_000i64)
                .bind(1i64 << 20)
                .bind(i64::from(u32::MAX))
                .fetch_all(&mut *transaction)
                .await
                .unwrap();
                let mut taken = [0i64; 5];
                for topic in &topics {
                    taken[topic[2..].parse::<usize>().unwrap()] += 1;
                }
                assert_eq!(taken, [slots[0], 0, slots[2], 0, 0], "without {off:?}, statistics {statistics}");
                claims += 1;
            }
            transaction.rollback().await.unwrap();
            connection.close().await.unwrap();
        }
    }
    println!("{claims} claims under {} planner settings", 2 << SWITCHES.len());
}

#[tokio::test]
async fn a_large_redrive_and_a_large_purge_go_in_small_steps() {
    let store = TestStore::postgres().await;
    let fill = "alter table outbox disable trigger user;
        insert into outbox (topic, payload, state, dead_at, reason)
            select 'a', '{}', 'dead', now() - interval '1 hour', 'trap' from generate_series(1, 20000) n;
        alter table outbox enable trigger user;";
    store.execute(fill).await.unwrap();
    let all = Selection::Matching { topic: Some("a".into()), reason: None };

    let redriven = store.admin.redrive(&all, 5_000, Duration::ZERO, Duration::from_millis(50)).await.unwrap();
    let purged = store.admin.purge(Finished::Dead, Duration::ZERO, 5_000).await.unwrap();

    assert_eq!((redriven, purged), (5_000, 5_000));
    let stats = store.admin.stats().await.unwrap();
    assert_eq!((stats[0].pending, stats[0].dead), (5_000, 10_000));
    // 20 a second: most of them wait for their turn.
    assert!(store.outbox.claim(&[lane("a", 5_000)], LEASE, LAPSES_MAX).await.unwrap().len() < 1_000);
}

pub async fn prepare(connection: &mut PgConnection, head: &str, text: &str) {
    let sql = format!("prepare {head} as {}", statement(text));
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.unwrap();
}

pub async fn set(connection: &mut PgConnection, name: &str, value: &str) {
    sqlx::raw_sql(AssertSqlSafe(format!("set {name} = {value}"))).execute(connection).await.unwrap();
}
