//! When the next message of an ordered key has its turn, and what is held meanwhile.

use std::time::Duration;

use outboxd_core::{Lane, Order, State, Transition};
use outboxd_store::Hold;
use sqlx::Connection as _;
use uuid::Uuid;

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, dead, ids, lane, on_every_store, retry};
use crate::keys::{BLOCK, deliver_and_rest};

const MINUTE: Duration = Duration::from_secs(60);

on_every_store! {
    the_next_of_a_key_has_its_turn_as_soon_as_one_has_ended
    a_message_behind_the_head_of_its_key_may_stay_due
    what_waits_for_a_key_that_rests_is_held
    a_key_that_may_go_on_is_found_behind_many_that_have_nothing_left
}

/// As a relay does that still knows of others it can claim.
async fn the_next_of_a_key_has_its_turn_as_soon_as_one_has_ended(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a", "b", "b"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    assert_eq!(store.state_of(published[1]).await, State::Held);
    let lanes = [Lane { order: BLOCK, ..lane(TOPIC, 9) }];
    let claim = async || store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.unwrap();

    store.settle_one(&claims[0], Transition::Delivered).await;
    assert_eq!(store.state_of(published[1]).await, State::Pending);
    let next = claim().await;
    assert_eq!(ids(&next), [published[1]], "nobody had to look for it");

    store.settle_one(&next[0], retry(Duration::ZERO)).await;
    store.settle_one(&claims[1], dead()).await;
    assert_eq!(ids(&claim().await), [published[1]], "it keeps its turn, and a dead one blocks its key");
}

async fn a_message_behind_the_head_of_its_key_may_stay_due(store: TestStore) {
    let lanes = [Lane { order: BLOCK, ..lane(TOPIC, 9) }];
    let published = store.publish_keyed(&["a"; 3]).await;

    assert_eq!(store.outbox.arrange(&lanes, Hold::Headless).await.unwrap(), 1);

    assert_eq!(store.state_of(published[1]).await, State::Pending);
    let claims = store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.unwrap();
    assert_eq!(ids(&claims), [published[0]], "what stays due is not claimed before its turn");
    store.settle_one(&claims[0], Transition::Delivered).await;
    let claims = store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.unwrap();
    assert_eq!(ids(&claims), [published[1]]);
    assert_eq!(store.outbox.arrange(&lanes, Hold::All).await.unwrap(), 1);
    assert_eq!(store.state_of(published[2]).await, State::Held);
}

async fn what_waits_for_a_key_that_rests_is_held(store: TestStore) {
    store.publish_keyed(&["a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    deliver_and_rest(&store, &claims[0], MINUTE).await;
    let waiting = store.publish_keyed(&["a", "a"]).await;
    let lanes = [Lane { order: BLOCK, ..lane(TOPIC, 9) }];

    assert_eq!(store.outbox.arrange(&lanes, Hold::Headless).await.unwrap(), 2);

    assert_eq!(store.state_of(waiting[1]).await, State::Held);
}

/// A relay looks again as long as something was arranged.
async fn a_key_that_may_go_on_is_found_behind_many_that_have_nothing_left(store: TestStore) {
    let lanes = [Lane { order: BLOCK, ..lane(TOPIC, 1) }];
    for name in 0..20 {
        store.publish_keyed(&[&format!("finished {name:02}")]).await;
    }
    for claim in store.claim_in_order(20, BLOCK).await {
        store.settle_one(&claim, Transition::Delivered).await;
    }
    store.publish_keyed(&["rested", "rested"]).await;
    let claims = store.claim_in_order(1, BLOCK).await;
    deliver_and_rest(&store, &claims[0], Duration::from_secs(1)).await;
    store.age(MINUTE).await;

    let mut looks = 0;
    while store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.unwrap().is_empty() {
        assert!(
            store.outbox.arrange(&lanes, Hold::All).await.unwrap() > 0,
            "after {looks} looks nothing is left to do"
        );
        looks += 1;
    }
}

/// As claims of other relays do at this moment, or a long transaction.
#[tokio::test]
async fn a_claim_of_one_slot_finds_a_head_behind_others_that_are_locked() {
    let store = TestStore::postgres().await;
    let keys = ["a", "b", "c", "d", "e", "f"];
    store.publish_keyed(&keys).await;
    for order in [BLOCK, Order::Limited { per_key: 1 }] {
        let lanes = [Lane { order, ..lane(TOPIC, 1) }];
        let all = [Lane { order, ..lane(TOPIC, 9) }];
        store.outbox.arrange(&all, Hold::All).await.unwrap();
        let mut other = store.postgres_connection().await;
        let mut other = other.begin().await.unwrap();
        let locks = "select id from shop.outbox order by available_at, id limit 5 for update";
        let locked: Vec<Uuid> = sqlx::query_scalar(locks).fetch_all(&mut *other).await.unwrap();

        let claims = store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.unwrap();

        assert_eq!(claims.len(), 1, "{order:?}");
        assert!(!locked.contains(&claims[0].message.id.0));
        other.rollback().await.unwrap();
        store.release_one(&claims[0], Duration::ZERO).await;
    }
}
