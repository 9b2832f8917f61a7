use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::backend::{LAPSES_MAX, LEASE, TestStore, draft, ids, lane};

#[tokio::test]
async fn statements_search_by_index() {
    let store = TestStore::sqlite().await;
    let fill = "with recursive n (n) as (select 1 union all select n + 1 from n where n < 20000)
        insert into outbox (topic, payload, state, delivered_at) select 'busy', '{}', 'delivered', n from n;
        with recursive n (n) as (select 1 union all select n + 1 from n where n < 20000)
        insert into outbox (topic, payload, available_at) select 'busy', '{}', 9999999999999 + n from n;
        with recursive n (n) as (select 1 union all select n + 1 from n where n < 20000)
        insert into outbox (topic, payload) select 'other', '{}' from n;
        analyze;";
    store.execute(fill).await.unwrap();
    let mine = store.publish(vec![draft("busy"), draft("busy")]).await;
    let mut connection = store.sqlite_connection().await;

    for (name, text, binds) in [
        ("claim", include_str!("../../host/store/src/sqlite/sql/claim.sql"), 5),
        ("due_topics", include_str!("../../host/store/src/sqlite/sql/due_topics.sql"), 0),
        ("renew", include_str!("../../host/store/src/sqlite/sql/renew.sql"), 2),
        ("held", include_str!("../../host/store/src/sqlite/sql/held.sql"), 1),
        ("settle", include_str!("../../host/store/src/sqlite/sql/settle.sql"), 1),
        ("settle_unordered", include_str!("../../host/store/src/sqlite/sql/settle_unordered.sql"), 1),
        ("settle_delete", include_str!("../../host/store/src/sqlite/sql/settle_delete.sql"), 1),
        ("release", include_str!("../../host/store/src/sqlite/sql/release.sql"), 1),
        ("add_keys", include_str!("../../host/store/src/sqlite/sql/add_keys.sql"), 2),
        ("forget_keys", include_str!("../../host/store/src/sqlite/sql/forget_keys.sql"), 2),
        ("choose_heads", include_str!("../../host/store/src/sqlite/sql/choose_heads.sql"), 3),
        ("let_go", include_str!("../../host/store/src/sqlite/sql/let_go.sql"), 1),
        ("hold", include_str!("../../host/store/src/sqlite/sql/hold.sql"), 3),
        ("claim_ordered", include_str!("../../host/store/src/sqlite/sql/claim_ordered.sql"), 6),
        ("claim_limited", include_str!("../../host/store/src/sqlite/sql/claim_limited.sql"), 7),
        ("astray", include_str!("../../host/store/src/sqlite/sql/astray.sql"), 3),
        ("free", include_str!("../../host/store/src/sqlite/sql/free.sql"), 2),
        ("limited_key", include_str!("../../host/store/src/sqlite/sql/limited_key.sql"), 2),
        ("first_held", include_str!("../../host/store/src/sqlite/sql/first_held.sql"), 3),
        ("first_waiting", include_str!("../../host/store/src/sqlite/sql/first_waiting.sql"), 2),
        ("note_key", include_str!("../../host/store/src/sqlite/sql/note_key.sql"), 4),
        ("forget_key", include_str!("../../host/store/src/sqlite/sql/forget_key.sql"), 2),
        ("hold_ids", include_str!("../../host/store/src/sqlite/sql/hold_ids.sql"), 1),
        ("unorder", include_str!("../../host/store/src/sqlite/sql/unorder.sql"), 2),
        ("unorder_keys", include_str!("../../host/store/src/sqlite/sql/unorder_keys.sql"), 2),
        ("free_keys", include_str!("../../host/store/src/sqlite/sql/free_keys.sql"), 1),
        ("purge_dead", include_str!("../../host/store/src/sqlite/sql/purge_dead.sql"), 2),
        ("redrive", include_str!("../../host/store/src/sqlite/sql/redrive.sql"), 5),
    ] {
        let plan = sqlite_plan(&mut connection, text, binds).await;
        for step in plan.iter().filter(|step| step.starts_with("SCAN")) {
            let bounded = [
                "lane",
                "due",
                "held",
                "s",
                "clock",
                "oldest",
                "topics",
                "free_topics",
                "chosen",
                "head",
                "free",
                "ended",
                "e",
                "t",
                "same",
                "part",
                "w",
                "json_each",
                "CONSTANT",
                "(subquery-6)",
            ];
            let table = step.split_whitespace().nth(1).unwrap_or_default();
            let by_partial_index = name == "redrive" && step.contains("outbox_dead");
            assert!(bounded.contains(&table) || by_partial_index, "{name} reads the whole table: {plan:#?}");
        }
    }
    let claims = store.outbox.claim(&[lane("busy", 10)], LEASE, LAPSES_MAX).await.unwrap();
    assert_eq!(ids(&claims), mine);
}

async fn sqlite_plan(connection: &mut SqliteConnection, text: &str, binds: usize) -> Vec<String> {
    let sql = format!(
        "explain query plan {}",
        text.replace("{table}", "main.outbox")
            .replace("{table_unqualified}", "outbox")
            .replace("{control}", "main.outbox_control")
            .replace("{keys}", "main.outbox_keys")
    );
    let mut query = sqlx::query_as(AssertSqlSafe(sql));
    for _ in 0..binds {
        query = query.bind("[]");
    }
    let rows: Vec<(i64, i64, i64, String)> = query.fetch_all(connection).await.unwrap();
    rows.into_iter().map(|(_, _, _, detail)| detail).collect()
}
