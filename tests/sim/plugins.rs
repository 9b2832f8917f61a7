//! Plugins that do what the dice say, with the real health rules around them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outboxd::handler::{CallControl, Handled, Handler, Handlers, Route};
use outboxd_core::{Admission, Blame, Claim, Health, MessageId, OnDead, Order, Outcome, Reason, RetryPolicy, Target};
use tokio::time::{Instant, sleep};

use crate::faults::{Dice, Link};
use crate::ledger::Ledger;
use crate::policy::POLICY;

/// Calls of one plugin at once.
pub const CONCURRENCY: usize = 3;

/// How many calls of a key of plugin "limit" may be under way at once.
pub const PER_KEY: u32 = 2;
/// The plugin whose calls of a key are spaced, and how far.
pub const PACED: &str = "paced";
pub const SPACING: Duration = Duration::from_millis(400);

/// What every relay of a world has in its plugins folder.
#[derive(Clone)]
pub struct Folder {
    pub dice: Dice,
    pub ledger: Ledger,
    /// While set, the plugin "broken" traps on everything.
    pub broken: Arc<AtomicBool>,
    /// While set, it breaks now and then, amid its work.
    pub breaks: Arc<AtomicBool>,
    /// While set, some messages trap whatever is tried.
    pub stubborn: Arc<AtomicBool>,
    /// The messages that kill the relay they are handed to.
    pub killers: Arc<Mutex<Vec<MessageId>>>,
    /// Whether the plugins "block" and "skip" deliver in order.
    pub ordered: Arc<AtomicBool>,
    /// Whether some targets are down.
    pub down: Arc<AtomicBool>,
    /// The longest of nine calls in ten, and of the tenth.
    pub usual_ms: u64,
    pub slowest_ms: u64,
    pub max_attempts: u32,
}

impl Folder {
    /// The target of key "a" of plugin "limit" is down for a while, now and then.
    fn is_down(&self, claim: &Claim) -> bool {
        self.down.load(Ordering::Relaxed)
            && claim.message.topic.starts_with("limit")
            && claim.message.key.as_deref() == Some("a")
    }

    /// How the messages of a topic's keys follow each other, and what lies between two calls of a key.
    fn order(&self, topic: &str) -> (Order, Duration) {
        let order = match topic.split('.').next().unwrap_or_default() {
            "block" if self.ordered.load(Ordering::Relaxed) => Order::ByKey { on_dead: OnDead::Block },
            "skip" if self.ordered.load(Ordering::Relaxed) => Order::ByKey { on_dead: OnDead::Skip },
            PACED => return (Order::Limited { per_key: 1 }, SPACING),
            "limit" => Order::Limited { per_key: PER_KEY },
            _ => Order::None,
        };
        (order, Duration::ZERO)
    }
}

/// The plugins of one relay: their health is its own.
pub struct Plugins {
    folder: Folder,
    link: Arc<Link>,
    plugins: Vec<(&'static str, Arc<FakePlugin>)>,
}

struct FakePlugin {
    name: &'static str,
    folder: Folder,
    link: Arc<Link>,
    health: Mutex<Health>,
    evidence: Mutex<Evidence>,
}

/// What there is against a plugin: kept a second time, to check its health.
#[derive(Default)]
struct Evidence {
    succeeded: bool,
    faulty: HashSet<MessageId>,
}

impl Evidence {
    fn succeeded(&mut self) {
        *self = Evidence { succeeded: true, faulty: HashSet::new() };
    }
}

impl Plugins {
    pub fn new(folder: Folder, link: Arc<Link>) -> Self {
        let plugins = ["shop", "mail", PACED, "broken", "block", "skip", "limit"].map(|name| {
            let plugin = FakePlugin {
                name,
                folder: folder.clone(),
                link: link.clone(),
                health: Mutex::default(),
                evidence: Mutex::default(),
            };
            (name, Arc::new(plugin))
        });
        Plugins { folder, link, plugins: plugins.into() }
    }
}

impl Handlers for Plugins {
    /// A topic's plugin is what stands before its dot.
    fn route(&self, topic: &str) -> Option<Route> {
        let (name, plugin) = self.plugins.iter().find(|(name, _)| topic.split('.').next() == Some(*name))?;
        let policy = RetryPolicy { max_attempts: self.folder.max_attempts, ..POLICY };
        let admission = match self.link.is_dead() {
            true => Admission::Open,
            false => plugin.health.lock().expect("not poisoned").admission(Instant::now().into_std()),
        };
        let (order, spacing) = self.folder.order(topic);
        Some(Route {
            plugin: (*name).into(),
            handler: plugin.clone(),
            policy: Arc::new(policy),
            concurrency: CONCURRENCY,
            order,
            spacing,
            rate: None,
            admission,
        })
    }

