//! Hostile text in every place that a producer, a target or a plugin's author can write to, read back by an HTML parser.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outboxd::admin::Admin;
use outboxd::metrics::Failure;
use outboxd::plugin::PluginInfo;
use outboxd_core::MessageId;
use outboxd_store::{
    Changed, Finished, HistoryEntry, KeyFilter, KeySummary, MessageDetail, MessageFilter, MessageSummary, OutboxAdmin,
    Selection, SpacedTopic, StoreError, TopicStats,
};
use scraper::Html;
use uuid::Uuid;

use crate::router::{admin, get};

const CORPUS: &str = include_str!("xss_corpus.txt");
const FIELDS: [&str; 8] = ["topic", "key", "payload", "header name", "header value", "error", "reason", "plugin name"];

const HARMLESS: &str = "harmless";

/// A store whose one message holds `text` in one field. Nothing else could put some of these there but a person's SQL.
#[derive(Clone)]
struct Hostile {
    field: &'static str,
    text: String,
}

impl Hostile {
    fn at(&self, field: &str) -> String {
        if self.field == field { self.text.clone() } else { HARMLESS.into() }
    }

    fn summary(&self) -> MessageSummary {
        MessageSummary {
            id: Uuid::nil().to_string(),
            topic: self.at("topic"),
            key: Some(self.at("key")),
            state: "dead".into(),
            attempts: 1,
            lapses: 0,
            reason: Some(self.at("reason")),
            last_error: Some(self.at("error")),
            created_at_ms: 0,
            available_at_ms: 0,
            expires_at_ms: None,
            delivered_at_ms: None,
            dead_at_ms: Some(0),
        }
    }

    fn admin(&self) -> Admin {
        let stats = TopicStats {
            dead: 1,
            pending: 1,
            blocked_keys: 1,
            last_error: Some(self.at("error")),
            ..TopicStats::default()
        };
        let plugin = PluginInfo {
            name: self.at("plugin name"),
            file: self.at("plugin name"),
            digest: Some(self.at("plugin name")),
            previous: None,
            topics: vec![self.at("topic")],
            hosts: vec![],
            private_networks: vec![],
            tcp: vec![],
            secrets: vec![],
            limits: None,
            state: "bad",
            canary: None,
            error: Some(self.at("error")),
            loaded_at_ms: None,
            calls: 0,
            faults: 0,
            last_error: Some(self.at("error")),
        };
        let admin = admin(Arc::new(self.clone()), vec![TopicStats { topic: self.at("topic"), ..stats }], vec![plugin]);
        let failure = Failure {
            at_ms: 0,
            id: Uuid::nil().to_string(),
            topic: self.at("topic"),
            reason: self.at("reason"),
            error: self.at("error"),
        };
        admin.recent.failed(&self.at("topic").into(), failure);
        admin
    }
}

#[async_trait]
impl OutboxAdmin for Hostile {
    async fn list(&self, _: &MessageFilter, _: Option<MessageId>, _: u32) -> Result<Vec<MessageSummary>, StoreError> {
        Ok(vec![self.summary()])
    }

    async fn show(&self, _: MessageId) -> Result<Option<MessageDetail>, StoreError> {
        let entry = HistoryEntry {
            at_ms: 0,
            attempt: 1,
            took_ms: 1,
            result: "dead".into(),
            reason: Some(self.at("reason")),
            error: Some(self.at("error")),
            http_status: Some(500),
            response: Some(self.at("error")),
            digest: Some(self.at("plugin name")),
        };
        Ok(Some(MessageDetail {
            summary: self.summary(),
            dedup_key: Some(self.at("key")),
            headers: serde_json::json!({ (self.at("header name")): self.at("header value") }),
            payload: Some(self.at("payload")),
            payload_bytes: 1,
            history: vec![entry],
        }))
    }

    async fn stats(&self) -> Result<Vec<TopicStats>, StoreError> {
        Ok(vec![])
    }

