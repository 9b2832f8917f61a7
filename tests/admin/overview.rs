//! What the overview shows first, and why a topic waits.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outboxd::handler::{CallControl, Handled, Handler, Handlers, Route};
use outboxd_core::{Admission, Claim, Outcome};
use outboxd_store::{MemoryStore, TopicStats};
use serde_json::Value;

use crate::router::{admin, get};

/// Handles every topic but `unrouted`; `parked` is parked.
struct OneParked;

impl Handlers for OneParked {
    fn route(&self, topic: &str) -> Option<Route> {
        let admission = match topic {
            "unrouted" => return None,
            "parked" => Admission::Parked { until: std::time::Instant::now() + Duration::from_secs(60) },
            _ => Admission::Open,
        };
        let (handler, policy) = (Arc::new(Succeeds), Arc::default());
        Some(Route { plugin: topic.into(), handler, policy, concurrency: 1, admission })
    }

    fn plugins(&self) -> usize {
        1
    }
}

struct Succeeds;

#[async_trait]
impl Handler for Succeeds {
    async fn handle(&self, _: &Claim, _: CallControl) -> Handled {
        Handled::new(Outcome::Success)
    }
}

#[tokio::test]
async fn topics_that_wait_for_a_person_come_first() {
    let topic = |topic: &str| TopicStats { topic: topic.into(), held: 1, ..TopicStats::default() };
    let topics = vec![
        topic("calm"),
        TopicStats { oldest_due_ms: Some(60_000), ..topic("late") },
        TopicStats { dead: 3, ..topic("with dead letters") },
        TopicStats { oldest_due_ms: Some(10), paused: true, ..topic("paused") },
        TopicStats { oldest_due_ms: Some(20), ..topic("unrouted") },
        TopicStats { oldest_due_ms: Some(30), ..topic("parked") },
    ];
    let mut admin = admin(Arc::new(MemoryStore::default()), topics, vec![]);
    admin.handlers = Arc::new(OneParked);

    let page = get(&admin, "/").await.text;
    let shown = scraper::Html::parse_document(&page);
    let heads = scraper::Selector::parse("#live-topics h3").expect("a selector");
    let order: Vec<String> = shown.select(&heads).map(|head| head.text().collect()).collect();

    assert_eq!(order, ["parked", "unrouted", "paused", "with dead letters", "late", "calm"]);
    for why in ["Parked: its plugin is unhealthy.", "Unrouted: no plugin of this relay handles it.", "Paused: "] {
        assert_eq!(page.matches(why).count(), 1, "{why}");
    }
    let stats: Value = serde_json::from_str(&get(&admin, "/api/stats").await.text).expect("JSON");
    let parked: Vec<&Value> =
        stats.as_array().expect("a list").iter().filter(|stats| stats["parked"] == true).collect();
    assert_eq!(parked.len(), 1);
    assert_eq!(parked[0]["topic"], "parked");
}
