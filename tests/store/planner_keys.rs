//! What the statements that order and limit by key cost: index rows read, as in planner.rs.

use crate::backend::TestStore;
use crate::planner::{Cost, ROWS, SETTLE, prepare, set};

const ARRANGE: &str = include_str!("../../host/store/src/postgres/sql/arrange.sql");
const CLAIM_ORDERED: &str = include_str!("../../host/store/src/postgres/sql/claim_ordered.sql");
const ARRANGE_LIMITED: &str = include_str!("../../host/store/src/postgres/sql/arrange_limited.sql");
const CLAIM_LIMITED: &str = include_str!("../../host/store/src/postgres/sql/claim_limited.sql");
const SETTLE_DELETE: &str = include_str!("../../host/store/src/postgres/sql/settle_delete.sql");
const FREE_DISCARDED: &str = include_str!("../../host/store/src/postgres/sql/free_discarded.sql");
const UNORDER: &str = include_str!("../../host/store/src/postgres/sql/unorder.sql");

/// Blocked keys with a hundred thousand held messages beside keys that go on.
#[tokio::test]
async fn an_ordered_claim_reads_nothing_of_what_is_held() {
    let store = TestStore::postgres().await;
    let fill = format!(
        "alter table outbox disable trigger user;
         insert into outbox (topic, key, payload, state)
             select 'busy', 'blocked' || n % 1000, '{{}}', 'held' from generate_series(1, {ROWS}) n;
         insert into outbox (topic, key, payload, state, dead_at)
             select 'busy', 'blocked' || n, '{{}}', 'dead', now() from generate_series(0, 999) n;
         insert into outbox_keys (topic, key, head) select topic, key, id from outbox where state = 'dead';
         insert into outbox (topic, key, payload) select 'busy', 'free' || n % 500, '{{}}' from generate_series(1, 5000) n;
         insert into outbox_keys (topic, key) select 'busy', 'free' || n from generate_series(0, 499) n;
         alter table outbox enable trigger user;"
    );
    store.execute(&fill).await.expect("fill the tables");
    for statement in ["vacuum analyze outbox", "vacuum analyze outbox_keys"] {
        store.execute(statement).await.expect("analyze");
    }
    let mut connection = store.postgres_connection().await;
    prepare(&mut connection, "arrange (text[], bigint, bigint, boolean)", ARRANGE).await;
    prepare(&mut connection, "claim (text[], bigint[], bigint, bigint, bigint, bigint)", CLAIM_ORDERED).await;

    for cache in ["auto", "force_generic_plan", "force_custom_plan"] {
        set(&mut connection, "plan_cache_mode", cache).await;
        for _ in 0..7 {
            let (cost, plan) = Cost::of(&mut connection, "execute arrange ('{busy}', 200, 16, true)").await;
            // Of 200 due messages and their keys: the window, the first of each key, and each again to lock and to change it.
            cost.assert_reads_at_most(1200.0, &plan);
        }
    }
    sqlx::raw_sql("execute arrange ('{busy}', 200, 16, true)").execute(&mut connection).await.unwrap();
    for cache in ["auto", "force_generic_plan", "force_custom_plan"] {
        set(&mut connection, "plan_cache_mode", cache).await;
        for _ in 0..7 {
            let claim = "execute claim ('{busy}', '{16}', 30000, 1048576, 4294967295, 200)";
            let (cost, plan) = Cost::of(&mut connection, claim).await;
            // The window, its heads again to choose the oldest, and what is taken.
            cost.assert_reads_at_most(450.0, &plan);
            assert_eq!(plan[0]["Plan"]["Actual Rows"].as_f64(), Some(16.0), "{plan:#}");
        }
    }
}

