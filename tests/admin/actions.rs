//! What the page and the API do to messages, and whom they refuse.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use outboxd_core::{MessageId, State};
use outboxd_store::{MemoryMessage, MemoryStore, MessageFilter, OutboxAdmin as _, Selection};
use serde_json::{Value, json};

use crate::router::{admin, get, post_json, send, submit};

fn put(store: &MemoryStore, topic: &str) -> MessageId {
    let delay = Duration::from_secs(3600);
    store.put(MemoryMessage { topic: topic.into(), payload: b"{}".to_vec(), delay, ..MemoryMessage::default() })
}

async fn dead(store: &MemoryStore, topic: &str) -> MessageId {
    let id = put(store, topic);
    store.discard(&Selection::Ids(vec![id]), 1).await.expect("in memory");
    id
}

async fn state_of(store: &MemoryStore, id: MessageId) -> String {
    store.show(id).await.expect("in memory").expect("is there").summary.state
}

#[tokio::test]
async fn a_form_acts_on_the_chosen_messages_and_leads_back() {
    let store = Arc::new(MemoryStore::default());
    let (first, second, third) =
        (dead(&store, "orders").await, dead(&store, "orders").await, dead(&store, "orders").await);
    let admin = admin(store.clone(), vec![], vec![]);

    let fields = format!("back=%2Fmessages%3Fstate%3Ddead&id={first}&id={second}");
    let answer = submit(&admin, "/do/messages/redrive", &fields).await;

    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    assert_eq!(answer.location, "/messages?state=dead&done=redrive&changed=2&more=false");
    assert_eq!(state_of(&store, first).await, "pending");
    assert_eq!(state_of(&store, second).await, "pending");
    assert_eq!(state_of(&store, third).await, "dead");
    assert!(get(&admin, &answer.location).await.text.contains("Redriven: 2."));
}

