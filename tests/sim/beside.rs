//! How a relay waits while one plugin is slow and has all the calls it may have: not in naps, and another plugin's message is
//! seen in time. In virtual time, without faults.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use outboxd::handler::{CallControl, Handled, Handler, Handlers, Route};
use outboxd::relay::{Relay, RelayOptions};
use outboxd_core::{Admission, Claim, Held, Jitter, Lane, LeaseStatus, Order, Outcome, RetryPolicy, Settlement};
use outboxd_store::{DueTopic, Hold, MemoryMessage, MemoryStore, OutboxStore, StoreError, Wake};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Calls of one plugin at once.
const CONCURRENCY: usize = 2;
const SLOW_CALL: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_secs(1);
/// A poll is jittered, up to so much.
const POLL_MAX: Duration = Duration::from_millis(1250);
/// Of a shorter wait producers are not told.
const NAP_MAX: Duration = Duration::from_millis(25);

#[derive(Default)]
struct Watched {
    store: MemoryStore,
    seen: Mutex<Seen>,
}

/// What the relay asked for, and when calls of the quick plugin began.
#[derive(Default)]
struct Seen {
    waits: Vec<Duration>,
    statements: usize,
    quick_calls: Vec<Instant>,
}

impl Watched {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("not poisoned")
    }

    fn publish(&self, topic: &str, delay: Duration) {
        self.store.put(MemoryMessage {
            topic: topic.into(),
            payload: b"{}".to_vec(),
            delay,
            ..MemoryMessage::default()
        });
    }
}

#[async_trait]
impl OutboxStore for Watched {
    async fn due_topics(&self) -> Result<Vec<DueTopic>, StoreError> {
        self.seen().statements += 1;
        self.store.due_topics().await
    }

    async fn arrange(&self, lanes: &[Lane], hold: Hold) -> Result<u64, StoreError> {
        self.store.arrange(lanes, hold).await
    }

    async fn claim(&self, lanes: &[Lane], lease: Duration, lapses_max: u32) -> Result<Vec<Claim>, StoreError> {
        self.seen().statements += 1;
        self.store.claim(lanes, lease, lapses_max).await
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<LeaseStatus>, StoreError> {
        self.store.renew(held, lease).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        self.store.settle(settlements).await
    }

    async fn release(&self, released: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        self.store.release(released).await
    }

    async fn wait_for_work(&self, at_most: Duration) -> Wake {
        self.seen().waits.push(at_most);
        self.store.wait_for_work(at_most).await
    }
}

/// Topics "slow" and "quick", each with a plugin of its name.
struct Two(Arc<Watched>);

impl Handlers for Two {
    fn route(&self, topic: &str) -> Option<Route> {
        Some(Route {
            plugin: topic.into(),
            handler: Arc::new(Plugin(self.0.clone())),
            policy: Arc::new(RetryPolicy::default()),
            concurrency: CONCURRENCY,
            order: Order::None,
            spacing: Duration::ZERO,
            rate: None,
            admission: Admission::Open,
        })
    }

    fn plugins(&self) -> usize {
        2
    }
}

struct Plugin(Arc<Watched>);

#[async_trait]
impl Handler for Plugin {
    async fn handle(&self, claim: &Claim, _: CallControl) -> Handled {
        if claim.message.topic == "slow" {
            sleep(SLOW_CALL).await;
        } else {
            self.0.seen().quick_calls.push(Instant::now());
        }
        Handled::new(Outcome::Success)
    }
}

/// A relay whose slow plugin has all its calls under way, and more to do.
async fn beside_a_slow_plugin() -> Arc<Watched> {
    let store = Arc::new(Watched::default());
    for _ in 0..3 * CONCURRENCY {
        store.publish("slow", Duration::ZERO);
    }
    let options = RelayOptions { concurrency: 4 * CONCURRENCY, poll_interval: POLL, ..RelayOptions::default() };
    let jitter = Arc::new(|| Jitter::new(fastrand::f64()));
    let relay = Relay::new(store.clone(), Arc::new(Two(store.clone())), jitter, options);
    tokio::spawn(async move { relay.run(CancellationToken::new()).await });
    sleep(Duration::from_secs(2)).await;
    *store.seen() = Seen::default();
    store
}

#[tokio::test(start_paused = true)]
async fn a_relay_beside_a_full_slow_plugin_takes_no_naps() {
    let store = beside_a_slow_plugin().await;

    sleep(POLL_MAX * 8).await;

    let seen = store.seen();
    assert!(seen.waits.len() >= 8, "it waits for work: {:?}", seen.waits);
    assert!(seen.waits.iter().all(|wait| *wait >= NAP_MAX), "no producer would wake it: {:?}", seen.waits);
    assert!(seen.statements <= 2 * seen.waits.len(), "{} statements in {:?}", seen.statements, seen.waits);
}

#[tokio::test(start_paused = true)]
async fn a_message_beside_a_full_slow_plugin_is_seen_as_soon_as_it_is_published() {
    let store = beside_a_slow_plugin().await;
    let published = Instant::now();

    store.publish("quick", Duration::ZERO);
    sleep(POLL / 2).await;

    let called = store.seen().quick_calls[..].first().map(|called| called.duration_since(published));
    assert!(called.is_some_and(|after| after < Duration::from_millis(5)), "{called:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_beside_a_full_slow_plugin_that_nobody_tells_of_is_seen_within_a_poll() {
    let store = beside_a_slow_plugin().await;
    let (delay, published) = (POLL * 3, Instant::now());

    store.publish("quick", delay);
    sleep(delay + POLL_MAX * 2).await;

    let called = store.seen().quick_calls[..].first().map(|called| called.duration_since(published));
    assert!(called.is_some_and(|after| (delay..=delay + POLL_MAX).contains(&after)), "{called:?}");
}
