use std::time::Duration;

use outboxd_core::{
    Claim, KEY_FAILURES_MAX, Lane, LeaseStatus, MessageId, Order, Reason, Rest, RestCause, Settlement, State,
    Transition,
};
use outboxd_store::{Changed, KeyFilter, KeyState, Selection};

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, dead, draft, ids, lane, on_every_store, retry, settlement};
use crate::keys::{BLOCK, key_state};

const MINUTE: Duration = Duration::from_secs(60);
const TWO: Order = Order::Limited { per_key: 2 };

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
    a_limited_key_that_rests_gives_none_of_its_messages
    a_key_that_has_rested_goes_on_though_another_of_its_calls_still_runs
    after_a_rest_one_message_tries_and_its_success_lets_the_others_go
    a_try_that_fails_keeps_the_others_back
    failures_in_a_row_are_counted_for_the_whole_fleet
    failures_that_were_under_way_at_once_count_as_one
    an_ordered_key_that_failed_often_rests_with_its_head
    what_is_held_for_a_key_that_rests_costs_nothing_more
    a_limited_key_is_resumed_before_its_time
    a_limited_key_with_nothing_left_is_forgotten_and_one_with_a_retry_is_not
    a_topic_whose_keys_are_not_limited_any_more_holds_nothing
    a_topic_may_become_limited_and_ordered_in_turn
    a_turn_ends_whose_message_is_held_as_its_topic_becomes_ordered
    a_turn_ends_whose_message_died_while_its_topic_was_ordered
    as_a_topic_becomes_ordered_what_is_discarded_lets_nothing_begin_beside_what_runs
    a_turn_that_waits_for_a_retry_as_its_topic_becomes_ordered_lets_nothing_begin_beside_what_runs
    a_key_that_was_blocked_while_its_topic_was_ordered_stays_so
    what_messages_of_a_key_tell_it_at_once_is_added_up
}

mod databases {
    use super::a_turn_ends_whose_message_was_deleted_by_hand;

    crate::backend::on_every_database! {
        a_turn_ends_whose_message_was_deleted_by_hand
    }
}

impl TestStore {
    /// Arranges until nothing more finds a place.
    async fn arrange_all(&self, lanes: &[Lane]) {
        for round in 0.. {
            assert!(round < 20, "arranging never ends");
            if self.outbox.arrange(lanes).await.expect("arrange") == 0 {
                break;
            }
        }
    }

    async fn claim_arranged(&self, slots: u32, order: Order) -> Vec<Claim> {
        let lanes = [Lane { order, ..lane(TOPIC, slots) }];
        self.arrange_all(&lanes).await;
        self.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.expect("claim")
    }

    async fn settle_with(&self, claim: &Claim, transition: Transition, rest: Rest) {
        let settled = Settlement { rest, ..settlement(claim, transition) };
        assert_eq!(self.outbox.settle(&[settled]).await.unwrap(), [LeaseStatus::Held]);
    }

    /// The target failed so often in a row by now; the key rests for a minute.
    async fn fail(&self, claim: &Claim, failures: u32) {
        let rest = Rest { time: MINUTE, cause: Some(RestCause::Failures), failures: Some(failures) };
        self.settle_with(claim, retry(Duration::ZERO), rest).await;
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

async fn a_limited_key_that_rests_gives_none_of_its_messages(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a", "b"]).await;
    let lanes = [Lane { order: TWO, ..lane(TOPIC, 1) }];
    store.outbox.arrange(&lanes).await.unwrap();
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
    store.outbox.arrange(&lanes).await.unwrap();
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
    assert_eq!(store.outbox.arrange(&lanes).await.unwrap(), 0);
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
