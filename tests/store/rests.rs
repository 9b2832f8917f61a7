//! Keys that rest: since their target or their plugin asked for it, since calls failed in a row, or since calls are spaced.

use std::time::Duration;

use outboxd_core::{Claim, KEY_FAILURES_MAX, Lane, Order, Rest, RestCause, Settlement, State, Transition};
use outboxd_store::{Changed, Hold, KeyFilter, KeyState};

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, ids, lane, on_every_store, retry, settlement};
use crate::keys::{BLOCK, key_state};
use crate::limits::{MINUTE, TWO};

on_every_store! {
    a_limited_key_that_rests_gives_none_of_its_messages
    a_key_that_has_rested_goes_on_though_another_of_its_calls_still_runs
    after_a_rest_one_message_tries_and_its_success_lets_the_others_go
    a_try_that_fails_keeps_the_others_back
    failures_in_a_row_are_counted_for_the_whole_fleet
    failures_that_were_under_way_at_once_count_as_one
    an_ordered_key_that_failed_often_rests_with_its_head
    what_is_held_for_a_key_that_rests_costs_nothing_more
    a_limited_key_is_resumed_before_its_time
    what_messages_of_a_key_tell_it_at_once_is_added_up
    the_longest_rest_of_a_key_says_why
    what_waits_for_nothing_but_the_spacing_of_its_keys_calls_is_told
}

impl TestStore {
    /// The target failed so often in a row by now; the key rests for a minute.
    async fn fail(&self, claim: &Claim, failures: u32) {
        let rest = Rest { time: MINUTE, cause: Some(RestCause::Failures), failures: Some(failures) };
        self.settle_with(claim, retry(Duration::ZERO), rest).await;
    }
}

async fn a_limited_key_that_rests_gives_none_of_its_messages(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a", "b"]).await;
    let lanes = [Lane { order: TWO, ..lane(TOPIC, 1) }];
    store.outbox.arrange(&lanes, Hold::All).await.unwrap();
    let first = store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.unwrap();
    assert_eq!(ids(&first), published[..1], "the second has its turn too, but is not claimed yet");

    let rest = Rest { time: MINUTE, cause: Some(RestCause::RetryAfter), failures: Some(0) };
    store.settle_with(&first[0], Transition::Delivered, rest).await;

    assert_eq!(ids(&store.claim_arranged(9, TWO).await), [published[3]]);
    assert_eq!(store.state_of(published[1]).await, State::Held);
    let paused = KeyFilter { topic: None, state: Some(KeyState::Paused) };
    let [key] = &store.admin.keys(&paused, 9).await.unwrap()[..] else { panic!("one key rests") };
    assert_eq!((key.key.as_str(), key.reason.as_deref(), key.depth), ("a", Some("retry-after"), 2));
    assert!(key.due_in_ms.is_some_and(|ms| (1..=60_000).contains(&ms)), "{key:?}");
    assert_eq!(store.admin.stats().await.unwrap()[0].resting_keys, 1);

    store.age(2 * MINUTE).await;
    assert_eq!(store.admin.stats().await.unwrap()[0].resting_keys, 0);

    let claims = store.claim_arranged(9, TWO).await;
    assert_eq!(ids(&claims)[..2], published[1..3]);
    assert_eq!(claims[0].attempt.0, 1, "rest spends no attempt");
}

async fn a_key_that_has_rested_goes_on_though_another_of_its_calls_still_runs(store: TestStore) {
    let published = store.publish_keyed(&["a"; 3]).await;
    let lanes = [Lane { order: TWO, ..lane(TOPIC, 9) }];
    store.outbox.arrange(&lanes, Hold::All).await.unwrap();
    let claims = store.outbox.claim(&lanes, 10 * MINUTE, LAPSES_MAX).await.unwrap();
    let rest = Rest { time: MINUTE, cause: Some(RestCause::Plugin), failures: Some(0) };
    store.settle_with(&claims[0], Transition::Delivered, rest).await;
    let late = store.publish_keyed(&["a"]).await;
    assert_eq!(store.claim_arranged(9, TWO).await, []);
    assert_eq!(store.state_of(late[0]).await, State::Held);

    store.age(2 * MINUTE).await;

    assert_eq!(store.outbox.due_topics().await.unwrap().len(), 1, "somebody looks");
    assert_eq!(ids(&store.claim_arranged(9, TWO).await), published[2..]);
}

