//! Who may claim how much: the relay's slots, shared among plugins, and each plugin's among its due topics.

use std::time::Duration;

use outboxd_core::{Admission, Lane, Order};
use outboxd_store::DueTopic;

use crate::handler::{Handlers, Route};
use crate::slots::{PluginUsage, Usage};

/// How far a claim may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Any message, but no more of a plugin than it runs at once.
    Careful,
    /// As far ahead as each plugin's pace allows, and only messages that never lost a lease.
    Ahead,
}

/// What to claim.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    pub lanes: Vec<Lane>,
    /// Some of it has to wait for its turn.
    pub ahead: bool,
    /// How long until more may be claimed of what is due and has to wait for its plugin's rate alone.
    pub until_allowed: Option<Duration>,
}

/// Shares the free slots, at most `claims_max`, among the due topics: first among plugins, in the order of their oldest due
/// topic, then among each plugin's topics, oldest due first.
///
/// A plugin gets at most its own concurrency, and one slot is kept back for each plugin that uses none, so that hung calls
/// of some cannot starve the rest. A parked plugin gets nothing, one on trial a single slot. A plugin whose calls have every
/// slot they may have gets what it may hold ahead, one that has a rate no more than that leaves. Where `claims_max` is zero
/// nothing is claimed: too many results wait to be written.
pub fn plan(due: &[DueTopic], handlers: &dyn Handlers, usage: &Usage, claims_max: usize, reach: Reach) -> Plan {
    let mut plan = Plan { lanes: Vec::new(), ahead: false, until_allowed: None };
    if claims_max == 0 {
        return plan;
    }
    let mut wanting: Vec<Wanting> = Vec::new();
    for topic in due {
        let Some(route) = handlers.route(&topic.topic) else { continue };
        match wanting.iter_mut().find(|wanting| wanting.route.plugin == route.plugin) {
            Some(wanting) => wanting.topics.push(&topic.topic),
            None => {
                if !route.is_parked() {
                    plan.until_allowed = plan.until_allowed.into_iter().chain(usage.until_allowed(&route)).min();
                }
                let (usage, allowed) = (usage.of(&route.plugin), usage.allowed(&route));
                let room = match route.admission {
                    Admission::Open => route.concurrency.saturating_sub(usage.held),
                    Admission::Trial => 1usize.saturating_sub(usage.held),
                    Admission::Parked { .. } => 0,
                };
                let room = room.min(allowed);
                wanting.push(Wanting { route, usage, room, topics: vec![&topic.topic] });
            }
        }
    }

    let (mut free, mut room_ahead) = (usage.free().min(claims_max), usage.room_ahead());
    let mut kept_back = handlers.plugins().saturating_sub(usage.plugins());
    for wanting in wanting {
        let first = wanting.usage.held == 0;
        if first {
            kept_back = kept_back.saturating_sub(1);
        }
        let least = usize::from(first).min(free);
        let granted = wanting.room.min(free.saturating_sub(kept_back).max(least));
        free -= granted;
        let ahead = wanting.ahead(granted, reach).min(room_ahead);
        room_ahead -= ahead;
        plan.ahead |= ahead > 0;
        plan.lanes.extend(share(granted + ahead, &wanting.topics, wanting.route.order));
    }
    plan
}

struct Wanting<'a> {
    route: Route,
    usage: PluginUsage,
    room: usize,
    topics: Vec<&'a str>,
}

