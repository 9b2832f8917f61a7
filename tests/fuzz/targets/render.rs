use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use outboxd::cli::{story, without_password};
use outboxd_core::{AttemptRecord, LeaseStatus, MessageId, Reason, Settlement, Transition, one_line, safe_text};
use outboxd_core::{Claim, Lane, OnDead, Order};
use outboxd_store::{Hold, MemoryMessage, MemoryStore, OutboxAdmin as _, OutboxStore as _};
use scraper::Html;
use tower::ServiceExt as _;

use super::router::admin;
use crate::wait;

/// A text that stands in every place that an outsider can write to.
pub fn try_one(text: &str) {
    let (safe, line) = (safe_text(text, 40), one_line(text, 20));
    assert!(safe.len() <= 40 && !drives_a_terminal(&safe), "{safe:?}");
    assert!(line.chars().count() <= 20 && !drives_a_terminal(&line) && !line.contains(['\n', '\t']), "{line:?}");
    let shown = without_password(&format!("postgres://user:canary{}@host/{text}", text.replace(['@', '/'], "")));
    assert!(!shown.contains("canary") || text.contains("canary"), "{shown:?}");

    static HARMLESS: LazyLock<Vec<String>> = LazyLock::new(|| wait(shown_of("harmless")).shapes);
    let hostile = wait(shown_of(text));
    assert_eq!(hostile.shapes, *HARMLESS, "{text:?} breaks out of its place");
    assert!(!drives_a_terminal(&hostile.story), "{:?}", hostile.story);
}

fn drives_a_terminal(text: &str) -> bool {
    text.chars().any(|char| char.is_control() && char != '\n' && char != '\t')
}

struct Shown {
    shapes: Vec<String>,
    story: String,
}

/// What pages and the command line make of a message in which `text` stands everywhere.
async fn shown_of(text: &str) -> Shown {
    let store = Arc::new(MemoryStore::default());
    let id = store.put(MemoryMessage {
        topic: text.into(),
        key: Some(text.into()),
        payload: text.into(),
        headers: [(text.to_owned(), text.to_owned())].into(),
        ..MemoryMessage::default()
    });
    fail(&store, id, text).await;
    let message = store.show(id).await.expect("the memory store answers").expect("it is there");
    let admin = admin(store);
    let mut shapes = Vec::new();
    for path in ["/", "/messages?state=dead", "/keys", &format!("/messages/{}", id.0)] {
        let request = Request::get(path).header("host", "127.0.0.1:8787").body(Body::empty()).expect("a request");
        let response = outboxd::admin::router(admin.clone()).oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), 200, "{path}");
        let body = to_bytes(response.into_body(), 16 << 20).await.expect("a body");
        shapes.push(shape(&String::from_utf8_lossy(&body)));
    }
    Shown { shapes, story: story(&message) }
}

/// The message dies of an error that says `text`, and blocks its key.
async fn fail(store: &MemoryStore, id: MessageId, text: &str) {
    let order = Order::ByKey { on_dead: OnDead::Block };
    let lanes = [Lane { topic: text.into(), slots: 1, order }];
    store.arrange(&lanes, Hold::All).await.expect("the memory store answers");
    let claims = store.claim(&lanes, Duration::from_secs(9), 3).await.expect("the memory store answers");
    let [Claim { lease_id, attempt, .. }] = &claims[..] else { panic!("{} claims", claims.len()) };
    let record = AttemptRecord {
        attempt: *attempt,
        took: Duration::ZERO,
        http_status: Some(500),
        response_excerpt: Some(text.into()),
        digest: Some(text.into()),
    };
    let transition = Transition::Dead { reason: Reason::Trap, error: text.into() };
    let settlement = Settlement { id, lease_id: *lease_id, transition, order, rest: Default::default(), record };
    let settled = store.settle(&[settlement]).await.expect("the memory store answers");
    assert_eq!(settled, [LeaseStatus::Held]);
}

/// Elements in their order, with the names of their attributes: all that a text could have broken into.
fn shape(html: &str) -> String {
    let document = Html::parse_document(html);
    let shapes = document.root_element().descendent_elements().map(|element| {
        let mut names: Vec<&str> = element.value().attrs().map(|(name, _)| name).collect();
        names.sort_unstable();
        format!("{} {}", element.value().name(), names.join(" "))
    });
    shapes.collect::<Vec<_>>().join("\n")
}
