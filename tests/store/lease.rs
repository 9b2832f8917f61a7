use std::time::Duration;

use outboxd_core::{Attempt, LeaseStatus, State, Transition};

use crate::backend::{LEASE, TOPIC, TestStore, dead, draft, held, on_every_store, settlement};

on_every_store! {
    a_renewed_lease_lasts_from_now
    a_lost_lease_is_not_renewed
    a_lapsed_lease_that_nobody_took_is_renewed
    a_release_gives_the_attempt_back_and_keeps_the_lapses
    a_claim_says_whether_it_took_over_a_lost_lease
    a_released_message_waits_as_long_as_told
    a_release_ends_the_lease
    a_lease_releases_once
    a_lease_from_before_a_redrive_is_lost
    an_old_lease_beside_the_new_one_of_its_row_is_lost
    a_row_that_is_gone_is_a_lost_lease
}

pub async fn a_renewed_lease_lasts_from_now(store: TestStore) {
    store.publish(vec![draft(TOPIC); 2]).await;
    let claims = store.claim(2).await;
    store.age(LEASE - Duration::from_secs(2)).await;

    let statuses = store.outbox.renew(&[held(&claims[1]), held(&claims[0])], LEASE).await.unwrap();

    assert_eq!(statuses, [LeaseStatus::Held; 2]);
    store.age(LEASE - Duration::from_secs(2)).await;
    assert!(store.claim(2).await.is_empty());
    assert!(store.outbox.renew(&[], LEASE).await.unwrap().is_empty());
}

pub async fn a_lost_lease_is_not_renewed(store: TestStore) {
    store.publish(vec![draft(TOPIC); 2]).await;
    let stale = store.claim_one().await;
    store.age(LEASE).await;
    let fresh = store.claim(2).await;
    let settled = fresh.iter().find(|claim| claim.message.id != stale.message.id).unwrap();
    store.settle_one(settled, Transition::Delivered).await;
    let kept = fresh.iter().find(|claim| claim.message.id == stale.message.id).unwrap();

    let statuses = store.outbox.renew(&[held(&stale), held(kept), held(settled)], LEASE).await.unwrap();

    assert_eq!(statuses, [LeaseStatus::Lost, LeaseStatus::Held, LeaseStatus::Lost]);
}

pub async fn a_lapsed_lease_that_nobody_took_is_renewed(store: TestStore) {
    store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;
    store.age(LEASE * 2).await;

    let statuses = store.outbox.renew(&[held(&claim)], LEASE).await.unwrap();

    assert_eq!(statuses, [LeaseStatus::Held]);
    assert!(store.claim(1).await.is_empty());
}

async fn a_release_gives_the_attempt_back_and_keeps_the_lapses(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    store.claim_one().await;
    store.age(LEASE).await;
    let claim = store.claim_one().await;
    assert_eq!((claim.attempt, claim.lapses), (Attempt(2), 1));

    let status = store.release_one(&claim, Duration::ZERO).await;

    assert_eq!(status, LeaseStatus::Held);
    let shown = store.show(id).await;
    assert_eq!((shown.summary.state.as_str(), shown.summary.attempts, shown.summary.lapses), ("pending", 1, 1));
    assert_eq!(shown.summary.last_error.as_deref(), Some("the relay stops"));
    assert_eq!(shown.history.last().unwrap().result, "released");
    let again = store.claim_one().await;
    assert_eq!((again.attempt, again.lapses), (Attempt(2), 1));
}

async fn a_claim_says_whether_it_took_over_a_lost_lease(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let first = store.claim_one().await;
    store.age(LEASE).await;

    let second = store.claim_one().await;

    assert_eq!((first.lapsed, second.lapsed), (false, true));
    let shown = store.show(id).await.summary;
    assert_eq!(shown.reason.as_deref(), Some("lapsed"));
    assert_eq!(shown.last_error.as_deref(), Some("a lease was lost without a result"));
    // A release keeps the lapses, and is none itself.
    store.release_one(&second, Duration::ZERO).await;
    let third = store.claim_one().await;
    assert_eq!((third.lapses, third.lapsed), (1, false));
    store.age(LEASE).await;
    assert!(store.claim_one().await.lapsed);
}

pub async fn a_released_message_waits_as_long_as_told(store: TestStore) {
    store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;

    store.release_one(&claim, Duration::from_secs(60)).await;

    assert!(store.claim(1).await.is_empty());
    store.age(Duration::from_secs(60)).await;
    assert_eq!(store.claim_one().await.attempt, Attempt(1));
}

async fn a_release_ends_the_lease(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;
    store.release_one(&claim, Duration::ZERO).await;
    // The same attempt number comes round again: it is no fence.
    let again = store.claim_one().await;
    assert_eq!(again.attempt, claim.attempt);

    let stale = store.settle_one(&claim, Transition::Delivered).await;

    assert_eq!(stale, LeaseStatus::Lost);
    assert_eq!(store.state_of(id).await, State::Processing);
}

async fn a_lease_releases_once(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;
    store.release_one(&claim, Duration::ZERO).await;
    let again = store.claim_one().await;
    assert_eq!(again.attempt, claim.attempt);

    let stale = store.release_one(&claim, Duration::ZERO).await;

    assert_eq!(stale, LeaseStatus::Lost);
    assert_eq!(store.state_of(id).await, State::Processing);
}

async fn a_lease_from_before_a_redrive_is_lost(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;
    let selection = outboxd_store::Selection::Ids(vec![id]);
    store.admin.discard(&selection, 1).await.unwrap();
    store.admin.redrive(&selection, 1, Duration::ZERO, Duration::ZERO).await.unwrap();
    // A redrive counts attempts anew: the same number comes round again.
    let again = store.claim_one().await;
    assert_eq!(again.attempt, claim.attempt);

    let stale = store.settle_one(&claim, Transition::Delivered).await;

    assert_eq!(stale, LeaseStatus::Lost);
    assert_eq!(store.state_of(id).await, State::Processing);
}

async fn an_old_lease_beside_the_new_one_of_its_row_is_lost(store: TestStore) {
    store.publish_one(draft(TOPIC)).await;
    let stale = store.claim_one().await;
    store.age(LEASE).await;
    let fresh = store.claim_one().await;

    let statuses =
        store.outbox.settle(&[settlement(&stale, dead()), settlement(&fresh, Transition::Delivered)]).await.unwrap();

    assert_eq!(statuses, [LeaseStatus::Lost, LeaseStatus::Held]);
    assert_eq!(store.state_of(fresh.message.id).await, State::Delivered);
}

async fn a_row_that_is_gone_is_a_lost_lease(store: TestStore) {
    let id = store.publish_one(draft(TOPIC)).await;
    let claim = store.claim_one().await;
    store.admin.discard(&outboxd_store::Selection::Ids(vec![id]), 1).await.unwrap();
    store.age(Duration::from_secs(1)).await;
    store.admin.purge(outboxd_store::Finished::Dead, Duration::ZERO, 10).await.unwrap();
    assert!(store.admin.show(id).await.unwrap().is_none());

    assert_eq!(store.outbox.renew(&[held(&claim)], LEASE).await.unwrap(), [LeaseStatus::Lost]);
    assert_eq!(store.settle_one(&claim, Transition::Delivered).await, LeaseStatus::Lost);
    assert_eq!(store.release_one(&claim, Duration::ZERO).await, LeaseStatus::Lost);
}
