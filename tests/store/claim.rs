use std::collections::HashSet;
use std::time::Duration;

use outboxd_core::{Attempt, Payload};
use outboxd_store::DueTopic;

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, draft, ids, lane, on_every_store};

const MINUTE: Duration = Duration::from_secs(60);

on_every_store! {
    a_claim_takes_the_oldest_due_of_each_lane_and_no_more_than_its_slots
    a_claim_leaves_future_messages_and_other_topics_alone
    a_claim_hands_over_what_the_producer_wrote
    a_claimed_message_is_not_claimed_again_while_its_lease_lasts
    a_lapsed_lease_is_counted_and_replaced
    a_claim_leaves_out_what_would_have_lost_too_many_leases
    a_payload_above_the_limit_is_not_loaded
    a_message_past_its_expiry_is_marked
    a_paused_topic_is_neither_due_nor_claimed
    due_topics_come_oldest_first_with_their_wait
    a_delayed_message_is_due_after_its_delay
    a_lane_without_slots_takes_nothing
    racing_relays_never_lease_the_same_message
    topics_may_hold_any_character
    a_message_that_lost_more_leases_than_asked_is_left
}

async fn a_claim_takes_the_oldest_due_of_each_lane_and_no_more_than_its_slots(store: TestStore) {
    let older = store.publish(vec![draft("a"), draft("a"), draft("b")]).await;
    store.age(MINUTE).await;
    store.publish(vec![draft("a"), draft("b"), draft("b"), draft("c")]).await;

    let claims =
        store.outbox.claim(&[lane("a", 2), lane("b", 1), lane("nothing", 5)], LEASE, LAPSES_MAX).await.unwrap();

    assert_eq!(ids(&claims), older);
}

pub async fn a_claim_leaves_future_messages_and_other_topics_alone(store: TestStore) {
    let due = store.publish_one(draft(TOPIC)).await;
    store.publish(vec![draft(TOPIC).delay(MINUTE), draft("other"), draft("order.created2"), draft("order")]).await;

    let claims = store.claim(10).await;

    assert_eq!(ids(&claims), [due]);
}

async fn a_claim_hands_over_what_the_producer_wrote(store: TestStore) {
    let payload = r#"{"b":1,"a":1.0,"n":12345678901234567890, "d":1,"d":2,"z":"\u0000 café"}"#;
    let headers = [("trace", "00-1"), ("Ümlaut", "\"quoted\"\n")];
    store.publish_one(draft(TOPIC).payload(payload).key("customer 7").headers(&headers)).await;

    let claim = store.claim_one().await;

    assert_eq!(claim.message.payload, Payload::Bytes(payload.into()));
    assert_eq!(claim.message.topic, TOPIC);
    assert_eq!(claim.message.key.as_deref(), Some("customer 7"));
    assert_eq!(claim.message.headers, headers.map(|(name, value)| (name.to_string(), value.to_string())));
    assert_eq!((claim.attempt, claim.lapses, claim.expired), (Attempt(1), 0, false));
    assert!(claim.message.created_at_ms > 1_700_000_000_000);
}

pub async fn a_claimed_message_is_not_claimed_again_while_its_lease_lasts(store: TestStore) {
    store.publish_one(draft(TOPIC)).await;
    store.claim_one().await;
    store.age(LEASE - Duration::from_secs(5)).await;

    assert!(store.claim(10).await.is_empty());
    assert!(store.outbox.due_topics().await.unwrap().is_empty());
}

pub async fn a_lapsed_lease_is_counted_and_replaced(store: TestStore) {
    store.publish_one(draft(TOPIC)).await;
    let first = store.claim_one().await;
    store.age(LEASE).await;

    let second = store.claim_one().await;

    assert_eq!(second.message, first.message.clone().with_created_at(&second));
    assert_ne!(second.lease_id, first.lease_id);
    assert_eq!((second.attempt, second.lapses), (Attempt(2), 1));
}