impl Wanting<'_> {
    fn ahead(&self, granted: usize, reach: Reach) -> usize {
        // What waits for its turn would begin later than its rate counted it.
        if self.route.is_parked() || self.route.rate.is_some() {
            return 0;
        }
        let ahead = self.usage.room_ahead(granted, self.route.concurrency);
        match reach {
            Reach::Ahead => ahead,
            Reach::Careful => ahead.min(self.route.concurrency - granted),
        }
    }
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
    use std::sync::Arc;
    use std::time::Instant;

    use async_trait::async_trait;
    use outboxd_core::{Claim, Outcome, Rate, RetryPolicy};

    use super::*;
    use crate::handler::{CallControl, Handled, Handler};
    use crate::slots::{PluginUsage, Slots, Ticket, Usage};

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
        rate: Option<Rate>,
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
                spacing: Duration::ZERO,
                rate: self.rate,
                admission: self.admission,
            })
        }

        fn plugins(&self) -> usize {
            self.count
        }
    }

    fn open(concurrency: usize, count: usize) -> Plugins {
        Plugins { concurrency, count, admission: Admission::Open, rate: None }
    }

    fn take(slots: &Arc<Slots>, plugin: &str, concurrency: usize) -> Ticket {
        slots.take(&open(concurrency, 1).route(plugin).expect("a route"), 100)
    }

    fn due(topics: &[&str]) -> Vec<DueTopic> {
        topics.iter().map(|topic| DueTopic { topic: (*topic).into(), oldest_due: Duration::ZERO }).collect()
    }

    fn planned(topics: &[&str], plugins: &Plugins, slots: &Arc<Slots>) -> Vec<(String, u32)> {
        let plan = plan(&due(topics), plugins, &slots.usage(), usize::MAX, Reach::Ahead);
        plan.lanes.into_iter().map(|lane| (lane.topic, lane.slots)).collect()
    }

    fn until_allowed(topics: &[&str], plugins: &Plugins, slots: &Arc<Slots>) -> Option<Duration> {
        plan(&due(topics), plugins, &slots.usage(), usize::MAX, Reach::Ahead).until_allowed
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
        let _held: Vec<Ticket> = (0..3).map(|_| take(&slots, "hung", 64)).collect();

        assert_eq!(planned(&["hung.a", "shop.a"], &open(64, 9), &slots), [("shop.a".into(), 1)]);
    }

    #[test]
    fn nothing_is_planned_when_every_slot_is_used() {
        let slots = Slots::new(2);
        let _held: Vec<Ticket> = (0..2).map(|_| take(&slots, "shop", 64)).collect();

        assert_eq!(planned(&["shop.a"], &open(64, 1), &slots), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quick_plugin_gets_more_than_its_slots_where_no_care_is_needed() {
        let slots = Slots::new(64);
        let mut held: Vec<Ticket> = (0..116).map(|_| take(&slots, "quick", 16)).collect();
        held.truncate(16);
        tokio::time::advance(std::time::Duration::from_millis(50)).await;
        let planned = |reach| plan(&due(&["quick.a"]), &open(16, 1), &slots.usage(), usize::MAX, reach);
        let lanes = |slots| vec![Lane { topic: "quick.a".into(), slots, order: Order::None }];

        assert_eq!(planned(Reach::Ahead), Plan { lanes: lanes(100), ahead: true, until_allowed: None });
        assert_eq!(planned(Reach::Careful), Plan { lanes: lanes(16), ahead: true, until_allowed: None });
    }

    #[test]
    fn a_parked_plugin_gets_nothing_and_one_on_trial_a_single_slot() {
        let until = Instant::now() + Duration::from_secs(5);
        let parked = Plugins { admission: Admission::Parked { until }, ..open(16, 1) };
        let trial = Plugins { admission: Admission::Trial, ..open(16, 1) };
        let slots = Slots::new(64);

        assert_eq!(planned(&["shop.a"], &parked, &slots), []);
        assert_eq!(planned(&["shop.a", "shop.b"], &trial, &slots), [("shop.a".into(), 1)]);

        let _trying = take(&slots, "shop", 16);
        assert_eq!(planned(&["shop.a"], &trial, &slots), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_with_a_rate_gets_no_more_calls_than_that_leaves() {
        let slots = Slots::new(64);
        let rated = Plugins { rate: Rate::per_second(30.0), ..open(16, 1) };
        assert_eq!(planned(&["shop.a"], &rated, &slots), [("shop.a".into(), 3)]);

        let begin = || slots.take(&rated.route("shop").expect("a route"), 100);
        let _begun = [begin(), begin(), begin()];
        assert_eq!(planned(&["shop.a"], &rated, &slots), []);
        assert_eq!(until_allowed(&["shop.a"], &rated, &slots), Some(Duration::from_millis(34)));
        tokio::time::advance(Duration::from_millis(34)).await;

        assert_eq!(planned(&["shop.a"], &rated, &slots), [("shop.a".into(), 1)]);
        assert_eq!(until_allowed(&["shop.a"], &rated, &slots), None);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_the_rate_of_a_plugin_that_has_nothing_due_or_is_parked() {
        let slots = Slots::new(64);
        let rated = Plugins { rate: Rate::per_second(1.0), ..open(16, 1) };
        let parked = Plugins { admission: Admission::Parked { until: Instant::now() }, ..rated };
        let _begun = slots.take(&rated.route("shop").expect("a route"), 100);

        assert_eq!(until_allowed(&["mail.a"], &rated, &slots), None);
        assert_eq!(until_allowed(&["shop.a"], &parked, &slots), None);
        assert_eq!(until_allowed(&["shop.a"], &rated, &slots), Some(Duration::from_secs(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_corrected_rate_holds_at_once_and_not_when_the_old_one_lets_the_next_call_go() {
        let slots = Slots::new(64);
        let rated = |calls| Plugins { rate: Rate::per_second(calls), ..open(16, 1) };
        let _begun = slots.take(&rated(1.0 / 3600.0).route("shop").expect("a route"), 100);
        assert_eq!(planned(&["shop.a"], &rated(1.0 / 3600.0), &slots), []);

        assert_eq!(planned(&["shop.a"], &rated(30.0), &slots), [("shop.a".into(), 3)]);
        assert_eq!(until_allowed(&["shop.a"], &rated(30.0), &slots), None);
    }

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];

    proptest::proptest! {
        /// Each plugin holds some messages already and may hold some ahead.
        #[test]
        fn never_more_than_the_free_slots_nor_than_a_plugin_may_hold(
            topics in proptest::collection::vec("[a-d]\\.[a-z]", 0..20),
            held in proptest::array::uniform4(0usize..60),
            ahead in proptest::array::uniform4(proptest::prop_oneof![proptest::strategy::Just(0usize), 1usize..600]),
            total in 0usize..40, concurrency in 0usize..20, count in 0usize..6, claims_max in 0usize..50,
            reach in proptest::sample::select(vec![Reach::Careful, Reach::Ahead]),
        ) {
            let plugins: Vec<_> = NAMES
                .into_iter()
                .zip(held.into_iter().zip(ahead))
                .map(|(name, (held, ahead))| (name, PluginUsage { held, running: held.min(concurrency), ahead }))
                .collect();
            let usage = Usage::new(total, plugins.iter().filter(|(_, of)| of.held > 0).map(|(name, of)| ((*name).into(), *of)).collect());
            let mut topics: Vec<&str> = topics.iter().map(String::as_str).collect();
            topics.sort_unstable();
            topics.dedup();

            let plan = plan(&due(&topics), &open(concurrency, count), &usage, claims_max, reach);

            let (mut starts, mut waits) = (0, 0);
            for (name, of) in &plugins {
                let lanes = plan.lanes.iter().filter(|lane| lane.topic.starts_with(name));
                let claimed: usize = lanes.map(|lane| lane.slots as usize).sum();
                let granted = claimed.min(concurrency.saturating_sub(of.held));
                (starts, waits) = (starts + granted, waits + claimed - granted);
                let may_hold = concurrency + usage.of(name).ahead;
                proptest::prop_assert!(claimed == 0 || of.held + claimed <= may_hold);
                proptest::prop_assert!(reach == Reach::Ahead || claimed <= concurrency);
            }
            proptest::prop_assert!(starts <= usage.free().min(claims_max));
            proptest::prop_assert!(waits <= usage.room_ahead());
            proptest::prop_assert_eq!(plan.ahead, waits > 0);
            proptest::prop_assert!(claims_max > 0 || plan.lanes.is_empty());
        }
    }
}
