//! What the overview shows first, and why a topic waits.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outboxd::handler::{CallControl, Handled, Handler, Handlers, Route};
use outboxd::metrics::Snapshot;
use outboxd::plugin::PluginInfo;
use outboxd_core::{Admission, Claim, Order, Outcome};
use outboxd_store::{Listening, MemoryStore, SnapshotHolder, TopicStats};
use serde_json::Value;

use crate::router::{admin, get};

/// Handles every topic but `unrouted`; `parked` is parked.
pub struct OneParked;

impl Handlers for OneParked {
    fn route(&self, topic: &str) -> Option<Route> {
        let admission = match topic {
            "unrouted" => return None,
            "parked" => Admission::Parked { until: std::time::Instant::now() + Duration::from_secs(60) },
            _ => Admission::Open,
        };
        let (handler, policy) = (Arc::new(Succeeds), Arc::default());
        let (order, spacing) = (Order::None, Duration::ZERO);
        Some(Route { plugin: topic.into(), handler, policy, concurrency: 1, order, spacing, rate: None, admission })
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
        TopicStats { oldest_due_ms: Some(5), blocked_keys: 1, ..topic("blocked") },
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

    assert_eq!(order, ["parked", "unrouted", "paused", "blocked", "with dead letters", "late", "calm"]);
    for why in ["Parked: its plugin is unhealthy.", "Unrouted: no plugin of this relay handles it.", "Paused: "] {
        assert_eq!(page.matches(why).count(), 1, "{why}");
    }
    let stats: Value = serde_json::from_str(&get(&admin, "/api/stats").await.text).expect("JSON");
    let parked: Vec<&Value> =
        stats.as_array().expect("a list").iter().filter(|stats| stats["parked"] == true).collect();
    assert_eq!(parked.len(), 1);
    assert_eq!(parked[0]["topic"], "parked");
}

#[tokio::test]
async fn a_plugin_is_shown_with_all_that_it_reaches() {
    let plugin = PluginInfo {
        name: "orders".into(),
        file: "orders.wasm".into(),
        digest: None,
        previous: None,
        topics: vec![],
        hosts: vec!["https://hooks.example.com".into()],
        private_networks: vec!["10.0.0.0/8".into()],
        tcp: vec!["redis.internal:6379".into()],
        secrets: vec!["SHOP_KEY".into()],
        limits: None,
        state: "live",
        canary: None,
        error: None,
        loaded_at_ms: None,
        calls: 0,
        faults: 0,
        last_error: None,
    };

    let page = get(&admin(Arc::new(MemoryStore::default()), vec![], vec![plugin]), "/").await.text;

    let reaches = "https://hooks.example.com, 10.0.0.0/8, tcp://redis.internal:6379, secret SHOP_KEY";
    assert!(page.contains(reaches), "{page}");
}

#[tokio::test]
async fn a_lost_listener_and_who_holds_an_old_snapshot_are_said() {
    let admin = admin(Arc::new(MemoryStore::default()), vec![], vec![]);
    let page_with = async |listening, age_s| {
        let holder = SnapshotHolder {
            holder: "pid 7 (report), idle in transaction".into(),
            age_s: Some(age_s),
            query: Some("select <b>".into()),
        };
        let now = Some(tokio::time::Instant::now());
        let snapshot =
            Snapshot { answered_at: now, counted_at: now, listening, holder: Some(holder), ..Snapshot::default() };
        admin.snapshot.store(Arc::new(snapshot));
        get(&admin, "/").await.text
    };

    let well = page_with(Listening::Yes, 3.0).await;
    let ill = page_with(Listening::Lost, 600.0).await;

    assert!(!well.contains("pid 7") && !well.contains("Notifications"), "{well}");
    assert!(ill.contains("Notifications do not reach this relay"), "{ill}");
    assert!(ill.contains("for 10 min by pid 7 (report), idle in transaction: select &lt;b&gt;"), "{ill}");
}
