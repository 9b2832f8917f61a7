use std::time::Duration;

use outboxd_core::{LeaseStatus, MessageId, Reason, Rest, RestCause, Settlement, State, Transition};
use outboxd_store::{Changed, Finished, KeyFilter, KeyState, KeySummary, Selection};

use crate::backend::{TOPIC, TestStore, dead, draft, ids, on_every_store, retry, settlement};
use crate::keys::{BLOCK, SKIP, key_state};

const MINUTE: Duration = Duration::from_secs(60);

on_every_store! {
    a_dead_message_blocks_its_key
    a_dead_message_is_skipped_where_the_topic_says_so
    a_key_that_was_blocked_before_stays_so
    an_expired_message_blocks_nothing
    a_redriven_message_that_blocked_its_key_goes_first
    a_redriven_message_that_was_skipped_waits_for_its_turn_like_any_other
    a_discarded_message_lets_its_key_go_on
    a_held_message_may_be_discarded
    a_blocked_key_that_is_skipped_goes_on
    a_blocked_key_that_rests_and_is_skipped_goes_on_when_it_has_rested
    what_blocks_a_key_is_not_purged
    keys_are_listed_with_what_is_at_their_head
    stats_count_blocked_keys
}

mod databases {
    use super::a_key_whose_blocking_message_was_deleted_is_still_counted;

    crate::backend::on_every_database! {
        a_key_whose_blocking_message_was_deleted_is_still_counted
    }
}

async fn a_dead_message_blocks_its_key(store: TestStore) {
    store.publish_keyed(&["a", "a", "b"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    for claim in &claims {
        store.settle_one(claim, dead()).await;
    }

    assert_eq!(store.claim_in_order(9, BLOCK).await, []);
    assert_eq!(store.key_states().await, [key_state("a", KeyState::Blocked, 1), key_state("b", KeyState::Blocked, 0)]);
}

async fn a_dead_message_is_skipped_where_the_topic_says_so(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let claims = store.claim_in_order(9, SKIP).await;

    store.settle_one(&claims[0], dead()).await;

    assert_eq!(ids(&store.claim_in_order(9, SKIP).await), [published[1]]);
}

async fn a_key_that_was_blocked_before_stays_so(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    store.settle_one(&claims[0], dead()).await;

    assert_eq!(store.claim_in_order(9, SKIP).await, []);
    store.admin.skip_key(TOPIC, "a").await.unwrap();
    assert_eq!(ids(&store.claim_in_order(9, SKIP).await), [published[1]]);
}

async fn an_expired_message_blocks_nothing(store: TestStore) {
    let published = store.publish(vec![draft(TOPIC).key("a").expires(MINUTE), draft(TOPIC).key("a")]).await;
    store.age(2 * MINUTE).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    assert!(claims[0].expired);

    store.settle_one(&claims[0], Transition::Dead { reason: Reason::Expired, error: "late".into() }).await;

    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[1]]);
}

async fn a_redriven_message_that_blocked_its_key_goes_first(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    store.settle_one(&claims[0], dead()).await;

    redrive(&store, published[0]).await;

    let claims = store.claim_in_order(9, BLOCK).await;
    assert_eq!(ids(&claims), [published[0]]);
    store.settle_one(&claims[0], Transition::Delivered).await;
    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[1]]);
}

async fn a_redriven_message_that_was_skipped_waits_for_its_turn_like_any_other(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a"]).await;
    let claims = store.claim_in_order(9, SKIP).await;
    store.settle_one(&claims[0], dead()).await;
    let second = store.claim_in_order(9, SKIP).await;
    assert_eq!(ids(&second), [published[1]]);

    redrive(&store, published[0]).await;

    assert_eq!(store.claim_in_order(9, SKIP).await, [], "the second is under way");
    store.settle_one(&second[0], Transition::Delivered).await;
    assert_eq!(ids(&store.claim_in_order(9, SKIP).await), [published[0]], "it was published before the third");
}

async fn a_discarded_message_lets_its_key_go_on(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;

    discard(&store, published[0]).await;
    assert_eq!(store.settle_one(&claims[0], Transition::Delivered).await, LeaseStatus::Lost);

    let claims = store.claim_in_order(9, BLOCK).await;
    assert_eq!(ids(&claims), [published[1]]);
    store.settle_one(&claims[0], retry(MINUTE)).await;
    let all = Selection::Matching { topic: Some(TOPIC.into()), reason: Some(Reason::Retry) };
    assert_eq!(store.admin.discard(&all, 9).await.unwrap(), 1);
    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[2]]);
}

async fn a_held_message_may_be_discarded(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    assert_eq!(store.state_of(published[1]).await, State::Held);

    discard(&store, published[1]).await;

    store.settle_one(&claims[0], Transition::Delivered).await;
    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[2]]);
}