/// Keys that rest with a hundred thousand held messages beside keys that go on.
#[tokio::test]
async fn a_limited_claim_reads_nothing_of_what_is_held() {
    let store = TestStore::postgres().await;
    let fill = format!(
        "alter table outbox disable trigger user;
         insert into outbox (topic, key, payload, state)
             select 'busy', 'rests' || n % 1000, '{{}}', 'held' from generate_series(1, {ROWS}) n;
         insert into outbox_keys (topic, key, free_at) select 'busy', 'rests' || n, now() + interval '1 day' from generate_series(0, 999) n;
         insert into outbox (topic, key, payload) select 'busy', 'free' || n % 500, '{{}}' from generate_series(1, 5000) n;
         insert into outbox_keys (topic, key) select 'busy', 'free' || n from generate_series(0, 499) n;
         alter table outbox enable trigger user;"
    );
    store.execute(&fill).await.expect("fill the tables");
    for statement in ["vacuum analyze outbox", "vacuum analyze outbox_keys"] {
        store.execute(statement).await.expect("analyze");
    }
    let mut connection = store.postgres_connection().await;
    prepare(&mut connection, "arrange (text[], bigint[], bigint, bigint, bigint)", ARRANGE_LIMITED).await;
    prepare(&mut connection, "claim (text[], bigint[], bigint, bigint, bigint, bigint, bigint)", CLAIM_LIMITED).await;

    for cache in ["auto", "force_generic_plan", "force_custom_plan"] {
        set(&mut connection, "plan_cache_mode", cache).await;
        for _ in 0..7 {
            let (cost, plan) = Cost::of(&mut connection, "execute arrange ('{busy}', '{2}', 200, 16, 5)").await;
            // Of 200 due messages and their keys: the window, and each again to lock and to change it; a free key's first one.
            cost.assert_reads_at_most(1200.0, &plan);
        }
    }
    sqlx::raw_sql("execute arrange ('{busy}', '{2}', 200, 16, 5)").execute(&mut connection).await.unwrap();
    for cache in ["auto", "force_generic_plan", "force_custom_plan"] {
        set(&mut connection, "plan_cache_mode", cache).await;
        for _ in 0..7 {
            let claim = "execute claim ('{busy}', '{16}', 30000, 1048576, 4294967295, 200, 5)";
            let (cost, plan) = Cost::of(&mut connection, claim).await;
            // The window, those whose turn it is again to choose the oldest, and what is taken.
            cost.assert_reads_at_most(450.0, &plan);
            assert_eq!(plan[0]["Plan"]["Actual Rows"].as_f64(), Some(16.0), "{plan:#}");
        }
    }
}

/// Most of a key's messages were let go before.
#[tokio::test]
async fn letting_go_of_what_was_held_reads_only_what_is_still_held() {
    let store = TestStore::postgres().await;
    let fill = format!(
        "alter table outbox disable trigger user;
         insert into outbox (topic, key, payload) select 'busy', 'a', '{{}}' from generate_series(1, {ROWS}) n;
         insert into outbox (topic, key, payload, state) select 'busy', 'a', '{{}}', 'held' from generate_series(1, 5000) n;
         insert into outbox_keys (topic, key) values ('busy', 'a');
         alter table outbox enable trigger user;"
    );
    store.execute(&fill).await.expect("fill the tables");
    store.execute("vacuum analyze outbox").await.expect("analyze");
    let mut connection = store.postgres_connection().await;
    prepare(&mut connection, "unorder (text, bigint)", UNORDER).await;

    for cache in ["auto", "force_generic_plan", "force_custom_plan"] {
        set(&mut connection, "plan_cache_mode", cache).await;
        for _ in 0..7 {
            let (cost, plan) = Cost::of(&mut connection, "execute unorder ('busy', 1000)").await;
            // Found, locked and changed.
            cost.assert_reads_at_most(3100.0, &plan);
        }
    }
}