    fn plugins(&self) -> usize {
        self.plugins.len()
    }
}

#[async_trait]
impl Handler for FakePlugin {
    async fn handle(&self, claim: &Claim, call: CallControl) -> Handled {
        self.link.alive().await;
        self.folder.ledger.called(claim, &self.link);
        if self.folder.killers.lock().expect("not poisoned").contains(&claim.message.id) {
            self.link.kill();
            self.link.alive().await;
        }
        let slow = self.folder.dice.chance(0.1);
        let took = self.folder.dice.millis(0..if slow { self.folder.slowest_ms } else { self.folder.usual_ms });
        let ended = call.stop.run_until_cancelled(sleep(took)).await;
        self.link.alive().await;
        if ended.is_none() || call.stop.is_cancelled() {
            let (reason, error) = (Reason::Interrupted, "stopped".into());
            return self.answer(claim, Outcome::Fault { reason, error, blame: Blame::Host });
        }
        self.answer(claim, self.outcome(claim))
    }
}

impl FakePlugin {
    fn answer(&self, claim: &Claim, outcome: Outcome) -> Handled {
        self.folder.ledger.answered(claim, &outcome, &self.link);
        let pause_key = self.folder.dice.chance(0.05).then(|| self.folder.dice.millis(0..3000));
        let target = match outcome {
            Outcome::Success => Target::Answered,
            _ if self.folder.is_down(claim) => Target::Failed,
            _ if self.folder.dice.chance(0.1) => Target::AsksForRest(self.folder.dice.millis(1..2000)),
            _ => Target::Unseen,
        };
        Handled { pause_key, target, ..Handled::new(outcome) }
    }

    fn outcome(&self, claim: &Claim) -> Outcome {
        if self.folder.stubborn.load(Ordering::Relaxed) && is_stubborn(claim) {
            return self.trap(claim);
        }
        if self.name == "broken" {
            if self.folder.breaks.load(Ordering::Relaxed) && self.folder.dice.chance(0.03) {
                self.folder.broken.store(true, Ordering::Relaxed);
            }
            if self.folder.broken.load(Ordering::Relaxed) {
                return self.trap(claim);
            }
        }
        let error = || "the dice said so".to_owned();
        if self.folder.is_down(claim) {
            return Outcome::Retry { error: error(), after: None };
        }
        match self.folder.dice.draw(|rng| rng.u8(0..100)) {
            0..80 => {
                let mut health = self.health.lock().expect("not poisoned");
                let was_parked = health.is_parked();
                health.succeeded();
                self.evidence.lock().expect("not poisoned").succeeded();
                self.folder.ledger.note(|seen| seen.resumed += u64::from(was_parked));
                Outcome::Success
            }
            80..90 => Outcome::Retry { error: error(), after: None },
            90..93 => Outcome::Retry { error: error(), after: Some(Duration::from_millis(300)) },
            93..94 => Outcome::Retry { error: error(), after: Some(Duration::from_secs(3600)) },
            94..97 => Outcome::Cancel { error: error() },
            97..98 => Outcome::Fault { reason: Reason::Deadline, error: error(), blame: Blame::Message },
            _ => self.trap(claim),
        }
    }

    /// Only a plugin that never succeeded, or fails on different messages, is to blame; and what is its fault spends nothing.
    fn check_blame(&self, claim: &Claim, blame: Blame, was_parked_now: bool) {
        let mut evidence = self.evidence.lock().expect("not poisoned");
        evidence.faulty.insert(claim.message.id);
        let is_evident = !evidence.succeeded || evidence.faulty.len() >= 3;
        assert!(is_evident || !was_parked_now, "one message parked a healthy plugin");
        assert!(
            !is_evident || blame == Blame::Plugin,
            "an attempt was spent on a fault which the plugin was parked for"
        );
    }

    fn trap(&self, claim: &Claim) -> Outcome {
        let mut health = self.health.lock().expect("not poisoned");
        let was_parked = health.is_parked();
        let blame = health.faulted(claim.message.id, Instant::now().into_std());
        self.check_blame(claim, blame, !was_parked && health.is_parked());
        self.folder.ledger.note(|seen| seen.parked += u64::from(!was_parked && health.is_parked()));
        Outcome::Fault { reason: Reason::Trap, error: "unreachable".into(), blame }
    }
}

/// One message of fifty.
fn is_stubborn(claim: &Claim) -> bool {
    claim.message.id.0.as_u128() % 50 == 7
}