async fn a_claim_leaves_out_what_would_have_lost_too_many_leases(store: TestStore) {
    store.publish_one(draft(TOPIC)).await;
    store.claim_one().await;
    store.age(LEASE).await;
    let fresh = store.publish_one(draft(TOPIC)).await;

    let careful = store.outbox.claim(&[lane(TOPIC, 5)], LEASE, 0).await.unwrap();
    let bold = store.outbox.claim(&[lane(TOPIC, 5)], LEASE, 1).await.unwrap();

    assert_eq!(ids(&careful), [fresh]);
    assert_eq!((bold.len(), bold[0].lapses), (1, 1));
}

async fn a_payload_above_the_limit_is_not_loaded(store: TestStore) {
    let store = store.reconnect(|options| options.payload_max = 16).await;
    store.publish(vec![draft(TOPIC).payload("12345678901234567"), draft(TOPIC).payload("1234567890123456")]).await;

    let payloads: Vec<_> = store.claim(2).await.into_iter().map(|claim| claim.message.payload).collect();

    assert_eq!(payloads, [Payload::TooLarge { bytes: 17 }, Payload::Bytes(b"1234567890123456".to_vec())]);
}

pub async fn a_message_past_its_expiry_is_marked(store: TestStore) {
    store.publish(vec![draft(TOPIC).expires(MINUTE), draft(TOPIC).expires(MINUTE * 3)]).await;
    store.age(MINUTE).await;

    let expired: Vec<_> = store.claim(2).await.iter().map(|claim| claim.expired).collect();

    assert_eq!(expired, [true, false]);
}

async fn a_paused_topic_is_neither_due_nor_claimed(store: TestStore) {
    store.publish(vec![draft("a"), draft("b")]).await;
    store.admin.pause("a").await.unwrap();

    let due: Vec<_> = store.outbox.due_topics().await.unwrap().into_iter().map(|due| due.topic).collect();
    let paused = store.outbox.claim(&[lane("a", 5), lane("b", 5)], LEASE, LAPSES_MAX).await.unwrap();
    store.admin.resume("a").await.unwrap();
    let resumed = store.outbox.claim(&[lane("a", 5)], LEASE, LAPSES_MAX).await.unwrap();

    assert_eq!(due, ["b"]);
    assert_eq!(paused.iter().map(|claim| claim.message.topic.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(resumed.len(), 1);
}

pub async fn due_topics_come_oldest_first_with_their_wait(store: TestStore) {
    store.publish(vec![draft("z"), draft("processing")]).await;
    store.outbox.claim(&[lane("processing", 1)], MINUTE * 60, LAPSES_MAX).await.unwrap();
    store.age(MINUTE).await;
    store.publish(vec![draft("a"), draft("a"), draft("z"), draft("later").delay(MINUTE)]).await;

    let due = store.outbox.due_topics().await.unwrap();

    let [DueTopic { topic: first, oldest_due }, DueTopic { topic: second, .. }] = &due[..] else { panic!("{due:?}") };
    assert_eq!((first.as_str(), second.as_str()), ("z", "a"));
    assert!(*oldest_due >= MINUTE && *oldest_due < MINUTE * 2, "{oldest_due:?}");
}

pub async fn a_delayed_message_is_due_after_its_delay(store: TestStore) {
    store.publish_one(draft(TOPIC).delay(MINUTE)).await;
    assert!(store.claim(1).await.is_empty());

    store.age(MINUTE).await;

    assert_eq!(store.claim(1).await.len(), 1);
}

async fn a_lane_without_slots_takes_nothing(store: TestStore) {
    store.publish_one(draft(TOPIC)).await;

    assert!(store.claim(0).await.is_empty());
    assert!(store.outbox.claim(&[], LEASE, LAPSES_MAX).await.unwrap().is_empty());
}

async fn racing_relays_never_lease_the_same_message(store: TestStore) {
    const MESSAGES: usize = 200;
    store.publish(vec![draft(TOPIC); MESSAGES]).await;
    let mut relays = Vec::new();
    for _ in 0..4 {
        let relay = store.another().await;
        relays.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let claims = relay.outbox.claim(&[lane(TOPIC, 7)], LEASE, LAPSES_MAX).await.expect("claim");
                assert!(claims.len() <= 7);
                if claims.is_empty() {
                    return mine;
                }
                mine.extend(ids(&claims));
            }
        }));
    }

    let mut claimed = Vec::new();
    for relay in relays {
        claimed.extend(relay.await.unwrap());
    }

    // What one relay had locked another skipped: it may have stopped early, but nothing was taken twice.
    assert_eq!(claimed.iter().collect::<HashSet<_>>().len(), claimed.len());
    claimed.extend(ids(&store.claim(MESSAGES as u32).await));
    assert_eq!(claimed.len(), MESSAGES);
}

