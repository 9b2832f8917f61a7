//! Plugins that do what the dice say, with the real health rules around them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outboxd::handler::{CallControl, Handled, Handler, Handlers, Route};
use outboxd_core::{Admission, Backoff, Blame, Claim, Health, Outcome, Reason, RetryPolicy};
use tokio::time::{Instant, sleep};

use crate::faults::{Dice, Link};
use crate::ledger::Ledger;

/// What every relay of a world has in its plugins folder.
#[derive(Clone)]
pub struct Folder {
    pub dice: Dice,
    pub ledger: Ledger,
    /// While set, the plugin "broken" traps on everything.
    pub broken: Arc<AtomicBool>,
    /// The messages that kill the relay they are handed to.
    pub killers: Arc<Mutex<Vec<outboxd_core::MessageId>>>,
    /// The longest call.
    pub slowest_ms: u64,
    pub max_attempts: u32,
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
}

impl Plugins {
    pub fn new(folder: Folder, link: Arc<Link>) -> Self {
        let plugins = ["shop", "mail", "broken"].map(|name| {
            let plugin = FakePlugin { name, folder: folder.clone(), link: link.clone(), health: Mutex::default() };
            (name, Arc::new(plugin))
        });
        Plugins { folder, link, plugins: plugins.into() }
    }
}

impl Handlers for Plugins {
    /// A topic's plugin is what stands before its dot.
    fn route(&self, topic: &str) -> Option<Route> {
        let (name, plugin) = self.plugins.iter().find(|(name, _)| topic.split('.').next() == Some(*name))?;
        let policy = RetryPolicy {
            max_attempts: self.folder.max_attempts,
            pause: Duration::from_millis(200),
            backoff: Backoff { base: Duration::from_millis(50), max: Duration::from_secs(2), jitter: 1.0 },
        };
        let admission = match self.link.is_dead() {
            true => Admission::Open,
            false => plugin.health.lock().expect("not poisoned").admission(Instant::now().into_std()),
        };
        Some(Route {
            plugin: (*name).into(),
            handler: plugin.clone(),
            policy: Arc::new(policy),
            concurrency: 3,
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
        self.folder.ledger.note(|seen| seen.calls += 1);
        if self.folder.killers.lock().expect("not poisoned").contains(&claim.message.id) {
            self.link.kill();
            self.link.alive().await;
        }
        let slow = self.folder.dice.chance(0.1);
        let took = self.folder.dice.millis(0..if slow { self.folder.slowest_ms } else { 50 });
        tokio::select! {
            biased;
            () = call.stop.cancelled() => {
                self.folder.ledger.excuse(claim.message.id);
                return Handled::new(Outcome::Fault {
                    reason: Reason::Interrupted,
                    error: "stopped".into(),
                    blame: Blame::Host,
                });
            }
            () = sleep(took) => {}
        }
        self.link.alive().await;
        Handled::new(self.outcome(claim))
    }
}

impl FakePlugin {
    fn outcome(&self, claim: &Claim) -> Outcome {
        if self.name == "broken" && self.folder.broken.load(Ordering::Relaxed) {
            return self.trap(claim);
        }
        let error = || "the dice said so".to_owned();
        match self.folder.dice.draw(|rng| rng.u8(0..100)) {
            0..80 => {
                self.folder.ledger.succeeded(claim);
                let mut health = self.health.lock().expect("not poisoned");
                let was_parked = health.is_parked();
                health.succeeded();
                self.folder.ledger.note(|seen| seen.resumed += u64::from(was_parked));
                Outcome::Success
            }
            80..90 => Outcome::Retry { error: error(), after: None },
            90..94 => Outcome::Retry { error: error(), after: Some(Duration::from_millis(300)) },
            94..97 => Outcome::Cancel { error: error() },
            97..98 => Outcome::Fault { reason: Reason::Deadline, error: error(), blame: Blame::Message },
            _ => self.trap(claim),
        }
    }

    fn trap(&self, claim: &Claim) -> Outcome {
        let mut health = self.health.lock().expect("not poisoned");
        let was_parked = health.is_parked();
        let blame = health.faulted(claim.message.id, Instant::now().into_std());
        self.folder.ledger.note(|seen| seen.parked += u64::from(!was_parked && health.is_parked()));
        Outcome::Fault { reason: Reason::Trap, error: "unreachable".into(), blame }
    }
}
