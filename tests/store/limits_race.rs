//! Relays and people race for the keys of one limited topic.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outboxd_core::{Claim, KEY_FAILURES_MAX, Lane, MessageId, Order, Reason, Rest, RestCause, Settlement, Transition};
use outboxd_store::{Hold, KeyFilter, OnDelivered, Selection, Store};
use sqlx::{Connection as _, PgConnection};

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, dead, draft, ids, lane, retry, settlement};

const PER_KEY: u32 = 2;
const KEYS: [&str; 4] = ["a", "b", "c", "d"];
const RELAYS: usize = 4;
const MESSAGES: usize = 800;
const ENDED_WITHIN: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Race {
    in_flight: Mutex<HashMap<String, HashSet<MessageId>>>,
    ended: Mutex<HashSet<MessageId>>,
    most: AtomicU64,
    rests: AtomicU64,
}

impl Race {
    async fn relay(&self, store: Store, total: usize) {
        let lanes = [Lane { order: Order::Limited { per_key: PER_KEY }, ..lane(TOPIC, 5) }];
        while self.ended.lock().unwrap().len() < total {
            store.outbox.arrange(&lanes, Hold::All).await.expect("arrange");
            let claims = store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.expect("claim");
            claims.iter().for_each(|claim| self.begin(claim));
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.end(&store, &claims).await;
        }
    }

    fn begin(&self, claim: &Claim) {
        let key = claim.message.key.clone().expect("all have keys");
        let mut in_flight = self.in_flight.lock().unwrap();
        let of_key = in_flight.entry(key).or_default();
        assert!(of_key.insert(claim.message.id), "a message is under way twice");
        assert!(of_key.len() <= PER_KEY as usize, "{} messages of one key are under way", of_key.len());
        self.most.fetch_max(of_key.len() as u64, Relaxed);
    }

    /// Settles all of them in one statement, as relays do, and gives the others back in another.
    async fn end(&self, store: &Store, claims: &[Claim]) {
        let settlements = claims.iter().map(|claim| self.settlement(claim));
        let (released, settled): (Vec<_>, Vec<_>) =
            settlements.partition(|one| matches!(one.transition, Transition::Released { .. }));
        store.outbox.settle(&settled).await.expect("settle");
        store.outbox.release(&released).await.expect("release");
    }

    fn settlement(&self, claim: &Claim) -> Settlement {
        let key = claim.message.key.as_ref().expect("all have keys");
        self.in_flight.lock().unwrap().get_mut(key).expect("it began").remove(&claim.message.id);
        let transition = match fastrand::u8(..10) {
            0 => dead(),
            1..=2 => retry(Duration::ZERO),
            3 => retry(Duration::from_millis(fastrand::u64(..5))),
            4 => Transition::Released { after: Duration::ZERO, reason: Reason::Interrupted, error: "stop".into() },
            _ => Transition::Delivered,
        };
        if matches!(transition, Transition::Delivered | Transition::Dead { .. }) {
            self.ended.lock().unwrap().insert(claim.message.id);
        }
        let rest = match (&transition, fastrand::u8(..4)) {
            (Transition::Delivered, _) => Rest { failures: Some(0), ..Rest::default() },
            (Transition::Pending { .. }, 0) => {
                self.rests.fetch_add(1, Relaxed);
                let (time, cause) = (Duration::from_millis(3), Some(RestCause::Failures));
                Rest { time, cause, failures: Some(KEY_FAILURES_MAX) }
            }
            _ => Rest::default(),
        };
        Settlement { rest, ..settlement(claim, transition) }
    }