/// A hundred messages whose turn it is end among a hundred thousand keys.
#[tokio::test]
async fn the_end_of_a_turn_reads_the_keys_of_what_ends() {
    let store = TestStore::postgres().await;
    let fill = format!(
        "alter table outbox disable trigger user;
         insert into outbox (topic, key, payload, state, available_at, lease_id)
             select 'busy', 'key' || n, '{{}}', 'processing', now() + interval '1 minute', gen_random_uuid()
             from generate_series(1, 100) n;
         insert into outbox (topic, key, payload, state, dead_at, reason)
             select 'busy', 'dead' || n, '{{}}', 'dead', now(), 'discarded' from generate_series(1, 100) n;
         insert into outbox (topic, payload) select 'busy', '{{}}' from generate_series(1, {ROWS});
         insert into outbox_keys (topic, key, head, turns)
             select m.topic, m.key, m.id, array[m.id] from outbox m where m.key is not null;
         insert into outbox_keys (topic, key, head, turns)
             select 'busy', 'other' || n, id, array[id]
             from (select n, gen_random_uuid() as id from generate_series(1, {ROWS}) n) as others;
         alter table outbox enable trigger user;"
    );
    store.execute(&fill).await.expect("fill the tables");
    for statement in ["vacuum analyze outbox", "vacuum analyze outbox_keys"] {
        store.execute(statement).await.expect("analyze");
    }
    let mut connection = store.postgres_connection().await;
    prepare(
        &mut connection,
        "settle (uuid[], uuid[], text[], bigint[], text[], text[], text[], boolean[], bigint[], text[], bigint[], boolean[])",
        SETTLE,
    )
    .await;
    prepare(&mut connection, "settle_delete (uuid[], uuid[], boolean[])", SETTLE_DELETE).await;
    prepare(&mut connection, "free_discarded (uuid[])", FREE_DISCARDED).await;
    let arguments: (String, String, String) = sqlx::query_as(
        "select
             string_agg(quote_literal(a.text), ', ' order by a.place) filter (where a.place <= 12),
             string_agg(quote_literal(a.text), ', ' order by a.place) filter (where a.place in (1, 2, 8)),
             (select quote_literal(array_agg(id)::text) from shop.outbox where state = 'dead')
         from (
             select array_agg(id)::text as ids, array_agg(lease_id)::text as leases, array_agg('dead'::text)::text as states,
                 array_agg(0)::text as zeros, array_agg('trap'::text)::text as reasons, array_agg('{}'::text)::text as entries,
                 array_agg(true)::text as frees, array_agg('failures'::text)::text as causes, array_agg(1)::text as ones
             from shop.outbox where state = 'processing'
         ) as s
         cross join lateral (values
             (1, ids), (2, leases), (3, states), (4, zeros), (5, reasons), (6, reasons), (7, entries), (8, frees), (9, zeros),
             (10, causes), (11, ones), (12, frees)
         ) as a (place, text)",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();

    for cache in ["auto", "force_generic_plan", "force_custom_plan"] {
        set(&mut connection, "plan_cache_mode", cache).await;
        for (statement, arguments) in
            [("settle", &arguments.0), ("settle_delete", &arguments.1), ("free_discarded", &arguments.2)]
        {
            for _ in 0..7 {
                let (cost, plan) = Cost::of(&mut connection, &format!("execute {statement} ({arguments})")).await;
                cost.assert_reads_at_most(500.0, &plan);
                // Each to lock it; to change it, the primary key finds it.
                assert_eq!(cost.keys_read, 100.0, "{statement}:\n{plan:#}");
            }
        }
    }
}

/// A thousand keys that came a moment ago: nobody has analysed their table, and plans are made for a few.
#[tokio::test]
async fn new_keys_are_not_compared_each_with_each() {
    let store = TestStore::postgres().await;
    let fill = "alter table outbox disable trigger user;
         insert into outbox (topic, key, payload) select 'busy', 'key' || n, '{}' from generate_series(1, 1000) n;
         insert into outbox_keys (topic, key) select topic, key from outbox;
         alter table outbox enable trigger user;";
    store.execute(fill).await.expect("fill the tables");
    store.execute("vacuum analyze outbox").await.expect("analyze");
    let mut connection = store.postgres_connection().await;
    set(&mut connection, "enable_seqscan", "off").await;
    set(&mut connection, "plan_cache_mode", "force_custom_plan").await;
    prepare(&mut connection, "arrange (text[], bigint, bigint, boolean)", ARRANGE).await;
    prepare(&mut connection, "arrange_limited (text[], bigint[], bigint, bigint, bigint)", ARRANGE_LIMITED).await;
    prepare(&mut connection, "settle_delete (uuid[], uuid[], boolean[])", SETTLE_DELETE).await;

    for arrange in ["arrange ('{busy}', 1000, 1000, true)", "arrange_limited ('{busy}', '{2}', 1000, 1000, 5)"] {
        let (cost, plan) = Cost::of(&mut connection, &format!("execute {arrange}")).await;
        assert!(cost.keys_read <= 8000.0 && cost.mismatches <= 4000.0, "{cost:?}:\n{plan:#}");
    }

    let lease = "update shop.outbox set state = 'processing', lease_id = gen_random_uuid(), available_at = now() + interval '1 minute'";
    sqlx::raw_sql("execute arrange ('{busy}', 1000, 1000, true)").execute(&mut connection).await.unwrap();
    sqlx::raw_sql(lease).execute(&mut connection).await.unwrap();
    let leases = "select array_agg(id)::text, array_agg(lease_id)::text, array_agg(true)::text from shop.outbox";
    let (ids, leases, in_order): (String, String, String) =
        sqlx::query_as(leases).fetch_one(&mut connection).await.unwrap();
    // As connections that settle are set.
    set(&mut connection, "enable_nestloop", "off").await;
    let settle = format!("execute settle_delete ('{ids}', '{leases}', '{in_order}')");
    let (cost, plan) = Cost::of(&mut connection, &settle).await;
    assert!(cost.keys_read <= 1000.0 && cost.mismatches == 0.0, "{cost:?}:\n{plan:#}");
}
