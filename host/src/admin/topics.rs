//! A topic as this relay sees it: the database's numbers, and whether they move.

use std::cmp::Reverse;

use outboxd_store::TopicStats;
use serde::Serialize;

use super::Admin;
use crate::handler::{Handlers, Route};

/// A topic's numbers, and why its messages may be waiting.
#[derive(Clone, Debug, Serialize)]
pub struct Topic {
    #[serde(flatten)]
    pub stats: TopicStats,
    /// No plugin of this relay handles it: its messages wait and spend no attempt.
    pub unrouted: bool,
    /// Its plugin is unhealthy on this relay: its messages wait, but for trials.
    pub parked: bool,
}

impl Topic {
    fn new(stats: TopicStats, handlers: &dyn Handlers) -> Self {
        let route = handlers.route(&stats.topic);
        let parked = route.as_ref().is_some_and(Route::is_parked);
        Topic { unrouted: route.is_none(), parked, stats }
    }

    /// Its messages wait for a person.
    pub fn is_stuck(&self) -> bool {
        self.parked || self.stats.paused || self.stats.blocked_keys > 0 || (self.unrouted && self.stats.live() > 0)
    }
}

/// Every topic by name, as counted last.
pub fn by_name(admin: &Admin) -> Vec<Topic> {
    let snapshot = admin.snapshot.load();
    snapshot.topics.iter().map(|stats| Topic::new(stats.clone(), &*admin.handlers)).collect()
}

/// Every topic, those first that need a person most: stuck ones, then dead letters, then the longest wait.
pub fn by_need(admin: &Admin) -> Vec<Topic> {
    let mut topics = by_name(admin);
    topics.sort_by_key(|topic| Reverse((topic.is_stuck(), topic.stats.dead > 0, topic.stats.oldest_due_ms)));
    topics
}
