use std::time::Duration;

use outboxd_core::{Claim, Lane, LeaseStatus, MessageId, Order, Reason, Rest, Settlement, State, Transition};
use outboxd_store::{Changed, Hold, KeyState, Selection};

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, dead, draft, ids, lane, on_every_store, retry, settlement};
use crate::keys::{BLOCK, key_state};

pub const MINUTE: Duration = Duration::from_secs(60);
pub const TWO: Order = Order::Limited { per_key: 2 };

on_every_store! {
    at_most_so_many_messages_of_a_key_are_under_way
    keys_are_limited_apart_and_messages_without_a_key_not_at_all
    what_waits_for_its_key_goes_in_publish_order
    a_message_that_waits_for_a_retry_lets_another_of_its_key_go
    a_dead_message_of_a_limited_key_is_in_nobodys_way
    a_message_that_is_given_back_or_lost_its_lease_keeps_its_turn
    messages_of_a_key_that_end_together_let_as_many_go_on
    a_discarded_message_of_a_limited_key_lets_another_go
    many_messages_of_a_limited_key_are_out_of_the_way_of_the_others
    a_limited_key_with_nothing_left_is_forgotten_and_one_with_a_retry_is_not
    a_topic_whose_keys_are_not_limited_any_more_holds_nothing
    a_topic_may_become_limited_and_ordered_in_turn
    a_turn_ends_whose_message_is_held_as_its_topic_becomes_ordered
    a_turn_ends_whose_message_died_while_its_topic_was_ordered
    as_a_topic_becomes_ordered_what_is_discarded_lets_nothing_begin_beside_what_runs
    a_turn_that_waits_for_a_retry_as_its_topic_becomes_ordered_lets_nothing_begin_beside_what_runs
    a_key_that_was_blocked_while_its_topic_was_ordered_stays_so
}

mod databases {
    use super::a_turn_ends_whose_message_was_deleted_by_hand;

    crate::backend::on_every_database! {
        a_turn_ends_whose_message_was_deleted_by_hand
    }
}

impl TestStore {
    /// Arranges until nothing more finds a place.
    pub async fn arrange_all(&self, lanes: &[Lane]) {
        for round in 0.. {
            assert!(round < 20, "arranging never ends");
            if self.outbox.arrange(lanes, Hold::All).await.expect("arrange") == 0 {
                break;
            }
        }
    }

    pub async fn claim_arranged(&self, slots: u32, order: Order) -> Vec<Claim> {
        let lanes = [Lane { order, ..lane(TOPIC, slots) }];
        self.arrange_all(&lanes).await;
        self.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.expect("claim")
    }

    pub async fn settle_with(&self, claim: &Claim, transition: Transition, rest: Rest) {
        let settled = Settlement { rest, ..settlement(claim, transition) };
        assert_eq!(self.outbox.settle(&[settled]).await.unwrap(), [LeaseStatus::Held]);
    }
}

fn sorted(mut ids: Vec<MessageId>) -> Vec<MessageId> {
    ids.sort();
    ids
}

async fn at_most_so_many_messages_of_a_key_are_under_way(store: TestStore) {
    let published = store.publish_keyed(&["a"; 5]).await;

    let claims = store.claim_arranged(9, TWO).await;
    assert_eq!(ids(&claims), published[..2]);
    assert_eq!(store.claim_arranged(9, TWO).await, [], "two of the key are under way");
    assert_eq!(store.state_of(published[4]).await, State::Held);
    store.settle_one(&claims[1], Transition::Delivered).await;

    let next = store.claim_arranged(9, TWO).await;
    assert_eq!((ids(&next), next[0].attempt.0), (published[2..3].to_vec(), 1), "waiting spends no attempt");
}

async fn keys_are_limited_apart_and_messages_without_a_key_not_at_all(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a", "b"]).await;
    let free = store.publish(vec![draft(TOPIC), draft(TOPIC), draft(TOPIC)]).await;

    let claims = store.claim_arranged(9, TWO).await;

    assert_eq!(ids(&claims), [&published[..2], &published[3..], &free[..]].concat());
}

async fn what_waits_for_its_key_goes_in_publish_order(store: TestStore) {
    let published = store.publish_keyed(&["a"; 6]).await;
    let mut claims = store.claim_arranged(9, TWO).await;

    for waiting in &published[2..] {
        store.settle_one(&claims.remove(0), Transition::Delivered).await;
        let next = store.claim_arranged(9, TWO).await;
        assert_eq!(ids(&next), [*waiting]);
        claims.extend(next);
    }
}