async fn a_blocked_key_that_is_skipped_goes_on(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    assert_eq!(store.admin.skip_key(TOPIC, "a").await.unwrap(), Changed::No, "there is no such key yet");
    let claims = store.claim_in_order(9, BLOCK).await;
    assert_eq!(store.admin.skip_key(TOPIC, "a").await.unwrap(), Changed::No, "it is under way");
    store.settle_one(&claims[0], dead()).await;

    assert_eq!(store.admin.skip_key(TOPIC, "a").await.unwrap(), Changed::Yes);

    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[1]]);
    assert_eq!(store.state_of(published[0]).await, State::Dead);
}

async fn a_blocked_key_that_rests_and_is_skipped_goes_on_when_it_has_rested(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    let rest = Rest { time: MINUTE, cause: Some(RestCause::RetryAfter), failures: Some(1) };
    store.outbox.settle(&[Settlement { rest, ..settlement(&claims[0], dead()) }]).await.unwrap();

    assert_eq!(store.admin.skip_key(TOPIC, "a").await.unwrap(), Changed::Yes);

    assert_eq!(store.claim_in_order(9, BLOCK).await, []);
    store.age(2 * MINUTE).await;
    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[1]]);
}

async fn what_blocks_a_key_is_not_purged(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    store.settle_one(&claims[0], dead()).await;
    store.age(MINUTE).await;

    assert_eq!(store.admin.purge(Finished::Dead, Duration::ZERO, 9).await.unwrap(), 0);
    store.admin.skip_key(TOPIC, "a").await.unwrap();

    assert_eq!(store.admin.purge(Finished::Dead, Duration::ZERO, 9).await.unwrap(), 1);
    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[1]]);
}

async fn keys_are_listed_with_what_is_at_their_head(store: TestStore) {
    let published = store.publish_keyed(&["dead", "dead", "dead", "waits", "works", "works"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    store.settle_one(&claims[0], dead()).await;
    store.settle_one(&claims[1], retry(MINUTE)).await;

    let listed = async |state| {
        let filter = KeyFilter { topic: Some(TOPIC.into()), state };
        store.admin.keys(&filter, 10).await.unwrap()
    };
    let [blocked] = &listed(Some(KeyState::Blocked)).await[..] else { panic!("one key is blocked") };
    let KeySummary { topic, key, state, head, reason, error, due_in_ms, depth, since_ms } = blocked.clone();
    assert_eq!((topic.as_str(), key.as_str(), state.as_str()), (TOPIC, "dead", "blocked"));
    assert_eq!(head, Some(published[0].to_string()));
    assert_eq!((reason.as_deref(), error.as_deref()), (Some("cancelled"), Some("gone")));
    assert_eq!((due_in_ms, depth), (None, 2));
    assert_eq!(Some(since_ms), store.show(published[0]).await.summary.dead_at_ms);
    let [waiting] = &listed(Some(KeyState::Waiting)).await[..] else { panic!("one key waits") };
    assert_eq!((waiting.key.as_str(), waiting.error.as_deref(), waiting.depth), ("waits", Some("try later"), 0));
    assert!(waiting.due_in_ms.is_some_and(|ms| (1..=60_000).contains(&ms)), "{waiting:?}");
    let [processing] = &listed(Some(KeyState::Processing)).await[..] else { panic!("one key is at work") };
    assert_eq!((processing.key.as_str(), processing.depth), ("works", 1));
    assert_eq!(listed(None).await.len(), 3);
    let other = KeyFilter { topic: Some("other".into()), state: None };
    assert_eq!(store.admin.keys(&other, 10).await.unwrap(), []);
    assert_eq!(store.admin.keys(&KeyFilter::default(), 2).await.unwrap().len(), 2);
}

async fn stats_count_blocked_keys(store: TestStore) {
    store.publish_keyed(&["a", "a", "b", "c"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    store.settle_one(&claims[0], dead()).await;
    store.settle_one(&claims[1], dead()).await;

    let stats = store.admin.stats().await.unwrap();

    assert_eq!((stats[0].blocked_keys, stats[0].held, stats[0].dead), (2, 1, 2));
}

async fn a_key_whose_blocking_message_was_deleted_is_still_counted(store: TestStore) {
    store.publish_keyed(&["a", "a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    store.settle_one(&claims[0], dead()).await;
    store.claim_in_order(9, BLOCK).await;

    store.execute("delete from outbox where state = 'dead'").await.unwrap();

    assert_eq!(store.admin.stats().await.unwrap()[0].blocked_keys, 1);
}

async fn redrive(store: &TestStore, id: MessageId) {
    let redriven = store.admin.redrive(&Selection::Ids(vec![id]), 1, Duration::ZERO, Duration::ZERO).await;
    assert_eq!(redriven.unwrap(), 1);
}

async fn discard(store: &TestStore, id: MessageId) {
    assert_eq!(store.admin.discard(&Selection::Ids(vec![id]), 1).await.unwrap(), 1);
}
