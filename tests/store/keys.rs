use std::time::Duration;

use outboxd_core::{
    Claim, Lane, LeaseStatus, MessageId, OnDead, Order, Rest, RestCause, Settlement, State, Transition,
};
use outboxd_store::{Changed, Hold, KeyFilter, KeyState};

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, dead, draft, ids, lane, on_every_store, retry, settlement};

const MINUTE: Duration = Duration::from_secs(60);
pub const BLOCK: Order = Order::ByKey { on_dead: OnDead::Block };
pub const SKIP: Order = Order::ByKey { on_dead: OnDead::Skip };

on_every_store! {
    messages_of_a_key_come_one_at_a_time_in_publish_order
    keys_do_not_wait_for_each_other
    messages_without_a_key_are_in_no_order
    a_message_that_waits_for_a_retry_holds_the_later_ones_of_its_key
    a_message_published_with_a_delay_holds_the_later_ones_of_its_key
    a_message_that_is_given_back_keeps_its_turn
    a_lost_lease_keeps_the_turn
    a_held_message_is_not_due_but_its_free_key_is
    a_key_rests_as_long_as_its_settlement_says
    a_key_that_rests_is_not_forgotten
    a_key_is_resumed_before_its_time
    a_paused_topic_gives_no_message_of_any_key
    a_topic_that_is_not_ordered_any_more_holds_nothing
    a_topic_may_become_ordered_while_messages_are_under_way
    a_message_whose_lease_was_lost_as_its_topic_became_ordered_is_not_forgotten
    a_topic_may_cease_to_be_ordered_and_be_so_again_while_a_message_is_under_way
    a_key_with_nothing_left_is_forgotten
    many_messages_of_one_key_are_out_of_the_way_of_the_others
}

mod databases {
    use super::{a_deleted_success_lets_its_key_go_on, messages_of_one_moment_come_in_the_order_of_their_inserts};

    crate::backend::on_every_database! {
        messages_of_one_moment_come_in_the_order_of_their_inserts
        a_deleted_success_lets_its_key_go_on
    }
}

impl TestStore {
    pub async fn publish_keyed(&self, keys: &[&str]) -> Vec<MessageId> {
        self.publish(keys.iter().map(|key| draft(TOPIC).key(key)).collect()).await
    }

    pub async fn key_states(&self) -> Vec<(String, String, u64)> {
        let keys = self.admin.keys(&KeyFilter::default(), 100).await.expect("keys");
        let mut keys: Vec<_> = keys.into_iter().map(|key| (key.key, key.state, key.depth)).collect();
        keys.sort();
        keys
    }
}

pub fn key_state(key: &str, state: KeyState, depth: u64) -> (String, String, u64) {
    (key.into(), state.as_str().into(), depth)
}

async fn messages_of_a_key_come_one_at_a_time_in_publish_order(store: TestStore) {
    let published = store.publish_keyed(&["a"; 5]).await;

    for id in published {
        let claims = store.claim_in_order(5, BLOCK).await;
        assert_eq!(ids(&claims), [id]);
        assert_eq!(store.claim_in_order(5, BLOCK).await, [], "another one of the same key is under way");
        assert_eq!(store.settle_one(&claims[0], Transition::Delivered).await, LeaseStatus::Held);
    }
    assert_eq!(store.claim_in_order(5, BLOCK).await, []);
}

async fn keys_do_not_wait_for_each_other(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "b", "b", "c"]).await;

    let claims = store.claim_in_order(9, BLOCK).await;
    assert_eq!(ids(&claims), [published[0], published[2], published[4]]);

    store.settle_one(&claims[1], Transition::Delivered).await;
    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[3]]);
}

async fn messages_without_a_key_are_in_no_order(store: TestStore) {
    let published = store.publish(vec![draft(TOPIC), draft(TOPIC), draft(TOPIC).key("a")]).await;

    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), published);
}

