use std::time::Duration;

use outboxd_core::{Attempt, AttemptRecord, LeaseStatus, Order, Reason, Settlement, State, Transition};
use outboxd_store::{OnDelivered, StoreError};

use crate::backend::{LEASE, TOPIC, TestStore, dead, draft, on_every_store, retry, settlement};

const MINUTE: Duration = Duration::from_secs(60);

on_every_store! {
    a_delivered_message_is_final
    a_retry_is_due_after_its_delay_and_keeps_its_attempt
    a_dead_letter_keeps_reason_and_error
    one_settle_writes_many_results_and_answers_in_their_order
    thousands_of_results_are_settled_before_their_statement_times_out
    a_lease_settles_once
    a_lost_lease_changes_nothing
    a_late_result_lands_while_nobody_has_taken_the_message
    a_settle_forgets_the_lapses
    delivered_rows_are_deleted_where_asked
    of_rows_to_delete_one_whose_lease_was_lost_is_kept
    history_keeps_the_last_twenty_attempts_and_stays_small
    no_error_text_makes_a_settle_fail
    a_huge_delay_does_not_overflow
    releases_and_settles_are_not_mixed_up
}

async fn a_delivered_message_is_final(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;

    let status = store.settle_one(&claim, Transition::Delivered).await;

    assert_eq!(status, LeaseStatus::Held);
    let shown = store.show(id).await;
    assert_eq!(shown.summary.state, "delivered");
    assert!(shown.summary.delivered_at_ms.is_some());
    assert_eq!((shown.summary.reason, shown.summary.last_error, shown.summary.dead_at_ms), (None, None, None));
    store.age(LEASE * 2).await;
    assert!(store.claim(10).await.is_empty());
}

pub async fn a_retry_is_due_after_its_delay_and_keeps_its_attempt(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;

    store.settle_one(&claim, retry(MINUTE)).await;

    let shown = store.show(id).await.summary;
    assert_eq!((shown.state.as_str(), shown.attempts), ("pending", 1));
    assert_eq!((shown.reason.as_deref(), shown.last_error.as_deref()), (Some("retry"), Some("try later")));
    assert!(store.claim(1).await.is_empty());
    store.age(MINUTE).await;
    let again = store.claim_one().await;
    assert_eq!((again.attempt, again.lapses), (Attempt(2), 0));
}

async fn a_dead_letter_keeps_reason_and_error(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;

    store.settle_one(&claim, dead()).await;

    let shown = store.show(id).await.summary;
    assert_eq!((shown.state.as_str(), shown.reason.as_deref()), ("dead", Some("cancelled")));
    assert_eq!(shown.last_error.as_deref(), Some("gone"));
    assert!(shown.dead_at_ms.is_some() && shown.delivered_at_ms.is_none());
    store.age(LEASE * 2).await;
    assert!(store.claim(10).await.is_empty());
}

async fn one_settle_writes_many_results_and_answers_in_their_order(store: TestStore) {
    store.publish(vec![draft(TOPIC); 4]).await;
    let claims = store.claim(4).await;
    store.settle_one(&claims[2], dead()).await;

    // Not in the order of their ids, and one that is lost among them.
    let statuses = store
        .outbox
        .settle(&[
            settlement(&claims[3], dead()),
            settlement(&claims[2], Transition::Delivered),
            settlement(&claims[0], Transition::Delivered),
            settlement(&claims[1], retry(MINUTE)),
        ])
        .await
        .unwrap();

    use LeaseStatus::{Held, Lost};
    assert_eq!(statuses, [Held, Lost, Held, Held]);
    let mut states = Vec::new();
    for claim in &claims {
        states.push(store.state_of(claim.message.id).await);
    }
    assert_eq!(states, [State::Delivered, State::Pending, State::Dead, State::Dead]);
    assert!(store.outbox.settle(&[]).await.unwrap().is_empty());
}

/// A plan that compares each row with each settlement takes more than twice its time.
async fn thousands_of_results_are_settled_before_their_statement_times_out(store: TestStore) {
    store.publish(vec![draft(TOPIC); 6000]).await;
    for transition in [retry(Duration::ZERO), Transition::Delivered] {
        let claims = store.claim(6000).await;
        let settlements: Vec<_> = claims.iter().map(|claim| settlement(claim, transition.clone())).collect();

        let statuses = store.outbox.settle(&settlements).await.unwrap();

        assert_eq!(statuses, vec![LeaseStatus::Held; 6000]);
    }
}

async fn a_lease_settles_once(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;
    store.settle_one(&claim, retry(Duration::ZERO)).await;

    let second = store.settle_one(&claim, Transition::Delivered).await;

    assert_eq!(second, LeaseStatus::Lost);
    assert_eq!(store.state_of(id).await, State::Pending);
}

async fn a_lost_lease_changes_nothing(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let stale = store.claim_one().await;
    store.age(LEASE).await;
    let fresh = store.claim_one().await;
    let before = format!("{:?}", store.show(id).await);

    let settled = store.settle_one(&stale, Transition::Delivered).await;
    let released = store.release_one(&stale, Duration::ZERO).await;

    assert_eq!((settled, released), (LeaseStatus::Lost, LeaseStatus::Lost));
    assert_eq!(format!("{:?}", store.show(id).await), before);
    assert_eq!(store.settle_one(&fresh, Transition::Delivered).await, LeaseStatus::Held);
}

pub async fn a_late_result_lands_while_nobody_has_taken_the_message(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;
    store.age(LEASE * 3).await;

    let status = store.settle_one(&claim, Transition::Delivered).await;

    assert_eq!(status, LeaseStatus::Held);
    assert_eq!(store.state_of(id).await, State::Delivered);
}

