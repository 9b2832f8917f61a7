//! A database that fails, is away, or answers slowly: what the page and the API say then.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::http::StatusCode;
use outboxd::bulk::{self, Change, Done};
use outboxd::metrics::watch_until;
use outboxd_core::MessageId;
use outboxd_store::{
    Changed, Finished, KeyFilter, KeySummary, MemoryMessage, MemoryStore, MessageDetail, MessageFilter, MessageSummary,
    OutboxAdmin, Selection, SpacedTopic, StoreError, TopicStats,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::overview::OneParked;
use crate::router::{NoHandlers, admin, get, post_json, submit};

const ALL: Selection = Selection::Matching { topic: None, reason: None };

/// A store in memory that fails after so many statements, and counts only when it may.
struct Faulty {
    memory: MemoryStore,
    good: AtomicU32,
    error: fn(String) -> StoreError,
    counts: Semaphore,
    /// What is being counted has been read.
    counting: Semaphore,
    /// What is redriven dies again at once.
    dies_again: bool,
}

impl Faulty {
    fn after(good: u32, error: fn(String) -> StoreError) -> Arc<Faulty> {
        let (memory, good) = (MemoryStore::default(), AtomicU32::new(good));
        let (counts, counting) = (Semaphore::new(0), Semaphore::new(0));
        Arc::new(Faulty { memory, good, error, counts, counting, dies_again: false })
    }

    fn put(&self) {
        let delay = Duration::from_secs(3600);
        let message =
            MemoryMessage { topic: "orders".into(), payload: b"{}".to_vec(), delay, ..MemoryMessage::default() };
        self.memory.put(message);
    }

    fn statement(&self) -> Result<(), StoreError> {
        let counted = self.good.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |good| good.checked_sub(1));
        counted.map(drop).map_err(|_| (self.error)("the disk is full".into()))
    }
}

