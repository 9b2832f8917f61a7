//! One seed's world: who is in it, what happens to them, and that everything ends well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboxd::relay::{Relay, RelayOptions};
use outboxd::unorder::unorder_until;
use outboxd_core::{Jitter, MessageId};
use outboxd_store::{Changed, KeyFilter, KeyState, MemoryMessage, MemoryStore, OutboxAdmin, Selection};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::faults::{Dice, FaultyStore, Link, Trouble};
use crate::ledger::Ledger;
use crate::plugins::{Folder, Plugins};
use crate::seen::Seen;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// No faults but the plugins' own.
    Calm,
    /// Everything that can happen to relays and the database.
    Storm,
    /// Messages that kill their relay, among innocent ones; nothing else fails.
    Poison,
}

/// Calls of one relay at once: enough that a plugin alone gets all the slots it may have, though one is kept back for each of the
/// others. Else hardly anything would be claimed ahead of its turn.
const CONCURRENCY: usize = 9;
/// Results that it may hold, for each of them.
const PLACES_PER_CALL: usize = 2;
pub const RESULTS_MAX: usize = PLACES_PER_CALL * CONCURRENCY;
pub const LEASE: Duration = Duration::from_secs(2);
/// How long the nemesis works. Virtual time.
const STORM: Duration = Duration::from_secs(40);
/// How long a healed world may take to finish. Virtual time.
const HEALED_MAX: Duration = Duration::from_secs(1800);

pub fn run(seed: u64, scenario: Scenario) -> Seen {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    // All of it in the runtime: outside, the clock is the machine's.
    runtime.block_on(async { World::new(seed, scenario).run().await })
}

struct World {
    scenario: Scenario,
    reorders: bool,
    dice: Dice,
    store: Arc<MemoryStore>,
    ledger: Ledger,
    folder: Folder,
    relays: Vec<Life>,
    ids: Vec<MessageId>,
}

/// A relay from its start to its end.
struct Life {
    link: Arc<Link>,
    shutdown: CancellationToken,
}

impl World {
    fn new(seed: u64, scenario: Scenario) -> Self {
        let dice = Dice::new(seed);
        // In a storm attempts must outlast the nemesis: exhausted messages would hide lost ones.
        let max_attempts = if scenario == Scenario::Calm { 4 } else { 1000 };
        // In some worlds manifests are changed: what was held must come out, but then no order can be demanded.
        let reorders = scenario == Scenario::Storm && dice.chance(0.2);
        let ledger = Ledger::new(max_attempts, !reorders);
        let folder = Folder {
            dice: dice.clone(),
            ledger: ledger.clone(),
            broken: Arc::new(AtomicBool::new(scenario == Scenario::Storm)),
            breaks: Arc::new(AtomicBool::new(scenario == Scenario::Storm)),
            stubborn: Arc::new(AtomicBool::new(true)),
            killers: Arc::default(),
            ordered: Arc::new(AtomicBool::new(true)),
            down: Arc::default(),
            usual_ms: if dice.chance(0.5) { 3 } else { 50 },
            slowest_ms: if scenario == Scenario::Storm { 6000 } else { 3000 },
            max_attempts,
        };
        World { scenario, reorders, dice, store: Arc::default(), ledger, folder, relays: Vec::new(), ids: Vec::new() }
    }

    async fn run(mut self) -> Seen {
        let count = if self.scenario == Scenario::Poison { 3 } else { self.dice.draw(|rng| rng.usize(1..4)) };
        for _ in 0..count {
            self.start();
        }
        let handlers = Arc::new(Plugins::new(self.folder.clone(), Link::new(0.0)));
        tokio::spawn(unorder_until(self.store.clone(), handlers, CancellationToken::new()));
        let until = Instant::now() + STORM;
        while Instant::now() < until {
            self.publish();
            match self.scenario {
                Scenario::Calm => {}
                Scenario::Storm => {
                    self.strike();
                    self.meddle().await;
                }
                Scenario::Poison => self.restart_the_dead(),
            }
            sleep(self.dice.millis(20..1500)).await;
        }
        self.heal();
        self.finish().await;
        // Nothing of the last calls may stand open.
        for life in &self.relays {
            life.shutdown.cancel();
        }
        sleep(Duration::from_secs(60)).await;
        self.ledger.seen()
    }

    fn start(&mut self) {
        let loss = if self.scenario == Scenario::Storm { 0.05 } else { 0.0 };
        let link = Link::new(loss);
        let store = FaultyStore {
            inner: self.store.clone(),
            link: link.clone(),
            dice: self.dice.clone(),
            ledger: self.ledger.clone(),
        };
        let handlers = Arc::new(Plugins::new(self.folder.clone(), link.clone()));
        let dice = self.dice.clone();
        let options = RelayOptions {
            concurrency: CONCURRENCY,
            poll_interval: Duration::from_millis(300),
            lease: LEASE,
            grace: Duration::from_secs(1),
            max_lapses: if self.scenario == Scenario::Poison { 3 } else { 1000 },
            places_per_call: PLACES_PER_CALL,
        };
        let jitter = Arc::new(move || Jitter::new(dice.draw(|rng| rng.f64())));
        let relay = Relay::new(Arc::new(store), handlers, jitter, options);
        let shutdown = CancellationToken::new();
        let token = shutdown.clone();
        tokio::spawn(async move { relay.run(token).await });
        self.relays.push(Life { link, shutdown });
    }