async fn a_settle_forgets_the_lapses(store: TestStore) {
    store.publish_one(draft(TOPIC)).await;
    store.claim_one().await;
    store.age(LEASE).await;
    let second = store.claim_one().await;
    assert_eq!(second.lapses, 1);

    store.settle_one(&second, retry(Duration::ZERO)).await;

    assert_eq!(store.claim_one().await.lapses, 0);
}

async fn delivered_rows_are_deleted_where_asked(store: TestStore) {
    let store = store.reconnect(|options| options.on_delivered = OnDelivered::Delete).await;
    let ids = store.publish(vec![draft(TOPIC); 3]).await;
    let claims = store.claim(3).await;
    let stale = Settlement { lease_id: claims[0].lease_id, ..settlement(&claims[2], Transition::Delivered) };

    let statuses = store
        .outbox
        .settle(&[settlement(&claims[0], Transition::Delivered), settlement(&claims[1], dead()), stale])
        .await
        .unwrap();

    assert_eq!(statuses, [LeaseStatus::Held, LeaseStatus::Held, LeaseStatus::Lost]);
    assert!(store.admin.show(ids[0]).await.unwrap().is_none());
    assert_eq!(store.state_of(ids[1]).await, State::Dead);
    assert_eq!(store.state_of(ids[2]).await, State::Processing);
}

async fn of_rows_to_delete_one_whose_lease_was_lost_is_kept(store: TestStore) {
    let store = store.reconnect(|options| options.on_delivered = OnDelivered::Delete).await;
    let ids = store.publish(vec![draft(TOPIC), draft(TOPIC).key("k"), draft(TOPIC)]).await;
    let claims = store.claim(3).await;
    let [first, second, third] = [0, 1, 2].map(|n: usize| settlement(&claims[n], Transition::Delivered));
    let stale = Settlement { lease_id: claims[0].lease_id, ..third };

    let statuses = store.outbox.settle(&[first, second, stale]).await.unwrap();

    assert_eq!(statuses, [LeaseStatus::Held, LeaseStatus::Held, LeaseStatus::Lost]);
    assert!(store.admin.show(ids[0]).await.unwrap().is_none());
    assert!(store.admin.show(ids[1]).await.unwrap().is_none());
    assert_eq!(store.state_of(ids[2]).await, State::Processing);
}

async fn history_keeps_the_last_twenty_attempts_and_stays_small(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    // Every byte of it is escaped in JSON.
    let error = "\"\n".repeat(500_000);
    for _ in 0..25 {
        let claim = store.claim_one().await;
        let record = AttemptRecord {
            attempt: claim.attempt,
            took: Duration::from_millis(31),
            http_status: Some(503),
            response_excerpt: Some(error.clone()),
            digest: Some("sha256:0123".into()),
        };
        let transition = Transition::Pending { after: Duration::ZERO, reason: Reason::Deadline, error: error.clone() };
        let settlement = Settlement {
            id,
            lease_id: claim.lease_id,
            transition,
            order: Order::None,
            rest: Default::default(),
            record,
        };
        store.outbox.settle(&[settlement]).await.unwrap();
    }

    let shown = store.show(id).await;

    assert_eq!(shown.history.iter().map(|entry| entry.attempt).collect::<Vec<_>>(), (6..=25).collect::<Vec<_>>());
    let last = shown.history.last().unwrap();
    assert_eq!((last.took_ms, last.result.as_str(), last.http_status), (31, "retry", Some(503)));
    assert_eq!((last.reason.as_deref(), last.digest.as_deref()), (Some("deadline"), Some("sha256:0123")));
    assert!(last.at_ms > 1_700_000_000_000 && last.error.is_some() && last.response.is_some());
    let size = serde_json::to_string(&shown.history).unwrap().len() + shown.summary.last_error.unwrap().len();
    assert!(size < 64 << 10, "{size}");
}

async fn no_error_text_makes_a_settle_fail(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    for error in ["a\0b", "\u{202e}\u{1b}[31m", "'; drop table outbox; --", "\u{fffd}\u{10ffff}", "\\u0000", ""] {
        let claim = store.claim_one().await;
        let transition = Transition::Pending { after: Duration::ZERO, reason: Reason::Trap, error: error.into() };
        let record = AttemptRecord {
            attempt: claim.attempt,
            took: Duration::ZERO,
            http_status: None,
            response_excerpt: Some(error.into()),
            digest: Some(error.into()),
        };

        let status = store
            .outbox
            .settle(&[Settlement {
                id,
                lease_id: claim.lease_id,
                transition,
                order: Order::None,
                rest: Default::default(),
                record,
            }])
            .await
            .unwrap();

        assert_eq!(status, [LeaseStatus::Held], "{error:?}");
        let expected = outboxd_core::safe_text(error, outboxd_core::ERROR_BYTES_MAX);
        assert_eq!(store.show(id).await.history.last().unwrap().error.as_ref(), Some(&expected));
    }
}

async fn a_huge_delay_does_not_overflow(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;

    let status = store.settle_one(&claim, retry(Duration::MAX)).await;

    assert_eq!(status, LeaseStatus::Held);
    assert_eq!(store.state_of(id).await, State::Pending);
    assert!(store.claim(1).await.is_empty());
}

async fn releases_and_settles_are_not_mixed_up(store: TestStore) {
    store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;
    let released = Transition::Released { after: Duration::ZERO, reason: Reason::Overload, error: String::new() };

    let settled = store.outbox.settle(&[settlement(&claim, released)]).await;
    let given_back = store.outbox.release(&[settlement(&claim, Transition::Delivered)]).await;

    assert!(matches!(settled, Err(StoreError::Broken(_))));
    assert!(matches!(given_back, Err(StoreError::Broken(_))));
}