async fn a_message_that_waits_for_a_retry_holds_the_later_ones_of_its_key(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "b"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    store.settle_one(&claims[0], retry(MINUTE)).await;
    store.settle_one(&claims[1], Transition::Delivered).await;

    assert_eq!(store.claim_in_order(9, BLOCK).await, []);
    assert_eq!(store.state_of(published[1]).await, State::Held);
    store.age(2 * MINUTE).await;

    let again = store.claim_in_order(9, BLOCK).await;
    assert_eq!((ids(&again), again[0].attempt.0), (vec![published[0]], 2));
    store.settle_one(&again[0], Transition::Delivered).await;
    let next = store.claim_in_order(9, BLOCK).await;
    assert_eq!((ids(&next), next[0].attempt.0), (vec![published[1]], 1), "waiting spends no attempt");
}

async fn a_message_published_with_a_delay_holds_the_later_ones_of_its_key(store: TestStore) {
    let delayed = store.publish_one(draft(TOPIC).key("a").delay(MINUTE)).await;
    let next = store.publish_one(draft(TOPIC).key("a")).await;

    assert_eq!(store.claim_in_order(9, BLOCK).await, []);
    store.age(2 * MINUTE).await;

    let claims = store.claim_in_order(9, BLOCK).await;
    assert_eq!(ids(&claims), [delayed]);
    store.settle_one(&claims[0], Transition::Delivered).await;
    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [next]);
}

async fn a_message_that_is_given_back_keeps_its_turn(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;

    store.release_one(&claims[0], Duration::ZERO).await;

    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[0]]);
}

async fn a_lost_lease_keeps_the_turn(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let lost = store.claim_in_order(9, BLOCK).await;
    store.age(2 * LEASE).await;

    let claims = store.claim_in_order(9, BLOCK).await;

    assert_eq!((ids(&claims), claims[0].lapsed), (vec![published[0]], true));
    assert_eq!(store.settle_one(&lost[0], Transition::Delivered).await, LeaseStatus::Lost);
    assert_eq!(store.claim_in_order(9, BLOCK).await, [], "a fenced settle lets nothing go on");
}

async fn a_held_message_is_not_due_but_its_free_key_is(store: TestStore) {
    store.publish_keyed(&["a", "a"]).await;
    let due = async || store.outbox.due_topics().await.unwrap().len();
    let claims = store.claim_in_order(9, BLOCK).await;
    assert_eq!(due().await, 0, "nothing can start");

    store.settle_one(&claims[0], Transition::Delivered).await;

    store.age(MINUTE).await;
    assert_eq!(due().await, 1, "the key may go on");
    let claims = store.claim_in_order(9, BLOCK).await;
    store.settle_one(&claims[0], Transition::Delivered).await;
    store.claim_in_order(9, BLOCK).await;
    assert_eq!(due().await, 0, "nothing is left");
}

/// Settles as delivered; the key rests.
pub async fn deliver_and_rest(store: &TestStore, claim: &Claim, rest: Duration) {
    let rest = Rest { time: rest, cause: Some(RestCause::Plugin), failures: Some(0) };
    let settled = Settlement { rest, ..settlement(claim, Transition::Delivered) };
    assert_eq!(store.outbox.settle(&[settled]).await.unwrap(), [LeaseStatus::Held]);
}

pub async fn a_key_rests_as_long_as_its_settlement_says(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a", "b", "b"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    deliver_and_rest(&store, &claims[0], 10 * MINUTE).await;
    store.settle_one(&claims[1], Transition::Delivered).await;

    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[4]], "the other key goes on");
    let late = store.publish_keyed(&["a"]).await;
    assert_eq!(store.claim_in_order(9, BLOCK).await, []);
    assert_eq!(store.state_of(late[0]).await, State::Held);
    let paused = KeyFilter { topic: None, state: Some(KeyState::Paused) };
    let [key] = &store.admin.keys(&paused, 9).await.unwrap()[..] else { panic!("one key rests") };
    assert_eq!((key.key.as_str(), key.head.as_ref(), key.depth), ("a", None, 3));
    assert_eq!(key.reason.as_deref(), Some("plugin"), "it says why");
    assert!(key.due_in_ms.is_some_and(|ms| (1..=600_000).contains(&ms)), "{key:?}");
    store.age(LEASE / 2).await;
    assert_eq!(store.outbox.due_topics().await.unwrap(), [], "nothing can start");

    store.age(10 * MINUTE).await;

    assert_eq!(store.outbox.due_topics().await.unwrap().len(), 1);
    let claims = store.claim_in_order(9, BLOCK).await;
    let next = claims.iter().find(|claim| claim.message.id == published[1]).expect("it is its turn");
    assert_eq!(next.attempt.0, 1, "rest spends no attempt");
}

