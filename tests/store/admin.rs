use std::time::Duration;

use outboxd_core::{Attempt, LeaseStatus, MessageId, Reason, State, Transition};
use outboxd_store::{Changed, Finished, MessageFilter, Selection, TopicStats};

use crate::backend::{LAPSES_MAX, LEASE, TOPIC, TestStore, dead, draft, ids, lane, on_every_store, retry};

const MINUTE: Duration = Duration::from_secs(60);
const ALL: Selection = Selection::Matching { topic: None, reason: None };

on_every_store! {
    a_listing_is_paged_newest_first
    a_listing_is_filtered
    a_message_is_shown_whole
    a_large_payload_is_not_shown
    stats_count_each_topic
    a_redrive_starts_a_dead_letter_anew
    a_redrive_takes_the_oldest_deaths_and_spreads_them
    a_redrive_chooses_by_topic_and_reason
    a_redrive_never_touches_a_live_message
    a_redriven_message_is_not_expired_at_once
    a_discarded_message_is_dead_and_its_lease_lost
    what_is_processing_is_left_to_its_attempt_by_a_discard_of_all_that_match
    retry_now_makes_a_pending_message_due
    an_overdue_message_keeps_its_place_when_it_is_retried_now
    a_discard_and_a_retry_now_choose_by_topic_and_reason
    batches_of_what_matches_make_progress_oldest_first
    a_purge_goes_by_the_age_of_the_end
    a_purge_takes_at_most_its_limit
    pause_and_resume_say_whether_they_changed_anything
    the_store_answers_a_ping
}

/// Publishes messages of a topic and makes them dead.
async fn dead_letters(store: &TestStore, topic: &str, count: usize, reason: Reason) -> Vec<MessageId> {
    let published = store.publish(vec![draft(topic); count]).await;
    for claim in store.outbox.claim(&[lane(topic, count as u32)], LEASE, LAPSES_MAX).await.unwrap() {
        store.settle_one(&claim, Transition::Dead { reason, error: format!("{reason} happened") }).await;
    }
    published
}

async fn a_listing_is_paged_newest_first(store: TestStore) {
    let mut published = store.publish(vec![draft(TOPIC); 7]).await;
    published.sort();
    published.reverse();

    let mut seen = Vec::new();
    loop {
        let page = store.admin.list(&MessageFilter::default(), seen.last().copied(), 3).await.unwrap();
        if page.is_empty() {
            break;
        }
        seen.extend(page.iter().map(|message| MessageId(message.id.parse().unwrap())));
    }

    assert_eq!(seen, published);
}

async fn a_listing_is_filtered(store: TestStore) {
    dead_letters(&store, "a", 2, Reason::Trap).await;
    dead_letters(&store, "a", 1, Reason::Deadline).await;
    dead_letters(&store, "b", 1, Reason::Trap).await;
    store.publish(vec![draft("a")]).await;
    let count = async |state: Option<State>, topic: Option<&str>, reason: Option<&str>| {
        let filter = MessageFilter { state, topic: topic.map(str::to_string), reason: reason.map(str::to_string) };
        store.admin.list(&filter, None, 100).await.unwrap().len()
    };

    assert_eq!(count(None, None, None).await, 5);
    assert_eq!(count(Some(State::Dead), None, None).await, 4);
    assert_eq!(count(Some(State::Dead), Some("a"), None).await, 3);
    assert_eq!(count(None, None, Some("trap")).await, 3);
    assert_eq!(count(Some(State::Pending), Some("a"), None).await, 1);
    assert_eq!(count(Some(State::Pending), Some("b"), None).await, 0);
}

