use std::time::{Duration, Instant};

use outboxd_store::{Notify, Wake};

use crate::backend::{TOPIC, TestStore, draft, on_every_store};

on_every_store! {
    a_publish_wakes_a_relay_that_waits
    a_publish_while_nobody_waits_is_kept_for_the_next_wait
    a_wait_ends_when_its_time_is_up
}

const LONG: Duration = Duration::from_secs(20);

/// Waits until the listener is up and its first signal is spent.
async fn quiet(store: &TestStore) {
    store.outbox.wait_for_work(Duration::from_secs(5)).await;
    while store.outbox.wait_for_work(Duration::from_millis(200)).await == Wake::Notify {}
}

async fn a_publish_wakes_a_relay_that_waits(store: TestStore) {
    store.publish_one(draft(TOPIC)).await;
    quiet(&store).await;
    let outbox = store.outbox.clone();
    let waiting = tokio::spawn(async move {
        let started = Instant::now();
        (outbox.wait_for_work(LONG).await, started.elapsed())
    });
    tokio::task::yield_now().await;

    store.publish_one(draft(TOPIC)).await;

    let (wake, waited) = waiting.await.unwrap();
    assert_eq!(wake, Wake::Notify);
    assert!(waited < LONG / 2, "{waited:?}");
}

async fn a_publish_while_nobody_waits_is_kept_for_the_next_wait(store: TestStore) {
    quiet(&store).await;
    store.publish_one(draft(TOPIC)).await;

    assert_eq!(store.outbox.wait_for_work(LONG).await, Wake::Notify);
}

async fn a_wait_ends_when_its_time_is_up(store: TestStore) {
    let store = store.reconnect(|options| options.notify = Notify::PollOnly).await;

    assert_eq!(store.outbox.wait_for_work(Duration::from_millis(30)).await, Wake::Poll);
}