async fn a_message_that_waits_for_a_retry_lets_another_of_its_key_go(store: TestStore) {
    let published = store.publish_keyed(&["a"; 3]).await;
    let claims = store.claim_arranged(9, TWO).await;

    store.settle_one(&claims[0], retry(MINUTE)).await;

    let third = store.claim_arranged(9, TWO).await;
    assert_eq!(ids(&third), [published[2]]);
    store.settle_one(&claims[1], Transition::Delivered).await;
    store.age(2 * MINUTE).await;
    assert_eq!(ids(&store.claim_arranged(9, TWO).await), sorted(vec![published[0], published[2]]), "its lease lapsed");
}

async fn a_dead_message_of_a_limited_key_is_in_nobodys_way(store: TestStore) {
    let published = store.publish_keyed(&["a"; 4]).await;
    let claims = store.claim_arranged(9, TWO).await;

    store.settle_one(&claims[0], dead()).await;
    store.settle_one(&claims[1], dead()).await;

    assert_eq!(ids(&store.claim_arranged(9, TWO).await), published[2..]);
    assert_eq!(store.admin.stats().await.unwrap()[0].blocked_keys, 0);
}

async fn a_message_that_is_given_back_or_lost_its_lease_keeps_its_turn(store: TestStore) {
    let published = store.publish_keyed(&["a"; 4]).await;
    let claims = store.claim_arranged(9, TWO).await;

    store.release_one(&claims[0], Duration::ZERO).await;

    let again = store.claim_arranged(9, TWO).await;
    assert_eq!(ids(&again), [published[0]]);
    store.age(2 * LEASE).await;
    let lapsed = store.claim_arranged(9, TWO).await;
    assert_eq!(ids(&lapsed), published[..2]);
    assert_eq!(store.settle_one(&again[0], Transition::Delivered).await, LeaseStatus::Lost);
    assert_eq!(store.claim_arranged(9, TWO).await, [], "a fenced settle lets nothing go on");
}

async fn messages_of_a_key_that_end_together_let_as_many_go_on(store: TestStore) {
    let published = store.publish_keyed(&["a"; 4]).await;
    let claims = store.claim_arranged(9, TWO).await;

    let settlements: Vec<_> = claims.iter().map(|claim| settlement(claim, Transition::Delivered)).collect();
    store.outbox.settle(&settlements).await.unwrap();

    assert_eq!(ids(&store.claim_arranged(9, TWO).await), published[2..]);
}

async fn a_discarded_message_of_a_limited_key_lets_another_go(store: TestStore) {
    let published = store.publish_keyed(&["a"; 4]).await;
    store.claim_arranged(9, TWO).await;

    store.admin.discard(&Selection::Ids(vec![published[0], published[2]]), 9).await.unwrap();

    assert_eq!(ids(&store.claim_arranged(9, TWO).await), [published[3]]);
}

async fn many_messages_of_a_limited_key_are_out_of_the_way_of_the_others(store: TestStore) {
    store.publish_keyed(&["busy"; 900]).await;
    let last = store.publish_keyed(&["healthy"]).await;

    let claims = store.claim_arranged(4, TWO).await;

    assert_eq!((claims.len(), ids(&claims)[2]), (3, last[0]));
    let stats = store.admin.stats().await.unwrap();
    assert_eq!((stats[0].held, stats[0].processing, stats[0].pending), (898, 3, 0));
}

async fn a_limited_key_with_nothing_left_is_forgotten_and_one_with_a_retry_is_not(store: TestStore) {
    store.publish_keyed(&["a", "b"]).await;
    let claims = store.claim_arranged(9, TWO).await;
    store.settle_one(&claims[0], Transition::Delivered).await;
    store.settle_with(&claims[1], retry(MINUTE), Rest { failures: Some(3), ..Rest::default() }).await;

    assert_eq!(store.claim_arranged(9, TWO).await, []);

    assert_eq!(store.key_states().await, [key_state("b", KeyState::Waiting, 0)]);
    assert_eq!(store.outbox.due_topics().await.unwrap(), [], "nothing can start");
    store.age(2 * MINUTE).await;
    let claims = store.claim_arranged(9, TWO).await;
    assert_eq!(claims[0].key_failures, 3);
    store.settle_one(&claims[0], dead()).await;
    assert_eq!(store.claim_arranged(9, TWO).await, []);
    assert_eq!(store.key_states().await, []);
}

async fn a_topic_whose_keys_are_not_limited_any_more_holds_nothing(store: TestStore) {
    let published = store.publish_keyed(&["a"; 5]).await;
    store.claim_arranged(9, TWO).await;

    while store.admin.unorder(TOPIC, 2).await.unwrap() > 0 {}

    assert_eq!(store.admin.ordered_topics().await.unwrap(), Vec::<String>::new());
    assert_eq!(ids(&store.claim(9).await), published[2..]);
}