async fn a_message_is_shown_whole(store: TestStore) {
    let draft = draft(TOPIC).payload(r#"{"a": 1}"#).key("k").headers(&[("h", "v")]).dedup_key("d").expires(MINUTE);
    let id = store.publish_one(draft).await;

    let shown = store.show(id).await;

    assert_eq!(shown.summary.id, id.to_string());
    assert_eq!((shown.summary.topic.as_str(), shown.summary.key.as_deref()), (TOPIC, Some("k")));
    assert_eq!((shown.payload.as_deref(), shown.payload_bytes), (Some(r#"{"a": 1}"#), 8));
    assert_eq!((shown.dedup_key.as_deref(), shown.headers), (Some("d"), serde_json::json!({ "h": "v" })));
    assert_eq!(shown.summary.expires_at_ms, Some(shown.summary.created_at_ms + 60_000));
    assert!(shown.history.is_empty());
    let plain = store.publish_one(crate::backend::draft(TOPIC)).await;
    assert_eq!(store.show(plain).await.summary.expires_at_ms, None);
    assert!(store.admin.show(MessageId(uuid::Uuid::from_u128(1 << 100))).await.unwrap().is_none());
}

async fn a_large_payload_is_not_shown(store: TestStore) {
    let payload = format!("\"{}\"", "x".repeat(64 << 10));
    let id = store.publish_one(draft(TOPIC).payload(payload.clone())).await;

    let shown = store.show(id).await;

    assert_eq!((shown.payload, shown.payload_bytes), (None, payload.len() as u64));
}

async fn stats_count_each_topic(store: TestStore) {
    store.publish(vec![draft("a"); 5]).await;
    let claims = store.outbox.claim(&[lane("a", 4)], LEASE, LAPSES_MAX).await.unwrap();
    store.settle_one(&claims[0], Transition::Delivered).await;
    store.settle_one(&claims[1], dead()).await;
    store.settle_one(&claims[2], retry(MINUTE * 60)).await;
    store.age(MINUTE / 10).await;
    store.admin.pause("paused").await.unwrap();

    let stats = store.admin.stats().await.unwrap();

    let [a, paused] = &stats[..] else { panic!("{stats:?}") };
    assert_eq!((a.topic.as_str(), a.pending, a.processing, a.held, a.delivered, a.dead), ("a", 2, 1, 0, 1, 1));
    assert!(a.oldest_due_ms.is_some_and(|waited| (6_000..60_000).contains(&waited)), "{:?}", a.oldest_due_ms);
    assert_eq!((a.paused, a.last_error.as_deref()), (false, Some("try later")));
    assert_eq!((paused.topic.as_str(), paused.paused, paused.oldest_due_ms), ("paused", true, None));
    let TopicStats { pending, processing, held, delivered, dead, .. } = paused;
    assert_eq!(pending + processing + held + delivered + dead, 0);
}

async fn a_redrive_starts_a_dead_letter_anew(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let first = store.claim_one().await;
    store.settle_one(&first, retry(Duration::ZERO)).await;
    let stale = store.claim_one().await;
    store.settle_one(&stale, dead()).await;

    let redriven = store.admin.redrive(&Selection::Ids(vec![id]), 10, Duration::ZERO, Duration::ZERO).await.unwrap();

    assert_eq!(redriven, 1);
    let again = store.claim_one().await;
    assert_eq!((again.message.id, again.attempt, again.lapses), (id, Attempt(1), 0));
    // Attempt 1 was there before: the old lease stays lost.
    assert_eq!(store.settle_one(&first, Transition::Delivered).await, LeaseStatus::Lost);
    assert_eq!(store.show(id).await.history.len(), 2);
    assert_eq!(store.show(id).await.summary.dead_at_ms, None);
}

pub async fn a_redrive_takes_the_oldest_deaths_and_spreads_them(store: TestStore) {
    let older = dead_letters(&store, TOPIC, 2, Reason::Trap).await;
    store.age(MINUTE).await;
    dead_letters(&store, TOPIC, 2, Reason::Trap).await;

    let redriven = store.admin.redrive(&ALL, 3, Duration::ZERO, MINUTE).await.unwrap();

    assert_eq!(redriven, 3);
    assert_eq!(ids(&store.claim(10).await), [older[0]]);
    store.age(MINUTE).await;
    let second: Vec<_> = ids(&store.claim(10).await).into_iter().filter(|id| *id != older[0]).collect();
    assert_eq!(second, [older[1]]);
    store.age(MINUTE).await;
    assert_eq!(store.claim(10).await.len(), 3, "two whose lease lapsed, and the third");
    assert_eq!(store.admin.redrive(&ALL, 10, Duration::ZERO, Duration::ZERO).await.unwrap(), 1);
}

async fn a_redrive_chooses_by_topic_and_reason(store: TestStore) {
    dead_letters(&store, "a", 2, Reason::Trap).await;
    dead_letters(&store, "a", 1, Reason::Deadline).await;
    dead_letters(&store, "b", 4, Reason::Deadline).await;
    let redrive = async |topic: Option<&str>, reason: Option<Reason>| {
        let selection = Selection::Matching { topic: topic.map(str::to_string), reason };
        store.admin.redrive(&selection, 100, Duration::ZERO, Duration::ZERO).await.unwrap()
    };

    assert_eq!(redrive(Some("a"), Some(Reason::Cpu)).await, 0);
    assert_eq!(redrive(Some("a"), Some(Reason::Deadline)).await, 1);
    assert_eq!(redrive(Some("a"), None).await, 2);
    assert_eq!(redrive(None, Some(Reason::Deadline)).await, 4);
    assert_eq!(redrive(None, None).await, 0);
}

async fn a_redrive_never_touches_a_live_message(store: TestStore) {
    store.publish(vec![draft(TOPIC); 4]).await;
    let claims = store.claim(3).await;
    store.settle_one(&claims[0], Transition::Delivered).await;
    store.settle_one(&claims[1], retry(MINUTE)).await;
    let everyone = store.admin.list(&MessageFilter::default(), None, 10).await.unwrap();
    let everyone: Vec<_> = everyone.iter().map(|message| MessageId(message.id.parse().unwrap())).collect();

    assert_eq!(store.admin.redrive(&ALL, 10, Duration::ZERO, Duration::ZERO).await.unwrap(), 0);
    assert_eq!(store.admin.redrive(&Selection::Ids(everyone), 10, Duration::ZERO, Duration::ZERO).await.unwrap(), 0);

    assert_eq!(store.settle_one(&claims[2], Transition::Delivered).await, LeaseStatus::Held);
}

async fn a_redriven_message_is_not_expired_at_once(store: TestStore) {
    let id = store.publish_one(draft(TOPIC).expires(MINUTE)).await;
    store.age(MINUTE).await;
    let claim = store.claim_one().await;
    store.settle_one(&claim, Transition::Dead { reason: Reason::Expired, error: "late".into() }).await;

    store.admin.redrive(&Selection::Ids(vec![id]), 1, Duration::ZERO, Duration::ZERO).await.unwrap();

    assert!(!store.claim_one().await.expired);
}

async fn a_discarded_message_is_dead_and_its_lease_lost(store: TestStore) {
    let published = store.publish(vec![draft(TOPIC); 3]).await;
    let claims = store.claim(2).await;
    store.settle_one(&claims[1], Transition::Delivered).await;

    let discarded = store.admin.discard(&Selection::Ids(published), 10).await.unwrap();

    assert_eq!(discarded, 2);
    assert_eq!(store.settle_one(&claims[0], Transition::Delivered).await, LeaseStatus::Lost);
    let shown = store.show(claims[0].message.id).await.summary;
    assert_eq!((shown.state.as_str(), shown.reason.as_deref()), ("dead", Some("discarded")));
    assert_eq!(store.state_of(claims[1].message.id).await, State::Delivered);
}

async fn what_is_processing_is_left_to_its_attempt_by_a_discard_of_all_that_match(store: TestStore) {
    store.publish(vec![draft(TOPIC); 3]).await;
    let claim = store.claim_one().await;

    assert_eq!(store.admin.discard(&ALL, 10).await.unwrap(), 2);

    assert_eq!(store.settle_one(&claim, Transition::Delivered).await, LeaseStatus::Held);
    assert_eq!(store.admin.discard(&ALL, 10).await.unwrap(), 0);
}

async fn retry_now_makes_a_pending_message_due(store: TestStore) {
    let published = store.publish(vec![draft(TOPIC).delay(MINUTE), draft(TOPIC).delay(MINUTE)]).await;
    let first = Selection::Ids(published[..1].to_vec());

    assert_eq!(store.admin.retry_now(&first, 10).await.unwrap(), 1);
    assert_eq!(store.admin.retry_now(&first, 10).await.unwrap(), 1, "it is due");

    let claims = store.claim(10).await;
    assert_eq!(ids(&claims), published[..1]);
    assert_eq!(store.admin.retry_now(&first, 10).await.unwrap(), 0, "a leased one is left alone");
    assert_eq!(store.admin.retry_now(&ALL, 10).await.unwrap(), 1, "the other one");
}

async fn an_overdue_message_keeps_its_place_when_it_is_retried_now(store: TestStore) {
    let overdue = store.publish_one(draft(TOPIC)).await;
    let later = store.publish_one(draft(TOPIC).delay(MINUTE * 2)).await;
    store.age(MINUTE).await;

    assert_eq!(store.admin.retry_now(&Selection::Ids(vec![overdue, later]), 10).await.unwrap(), 2);
    assert_eq!(store.admin.retry_now(&ALL, 10).await.unwrap(), 0, "both are due");

    let waited = store.admin.stats().await.unwrap()[0].oldest_due_ms;
    assert!(waited.is_some_and(|waited| waited >= 60_000), "how late it is stays to be seen: {waited:?}");
    assert_eq!(store.claim_one().await.message.id, overdue);
}

async fn a_discard_and_a_retry_now_choose_by_topic_and_reason(store: TestStore) {
    store.publish(vec![draft("a"); 2]).await;
    for claim in store.outbox.claim(&[lane("a", 2)], LEASE, LAPSES_MAX).await.unwrap() {
        store.settle_one(&claim, retry(MINUTE)).await;
    }
    store.publish(vec![draft("a").delay(MINUTE), draft("b").delay(MINUTE)]).await;
    let chosen = |topic: Option<&str>, reason| Selection::Matching { topic: topic.map(str::to_string), reason };

    assert_eq!(store.admin.retry_now(&chosen(Some("a"), Some(Reason::Trap)), 10).await.unwrap(), 0);
    assert_eq!(store.admin.retry_now(&chosen(Some("a"), Some(Reason::Retry)), 10).await.unwrap(), 2);
    assert_eq!(store.admin.retry_now(&chosen(Some("a"), None), 10).await.unwrap(), 1);
    assert_eq!(store.admin.discard(&chosen(Some("b"), Some(Reason::Retry)), 10).await.unwrap(), 0);
    assert_eq!(store.admin.discard(&chosen(None, Some(Reason::Retry)), 10).await.unwrap(), 2);
    assert_eq!(store.admin.discard(&chosen(Some("b"), None), 10).await.unwrap(), 1);
    assert_eq!(store.admin.discard(&ALL, 10).await.unwrap(), 1);
}

async fn batches_of_what_matches_make_progress_oldest_first(store: TestStore) {
    let mut published = store.publish(vec![draft(TOPIC).delay(MINUTE); 5]).await;
    published.sort();

    let mut retried = Vec::new();
    for _ in 0..4 {
        retried.push(store.admin.retry_now(&ALL, 2).await.unwrap());
    }
    assert_eq!(store.admin.discard(&ALL, 2).await.unwrap(), 2);
    assert_eq!(store.admin.discard(&Selection::Ids(published.clone()), 2).await.unwrap(), 2, "ids have the limit too");

    assert_eq!(retried, [2, 2, 1, 0]);
    assert_eq!(ids(&store.claim(10).await), published[4..]);
}

pub async fn a_purge_goes_by_the_age_of_the_end(store: TestStore) {
    store.publish(vec![draft(TOPIC); 3]).await;
    store.age(MINUTE * 60).await;
    let claims = store.claim(2).await;
    store.settle_one(&claims[0], Transition::Delivered).await;
    store.settle_one(&claims[1], dead()).await;
    store.age(MINUTE).await;
    let purge = async |state, older_than| store.admin.purge(state, older_than, 10).await.unwrap();

    // Created an hour ago, but ended a minute ago.
    assert_eq!(purge(Finished::Delivered, MINUTE * 2).await, 0);
    assert_eq!(purge(Finished::Dead, MINUTE * 2).await, 0);
    assert_eq!(purge(Finished::Delivered, MINUTE).await, 1);
    assert_eq!(store.state_of(claims[1].message.id).await, State::Dead);
    assert_eq!(purge(Finished::Dead, MINUTE).await, 1);
    assert_eq!(purge(Finished::Dead, Duration::ZERO).await + purge(Finished::Delivered, Duration::ZERO).await, 0);
    assert_eq!(store.claim(5).await.len(), 1);
}

async fn a_purge_takes_at_most_its_limit(store: TestStore) {
    dead_letters(&store, TOPIC, 5, Reason::Trap).await;
    store.age(MINUTE).await;

    let mut purged = Vec::new();
    for _ in 0..4 {
        purged.push(store.admin.purge(Finished::Dead, Duration::ZERO, 2).await.unwrap());
    }

    assert_eq!(purged, [2, 2, 1, 0]);
}

async fn pause_and_resume_say_whether_they_changed_anything(store: TestStore) {
    assert_eq!(store.admin.resume(TOPIC).await.unwrap(), Changed::No);
    assert_eq!(store.admin.pause(TOPIC).await.unwrap(), Changed::Yes);
    assert_eq!(store.admin.pause(TOPIC).await.unwrap(), Changed::No);
    assert_eq!(store.admin.resume(TOPIC).await.unwrap(), Changed::Yes);
    assert_eq!(store.admin.resume(TOPIC).await.unwrap(), Changed::No);
}

async fn the_store_answers_a_ping(store: TestStore) {
    store.admin.ping().await.unwrap();
}