async fn after_a_rest_one_message_tries_and_its_success_lets_the_others_go(store: TestStore) {
    let published = store.publish_keyed(&["a"; 4]).await;
    let claims = store.claim_arranged(9, TWO).await;
    store.settle_one(&claims[1], Transition::Delivered).await;
    store.fail(&claims[0], KEY_FAILURES_MAX).await;
    assert_eq!(store.claim_arranged(9, TWO).await, []);
    store.age(2 * MINUTE).await;

    let tries = store.claim_arranged(9, TWO).await;

    assert_eq!((ids(&tries), tries[0].key_failures), (vec![published[0]], KEY_FAILURES_MAX));
    assert_eq!(store.claim_arranged(9, TWO).await, [], "one call tries it alone");
    store.settle_with(&tries[0], Transition::Delivered, Rest { failures: Some(0), ..Rest::default() }).await;
    let claims = store.claim_arranged(9, TWO).await;
    assert_eq!((ids(&claims), claims[0].key_failures), (published[2..].to_vec(), 0));
}

async fn a_try_that_fails_keeps_the_others_back(store: TestStore) {
    store.publish_keyed(&["a"; 4]).await;
    let claims = store.claim_arranged(9, TWO).await;
    store.fail(&claims[0], KEY_FAILURES_MAX).await;
    store.fail(&claims[1], KEY_FAILURES_MAX).await;

    for failures in KEY_FAILURES_MAX + 1..KEY_FAILURES_MAX + 4 {
        assert_eq!(store.claim_arranged(9, TWO).await, []);
        store.age(2 * MINUTE).await;
        let tries = store.claim_arranged(9, TWO).await;
        assert_eq!((tries.len(), tries[0].key_failures), (1, failures - 1));
        store.fail(&tries[0], failures).await;
    }
}

async fn failures_in_a_row_are_counted_for_the_whole_fleet(store: TestStore) {
    store.publish_keyed(&["a"; 6]).await;
    let failed = |failures| Rest { failures: Some(failures), ..Rest::default() };
    let claims = store.claim_arranged(9, TWO).await;
    store.settle_with(&claims[0], retry(MINUTE), failed(1)).await;
    // What was claimed before says less than the other.
    store.settle_with(&claims[1], retry(MINUTE), Rest::default()).await;

    let claims = store.claim_arranged(9, TWO).await;
    assert_eq!(claims.iter().map(|claim| claim.key_failures).collect::<Vec<_>>(), [1, 1]);
    store.settle_with(&claims[0], retry(MINUTE), failed(2)).await;
    store.settle_with(&claims[1], Transition::Delivered, failed(0)).await;

    assert!(store.claim_arranged(9, TWO).await.iter().all(|claim| claim.key_failures == 0));
}

async fn failures_that_were_under_way_at_once_count_as_one(store: TestStore) {
    store.publish_keyed(&["a"; 3]).await;
    let claims = store.claim_arranged(9, TWO).await;
    for claim in &claims {
        let failures = Some(claim.key_failures + 1);
        store.settle_with(claim, retry(MINUTE), Rest { failures, ..Rest::default() }).await;
    }

    assert_eq!(store.claim_arranged(9, TWO).await[0].key_failures, 1);
}

async fn an_ordered_key_that_failed_often_rests_with_its_head(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    let rest = Rest { time: MINUTE, cause: Some(RestCause::Failures), failures: Some(KEY_FAILURES_MAX) };
    store.settle_with(&claims[0], retry(MINUTE), rest).await;

    assert_eq!(store.key_states().await, [key_state("a", KeyState::Paused, 1)]);
    assert_eq!(store.admin.keys(&KeyFilter::default(), 9).await.unwrap()[0].reason.as_deref(), Some("failures"));
    assert_eq!(store.admin.resume_key(TOPIC, "a").await.unwrap(), Changed::Yes);
    let again = store.claim_in_order(9, BLOCK).await;
    assert_eq!((ids(&again), again[0].key_failures), (published[..1].to_vec(), KEY_FAILURES_MAX));
}

async fn what_is_held_for_a_key_that_rests_costs_nothing_more(store: TestStore) {
    store.publish_keyed(&["a"; 50]).await;
    let claims = store.claim_arranged(1, TWO).await;
    store.fail(&claims[0], KEY_FAILURES_MAX).await;
    assert_eq!(store.claim_arranged(9, TWO).await, []);

    let lanes = [Lane { order: TWO, ..lane(TOPIC, 9) }];
    assert_eq!(store.outbox.arrange(&lanes, Hold::All).await.unwrap(), 0);
    assert_eq!(store.outbox.due_topics().await.unwrap(), [], "nothing can start");
}