async fn a_topic_may_become_limited_and_ordered_in_turn(store: TestStore) {
    let published = store.publish_keyed(&["a"; 6]).await;
    let mut delivered = Vec::new();
    for order in [BLOCK, TWO, BLOCK, TWO] {
        for claim in store.claim_arranged(1, order).await {
            store.settle_one(&claim, Transition::Delivered).await;
            delivered.push(claim.message.id);
        }
    }
    for _ in 0..6 {
        for claim in store.claim_arranged(9, TWO).await {
            store.settle_one(&claim, Transition::Delivered).await;
            delivered.push(claim.message.id);
        }
    }

    assert_eq!(sorted(delivered), published);
}

async fn a_turn_ends_whose_message_is_held_as_its_topic_becomes_ordered(store: TestStore) {
    let published = store.publish_keyed(&["a"; 3]).await;
    // Two of them have their turn, and none is claimed.
    store.arrange_all(&[Lane { order: TWO, ..lane(TOPIC, 9) }]).await;
    let first = store.claim_arranged(9, BLOCK).await;
    assert_eq!(ids(&first), published[..1]);

    store.settle_one(&first[0], Transition::Delivered).await;

    assert_eq!(ids(&store.claim_arranged(9, TWO).await), published[1..]);
}

async fn a_turn_ends_whose_message_died_while_its_topic_was_ordered(store: TestStore) {
    let published = store.publish_keyed(&["a"; 2]).await;
    let first = store.claim_arranged(9, Order::Limited { per_key: 1 }).await;
    let died = Settlement { order: BLOCK, ..settlement(&first[0], dead()) };
    assert_eq!(store.outbox.settle(&[died]).await.unwrap(), [LeaseStatus::Held]);

    assert_eq!(store.admin.skip_key(TOPIC, "a").await.unwrap(), Changed::Yes);

    assert_eq!(ids(&store.claim_arranged(9, Order::Limited { per_key: 1 }).await), published[1..]);
}

async fn a_turn_ends_whose_message_was_deleted_by_hand(store: TestStore) {
    let published = store.publish_keyed(&["a"; 4]).await;
    assert_eq!(ids(&store.claim_arranged(9, TWO).await), published[..2]);

    store.execute("delete from outbox where state = 'processing'").await.unwrap();

    assert_eq!(store.admin.skip_key(TOPIC, "a").await.unwrap(), Changed::Yes);
    assert_eq!(ids(&store.claim_arranged(9, TWO).await), published[2..]);
}

async fn as_a_topic_becomes_ordered_what_is_discarded_lets_nothing_begin_beside_what_runs(store: TestStore) {
    let published = store.publish_keyed(&["a"; 3]).await;
    // Two of them have their turn, and none is claimed.
    store.arrange_all(&[Lane { order: TWO, ..lane(TOPIC, 9) }]).await;
    assert_eq!(ids(&store.claim_arranged(9, BLOCK).await), published[..1]);

    store.admin.discard(&Selection::Ids(vec![published[1]]), 1).await.unwrap();

    assert_eq!(store.claim_arranged(9, BLOCK).await, []);
    assert_eq!(store.state_of(published[2]).await, State::Held);
}

async fn a_turn_that_waits_for_a_retry_as_its_topic_becomes_ordered_lets_nothing_begin_beside_what_runs(
    store: TestStore,
) {
    let published = store.publish_keyed(&["a"; 3]).await;
    let claims = store.claim_arranged(9, TWO).await;
    assert_eq!(ids(&claims), published[..2]);
    // Given back, both keep their turn; the second will not be due for a minute.
    for (claim, after) in claims.iter().zip([Duration::ZERO, MINUTE]) {
        let released = Transition::Released { after, reason: Reason::Interrupted, error: "a stop".into() };
        store.outbox.release(&[settlement(claim, released)]).await.unwrap();
    }
    assert_eq!(ids(&store.claim_arranged(9, BLOCK).await), published[..1]);

    store.admin.discard(&Selection::Ids(vec![published[1]]), 1).await.unwrap();

    assert_eq!(store.claim_arranged(9, BLOCK).await, []);
}

async fn a_key_that_was_blocked_while_its_topic_was_ordered_stays_so(store: TestStore) {
    let published = store.publish_keyed(&["a"; 2]).await;
    let claims = store.claim_arranged(9, BLOCK).await;
    store.settle_with(&claims[0], dead(), Rest::default()).await;

    assert_eq!(store.claim_arranged(9, TWO).await, []);

    assert_eq!(store.key_states().await, [key_state("a", KeyState::Blocked, 1)]);
    assert_eq!(store.admin.skip_key(TOPIC, "a").await.unwrap(), Changed::Yes);
    assert_eq!(ids(&store.claim_arranged(9, TWO).await), published[1..]);
}