async fn a_key_that_rests_is_not_forgotten(store: TestStore) {
    store.publish_keyed(&["a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    deliver_and_rest(&store, &claims[0], MINUTE).await;
    assert_eq!(store.claim_in_order(9, BLOCK).await, []);

    let late = store.publish_keyed(&["a"]).await;

    assert_eq!(store.claim_in_order(9, BLOCK).await, []);
    store.age(2 * MINUTE).await;
    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), late);
}

async fn a_key_is_resumed_before_its_time(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    let resume = async || store.admin.resume_key(TOPIC, "a").await.unwrap();
    assert_eq!(resume().await, Changed::No, "it neither rests nor waits");
    deliver_and_rest(&store, &claims[0], MINUTE).await;

    assert_eq!(resume().await, Changed::Yes);

    let claims = store.claim_in_order(9, BLOCK).await;
    assert_eq!(ids(&claims), [published[1]]);
    store.settle_one(&claims[0], retry(MINUTE)).await;
    assert_eq!(store.claim_in_order(9, BLOCK).await, []);
    assert_eq!(resume().await, Changed::Yes);
    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[1]]);
    assert_eq!(store.admin.resume_key(TOPIC, "other").await.unwrap(), Changed::No);
}

async fn a_paused_topic_gives_no_message_of_any_key(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let claims = store.claim_in_order(9, BLOCK).await;
    store.settle_one(&claims[0], Transition::Delivered).await;

    store.admin.pause(TOPIC).await.unwrap();
    assert_eq!(store.outbox.due_topics().await.unwrap(), []);
    assert_eq!(store.claim_in_order(9, BLOCK).await, []);
    store.admin.resume(TOPIC).await.unwrap();

    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[1]]);
}

async fn a_topic_that_is_not_ordered_any_more_holds_nothing(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a", "b"]).await;
    let claims = store.claim_in_order(1, BLOCK).await;
    store.settle_one(&claims[0], dead()).await;
    assert_eq!(store.admin.ordered_topics().await.unwrap(), [TOPIC]);

    let mut rounds = 0;
    while store.admin.unorder(TOPIC, 1).await.unwrap() > 0 {
        rounds += 1;
        assert!(rounds < 20, "it ends");
    }

    assert_eq!(store.admin.ordered_topics().await.unwrap(), Vec::<String>::new());
    assert_eq!(ids(&store.claim(9).await), published[1..]);
}

async fn a_topic_may_become_ordered_while_messages_are_under_way(store: TestStore) {
    let published = store.publish_keyed(&["a", "a", "a"]).await;
    let before = store.claim(1).await;
    assert_eq!(ids(&before), published[..1]);

    let claims = store.claim_in_order(9, BLOCK).await;
    assert_eq!(ids(&claims), [published[1]]);
    store.age(2 * LEASE).await;

    // The first one's lease was lost: it is in the second's way no more than the other way round.
    let again = store.claim_in_order(9, BLOCK).await;
    assert_eq!(ids(&again), [published[1]]);
    store.settle_one(&again[0], Transition::Delivered).await;
    let first = store.claim_in_order(9, BLOCK).await;
    assert_eq!((ids(&first), first[0].lapses), (vec![published[0]], 1));
    store.settle_one(&first[0], Transition::Delivered).await;
    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[2]]);
}

async fn a_message_whose_lease_was_lost_as_its_topic_became_ordered_is_not_forgotten(store: TestStore) {
    let published = store.publish_keyed(&["a"]).await;
    store.claim(1).await;
    store.age(2 * LEASE).await;

    let mut claims = Vec::new();
    for _ in 0..5 {
        claims.extend(store.claim_in_order(9, BLOCK).await);
    }

    assert_eq!(ids(&claims), published);
}

