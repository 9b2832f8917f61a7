//! Relays and people race for the keys of one limited topic.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outboxd_core::{Claim, KEY_FAILURES_MAX, Lane, MessageId, Order, Reason, Rest, RestCause, Settlement, Transition};
use outboxd_store::{KeyFilter, Selection, Store};

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, dead, draft, lane, retry, settlement};

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
            store.outbox.arrange(&lanes).await.expect("arrange");
            let claims = store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.expect("claim");
            claims.iter().for_each(|claim| self.begin(claim));
            tokio::time::sleep(Duration::from_millis(1)).await;
            for claim in claims {
                self.end(&store, &claim).await;
            }
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

    async fn end(&self, store: &Store, claim: &Claim) {
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
        let settlements = [Settlement { rest, ..settlement(claim, transition) }];
        match settlements[0].transition {
            Transition::Released { .. } => store.outbox.release(&settlements).await.expect("release"),
            _ => store.outbox.settle(&settlements).await.expect("settle"),
        };
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