#[async_trait]
impl OutboxAdmin for Faulty {
    async fn list(
        &self,
        filter: &MessageFilter,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<Vec<MessageSummary>, StoreError> {
        self.statement()?;
        self.memory.list(filter, after, limit).await
    }

    async fn show(&self, id: MessageId) -> Result<Option<MessageDetail>, StoreError> {
        self.statement()?;
        self.memory.show(id).await
    }

    async fn stats(&self) -> Result<Vec<TopicStats>, StoreError> {
        let stats = self.memory.stats().await;
        self.counting.add_permits(1);
        self.counts.acquire().await.expect("never closed").forget();
        stats
    }

    async fn redrive(&self, of: &Selection, limit: u32, first: Duration, spacing: Duration) -> Result<u64, StoreError> {
        self.statement()?;
        let redriven = self.memory.redrive(of, limit, first, spacing).await;
        if self.dies_again {
            self.memory.discard(&ALL, u32::MAX).await?;
        }
        redriven
    }

    async fn discard(&self, selection: &Selection, limit: u32) -> Result<u64, StoreError> {
        self.statement()?;
        self.memory.discard(selection, limit).await
    }

    async fn retry_now(&self, selection: &Selection, limit: u32) -> Result<u64, StoreError> {
        self.statement()?;
        self.memory.retry_now(selection, limit).await
    }

    async fn purge(&self, state: Finished, older_than: Duration, limit: u32) -> Result<u64, StoreError> {
        self.statement()?;
        self.memory.purge(state, older_than, limit).await
    }

    async fn pause(&self, topic: &str) -> Result<Changed, StoreError> {
        self.statement()?;
        self.memory.pause(topic).await
    }

    async fn resume(&self, topic: &str) -> Result<Changed, StoreError> {
        self.statement()?;
        self.memory.resume(topic).await
    }

    async fn keys(&self, filter: &KeyFilter, limit: u32) -> Result<Vec<KeySummary>, StoreError> {
        self.statement()?;
        self.memory.keys(filter, limit).await
    }

    async fn skip_key(&self, topic: &str, key: &str) -> Result<Changed, StoreError> {
        self.statement()?;
        self.memory.skip_key(topic, key).await
    }

    async fn resume_key(&self, topic: &str, key: &str) -> Result<Changed, StoreError> {
        self.statement()?;
        self.memory.resume_key(topic, key).await
    }

    async fn spaced(&self) -> Result<Vec<SpacedTopic>, StoreError> {
        self.statement()?;
        self.memory.spaced().await
    }

    async fn ordered_topics(&self) -> Result<Vec<String>, StoreError> {
        self.statement()?;
        self.memory.ordered_topics().await
    }

    async fn unorder(&self, topic: &str, limit: u32) -> Result<u64, StoreError> {
        self.statement()?;
        self.memory.unorder(topic, limit).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.statement()
    }
}

#[tokio::test]
async fn a_database_that_fails_is_told_with_its_status() {
    for (error, status) in [
        (StoreError::Unavailable as fn(String) -> StoreError, StatusCode::SERVICE_UNAVAILABLE),
        (StoreError::Broken, StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        let admin = admin(Faulty::after(0, error), vec![], vec![]);
        let nothing = format!("/api/messages/{}", uuid::Uuid::nil());

        for answer in [
            get(&admin, "/api/messages").await,
            get(&admin, &nothing).await,
            post_json(&admin, "/api/messages/actions/discard", json!({ "all": true })).await,
            post_json(&admin, "/api/topics/actions/pause", json!({ "topic": "orders" })).await,
            get(&admin, "/api/keys").await,
            post_json(&admin, "/api/keys/actions/skip", json!({ "topic": "orders", "key": "a" })).await,
        ] {
            let said: Value = serde_json::from_str(&answer.text).expect("JSON");
            assert_eq!(answer.status, status, "{said}");
            assert!(said["error"].as_str().is_some_and(|error| error.contains("the disk is full")), "{said}");
            assert_eq!(said.get("changed"), None, "nothing was");
        }
        for answer in [
            get(&admin, "/messages").await,
            submit(&admin, "/do/messages/discard", "all=true").await,
            submit(&admin, "/do/topics/pause", "topic=orders").await,
        ] {
            assert_eq!(answer.status, status);
            assert!(answer.text.contains("the disk is full"), "{}", answer.text);
        }
    }
}

#[tokio::test]
async fn a_failure_on_the_way_says_how_many_were_changed() {
    let store = Faulty::after(2, StoreError::Unavailable);
    for _ in 0..1500 {
        store.put();
    }
    let admin = admin(store.clone(), vec![], vec![]);

    let answer = post_json(&admin, "/api/messages/actions/discard", json!({ "all": true })).await;

    let said: Value = serde_json::from_str(&answer.text).expect("JSON");
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(said["changed"], 1000, "{said}");
    assert!(said["error"].as_str().is_some_and(|error| error.starts_with("1000 messages were changed")), "{said}");
    assert_eq!(store.memory.stats().await.expect("in memory")[0].dead, 1000);
}

#[tokio::test]
async fn a_redrive_ends_though_everything_dies_again() {
    let mut store = Faulty::after(u32::MAX, StoreError::Unavailable);
    Arc::get_mut(&mut store).expect("nobody else has it").dies_again = true;
    for _ in 0..1100 {
        store.put();
    }
    store.memory.discard(&ALL, u32::MAX).await.expect("in memory");
    store.counts.add_permits(1);

    let change = Change::Redrive { spacing: Duration::ZERO };
    let progress: Mutex<Vec<u64>> = Mutex::default();
    let done = bulk::change(&*store, change, &ALL, u64::MAX, &|count| progress.lock().expect("sound").push(count))
        .await
        .expect("in memory");

    assert_eq!(done, Done { changed: 500 + 1100, more: false }, "a batch, and all that were dead after it");
    assert_eq!(progress.into_inner().expect("sound"), [500, 1000, 1500, 1600], "told after each batch");
}

#[tokio::test(start_paused = true)]
async fn the_page_says_that_the_database_is_away_and_how_old_the_numbers_are() {
    let mut admin = admin(Arc::new(MemoryStore::default()), vec![], vec![]);
    admin.handlers = Arc::new(OneParked);
    assert!(!get(&admin, "/").await.text.contains("does not answer"));
    assert_eq!(get(&admin, "/readyz").await.status, StatusCode::OK);

    tokio::time::advance(Duration::from_secs(185)).await;

    let page = get(&admin, "/").await.text;
    assert!(page.contains("The database does not answer."), "{page}");
    assert!(page.contains("Counted 3m 5s ago."), "{page}");
    assert_eq!(get(&admin, "/readyz").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn a_count_that_began_before_a_pause_does_not_undo_it() {
    let store = Faulty::after(u32::MAX, StoreError::Unavailable);
    store.put();
    let mut admin = admin(store.clone(), vec![], vec![]);
    admin.snapshot = Arc::default();
    admin.handlers = Arc::new(OneParked);
    let end = CancellationToken::new();
    let watching = tokio::spawn(watch_until(store.clone(), Arc::new(NoHandlers), admin.snapshot.clone(), end.clone()));
    let begun = async || store.counting.acquire().await.expect("never closed").forget();
    begun().await;
    assert!(get(&admin, "/").await.text.contains("Nothing has been counted yet."));
    assert_eq!(get(&admin, "/readyz").await.status, StatusCode::OK, "it answers, though it counts for long");

    submit(&admin, "/do/topics/pause", "topic=orders").await;
    store.counts.add_permits(1);
    // The next one has begun: the first one is over.
    begun().await;

    let page = get(&admin, "/").await.text;
    assert!(page.contains("Paused: ") && page.contains("Nothing has been counted yet."), "{page}");
    store.counts.add_permits(1);
    // By then the second one is over, too.
    end.cancel();
    watching.await.expect("it ends");
    let page = get(&admin, "/").await.text;
    assert!(page.contains("Paused: ") && page.contains("Counted 0s ago."), "{page}");
}
