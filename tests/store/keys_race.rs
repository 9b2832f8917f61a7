//! Producers, relays and people race for the keys of one ordered topic.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use outboxd_core::{Claim, Lane, MessageId, OnDead, Order, Transition};
use outboxd_store::{Hold, KeyFilter, KeyState, Selection, Store, StoreError};
use sqlx::PgConnection;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, dead, draft, ids, lane, retry, settlement};

const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const RELAYS: usize = 4;
const PRODUCERS: usize = 2;

/// How long producers publish. `OUTBOXD_KEYS_RACE_SECONDS` makes a long run of it.
const SECONDS: u64 = 5;
/// How long the rest may take once they have stopped.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

/// What is known of one key. Its lock is held while a message of it is published, so that they are published one after the
/// other, and while anything is noted that a claim must agree with.
#[derive(Default)]
struct Key {
    published: Vec<MessageId>,
    ended: HashSet<MessageId>,
    in_flight: Option<MessageId>,
}

struct Race {
    keys: HashMap<&'static str, Mutex<Key>>,
    publishing: AtomicBool,
    delivered: AtomicU64,
    blocked: AtomicU64,
}

impl Race {
    fn key(&self, name: &str) -> &Mutex<Key> {
        &self.keys[name]
    }

    /// Publishes until its time is over.
    async fn produce(&self, store: &TestStore, until: Instant) {
        while Instant::now() < until {
            let name = KEYS[fastrand::usize(..KEYS.len())];
            let mut key = self.key(name).lock().await;
            let id = store.publish_one(draft(TOPIC).key(name)).await;
            key.published.push(id);
        }
    }

    /// Claims, checks and settles until everything has ended.
    async fn relay(&self, store: Store) {
        let lanes = [Lane { order: Order::ByKey { on_dead: OnDead::Block }, ..lane(TOPIC, 3) }];
        while self.publishing.load(Relaxed) || !self.all_ended().await {
            store.outbox.arrange(&lanes, Hold::All).await.expect("arrange");
            let claims = store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.expect("claim");
            for claim in &claims {
                self.check(claim).await;
            }
            if claims.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for claim in claims {
                self.end(&store, claim).await;
            }
        }
    }

    /// The claimed message is the only one of its key, and all that were published before it have ended.
    async fn check(&self, claim: &Claim) {
        let name = claim.message.key.as_deref().expect("all have keys");
        let mut key = self.key(name).lock().await;
        let id = claim.message.id;
        if key.ended.contains(&id) {
            // A person discarded it between the claim and here.
            return;
        }
        assert_eq!(key.in_flight, None, "two messages of key {name} are under way");
        let before = key.published.iter().take_while(|other| **other != id);
        let waiting: Vec<_> = before.filter(|other| !key.ended.contains(other)).collect();
        assert!(waiting.is_empty(), "{id} of key {name} was claimed before {waiting:?}");
        key.in_flight = Some(id);
    }

    async fn end(&self, store: &Store, claim: Claim) {
        let name = claim.message.key.as_deref().expect("all have keys");
        let transition = match fastrand::u8(..20) {
            0 => dead(),
            1..=3 => retry(Duration::from_millis(fastrand::u64(..5))),
            4 => Transition::Released {
                after: Duration::ZERO,
                reason: outboxd_core::Reason::Interrupted,
                error: "stopping".into(),
            },
            _ => Transition::Delivered,
        };
        {
            let mut key = self.key(name).lock().await;
            if key.in_flight == Some(claim.message.id) {
                key.in_flight = None;
                if transition == Transition::Delivered {
                    key.ended.insert(claim.message.id);
                }
            }
        }
        self.delivered.fetch_add(u64::from(transition == Transition::Delivered), Relaxed);
        let settlements = [settlement(&claim, transition)];
        match settlements[0].transition {
            Transition::Released { .. } => store.outbox.release(&settlements).await.expect("release"),
            _ => store.outbox.settle(&settlements).await.expect("settle"),
        };
    }