async fn topics_may_hold_any_character(store: TestStore) {
    let topics = ["a'b\"c\\", "{table}", "日本語 \u{202e}", "a,b{c}", "%s $1 ?1", "\t\n"];
    store.publish(topics.iter().map(|topic| draft(topic)).collect()).await;

    for topic in topics {
        let claims = store.outbox.claim(&[lane(topic, 9)], LEASE, LAPSES_MAX).await.unwrap();
        assert_eq!(claims.iter().map(|claim| claim.message.topic.as_str()).collect::<Vec<_>>(), [topic]);
    }
}

#[tokio::test]
async fn extreme_values_on_postgres_saturate_or_wait() {
    let store = TestStore::postgres().await;
    store
        .execute(
            "insert into outbox (topic, payload, available_at) values ('a', '{}', 'infinity'), ('a', '{}', '294276-01-01');
             insert into outbox (topic, payload, created_at, expires_at) values ('order.created', '{}', '-infinity', 'infinity');
             insert into outbox (topic, payload, available_at, attempts, lapses, state, lease_id) values
                 ('order.created', '{}', '-infinity', 2147483647, 2147483647, 'processing', gen_random_uuid())",
        )
        .await
        .unwrap();

    let due = store.outbox.due_topics().await.unwrap();
    let claims = store.claim(10).await;

    assert_eq!(due.len(), 1);
    assert_eq!(claims.len(), 2);
    let last = claims.iter().find(|claim| claim.lapses > 0).unwrap();
    assert_eq!((last.attempt, last.lapses), (Attempt(i32::MAX as u32), i32::MAX as u32));
    assert!(claims.iter().all(|claim| !claim.expired));
    assert_eq!(store.admin.list(&outboxd_store::MessageFilter::default(), None, 10).await.unwrap().len(), 4);
    assert_eq!(store.admin.stats().await.unwrap().len(), 2);
    let settled = store.settle_one(last, outboxd_core::Transition::Delivered).await;
    assert_eq!(settled, outboxd_core::LeaseStatus::Held);
}

trait WithCreatedAt {
    /// Making rows older changes when they were created.
    fn with_created_at(self, other: &outboxd_core::Claim) -> Self;
}

impl WithCreatedAt for outboxd_core::Message {
    fn with_created_at(self, other: &outboxd_core::Claim) -> Self {
        outboxd_core::Message { created_at_ms: other.message.created_at_ms, ..self }
    }
}

async fn a_message_that_lost_more_leases_than_asked_is_left(store: TestStore) {
    let poison = store.publish_one(draft(TOPIC)).await;
    store.claim_one().await;
    store.age(LEASE).await;
    let sound = store.publish_one(draft(TOPIC)).await;

    let without = store.outbox.claim(&[lane(TOPIC, 5)], LEASE, 0).await.unwrap();
    let with = store.outbox.claim(&[lane(TOPIC, 5)], LEASE, 1).await.unwrap();

    let ids = |claims: &[outboxd_core::Claim]| claims.iter().map(|claim| claim.message.id).collect::<Vec<_>>();
    assert_eq!(ids(&without), [sound]);
    assert_eq!(ids(&with), [poison]);
}