    async fn redrive(&self, _: &Selection, _: u32, _: Duration, _: Duration) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn discard(&self, _: &Selection, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn retry_now(&self, _: &Selection, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn purge(&self, _: Finished, _: Duration, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn pause(&self, _: &str) -> Result<Changed, StoreError> {
        Ok(Changed::No)
    }

    async fn resume(&self, _: &str) -> Result<Changed, StoreError> {
        Ok(Changed::No)
    }

    async fn keys(&self, _: &KeyFilter, _: u32) -> Result<Vec<KeySummary>, StoreError> {
        Ok(vec![KeySummary {
            topic: self.at("topic"),
            key: self.at("key"),
            state: "blocked".into(),
            head: Some(Uuid::nil().to_string()),
            since_ms: 0,
            reason: Some(self.at("reason")),
            error: Some(self.at("error")),
            due_in_ms: None,
            depth: 1,
        }])
    }

    async fn skip_key(&self, _: &str, _: &str) -> Result<Changed, StoreError> {
        Ok(Changed::No)
    }

    async fn resume_key(&self, _: &str, _: &str) -> Result<Changed, StoreError> {
        Ok(Changed::No)
    }

    async fn spaced(&self) -> Result<Vec<SpacedTopic>, StoreError> {
        Ok(vec![])
    }

    async fn ordered_topics(&self) -> Result<Vec<String>, StoreError> {
        Ok(vec![])
    }

    async fn unorder(&self, _: &str, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Elements in their order, with the names of their attributes: all that text could have broken into, and nothing that it says.
fn shape(html: &str) -> Vec<String> {
    let document = Html::parse_document(html);
    let elements = document.root_element().descendent_elements();
    elements
        .map(|element| {
            let mut names: Vec<&str> = element.value().attrs().map(|(name, _)| name).collect();
            names.sort_unstable();
            format!("{} {}", element.value().name(), names.join(" "))
        })
        .collect()
}

/// Every URL that the page offers is a path of its own.
fn urls_are_own(html: &str) -> bool {
    let document = Html::parse_document(html);
    let elements = document.root_element().descendent_elements();
    let mut urls = elements.flat_map(|element| {
        let attributes: Vec<(&str, &str)> = element.value().attrs().collect();
        attributes.into_iter().filter(|(name, _)| ["href", "src", "action", "formaction"].contains(name))
    });
    urls.all(|(_, url)| url.starts_with('#') || (url.starts_with('/') && !url.starts_with("//")))
}

#[tokio::test]
async fn hostile_text_adds_no_element_and_no_attribute_wherever_it_stands() {
    let corpus: Vec<&str> = CORPUS.lines().collect();
    assert_eq!(corpus.len(), 60);
    let message = format!("/messages/{}", Uuid::nil());
    let pages = ["/", "/messages?state=dead", "/keys", &message];
    let plain = Hostile { field: "none", text: String::new() }.admin();
    for path in pages {
        let expected = get(&plain, path).await;
        assert!(expected.policy.contains("default-src 'none'") && !expected.policy.contains("unsafe"));
        let expected = shape(&expected.text);
        assert!(expected.len() > 10, "{path} shows something");

        for field in FIELDS {
            for text in &corpus {
                let answer = get(&Hostile { field, text: (*text).to_owned() }.admin(), path).await;

                assert_eq!(answer.status, 200, "{path}");
                assert_eq!(shape(&answer.text), expected, "{text} as {field} on {path}");
                assert!(urls_are_own(&answer.text), "{text} as {field} on {path}");
            }
        }
    }
}

#[tokio::test]
async fn each_field_is_shown_somewhere() {
    let message = format!("/messages/{}", Uuid::nil());
    for field in FIELDS {
        let admin = Hostile { field, text: "<b>seen</b>".into() }.admin();
        let mut shown = String::new();
        for path in ["/", "/messages", &message] {
            shown += &get(&admin, path).await.text;
        }

        assert!(shown.contains("&lt;b&gt;seen&lt;/b&gt;"), "{field} is shown nowhere");
    }
}

#[tokio::test]
async fn hostile_text_in_the_url_is_inert_too() {
    let plain = Hostile { field: "none", text: String::new() }.admin();
    let expected = shape(&get(&plain, "/messages?topic=a").await.text);
    for text in CORPUS.lines() {
        let escaped: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();

        let filtered = get(&plain, &format!("/messages?topic={escaped}")).await;
        assert_eq!(shape(&filtered.text), expected, "{text}");
        assert!(urls_are_own(&filtered.text), "{text}");
        for path in [format!("/messages?state={escaped}"), format!("/messages/{escaped}"), format!("/?done={escaped}")]
        {
            let refused = get(&plain, &path).await;
            assert!(refused.status.is_client_error(), "{path}");
            assert!(!refused.text.contains("<script>") && !refused.text.contains("<img"), "{path}: {}", refused.text);
        }
    }
}
