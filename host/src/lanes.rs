//! Who may claim how much: the relay's slots, shared among plugins, and each plugin's among its due topics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboxd_core::{Admission, Lane, Order};
use outboxd_store::DueTopic;
use tokio::sync::Notify;

use crate::handler::Handlers;

/// The relay's slots: one is taken for each call under way.
pub struct Slots {
    total: usize,
    used: Mutex<HashMap<Arc<str>, usize>>,
    freed: Notify,
}

/// One slot, given back when dropped.
pub struct Slot {
    slots: Arc<Slots>,
    plugin: Arc<str>,
}

impl Slots {
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Slots { total, used: Mutex::default(), freed: Notify::new() })
    }

    pub fn take(self: &Arc<Self>, plugin: Arc<str>) -> Slot {
        *self.used().entry(plugin.clone()).or_default() += 1;
        Slot { slots: self.clone(), plugin }
    }

    /// Returns when a slot was freed since the last return. May be dropped.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }

    /// How many slots each plugin uses.
    pub fn usage(&self) -> Usage {
        Usage { total: self.total, used: self.used().clone() }
    }

    // The map stays sound if a holder panicked: every change is a single step.
    fn used(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut used = self.slots.used();
        if let Some(count) = used.get_mut(&self.plugin) {
            *count -= 1;
            if *count == 0 {
                used.remove(&self.plugin);
            }
        }
        drop(used);
        self.slots.freed.notify_one();
    }
}

/// A picture of the slots at one moment.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    total: usize,
    used: HashMap<Arc<str>, usize>,
}

impl Usage {
    pub fn is_idle(&self) -> bool {
        self.used.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.free() == 0
    }

    fn of(&self, plugin: &str) -> usize {
        self.used.get(plugin).copied().unwrap_or(0)
    }

    fn free(&self) -> usize {
        self.total.saturating_sub(self.used.values().sum())
    }
}

/// Shares at most `claims_max` free slots among the due topics: first among plugins, in the order of their oldest due
/// topic, then among each plugin's topics, oldest due first.
///
/// A plugin gets at most its own concurrency, and one slot is kept back for each plugin that uses none, so that hung calls
/// of some cannot starve the rest. A parked plugin gets nothing, one on trial a single slot.
pub fn plan(due: &[DueTopic], handlers: &dyn Handlers, usage: &Usage, claims_max: usize) -> Vec<Lane> {
    let mut wanting: Vec<Wanting> = Vec::new();
    for topic in due {
        let Some(route) = handlers.route(&topic.topic) else { continue };
        match wanting.iter_mut().find(|wanting| wanting.plugin == route.plugin) {
            Some(wanting) => wanting.topics.push(&topic.topic),
            None => {
                let used = usage.of(&route.plugin);
                let room = match route.admission {
                    Admission::Open => route.concurrency.saturating_sub(used),
                    Admission::Trial => 1usize.saturating_sub(used),
                    Admission::Parked { .. } => 0,
                };
                wanting.push(Wanting {
                    plugin: route.plugin,
                    used,
                    room,
                    order: route.order,
                    topics: vec![&topic.topic],
                });
            }
        }
    }

    let mut free = usage.free().min(claims_max);
    let mut kept_back = handlers.plugins().saturating_sub(usage.used.len());
    let mut lanes = Vec::new();
    for wanting in wanting {
        let first = wanting.used == 0;
        if first {
            kept_back = kept_back.saturating_sub(1);
        }
        let least = usize::from(first).min(free);
        let granted = wanting.room.min(free.saturating_sub(kept_back).max(least));
        free -= granted;
        lanes.extend(share(granted, &wanting.topics, wanting.order));
    }
    lanes
}

struct Wanting<'a> {
    plugin: Arc<str>,
    used: usize,
    room: usize,
    order: Order,
    topics: Vec<&'a str>,
}

