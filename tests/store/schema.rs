use std::collections::BTreeSet;

use outboxd_store::{Migrated, Printed, Store, StoreError, StoreOptions, check_version, migrate, print_migrations};
use sqlx::Connection as _;

use crate::backend::{TestStore, on_every_database};
use crate::limits_race::wait_until_one_waits_for_a_lock;

on_every_database! {
    a_second_migration_has_nothing_to_do
    ten_relays_may_migrate_an_empty_database_at_once
    a_schema_newer_than_the_binary_is_refused_with_both_versions
    a_newer_schema_that_works_with_this_binary_is_accepted
    wrong_rows_fail_at_their_producer
    a_plain_insert_needs_only_topic_and_payload
    a_table_that_is_missing_says_what_to_do
    a_table_of_version_2_goes_on_and_its_keys_may_be_limited
}

async fn a_second_migration_has_nothing_to_do(store: TestStore) {
    assert_eq!(migrate(&store.options).await.unwrap(), Migrated { from: 3, to: 3 });
    assert_eq!(check_version(&store.options).await.unwrap(), Migrated { from: 3, to: 3 });
}

async fn ten_relays_may_migrate_an_empty_database_at_once(store: TestStore) {
    let table = outboxd_store::TableName::parse(if is_postgres(&store) { "shop.fresh" } else { "fresh" }).unwrap();
    let options = StoreOptions { table, ..store.options.clone() };
    let relays: Vec<_> = (0..10)
        .map(|_| {
            let options = options.clone();
            tokio::spawn(async move { migrate(&options).await })
        })
        .collect();

    let mut from = Vec::new();
    for relay in relays {
        from.push(relay.await.unwrap().expect("migrate").from);
    }

    from.sort_unstable();
    assert_eq!(from, [0, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
    assert_eq!(check_version(&options).await.unwrap().from, 3);
}

async fn a_schema_newer_than_the_binary_is_refused_with_both_versions(store: TestStore) {
    store.execute("insert into outbox_versions (version, works_with) values (42, 41)").await.unwrap();

    for error in [migrate(&store.options).await.unwrap_err(), check_version(&store.options).await.unwrap_err()] {
        let text = error.to_string();
        assert!(matches!(error, StoreError::Broken(_)), "{text}");
        assert!(text.contains("version 42") && text.contains("version 3"), "{text}");
    }
}

async fn a_newer_schema_that_works_with_this_binary_is_accepted(store: TestStore) {
    store.execute("insert into outbox_versions (version, works_with) values (4, 1)").await.unwrap();

    assert_eq!(migrate(&store.options).await.unwrap(), Migrated { from: 4, to: 4 });
    assert_eq!(check_version(&store.options).await.unwrap().from, 4);
}

async fn wrong_rows_fail_at_their_producer(store: TestStore) {
    for row in [
        "(topic, payload) values ('', '{}')",
        "(topic, payload) values (null, '{}')",
        "(topic, payload) values ('a', '{')",
        "(topic, payload) values ('a', null)",
        "(topic, payload, state) values ('a', '{}', 'done')",
        "(topic, payload, headers) values ('a', '{}', '[1]')",
        "(topic, payload, headers) values ('a', '{}', 'x')",
        "(topic, payload, attempts) values ('a', '{}', -1)",
        "(topic, payload, available_at) values ('a', '{}', null)",
        "(topic, payload, available_at) values ('a', '{}', 'tomorrow-ish')",
        "(topic, payload, history) values ('a', '{}', '{}')",
    ] {
        let inserted = store.execute(&format!("insert into outbox {row}")).await;
        assert!(inserted.is_err(), "{row}");
    }
    let nul = if is_postgres(&store) { "'a' || chr(0)" } else { "'a' || char(0)" };
    for row in [
        format!("(topic, payload) values ({nul}, '{{}}')"),
        format!("(topic, payload, key) values ('a', '{{}}', {nul})"),
    ] {
        assert!(store.execute(&format!("insert into outbox {row}")).await.is_err(), "{row}");
    }
    assert!(store.outbox.due_topics().await.unwrap().is_empty());
}

async fn a_plain_insert_needs_only_topic_and_payload(store: TestStore) {
    for n in 0..3 {
        store
            .execute(&format!("insert into outbox (topic, payload) values ('order.created', '{{\"n\": {n}}}')"))
            .await
            .unwrap();
    }

    let claims = store.claim(10).await;

    assert_eq!(claims.len(), 3);
    for claim in claims {
        assert_eq!(claim.message.id.0.get_version_num(), 7);
        assert_eq!(claim.message.id.0.get_variant(), uuid::Variant::RFC4122);
        let (seconds, _) = claim.message.id.0.get_timestamp().unwrap().to_unix();
        assert!(seconds.abs_diff(claim.message.created_at_ms / 1000) <= 1);
    }
}

async fn a_table_that_is_missing_says_what_to_do(store: TestStore) {
    let table = outboxd_store::TableName::parse("nowhere").unwrap();
    let options = StoreOptions { table, ..store.options.clone() };
    let missing = Store::connect(&options).await.unwrap();

    let error = missing.outbox.due_topics().await.unwrap_err();

    assert!(matches!(error, StoreError::Broken(_)));
    assert!(error.to_string().contains("run \"outboxd migrate\""), "{error}");
    assert!(check_version(&options).await.unwrap_err().to_string().contains("run \"outboxd migrate\""));
}

async fn back_to_version_2(store: &TestStore) {
    if is_postgres(store) {
        // With its index.
        store.execute("alter table outbox_keys drop column is_free").await.unwrap();
        let index = "create index outbox_free on outbox_keys (topic, free_at, key) where head is null";
        store.execute(index).await.unwrap();
    }
    for undo in [
        "drop index outbox_held",
        "alter table outbox_keys drop column turns",
        "alter table outbox_keys drop column failures",
        "alter table outbox_keys drop column cause",
        "delete from outbox_versions where version = 3",
    ] {
        store.execute(undo).await.unwrap();
    }
}

async fn a_table_of_version_2_goes_on_and_its_keys_may_be_limited(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a"]).await;
    let before = store.claim_in_order(9, crate::keys::BLOCK).await;
    back_to_version_2(&store).await;

    assert_eq!(migrate(&store.options).await.unwrap(), Migrated { from: 2, to: 3 });

    store.settle_one(&before[0], outboxd_core::Transition::Delivered).await;
    let claims = store.claim_in_order(9, outboxd_core::Order::Limited { per_key: 2 }).await;
    assert_eq!(crate::backend::ids(&claims), published[1..]);
}

/// A claim may have the keys before the messages, a settle the messages before the keys.
#[tokio::test]
async fn a_migration_lets_relays_go_on_that_hold_what_it_waits_for() {
    let store = TestStore::postgres().await;
    store.publish_keyed(&["a"]).await;
    store.claim_in_order(9, crate::keys::BLOCK).await;
    back_to_version_2(&store).await;
    let (one, another) =
        ("update shop.outbox set lapses = lapses", "update shop.outbox_keys set free_at = free_at where key = 'a'");
    for (first, then) in [(one, another), (another, one)] {
        let mut relay = store.postgres_connection().await;
        let mut relay = relay.begin().await.unwrap();
        sqlx::query(first).execute(&mut *relay).await.unwrap();
        let options = store.options.clone();
        let migrating = tokio::spawn(async move { migrate(&options).await });
        wait_until_one_waits_for_a_lock(&mut store.postgres_connection().await).await;

        sqlx::query(then).execute(&mut *relay).await.expect("the migration lets go");

        relay.commit().await.unwrap();
        assert_eq!(migrating.await.unwrap().expect("it goes on"), Migrated { from: 2, to: 3 });
        back_to_version_2(&store).await;
    }
}

/// Otherwise each new head would be written into it.
#[tokio::test]
async fn no_index_of_the_keys_speaks_of_their_heads() {
    let store = TestStore::postgres().await;
    back_to_version_2(&store).await;
    let count = "select count(*) from pg_indexes where tablename = 'outbox_keys' and indexdef like '%head%'";
    let mut connection = store.postgres_connection().await;
    assert_eq!(sqlx::query_scalar::<_, i64>(count).fetch_one(&mut connection).await.unwrap(), 1);

    migrate(&store.options).await.unwrap();

    assert_eq!(sqlx::query_scalar::<_, i64>(count).fetch_one(&mut connection).await.unwrap(), 0);
}

#[tokio::test]
async fn a_migration_takes_the_index_that_was_made_beforehand() {
    let store = TestStore::postgres().await;
    back_to_version_2(&store).await;
    let index = "create index concurrently outbox_held on outbox (topic, key, seq, id) where state = 'held'";
    store.execute(index).await.unwrap();
    let made = "select oid::bigint from pg_class where relname = 'outbox_held'";
    let mut connection = store.postgres_connection().await;
    let before: i64 = sqlx::query_scalar(made).fetch_one(&mut connection).await.unwrap();

    assert_eq!(migrate(&store.options).await.unwrap(), Migrated { from: 2, to: 3 });

    let after: i64 = sqlx::query_scalar(made).fetch_one(&mut connection).await.unwrap();
    assert_eq!(after, before);
}

#[tokio::test]
async fn the_printed_migrations_make_the_table() {
    let store = TestStore::postgres().await;
    let table = outboxd_store::TableName::parse("\"Odd \"\" one\"").unwrap();
    let options = StoreOptions { table, ..store.options.clone() };

    let printed = print_migrations(&options, Printed::Transaction).unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(printed)).execute(&mut store.postgres_connection().await).await.unwrap();

    assert_eq!(migrate(&options).await.unwrap(), Migrated { from: 3, to: 3 });
    let store = TestStore::sqlite().await;
    let table = outboxd_store::TableName::parse("printed").unwrap();
    let options = StoreOptions { table, ..store.options.clone() };
    let printed = print_migrations(&options, Printed::Transaction).unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(printed)).execute(&mut store.sqlite_connection().await).await.unwrap();
    assert_eq!(migrate(&options).await.unwrap(), Migrated { from: 3, to: 3 });
}