async fn a_limited_key_is_resumed_before_its_time(store: TestStore) {
    let published = store.publish_keyed(&["a"; 3]).await;
    let claims = store.claim_arranged(9, TWO).await;
    store
        .settle_with(
            &claims[0],
            Transition::Delivered,
            Rest { time: MINUTE, cause: Some(RestCause::Plugin), failures: Some(0) },
        )
        .await;
    assert_eq!(store.claim_arranged(9, TWO).await, []);

    assert_eq!(store.admin.resume_key(TOPIC, "a").await.unwrap(), Changed::Yes);

    assert_eq!(ids(&store.claim_arranged(9, TWO).await), published[2..]);
    assert_eq!(store.admin.resume_key(TOPIC, "a").await.unwrap(), Changed::No);
}

async fn what_messages_of_a_key_tell_it_at_once_is_added_up(store: TestStore) {
    store.publish_keyed(&["a"; 4]).await;
    let claims = store.claim_arranged(9, TWO).await;
    let tells = |claim, time, cause, failures| {
        let rest = Rest { time, cause: Some(cause), failures: Some(failures) };
        Settlement { rest, ..settlement(claim, Transition::Delivered) }
    };

    let longer = tells(&claims[0], MINUTE, RestCause::Plugin, 0);
    let shorter = tells(&claims[1], MINUTE / 2, RestCause::RetryAfter, KEY_FAILURES_MAX);
    store.outbox.settle(&[longer, shorter]).await.unwrap();

    let keys = store.admin.keys(&KeyFilter::default(), 9).await.unwrap();
    assert_eq!(keys[0].reason.as_deref(), Some("plugin"), "the longest rest says why");
    store.age(2 * MINUTE).await;
    let next = store.claim_arranged(9, TWO).await;
    assert_eq!(next.iter().map(|claim| claim.key_failures).collect::<Vec<_>>(), [0, 0], "one success ends the row");
}

async fn the_longest_rest_of_a_key_says_why(store: TestStore) {
    store.publish_keyed(&["a"; 3]).await;
    let claims = store.claim_arranged(9, TWO).await;
    let rest = |time, cause| Rest { time, cause: Some(cause), failures: Some(0) };
    store.settle_with(&claims[0], Transition::Delivered, rest(MINUTE, RestCause::RetryAfter)).await;

    store.settle_with(&claims[1], Transition::Delivered, rest(MINUTE / 2, RestCause::Rate)).await;

    assert_eq!(store.admin.keys(&KeyFilter::default(), 9).await.unwrap()[0].reason.as_deref(), Some("retry-after"));
    assert_eq!(store.admin.stats().await.unwrap()[0].resting_keys, 1);
    assert_eq!(store.admin.spaced().await.unwrap(), []);
}

async fn what_waits_for_nothing_but_the_spacing_of_its_keys_calls_is_told(store: TestStore) {
    const ONE: Order = Order::Limited { per_key: 1 };
    store.publish_keyed(&["a", "a", "b", "c", "c"]).await;
    let claims = store.claim_arranged(9, ONE).await;
    let spaced = Rest { time: MINUTE, cause: Some(RestCause::Rate), failures: Some(0) };
    let asked = Rest { time: MINUTE / 2, cause: Some(RestCause::Plugin), failures: Some(0) };
    // Of the second nothing is left, and the third one's plugin wants to be left alone.
    for (claim, rest) in claims.iter().zip([spaced.clone(), spaced, asked]) {
        store.settle_with(claim, Transition::Delivered, rest).await;
    }

    let told = store.admin.spaced().await.unwrap();

    assert!(told.len() == 1 && told[0].topic == TOPIC, "{told:?}");
    assert!(told[0].wait > MINUTE / 2 && told[0].wait <= MINUTE + Duration::from_millis(1), "{told:?}");
    store.admin.pause(TOPIC).await.unwrap();
    assert_eq!(store.admin.spaced().await.unwrap(), [], "a person paused it");
    store.admin.resume(TOPIC).await.unwrap();
    store.age(2 * MINUTE).await;
    assert_eq!(store.admin.spaced().await.unwrap(), [], "it may go on");
}
