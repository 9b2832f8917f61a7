//! The keys of topics that are ordered or limited by key, on the page and in the API.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use outboxd_core::{Lane, MessageId, OnDead, Order, Reason, Rest, RestCause, Settlement, Transition};
use outboxd_store::{Hold, MemoryMessage, MemoryStore, OutboxAdmin as _, OutboxStore as _, Selection};
use serde_json::{Value, json};

use crate::router::{admin, get, post_json, submit};

/// A topic with a key that a dead letter blocks, and one message behind it.
async fn blocked() -> (Arc<MemoryStore>, MessageId) {
    let store = Arc::new(MemoryStore::default());
    for _ in 0..2 {
        let key = Some("a".into());
        store.put(MemoryMessage { topic: "orders".into(), key, payload: b"{}".to_vec(), ..MemoryMessage::default() });
    }
    let lanes = [Lane { topic: "orders".into(), slots: 2, order: Order::ByKey { on_dead: OnDead::Block } }];
    store.arrange(&lanes, Hold::All).await.expect("in memory");
    let claim = store.claim(&lanes, Duration::from_secs(30), u32::MAX).await.expect("in memory").remove(0);
    let transition = Transition::Dead { reason: Reason::Cancelled, error: "the account is closed".into() };
    let settlement = Settlement::of(&claim, transition);
    store.settle(&[settlement]).await.expect("in memory");
    (store, claim.message.id)
}

#[tokio::test]
async fn the_page_shows_what_blocks_a_key_and_a_form_redrives_it() {
    let (store, head) = blocked().await;
    let admin = admin(store.clone(), store.stats().await.expect("in memory"), vec![]);

    assert!(get(&admin, "/").await.text.contains("/keys?topic=orders&amp;state=blocked"));
    let page = get(&admin, "/keys?state=blocked").await.text;
    for text in ["the account is closed", "cancelled", "1 behind", &format!("/messages/{head}")] {
        assert!(page.contains(text), "{text} is not in {page}");
    }
    assert!(get(&admin, "/keys?state=waiting").await.text.contains("No key."));

    let redrive = submit(&admin, "/do/messages/redrive", &format!("id={head}&back=%2Fkeys")).await;
    assert_eq!(redrive.location, "/keys?done=redrive&changed=1&more=false");
    let skip = submit(&admin, "/do/keys/skip", "topic=orders&key=a&back=%2Fkeys").await;
    assert!(get(&admin, &skip.location).await.text.contains("The key was not blocked."));
}

#[tokio::test]
async fn a_form_lets_a_blocked_key_go_on() {
    let (store, _) = blocked().await;
    let admin = admin(store.clone(), store.stats().await.expect("in memory"), vec![]);

    let answer = submit(&admin, "/do/keys/skip", "topic=orders&key=a&back=%2Fkeys").await;

    assert_eq!(answer.location, "/keys?done=skip&changed=1&more=false");
    assert!(get(&admin, &answer.location).await.text.contains("The key goes on; the dead letter stays one."));
    assert_eq!(store.stats().await.expect("in memory")[0].blocked_keys, 0);
}

#[tokio::test]
async fn a_form_ends_the_wait_of_a_key() {
    let (store, head) = blocked().await;
    let one = Selection::Ids(vec![head]);
    store.redrive(&one, 1, Duration::from_secs(600), Duration::ZERO).await.expect("in memory");
    let admin = admin(store.clone(), vec![], vec![]);
    assert!(get(&admin, "/keys?state=waiting").await.text.contains(", due in "));

    let answer = submit(&admin, "/do/keys/resume-key", "topic=orders&key=a&back=%2Fkeys").await;

    assert!(get(&admin, &answer.location).await.text.contains("The key goes on."));
    assert_eq!(store.due_topics().await.expect("in memory").len(), 1);
}

#[tokio::test]
async fn the_page_shows_why_a_limited_key_rests_and_a_form_ends_it() {
    let store = Arc::new(MemoryStore::default());
    let put = || {
        let key = Some("a".into());
        store.put(MemoryMessage { topic: "orders".into(), key, payload: b"{}".to_vec(), ..MemoryMessage::default() })
    };
    put();
    let lanes = [Lane { topic: "orders".into(), slots: 1, order: Order::Limited { per_key: 2 } }];
    store.arrange(&lanes, Hold::All).await.expect("in memory");
    let claim = store.claim(&lanes, Duration::from_secs(30), u32::MAX).await.expect("in memory").remove(0);
    let rest = Rest { time: Duration::from_secs(600), cause: Some(RestCause::RetryAfter), failures: Some(5) };
    store.settle(&[Settlement { rest, ..Settlement::of(&claim, Transition::Delivered) }]).await.expect("in memory");
    put();
    store.arrange(&lanes, Hold::All).await.expect("in memory");
    let admin = admin(store.clone(), vec![], vec![]);

    let page = get(&admin, "/keys?state=paused").await.text;
    for text in ["retry-after", ", due in ", "1 behind", "Go on now"] {
        assert!(page.contains(text), "{text} is not in {page}");
    }
    assert!(!page.contains("at its head"), "a limited key has no head: {page}");

    let answer = submit(&admin, "/do/keys/resume-key", "topic=orders&key=a&back=%2Fkeys").await;

    assert!(get(&admin, &answer.location).await.text.contains("The key goes on."));
    assert!(get(&admin, "/keys?state=paused").await.text.contains("No key."));
}

#[tokio::test]
async fn the_api_lists_keys_and_skips_one() {
    let (store, head) = blocked().await;
    let admin = admin(store, vec![], vec![]);

    let keys: Value = serde_json::from_str(&get(&admin, "/api/keys?topic=orders&limit=5").await.text).expect("JSON");
    assert_eq!(keys[0]["state"], "blocked");
    assert_eq!(
        (&keys[0]["key"], &keys[0]["head"], &keys[0]["depth"]),
        (&json!("a"), &json!(head.to_string()), &json!(1))
    );

    let skip = json!({ "topic": "orders", "key": "a" });
    assert_eq!(post_json(&admin, "/api/keys/actions/skip", skip.clone()).await.text, r#"{"changed":1,"more":false}"#);
    assert_eq!(post_json(&admin, "/api/keys/actions/skip", skip).await.text, r#"{"changed":0,"more":false}"#);
    assert_eq!(get(&admin, "/api/keys?state=odd").await.status, StatusCode::BAD_REQUEST);
}