/// Splits `slots` evenly among `topics`; what does not divide goes to the first ones.
fn share<'a>(slots: usize, topics: &'a [&'a str], order: Order) -> impl Iterator<Item = Lane> + 'a {
    let (each, rest) = (slots / topics.len(), slots % topics.len());
    topics.iter().enumerate().filter_map(move |(index, topic)| {
        let slots = each + usize::from(index < rest);
        (slots > 0).then(|| Lane { topic: (*topic).to_owned(), slots: u32::try_from(slots).unwrap_or(u32::MAX), order })
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use async_trait::async_trait;
    use outboxd_core::{Claim, Outcome, RetryPolicy};

    use super::*;
    use crate::handler::{CallControl, Handled, Handler, Route};

    struct Nothing;

    #[async_trait]
    impl Handler for Nothing {
        async fn handle(&self, _: &Claim, _: CallControl) -> Handled {
            Handled::new(Outcome::Success)
        }
    }

    /// A topic's plugin is what stands before its first dot.
    struct Plugins {
        concurrency: usize,
        count: usize,
        admission: Admission,
    }

    impl Handlers for Plugins {
        fn route(&self, topic: &str) -> Option<Route> {
            let plugin = topic.split('.').next()?;
            (plugin != "unrouted").then(|| Route {
                plugin: plugin.into(),
                handler: Arc::new(Nothing),
                policy: Arc::new(RetryPolicy::default()),
                concurrency: self.concurrency,
                order: Order::None,
                admission: self.admission,
            })
        }

        fn plugins(&self) -> usize {
            self.count
        }
    }

    fn open(concurrency: usize, count: usize) -> Plugins {
        Plugins { concurrency, count, admission: Admission::Open }
    }

    fn due(topics: &[&str]) -> Vec<DueTopic> {
        topics.iter().map(|topic| DueTopic { topic: (*topic).into(), oldest_due: Duration::ZERO }).collect()
    }

    fn planned(topics: &[&str], plugins: &Plugins, slots: &Arc<Slots>) -> Vec<(String, u32)> {
        let lanes = plan(&due(topics), plugins, &slots.usage(), usize::MAX);
        lanes.into_iter().map(|lane| (lane.topic, lane.slots)).collect()
    }

    #[test]
    fn a_plugins_slots_are_shared_among_its_due_topics_oldest_first() {
        let lanes = planned(&["shop.a", "shop.b", "shop.c"], &open(16, 1), &Slots::new(64));

        assert_eq!(lanes, [("shop.a".into(), 6), ("shop.b".into(), 5), ("shop.c".into(), 5)]);
    }

    #[test]
    fn a_topic_without_a_plugin_is_not_claimed() {
        assert_eq!(planned(&["unrouted.a"], &open(16, 1), &Slots::new(64)), []);
    }

    #[test]
    fn a_busy_plugin_leaves_a_slot_for_each_idle_one() {
        let lanes = planned(&["busy.a"], &open(64, 4), &Slots::new(8));

        assert_eq!(lanes, [("busy.a".into(), 5)]);
    }

    #[test]
    fn a_plugin_that_uses_no_slot_gets_one_while_any_is_free() {
        let slots = Slots::new(4);
        let _held: Vec<Slot> = (0..3).map(|_| slots.take("hung".into())).collect();

        assert_eq!(planned(&["hung.a", "shop.a"], &open(64, 9), &slots), [("shop.a".into(), 1)]);
    }

    #[test]
    fn nothing_is_planned_when_every_slot_is_used() {
        let slots = Slots::new(2);
        let _held: Vec<Slot> = (0..2).map(|_| slots.take("shop".into())).collect();

        assert_eq!(planned(&["shop.a"], &open(64, 1), &slots), []);
    }

    #[test]
    fn a_parked_plugin_gets_nothing_and_one_on_trial_a_single_slot() {
        let until = Instant::now() + Duration::from_secs(5);
        let parked = Plugins { admission: Admission::Parked { until }, ..open(16, 1) };
        let trial = Plugins { admission: Admission::Trial, ..open(16, 1) };
        let slots = Slots::new(64);

        assert_eq!(planned(&["shop.a"], &parked, &slots), []);
        assert_eq!(planned(&["shop.a", "shop.b"], &trial, &slots), [("shop.a".into(), 1)]);

        let _trying = slots.take("shop".into());
        assert_eq!(planned(&["shop.a"], &trial, &slots), []);
    }

    proptest::proptest! {
        #[test]
        fn never_more_than_the_free_slots_nor_than_a_plugins_own(
            topics in proptest::collection::vec("[a-d]\\.[a-z]", 0..20),
            used in proptest::collection::vec("[a-d]", 0..10),
            total in 0usize..40, concurrency in 0usize..20, count in 0usize..6, claims_max in 0usize..50,
        ) {
            let slots = Slots::new(total);
            let held: Vec<Slot> = used.iter().map(|plugin| slots.take(plugin.as_str().into())).collect();
            let mut topics: Vec<&str> = topics.iter().map(String::as_str).collect();
            topics.dedup();

            let lanes = plan(&due(&topics), &open(concurrency, count), &slots.usage(), claims_max);

            let sum = |prefix: &str| lanes.iter().filter(|lane| lane.topic.starts_with(prefix)).map(|lane| lane.slots as usize).sum::<usize>();
            proptest::prop_assert!(sum("") <= total.saturating_sub(held.len()).min(claims_max));
            for plugin in ["a", "b", "c", "d"] {
                let used = used.iter().filter(|name| *name == plugin).count();
                proptest::prop_assert!(sum(plugin) <= concurrency.saturating_sub(used));
            }
        }
    }
}