    /// A person redrives or skips what blocks, and discards a message now and then.
    async fn meddle(&self, store: Store) {
        while self.publishing.load(Relaxed) || !self.all_ended().await {
            let filter = KeyFilter { topic: Some(TOPIC.into()), state: Some(KeyState::Blocked) };
            for blocked in store.admin.keys(&filter, 10).await.expect("keys") {
                self.blocked.fetch_add(1, Relaxed);
                assert_ne!(blocked.reason.as_deref(), Some("discarded"), "a discarded message blocks its key");
                let head = MessageId(blocked.head.expect("what blocks it").parse().expect("an id"));
                if fastrand::bool() {
                    let one = Selection::Ids(vec![head]);
                    store.admin.redrive(&one, 1, Duration::ZERO, Duration::ZERO).await.expect("redrive");
                } else {
                    self.key(&blocked.key).lock().await.ended.insert(head);
                    store.admin.skip_key(TOPIC, &blocked.key).await.expect("skip");
                }
            }
            let mut key = self.key(KEYS[fastrand::usize(..KEYS.len())]).lock().await;
            let live: Vec<_> = key.published.iter().filter(|id| !key.ended.contains(id)).copied().collect();
            if let Some(id) = live.get(fastrand::usize(..live.len().max(1))).copied() {
                // What was in its way may go on from the moment on in which it is dead.
                let was_in_flight = key.in_flight.take_if(|other| *other == id);
                key.ended.insert(id);
                if store.admin.discard(&Selection::Ids(vec![id]), 1).await.expect("discard") == 0 {
                    // It blocks its key, or has ended since.
                    key.ended.remove(&id);
                    key.in_flight = was_in_flight;
                }
            }
            drop(key);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn all_ended(&self) -> bool {
        for key in self.keys.values() {
            let key = key.lock().await;
            if key.published.iter().any(|id| !key.ended.contains(id)) {
                return false;
            }
        }
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn relays_never_deliver_two_of_a_key_at_once_nor_out_of_order_nor_forget_one() {
    let store = Arc::new(TestStore::postgres().await);
    let seconds = std::env::var("OUTBOXD_KEYS_RACE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let until = Instant::now() + Duration::from_secs(seconds);
    let race = Arc::new(Race {
        keys: KEYS.map(|name| (name, Mutex::default())).into(),
        publishing: AtomicBool::new(true),
        delivered: AtomicU64::new(0),
        blocked: AtomicU64::new(0),
    });
    let mut producers = tokio::task::JoinSet::new();
    for _ in 0..PRODUCERS {
        let (race, store) = (race.clone(), TestStore::beside(&store).await);
        producers.spawn(async move { race.produce(&store, until).await });
    }
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..RELAYS {
        let (race, store) = (race.clone(), store.another().await);
        others.spawn(async move { race.relay(store).await });
    }
    let (meddling, people) = (race.clone(), store.another().await);
    others.spawn(async move { meddling.meddle(people).await });

    while let Some(producer) = producers.join_next().await {
        producer.expect("a producer");
    }
    race.publishing.store(false, Relaxed);
    let ended = async {
        while let Some(other) = others.join_next().await {
            other.expect("a relay or a person");
        }
    };
    let in_time = tokio::time::timeout(DRAINED_WITHIN, ended).await;

    assert!(in_time.is_ok(), "messages were forgotten: {:?}", store.admin.keys(&KeyFilter::default(), 10).await);
    let (delivered, blocked) = (race.delivered.load(Relaxed), race.blocked.load(Relaxed));
    println!("{delivered} messages of {} keys were delivered by {RELAYS} relays, {blocked} blocks undone", KEYS.len());
    assert!(delivered > 100 && blocked > 0, "the race was one");
    let stats = store.admin.stats().await.expect("stats");
    assert_eq!(stats[0].live(), 0, "{stats:?}");
}

/// Two messages of a key, and a discard of the first that waits for the message's lock, while another transaction makes it the head of its key.
async fn discard_as_the_turn_comes(
    store: &TestStore,
) -> (Vec<MessageId>, JoinHandle<Result<u64, StoreError>>, PgConnection) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let mut arranging = store.postgres_connection().await;
    let (locks, adds) = (
        "select id from shop.outbox where id = $1 for update",
        "insert into shop.outbox_keys (topic, key, head) values ($2, 'a', $1)",
    );
    sqlx::raw_sql("begin").execute(&mut arranging).await.unwrap();
    sqlx::query(locks).bind(published[0].0).execute(&mut arranging).await.unwrap();
    let (admin, first) = (store.admin.clone(), Selection::Ids(vec![published[0]]));
    let discard = tokio::spawn(async move { admin.discard(&first, 1).await });
    let deadline = Instant::now() + LEASE;
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let mut watching = store.postgres_connection().await;
    while sqlx::query_scalar::<_, i64>(waits).fetch_one(&mut watching).await.unwrap() == 0 {
        assert!(Instant::now() < deadline, "the discard does not wait");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sqlx::query(adds).bind(published[0].0).bind(TOPIC).execute(&mut arranging).await.unwrap();
    (published, discard, arranging)
}

#[tokio::test]
async fn a_message_that_is_discarded_as_its_turn_comes_does_not_block_its_key() {
    let store = TestStore::postgres().await;
    let (published, discard, mut arranging) = discard_as_the_turn_comes(&store).await;
    sqlx::raw_sql("commit").execute(&mut arranging).await.unwrap();

    assert_eq!(discard.await.unwrap().unwrap(), 1);

    assert_eq!(ids(&store.claim_in_order(9, crate::keys::BLOCK).await), published[1..]);
}

/// As a browser does that is closed.
#[tokio::test]
async fn a_discard_whose_asker_goes_away_does_not_block_the_key() {
    let store = TestStore::postgres().await;
    let (published, discard, mut arranging) = discard_as_the_turn_comes(&store).await;

    discard.abort();
    assert!(discard.await.unwrap_err().is_cancelled());
    sqlx::raw_sql("commit").execute(&mut arranging).await.unwrap();

    let deadline = Instant::now() + LEASE;
    let mut claimed = Vec::new();
    while claimed.is_empty() {
        assert!(Instant::now() < deadline, "the key does not go on");
        claimed = ids(&store.claim_in_order(9, crate::keys::BLOCK).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(claimed, published[1..]);
}