#[tokio::test]
async fn a_filter_takes_every_match_and_nothing_else() {
    let store = Arc::new(MemoryStore::default());
    for _ in 0..1100 {
        dead(&store, "orders").await;
    }
    let other = dead(&store, "invoices").await;
    let admin = admin(store.clone(), vec![], vec![]);

    let redriven = post_json(&admin, "/api/messages/actions/redrive", json!({ "topic": "orders" })).await;
    let discarded = post_json(&admin, "/api/messages/actions/discard", json!({ "topic": "orders" })).await;

    assert_eq!(redriven.text, r#"{"changed":1100,"more":false}"#);
    assert_eq!(discarded.text, r#"{"changed":1100,"more":false}"#);
    assert_eq!(state_of(&store, other).await, "dead");
}

#[tokio::test]
async fn a_request_that_names_no_message_changes_nothing() {
    let store = Arc::new(MemoryStore::default());
    let id = dead(&store, "orders").await;
    let admin = admin(store.clone(), vec![], vec![]);

    for (path, body) in [
        ("/api/messages/actions/redrive", json!({})),
        ("/api/messages/actions/redrive", json!({ "ids": ["7"] })),
        ("/api/messages/actions/redrive", json!({ "reason": "no such reason" })),
        ("/api/messages/actions/redrive", json!({ "ids": [id.to_string()], "all": true })),
        ("/api/messages/actions/redrive", json!({ "everything": true })),
    ] {
        let answer = post_json(&admin, path, body.clone()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}: {}", answer.text);
        assert!(error_of(&answer.text).len() > 10, "{}", answer.text);
    }
    assert_eq!(submit(&admin, "/do/messages/redrive", "back=/&topic=&reason=").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(state_of(&store, id).await, "dead");
}

#[tokio::test]
async fn what_the_api_does_not_have_is_an_error_as_json() {
    let admin = admin(Arc::new(MemoryStore::default()), vec![], vec![]);
    let all = json!({ "all": true });

    for answer in [
        get(&admin, "/api/none").await,
        get(&admin, "/api/messages/1/2").await,
        get(&admin, "/api/messages/%ff").await,
        get(&admin, &format!("/api/messages/{}", uuid::Uuid::nil())).await,
        post_json(&admin, "/api/messages/actions/explode", all.clone()).await,
        post_json(&admin, "/api/topics/actions/explode", json!({ "topic": "orders" })).await,
    ] {
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{}", answer.text);
        assert!(!error_of(&answer.text).is_empty());
    }
    assert_eq!(submit(&admin, "/do/messages/explode", "all=true").await.status, StatusCode::NOT_FOUND);
    let elsewhere = Request::get("/api/none").header("host", "evil.example").body(Body::empty()).expect("a request");
    assert_eq!(send(&admin, elsewhere).await.status, StatusCode::FORBIDDEN, "it is guarded as all the rest");
}

/// What an answer of the API says went wrong.
fn error_of(text: &str) -> String {
    let answer: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    answer["error"].as_str().unwrap_or_else(|| panic!("no error: {text}")).to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_request_changes_ten_thousand_at_most_and_says_that_more_may_match() {
    let store = Arc::new(MemoryStore::default());
    let ids: Vec<MessageId> = (0..10_001).map(|_| put(&store, "orders")).collect();
    let admin = admin(store.clone(), vec![], vec![]);
    let all = json!({ "topic": "orders" });
    let due_at = async |id| store.show(id).await.expect("in memory").expect("is there").summary.available_at_ms;

    for (action, notice) in [
        ("retry-now", "Due now: 10000. More may match: do it again."),
        ("discard", "Discarded: 10000. They are dead letters now. More may match: do it again."),
        ("redrive", "Redriven: 10000. They go round again, 100 a second. More may match: do it again."),
    ] {
        let first = submit(&admin, &format!("/do/messages/{action}"), "topic=orders&back=/messages").await;
        assert!(get(&admin, &first.location).await.text.contains(notice), "{}", first.location);
        if action == "redrive" {
            assert_eq!(due_at(ids[9_999]).await - due_at(ids[0]).await, 99_990, "they are spread, 100 a second");
        }
        let second = post_json(&admin, &format!("/api/messages/actions/{action}"), all.clone()).await;
        assert_eq!(second.text, r#"{"changed":1,"more":false}"#, "{action}");
    }
}

#[tokio::test]
async fn what_is_due_already_is_not_retried_again() {
    let store = Arc::new(MemoryStore::default());
    let overdue =
        store.put(MemoryMessage { topic: "orders".into(), payload: b"{}".to_vec(), ..MemoryMessage::default() });
    store.advance(Duration::from_secs(600));
    let waiting = put(&store, "orders");
    let admin = admin(store.clone(), vec![], vec![]);

    let by_filter = post_json(&admin, "/api/messages/actions/retry-now", json!({ "all": true })).await;
    let ids = json!({ "ids": [overdue.to_string(), waiting.to_string()] });
    let by_id = post_json(&admin, "/api/messages/actions/retry-now", ids).await;

    assert_eq!(by_filter.text, r#"{"changed":1,"more":false}"#);
    assert_eq!(by_id.text, r#"{"changed":2,"more":false}"#);
    let waited = store.stats().await.expect("in memory")[0].oldest_due_ms;
    assert!(waited >= Some(600_000), "how late it is stays to be seen: {waited:?}");
}

#[tokio::test]
async fn a_message_can_be_retried_now_and_discarded() {
    let store = Arc::new(MemoryStore::default());
    let id = put(&store, "orders");
    let admin = admin(store.clone(), vec![], vec![]);
    let due_at = store.show(id).await.expect("in memory").expect("is there").summary.available_at_ms;

    submit(&admin, "/do/messages/retry-now", &format!("id={id}")).await;
    let message = store.show(id).await.expect("in memory").expect("is there").summary;
    assert!(message.available_at_ms < due_at - 3_000_000, "it was due in an hour");

    let answer = submit(&admin, "/do/messages/discard", &format!("id={id}&back=/messages/{id}")).await;
    assert_eq!(state_of(&store, id).await, "dead");
    assert!(get(&admin, &answer.location).await.text.contains("discarded by a person"));
}

#[tokio::test]
async fn a_pause_is_shown_at_once_and_ends() {
    let store = Arc::new(MemoryStore::default());
    put(&store, "orders");
    let admin = admin(store.clone(), store.stats().await.expect("in memory"), vec![]);

    submit(&admin, "/do/topics/pause", "topic=orders&back=/").await;
    assert!(store.stats().await.expect("in memory")[0].paused);
    assert!(get(&admin, "/").await.text.contains("Paused: "));

    post_json(&admin, "/api/topics/actions/resume", json!({ "topic": "orders" })).await;
    assert!(!store.stats().await.expect("in memory")[0].paused);
    assert!(!get(&admin, "/").await.text.contains("Paused: "));
}

#[tokio::test]
async fn pages_of_a_list_show_each_message_once() {
    let store = Arc::new(MemoryStore::default());
    let ids: Vec<String> = (0..120).map(|_| put(&store, "orders").to_string()).collect();
    let admin = admin(store.clone(), vec![], vec![]);

    let mut next = Some("/messages?topic=orders".to_owned());
    let (mut seen, mut pages) = (Vec::new(), 0);
    while let Some(path) = next.filter(|_| pages < 10) {
        let page = scraper::Html::parse_document(&get(&admin, &path).await.text);
        let attributes = |css: &str, name: &str| -> Vec<String> {
            let selector = scraper::Selector::parse(css).expect("a selector");
            page.select(&selector).map(|element| element.attr(name).expect("it has one").to_owned()).collect()
        };
        seen.extend(attributes("input[name=id]", "value"));
        next = attributes("a[rel=next]", "href").pop();
        pages += 1;
    }

    seen.reverse();
    assert_eq!((seen, pages), (ids, 3));
}

#[tokio::test]
async fn stats_say_what_is_unrouted_and_parked() {
    let store = Arc::new(MemoryStore::default());
    put(&store, "orders");
    let admin = admin(store.clone(), store.stats().await.expect("in memory"), vec![]);

    let stats: Value = serde_json::from_str(&get(&admin, "/api/stats").await.text).expect("JSON");

    assert_eq!(stats[0]["topic"], "orders");
    assert_eq!(stats[0]["pending"], 1);
    assert_eq!(stats[0]["unrouted"], true);
    assert_eq!(stats[0]["parked"], false);
}

#[tokio::test]
async fn the_api_lists_and_shows_as_the_command_line_does() {
    let store = Arc::new(MemoryStore::default());
    let id = dead(&store, "orders").await;
    put(&store, "orders");
    let admin = admin(store.clone(), vec![], vec![]);

    let list: Value = serde_json::from_str(&get(&admin, "/api/messages?state=dead").await.text).expect("JSON");
    let shown: Value = serde_json::from_str(&get(&admin, &format!("/api/messages/{id}")).await.text).expect("JSON");

    let filter = MessageFilter { state: Some(State::Dead), ..MessageFilter::default() };
    assert_eq!(list, json!(store.list(&filter, None, 10).await.expect("in memory")));
    assert_eq!(shown, json!(store.show(id).await.expect("in memory")));
    assert_eq!(get(&admin, "/api/messages?state=deaf").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(get(&admin, &format!("/api/messages/{}", uuid::Uuid::nil())).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_listing_of_the_api_has_a_thousand_messages_at_most() {
    let store = Arc::new(MemoryStore::default());
    for _ in 0..1001 {
        put(&store, "orders");
    }
    let admin = admin(store, vec![], vec![]);

    for (query, expected) in [("", 100), ("?limit=7", 7), ("?limit=5000", 1000)] {
        let list: Value =
            serde_json::from_str(&get(&admin, &format!("/api/messages{query}")).await.text).expect("JSON");
        assert_eq!(list.as_array().map(Vec::len), Some(expected), "{query}");
    }
}

#[tokio::test]
async fn what_another_site_sends_changes_nothing() {
    let store = Arc::new(MemoryStore::default());
    let id = dead(&store, "orders").await;
    let admin = admin(store.clone(), vec![], vec![]);
    let form = "application/x-www-form-urlencoded";
    let own = ("host", "127.0.0.1:8787");

    for headers in [
        vec![own, ("origin", "http://evil.example")],
        vec![own, ("origin", "null")],
        vec![own, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")],
        vec![own, ("sec-fetch-site", "same-site"), ("origin", "http://127.0.0.1:9000")],
        vec![("host", "evil.example:8787"), ("origin", "http://evil.example:8787"), ("sec-fetch-site", "same-origin")],
    ] {
        let request = headers
            .iter()
            .fold(Request::post("/do/messages/redrive").header("content-type", form), |request, (name, value)| {
                request.header(*name, *value)
            });
        let answer = send(&admin, request.body(Body::from(format!("id={id}"))).expect("a request")).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{headers:?}");
    }
    // A form that hides where it comes from, and a form sent to the API.
    let bare = |path: &str| Request::post(path).header("host", own.1).header("content-type", form);
    let fields = Body::from(format!("id={id}"));
    let hidden = send(&admin, bare("/do/messages/redrive").body(fields).expect("a request")).await;
    let simple = send(&admin, bare("/api/messages/actions/redrive").body(Body::from("{}")).expect("a request")).await;
    assert_eq!((hidden.status, simple.status), (StatusCode::BAD_REQUEST, StatusCode::BAD_REQUEST));
    assert_eq!(state_of(&store, id).await, "dead");
}

#[tokio::test]
async fn a_form_never_leads_to_another_site() {
    let admin = admin(Arc::new(MemoryStore::default()), vec![], vec![]);

    for back in
        ["//evil.example", "https://evil.example/", "/%5Cevil.example", "%2F%2Fevil.example", "/a%0D%0Ax:+y", ""]
    {
        let answer = submit(&admin, "/do/topics/pause", &format!("topic=a&back={back}")).await;
        assert!(answer.location.starts_with("/?done=pause"), "{back:?} leads to {:?}", answer.location);
    }
}

#[tokio::test]
async fn wrong_paths_and_methods_are_refused() {
    let admin = admin(Arc::new(MemoryStore::default()), vec![], vec![]);

    for path in ["/assets/../Cargo.toml", "/assets/%2e%2e%2fCargo.toml", "/api/none", "/messages/1/2"] {
        assert_eq!(get(&admin, path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    for path in ["/do/messages/redrive", "/do/topics/pause", "/api/messages/actions/redrive"] {
        assert_eq!(get(&admin, path).await.status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
    }
    assert_eq!(submit(&admin, "/", "").await.status, StatusCode::METHOD_NOT_ALLOWED);
    let large = "a".repeat(300 << 10);
    assert_ne!(submit(&admin, "/do/topics/pause", &format!("topic={large}")).await.status, StatusCode::SEE_OTHER);
}