    fn publish(&mut self) {
        let all = ["shop.a", "shop.b", "mail.a", "mail.b", "broken.a", "block.a", "skip.a", "limit.a", "paced.a"];
        let (topics, many) = match self.dice.draw(|rng| rng.u8(0..100)) {
            // So many that results take all their places, or that a quick plugin works at them for long enough to have some
            // claimed ahead.
            0..5 => (&all[..], 80),
            5..7 => (&all[..1], 300),
            7 => (&all[4..5], 300),
            _ => (&all[..], 6),
        };
        for _ in 0..self.dice.draw(|rng| rng.usize(0..many)) {
            let topic = self.dice.draw(|rng| topics[rng.usize(..topics.len())]);
            let delay = if self.dice.chance(0.2) { self.dice.millis(0..3000) } else { Duration::ZERO };
            let key = ["a", "b", "c"][self.dice.draw(|rng| rng.usize(..3))];
            let message = MemoryMessage {
                topic: topic.into(),
                key: Some(key.into()),
                payload: b"{}".to_vec(),
                delay,
                ..Default::default()
            };
            let id = self.store.put(message);
            self.ledger.published(id, topic, key);
            self.ids.push(id);
            // One a world: what is on its last life beside one poison may still die beside another, fresh one.
            let mut killers = self.folder.killers.lock().expect("not poisoned");
            if self.scenario == Scenario::Poison && killers.is_empty() && self.dice.chance(0.1) {
                killers.push(id);
            }
        }
    }

    /// One act of the nemesis.
    fn strike(&mut self) {
        let victim = self.dice.draw(|rng| rng.usize(..self.relays.len()));
        let link = self.relays[victim].link.clone();
        match self.dice.draw(|rng| rng.u8(0..24)) {
            0 => self.replace(victim, |life| life.link.kill()),
            1 | 8 | 9 => self.replace(victim, |life| life.shutdown.cancel()),
            2 => link.begin(Trouble::Frozen, self.dice.millis(100..7000)),
            3 => link.begin(Trouble::Cut, self.dice.millis(50..5000)),
            4 => {
                let time = self.dice.millis(50..3000);
                self.relays.iter().for_each(|life| life.link.begin(Trouble::Cut, time));
            }
            5 => link.begin(Trouble::Stuck, self.dice.millis(50..400)),
            6 => link.begin(Trouble::Late, self.dice.millis(50..3000)),
            // Mended, for a while.
            7 => self.folder.broken.store(false, Ordering::Relaxed),
            11 | 12 => drop(self.folder.down.fetch_xor(true, Ordering::Relaxed)),
            10 if self.reorders => {
                self.folder.ordered.fetch_xor(true, Ordering::Relaxed);
                self.ledger.note(|seen| seen.reordered += 1);
            }
            _ => {}
        }
    }

    /// What people do: they give a message up, and send dead ones round again.
    async fn meddle(&self) {
        let recent = self.ids.len().saturating_sub(30);
        for id in &self.ids[recent..] {
            let selection = Selection::Ids(vec![*id]);
            if self.dice.chance(0.02) && self.store.discard(&selection, 1).await.is_ok_and(|count| count > 0) {
                self.ledger.discarded(*id);
            }
            let redrive = self.store.redrive(&selection, 1, Duration::ZERO, Duration::ZERO);
            if self.dice.chance(0.2) && redrive.await.is_ok_and(|count| count > 0) {
                self.ledger.redriven(*id);
            }
        }
        self.skip_blocked_keys(0.2).await;
    }

    /// Lets blocked keys go on, each with this chance.
    async fn skip_blocked_keys(&self, chance: f64) {
        let filter = KeyFilter { topic: None, state: Some(KeyState::Blocked) };
        for key in self.store.keys(&filter, u32::MAX).await.expect("memory never fails") {
            let skip = self.dice.chance(chance).then(|| self.store.skip_key(&key.topic, &key.key));
            let Some(skip) = skip else { continue };
            let Some(head) = key.head.and_then(|id| id.parse().ok()) else { continue };
            if skip.await.is_ok_and(|changed| changed == Changed::Yes) {
                self.ledger.skipped(MessageId(head));
            }
        }
    }

    fn replace(&mut self, victim: usize, end: impl FnOnce(&Life)) {
        let life = self.relays.swap_remove(victim);
        if life.link.in_claim.load(Ordering::Relaxed) && !life.link.is_dead() {
            self.ledger.note(|seen| seen.stopped_in_a_claim += 1);
        }
        end(&life);
        self.start();
    }

    fn restart_the_dead(&mut self) {
        let before = self.relays.len();
        self.relays.retain(|life| !life.link.is_dead());
        for _ in self.relays.len()..before {
            self.start();
        }
    }

    fn heal(&mut self) {
        self.folder.breaks.store(false, Ordering::Relaxed);
        self.folder.broken.store(false, Ordering::Relaxed);
        self.folder.down.store(false, Ordering::Relaxed);
        self.folder.stubborn.store(false, Ordering::Relaxed);
        for life in &self.relays {
            life.link.heal();
        }
        self.restart_the_dead();
    }

    /// Everything that was published ends, within a bounded time.
    async fn finish(&mut self) {
        let until = Instant::now() + HEALED_MAX;
        while !self.ledger.all_finished(&self.ids) {
            let left = || self.ledger.unfinished(&self.ids);
            assert!(Instant::now() < until, "{} messages never ended: {:?}", left().len(), left());
            sleep(Duration::from_millis(500)).await;
            self.restart_the_dead();
            self.skip_blocked_keys(1.0).await;
        }
        if self.scenario == Scenario::Poison {
            let killers = self.folder.killers.lock().expect("not poisoned").clone();
            let seen = self.ledger.seen();
            assert_eq!(seen.crashed, killers.len() as u64, "all killers end crashed, and nothing beside them");
        }
    }
}
