use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use outboxd_core::{KEY_FAILURES_MAX, Lane};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, FromRow};

use super::Sqlite;
use crate::StoreError;
use crate::limited::{Astray, LimitedKey};
use crate::outbox::{keys_max, per_key, window};

#[derive(FromRow)]
struct AstrayRow {
    topic: String,
    key: String,
    id: String,
    place: i64,
    waits: bool,
}

#[derive(FromRow)]
struct KeyRow {
    head: Option<String>,
    /// As they stand there.
    turns_before: String,
    /// Those whose message lives.
    turns: String,
    failures: i64,
    rests: bool,
}

impl From<KeyRow> for LimitedKey<String> {
    fn from(row: KeyRow) -> Self {
        LimitedKey {
            head: row.head,
            turns: serde_json::from_str(&row.turns).unwrap_or_default(),
            failures: u32::try_from(row.failures).unwrap_or(u32::MAX),
            rests: row.rests,
        }
    }
}

/// The statements of [`Sqlite::arrange_limited`].
struct Limited {
    add_keys: Arc<str>,
    astray: Arc<str>,
    free: Arc<str>,
    limited_key: Arc<str>,
    first_held: Arc<str>,
    first_waiting: Arc<str>,
    note_key: Arc<str>,
    forget_key: Arc<str>,
    let_go: Arc<str>,
    hold_ids: Arc<str>,
}

fn text(sql: &Arc<str>) -> AssertSqlSafe<Arc<str>> {
    AssertSqlSafe(sql.clone())
}

impl Sqlite {
    /// Finds places in lanes where so many messages of a key may be under way at once: one transaction, a few small statements a
    /// key.
    pub(super) async fn arrange_limited(&self, lanes: &[&Lane]) -> Result<u64, StoreError> {
        let (window, keys_max) = (window(lanes), keys_max(lanes));
        let topics = json!(lanes.iter().map(|lane| &lane.topic).collect::<Vec<_>>()).to_string();
        let per_key: HashMap<String, usize> =
            lanes.iter().map(|lane| (lane.topic.clone(), per_key(lane) as usize)).collect();
        let sql = Limited {
            add_keys: self.sql.add_keys.clone(),
            astray: self.sql.astray.clone(),
            free: self.sql.free.clone(),
            limited_key: self.sql.limited_key.clone(),
            first_held: self.sql.first_held.clone(),
            first_waiting: self.sql.first_waiting.clone(),
            note_key: self.sql.note_key.clone(),
            forget_key: self.sql.forget_key.clone(),
            let_go: self.sql.let_go.clone(),
            hold_ids: self.sql.hold_ids.clone(),
        };
        self.write(move |connection| {
            Box::pin(async move {
                let mut transaction = connection.begin_with("begin immediate").await?;
                sqlx::query(text(&sql.add_keys)).bind(&topics).bind(window).execute(&mut *transaction).await?;
                let rows: Vec<AstrayRow> = sqlx::query_as(text(&sql.astray))
                    .bind(&topics)
                    .bind(window)
                    .bind(i64::from(KEY_FAILURES_MAX))
                    .fetch_all(&mut *transaction)
                    .await?;
                let mut asked: BTreeMap<(String, String), Vec<Astray<String>>> = BTreeMap::new();
                for row in rows {
                    let astray = Astray { id: row.id, place: row.place, waits: row.waits };
                    asked.entry((row.topic, row.key)).or_default().push(astray);
                }
                let free: Vec<(String, String)> =
                    sqlx::query_as(text(&sql.free)).bind(&topics).bind(keys_max).fetch_all(&mut *transaction).await?;
                for name in free {
                    asked.entry(name).or_default();
                }

                let (mut all_given, mut all_behind, mut forgotten) = (Vec::new(), Vec::new(), 0);
                for ((topic, key), astray) in asked {
                    let row: Option<KeyRow> = sqlx::query_as(text(&sql.limited_key))
                        .bind(&topic)
                        .bind(&key)
                        .fetch_optional(&mut *transaction)
                        .await?;
                    // A message may have become due since keys were added.
                    let Some(row) = row else { continue };
                    let turns_before = row.turns_before.clone();
                    let now = LimitedKey::from(row);
                    let room = now.room(per_key.get(&topic).copied().unwrap_or(1));
                    let mut held: Vec<(i64, String)> = Vec::new();
                    if room > 0 {
                        let query = sqlx::query_as(text(&sql.first_held)).bind(&topic).bind(&key).bind(room as i64);
                        let rows: Vec<(String, i64)> = query.fetch_all(&mut *transaction).await?;
                        held = rows.into_iter().map(|(id, place)| (place, id)).collect();
                    }
                    let places = now.arrange(room, held, &astray);
                    let mut later: Option<String> = None;
                    if room > 0 && places.turns.is_empty() {
                        let query = sqlx::query_scalar(text(&sql.first_waiting)).bind(&topic).bind(&key);
                        later = query.fetch_optional(&mut *transaction).await?;
                        if later.is_none() && astray.is_empty() {
                            let query = sqlx::query(text(&sql.forget_key)).bind(&topic).bind(&key);
                            forgotten += query.execute(&mut *transaction).await?.rows_affected();
                            continue;
                        }
                    }
                    let head = now.head_of(&places, later);
                    let turns = json!(places.turns).to_string();
                    if head != now.head || turns != turns_before {
                        let query = sqlx::query(text(&sql.note_key)).bind(&topic).bind(&key).bind(head);
                        query.bind(turns).execute(&mut *transaction).await?;
                    }
                    all_given.extend(places.given);
                    all_behind.extend(places.behind);
                }
                sqlx::query(text(&sql.let_go)).bind(json!(all_given).to_string()).execute(&mut *transaction).await?;
                sqlx::query(text(&sql.hold_ids)).bind(json!(all_behind).to_string()).execute(&mut *transaction).await?;
                transaction.commit().await?;
                Ok((all_given.len() + all_behind.len()) as u64 + forgotten)
            })
        })
        .await
    }
}
