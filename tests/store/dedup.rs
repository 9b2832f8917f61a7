use outboxd_core::Transition;

use crate::backend::{TOPIC, TestStore, draft, on_every_store};

on_every_store! {
    a_second_publish_with_a_dedup_key_answers_the_first_ones_id
    a_dedup_key_is_taken_as_long_as_the_row_lives
    dedup_keys_of_other_topics_are_others
}

async fn a_second_publish_with_a_dedup_key_answers_the_first_ones_id(store: TestStore) {
    let first = store.publish_one(draft(TOPIC).dedup_key("order-7").payload("1")).await;

    let second = store.publish_one(draft(TOPIC).dedup_key("order-7").payload("2")).await;
    let beside = store.publish(vec![draft(TOPIC), draft(TOPIC).dedup_key("new"), draft(TOPIC).dedup_key("new")]).await;

    assert_eq!(second, first);
    assert_eq!(beside[1], beside[2]);
    assert_eq!(store.claim(10).await.len(), 3);
    assert_eq!(store.show(first).await.payload.as_deref(), Some("1"));
}

async fn a_dedup_key_is_taken_as_long_as_the_row_lives(store: TestStore) {
    let first = store.publish_one(draft(TOPIC).dedup_key("k")).await;
    let claim = store.claim_one().await;
    store.settle_one(&claim, Transition::Delivered).await;
    assert_eq!(store.publish_one(draft(TOPIC).dedup_key("k")).await, first);
    store.age(std::time::Duration::from_secs(1)).await;
    store.admin.purge(outboxd_store::Finished::Delivered, std::time::Duration::ZERO, 10).await.unwrap();

    let second = store.publish_one(draft(TOPIC).dedup_key("k")).await;

    assert_ne!(second, first);
}

async fn dedup_keys_of_other_topics_are_others(store: TestStore) {
    let ids = store.publish(vec![draft("a").dedup_key("k"), draft("b").dedup_key("k")]).await;

    assert_ne!(ids[0], ids[1]);
}