#[tokio::test]
async fn a_table_of_version_1_is_ordered_by_id_and_its_relays_may_use_what_is_new() {
    let store = TestStore::postgres().await;
    let keyed = || crate::backend::draft(crate::backend::TOPIC).key("a");
    let old = store.publish(vec![keyed(), keyed()]).await;
    store
        .execute(
            "alter table outbox drop column seq;
             drop sequence outbox_seq;
             drop table outbox_keys;
             delete from outbox_versions where version > 1;
             create role relay_of_version_1;
             grant select, insert, update, delete on outbox_control to relay_of_version_1",
        )
        .await
        .unwrap();

    assert_eq!(migrate(&store.options).await.unwrap(), Migrated { from: 1, to: 3 });

    let new = store.publish_one(keyed()).await;
    for id in [old[0], old[1], new] {
        let claims = store.claim_in_order(9, outboxd_core::Order::ByKey { on_dead: Default::default() }).await;
        assert_eq!(crate::backend::ids(&claims), [id]);
        store.settle_one(&claims[0], outboxd_core::Transition::Delivered).await;
    }
    let allowed: bool = sqlx::query_scalar(
        "select bool_and(has_table_privilege('relay_of_version_1', 'shop.outbox_keys', privilege))
         from unnest(array['select', 'insert', 'update', 'delete']) as privilege",
    )
    .fetch_one(&mut store.postgres_connection().await)
    .await
    .unwrap();
    assert!(allowed);
    store.execute("drop owned by relay_of_version_1; drop role relay_of_version_1").await.unwrap();
}