/// Due since a moment ago, its key not there yet.
#[tokio::test]
async fn sqlite_holds_nothing_for_a_key_that_is_not_there() {
    let store = TestStore::sqlite().await;
    let published = store.publish_keyed(&["a"]).await;
    let hold = include_str!("../../host/store/src/sqlite/sql/hold.sql").replace("{table}", "outbox");
    let hold = hold
        .replace("{table_unqualified}", "outbox")
        .replace("{keys}", "outbox_keys")
        .replace("?1", &format!("'[\"{TOPIC}\"]'"))
        .replace("?2", "9");

    store.execute(&hold).await.unwrap();

    assert_eq!(store.show(published[0]).await.summary.state, "pending");
    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), published);
}

async fn a_topic_may_cease_to_be_ordered_and_be_so_again_while_a_message_is_under_way(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let lanes = [Lane { order: BLOCK, ..lane(TOPIC, 1) }];
    store.outbox.arrange(&lanes, Hold::All).await.unwrap();
    let between = store.claim(1).await;
    assert_eq!(ids(&between), published[..1]);
    assert_eq!(store.claim_in_order(9, BLOCK).await, []);

    store.settle_one(&between[0], Transition::Delivered).await;

    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[1]]);
}

async fn a_key_with_nothing_left_is_forgotten(store: TestStore) {
    store.publish_keyed(&["a", "b"]).await;
    for claim in store.claim_in_order(9, BLOCK).await {
        store.settle_one(&claim, Transition::Delivered).await;
    }
    assert_eq!(store.key_states().await.len(), 2);

    assert_eq!(store.claim_in_order(9, BLOCK).await, []);

    assert_eq!(store.key_states().await, []);
    assert_eq!(store.admin.ordered_topics().await.unwrap(), Vec::<String>::new());
}

async fn many_messages_of_one_key_are_out_of_the_way_of_the_others(store: TestStore) {
    store.publish_keyed(&["hung"; 900]).await;
    let last = store.publish_keyed(&["healthy"]).await;
    let mut claimed = Vec::new();

    // A relay looks again as long as something was arranged.
    let lanes = [Lane { order: BLOCK, ..lane(TOPIC, 4) }];
    for _ in 0..20 {
        let arranged = store.outbox.arrange(&lanes, Hold::All).await.unwrap();
        claimed.extend(ids(&store.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.unwrap()));
        if arranged == 0 {
            break;
        }
    }

    assert_eq!(claimed.len(), 2);
    assert_eq!(claimed[1], last[0]);
    let stats = store.admin.stats().await.unwrap();
    assert_eq!((stats[0].held, stats[0].processing, stats[0].pending), (899, 2, 0));
    assert_eq!(store.outbox.arrange(&lanes, Hold::All).await.unwrap(), 0, "what is held costs nothing more");
}

async fn messages_of_one_moment_come_in_the_order_of_their_inserts(store: TestStore) {
    // Ids that say the opposite: the database's order of inserting decides.
    let id = |place: u32| format!("00000000-0000-7000-8000-{:012}", 10 - place);
    let rows: Vec<String> = (0..5).map(|place| format!("('{}', '{TOPIC}', 'a', '{{}}')", id(place))).collect();
    store.execute(&format!("insert into outbox (id, topic, key, payload) values {}", rows.join(", "))).await.unwrap();

    for place in 0..5 {
        let claims = store.claim_in_order(9, BLOCK).await;
        assert_eq!(claims.iter().map(|claim| claim.message.id.to_string()).collect::<Vec<_>>(), [id(place)]);
        store.settle_one(&claims[0], Transition::Delivered).await;
    }
}

async fn a_deleted_success_lets_its_key_go_on(store: TestStore) {
    let published = store.publish_keyed(&["a", "a"]).await;
    let store = store.reconnect(|options| options.on_delivered = outboxd_store::OnDelivered::Delete).await;
    let claims = store.claim_in_order(9, BLOCK).await;

    store.settle_one(&claims[0], Transition::Delivered).await;

    assert_eq!(ids(&store.claim_in_order(9, BLOCK).await), [published[1]]);
    assert!(store.admin.show(published[0]).await.unwrap().is_none());
}