    /// A person gives messages up that wait.
    async fn meddle(&self, store: Store, published: Vec<MessageId>) {
        while self.ended.lock().unwrap().len() < published.len() {
            let id = published[fastrand::usize(..published.len())];
            let waits = store.admin.show(id).await.expect("show").is_some_and(|shown| shown.summary.state == "held");
            let under_way = |race: &Race| race.in_flight.lock().unwrap().values().any(|ids| ids.contains(&id));
            if waits && !under_way(self) {
                // By topic and reason, which leaves what is being processed alone, nothing could be chosen: so it may have begun
                // by now, and its settle is then fenced.
                if store.admin.discard(&Selection::Ids(vec![id]), 1).await.expect("discard") > 0 {
                    self.in_flight.lock().unwrap().values_mut().for_each(|ids| _ = ids.remove(&id));
                    self.ended.lock().unwrap().insert(id);
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn relays_never_exceed_the_limit_of_a_key_nor_forget_one() {
    let store = TestStore::postgres().await;
    let drafts = (0..MESSAGES).map(|number| draft(TOPIC).key(KEYS[number % KEYS.len()])).collect();
    let published = store.publish(drafts).await;
    let race = Arc::new(Race::default());
    let begun = Instant::now();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..RELAYS {
        let (race, store, total) = (race.clone(), store.another().await, published.len());
        all.spawn(async move { race.relay(store, total).await });
    }
    let (meddling, people) = (race.clone(), store.another().await);
    all.spawn(async move { meddling.meddle(people, published).await });

    let ended = async {
        while let Some(one) = all.join_next().await {
            one.expect("a relay or a person");
        }
    };
    let in_time = tokio::time::timeout(ENDED_WITHIN, ended).await;

    assert!(in_time.is_ok(), "messages were forgotten: {:?}", store.admin.keys(&KeyFilter::default(), 10).await);
    assert_eq!(race.most.load(Relaxed), u64::from(PER_KEY), "the limit was reached");
    assert!(race.rests.load(Relaxed) > 0, "keys had to rest");
    println!("{MESSAGES} messages in {:?}, {} rests", begun.elapsed(), race.rests.load(Relaxed));
}

pub async fn wait_until_one_waits_for_a_lock(watching: &mut PgConnection) {
    let deadline = Instant::now() + LEASE;
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    while sqlx::query_scalar::<_, i64>(waits).fetch_one(&mut *watching).await.unwrap() == 0 {
        assert!(Instant::now() < deadline, "nothing waits for a lock");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Two that lock keys in different orders may wait for each other.
#[tokio::test]
async fn a_statement_that_ends_turns_locks_their_keys_in_one_order() {
    for what in ["deletes", "settles", "discards"] {
        let store = TestStore::postgres().await;
        let store = store.reconnect(|options| options.on_delivered = OnDelivered::Delete).await;
        let published = store.publish_keyed(&["h", "c", "f", "a", "e", "b", "g", "d"]).await;
        let lanes = [Lane { order: Order::Limited { per_key: PER_KEY }, ..lane(TOPIC, 9) }];
        store.outbox.arrange(&lanes, Hold::All).await.expect("arrange");
        let claims = store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.expect("claim");
        assert_eq!(claims.len(), 8);
        let mut other = store.postgres_connection().await;
        let mut other = other.begin().await.unwrap();
        let first = "select key from shop.outbox_keys where key = 'a' for update";
        sqlx::query(first).execute(&mut *other).await.unwrap();
        let (outbox, admin) = (store.outbox.clone(), store.admin.clone());

        let ending = tokio::spawn(async move {
            let rest = match what {
                "settles" => Rest { failures: Some(1), ..Rest::default() },
                _ => Rest::default(),
            };
            let ended = |claim| Settlement { rest: rest.clone(), ..settlement(claim, Transition::Delivered) };
            match what {
                "discards" => admin.discard(&Selection::Ids(published), 9).await.map(drop),
                _ => outbox.settle(&claims.iter().map(ended).collect::<Vec<_>>()).await.map(drop),
            }
        });
        wait_until_one_waits_for_a_lock(&mut store.postgres_connection().await).await;

        let free = "select key from shop.outbox_keys order by key for update skip locked";
        let free: Vec<String> = sqlx::query_scalar(free).fetch_all(&mut *other).await.unwrap();
        assert_eq!(
            free,
            ["a", "b", "c", "d", "e", "f", "g", "h"],
            "{what}: it has others while it waits for the first"
        );
        other.rollback().await.unwrap();
        ending.await.unwrap().expect("it goes on");
    }
}

/// Nothing waits for a lock; but somebody looks again.
#[tokio::test]
async fn a_place_stays_free_for_a_message_that_was_locked_as_it_was_looked_for() {
    let store = TestStore::postgres().await;
    let published = store.publish_keyed(&["a"; 4]).await;
    let lanes = [Lane { order: Order::Limited { per_key: PER_KEY }, ..lane(TOPIC, 9) }];
    let arranged = async || {
        store.outbox.arrange(&lanes, Hold::All).await.expect("arrange");
        store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.expect("claim")
    };
    let claims = arranged().await;
    let ended: Vec<_> = claims.iter().map(|claim| settlement(claim, Transition::Delivered)).collect();
    store.outbox.settle(&ended).await.expect("settle");
    let mut other = store.postgres_connection().await;
    let mut other = other.begin().await.unwrap();
    let locks = "select id from shop.outbox where id = $1 for update";
    sqlx::query(locks).bind(published[3].0).execute(&mut *other).await.unwrap();
    assert_eq!(ids(&arranged().await), published[2..3]);

    other.rollback().await.unwrap();

    assert_eq!(ids(&arranged().await), published[3..]);
}

/// Nobody sees what becomes of it; and what its key has counted must not be lost.
#[tokio::test]
async fn a_key_is_not_forgotten_while_its_only_message_is_locked() {
    let store = TestStore::postgres().await;
    let published = store.publish_keyed(&["a"]).await;
    let lanes = [Lane { order: Order::Limited { per_key: PER_KEY }, ..lane(TOPIC, 9) }];
    store.outbox.arrange(&lanes, Hold::All).await.expect("arrange");
    let claims = store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.expect("claim");
    let rest = Rest { failures: Some(3), ..Rest::default() };
    store.outbox.settle(&[Settlement { rest, ..settlement(&claims[0], retry(LEASE)) }]).await.expect("settle");
    let mut other = store.postgres_connection().await;
    let mut other = other.begin().await.unwrap();
    let locks = "select id from shop.outbox where id = $1 for update";
    sqlx::query(locks).bind(published[0].0).execute(&mut *other).await.unwrap();

    store.outbox.arrange(&lanes, Hold::All).await.expect("arrange");

    other.rollback().await.unwrap();
    store.admin.retry_now(&Selection::Ids(published), 1).await.expect("retry");
    store.outbox.arrange(&lanes, Hold::All).await.expect("arrange");
    let claims = store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.expect("claim");
    assert_eq!(claims[0].key_failures, 3);
}