#[test]
fn both_databases_have_the_same_statements() {
    let names = |folder: &str| -> BTreeSet<String> {
        let folder = outboxd_test_support::repository().join("host/store").join(folder);
        let files = std::fs::read_dir(folder).unwrap();
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    };
    let mut sqlite = names("src/sqlite/sql");

    // RETURNING tells less in SQLite, and a statement changes one table: a settle that frees keys is several in one transaction,
    // and so is what PostgreSQL's arrange does.
    for extra in ["held.sql", "settle_unordered.sql", "free_keys.sql", "unorder_keys.sql", "resume_head.sql"] {
        assert!(sqlite.remove(extra));
    }
    for extra in ["forget_keys.sql", "choose_heads.sql", "let_go.sql", "hold.sql"] {
        assert!(sqlite.remove(extra));
    }
    for extra in ["astray.sql", "free.sql", "limited_key.sql", "first_held.sql", "first_waiting.sql", "end_turns.sql"] {
        assert!(sqlite.remove(extra));
    }
    for extra in ["note_key.sql", "forget_key.sql", "hold_ids.sql"] {
        assert!(sqlite.remove(extra));
    }

    let mut postgres = names("src/postgres/sql");
    // SQLite's relays see the file change: they need not say that they sleep. Nor does it tell who holds a snapshot.
    // And a discard that waited for a lock does not see in its own statement whose turn came meanwhile. Nor has it dead rows.
    for extra in
        ["sleep.sql", "awake.sql", "oldest_snapshot.sql", "arrange.sql", "arrange_limited.sql", "free_discarded.sql"]
    {
        assert!(postgres.remove(extra));
    }
    for extra in ["vacuum.sql", "vacuum_pages.sql"] {
        assert!(postgres.remove(extra));
    }

    assert_eq!(sqlite, postgres);
    assert_eq!(names("../../migrations/sqlite"), names("../../migrations/postgres"));
}

fn is_postgres(store: &TestStore) -> bool {
    store.options.url.starts_with("postgres")
}
