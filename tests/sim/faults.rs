//! One relay's connection to the database, and all that can happen to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::{Claim, Held, Lane, LeaseStatus, Settlement};
use outboxd_store::{DueTopic, MemoryStore, OutboxStore, StoreError, Wake};
use tokio::time::{Instant, sleep, sleep_until};

use crate::ledger::Ledger;

/// Randomness of one world. Clones draw from the same stream.
#[derive(Clone)]
pub struct Dice(Arc<Mutex<fastrand::Rng>>);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))))
    }

    pub fn draw<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.0.lock().expect("drawing does not panic"))
    }

    pub fn chance(&self, probability: f64) -> bool {
        self.draw(|rng| rng.f64()) < probability
    }

    pub fn millis(&self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.draw(|rng| rng.u64(range)))
    }
}

/// What happens to the statements of one relay.
pub struct Link {
    /// The relay's process is gone: nothing it began goes on.
    dead: AtomicBool,
    frozen_until: Mutex<Instant>,
    cut_until: Mutex<Instant>,
    /// The chance that a request, and that an answer, is lost.
    pub loss: f64,
    pub in_claim: AtomicBool,
}

impl Link {
    pub fn new(loss: f64) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Link {
            dead: AtomicBool::new(false),
            frozen_until: Mutex::new(now),
            cut_until: Mutex::new(now),
            loss,
            in_claim: AtomicBool::new(false),
        })
    }

    pub fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// As SIGSTOP and SIGCONT: nothing of the relay goes on meanwhile.
    pub fn freeze(&self, time: Duration) {
        *self.frozen_until.lock().expect("not poisoned") = Instant::now() + time;
    }

    pub fn cut(&self, time: Duration) {
        *self.cut_until.lock().expect("not poisoned") = Instant::now() + time;
    }

    fn is_cut(&self) -> bool {
        Instant::now() < *self.cut_until.lock().expect("not poisoned")
    }

    /// Where the relay's own code would run: waits while it is frozen, and for ever once it is dead.
    pub async fn alive(&self) {
        loop {
            if self.is_dead() {
                std::future::pending::<()>().await;
            }
            let until = *self.frozen_until.lock().expect("not poisoned");
            if Instant::now() >= until {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// A store behind a [`Link`].
pub struct FaultyStore {
    pub inner: Arc<MemoryStore>,
    pub link: Arc<Link>,
    pub dice: Dice,
    pub ledger: Ledger,
}

/// Whether a statement's answer arrives.
enum Answer {
    Arrives,
    Lost,
}

impl FaultyStore {
    /// Before a statement takes effect: it travels, and may not arrive.
    async fn travel(&self) -> Result<Answer, StoreError> {
        self.link.alive().await;
        self.ledger.note(|seen| seen.statements += 1);
        sleep(self.dice.millis(0..4)).await;
        self.link.alive().await;
        let lost = || StoreError::Unavailable("the connection was lost".into());
        if self.link.is_cut() || self.dice.chance(self.link.loss) {
            return Err(lost());
        }
        Ok(if self.dice.chance(self.link.loss) { Answer::Lost } else { Answer::Arrives })
    }

    async fn answer<T>(&self, answer: Answer, value: T) -> Result<T, StoreError> {
        sleep(self.dice.millis(0..4)).await;
        self.link.alive().await;
        match answer {
            Answer::Arrives => Ok(value),
            Answer::Lost => Err(StoreError::Unavailable("the connection was lost before the answer came".into())),
        }
    }

    fn excuse(&self, settlements: &[Settlement]) {
        settlements.iter().for_each(|settlement| self.ledger.excuse(settlement.id));
    }

    async fn write(&self, settlements: &[Settlement], statement: Statement) -> Result<Vec<LeaseStatus>, StoreError> {
        let answer = match self.travel().await {
            Ok(answer) => answer,
            Err(error) => {
                self.ledger.note(|seen| seen.unknown_not_landed += 1);
                self.excuse(settlements);
                return Err(error);
            }
        };
        let statuses = match statement {
            Statement::Settle => self.inner.settle(settlements).await?,
            Statement::Release => self.inner.release(settlements).await?,
        };
        for (settlement, status) in settlements.iter().zip(&statuses) {
            self.ledger.settled(settlement, *status);
        }
        if matches!(answer, Answer::Lost) {
            self.ledger.note(|seen| seen.unknown_landed += 1);
        }
        self.answer(answer, statuses).await
    }
}

enum Statement {
    Settle,
    Release,
}

#[async_trait]
impl OutboxStore for FaultyStore {
    async fn due_topics(&self) -> Result<Vec<DueTopic>, StoreError> {
        let answer = self.travel().await?;
        let topics = self.inner.due_topics().await?;
        self.answer(answer, topics).await
    }

    async fn claim(&self, lanes: &[Lane], lease: Duration, lapses_max: u32) -> Result<Vec<Claim>, StoreError> {
        self.link.in_claim.store(true, Ordering::Relaxed);
        let answer = self.travel().await?;
        let claims = self.inner.claim(lanes, lease, lapses_max).await?;
        for lane in lanes {
            let count = claims.iter().filter(|claim| claim.message.topic == lane.topic).count();
            assert!(count <= lane.slots as usize, "{count} claims in a lane of {}", lane.slots);
        }
        self.ledger.claimed(&claims, lease);
        let claims = self.answer(answer, claims).await;
        self.link.in_claim.store(false, Ordering::Relaxed);
        claims
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<LeaseStatus>, StoreError> {
        let answer = self.travel().await?;
        let statuses = self.inner.renew(held, lease).await?;
        for (held, status) in held.iter().zip(&statuses) {
            self.ledger.renewed(held.id, held.lease_id, *status, lease);
        }
        self.answer(answer, statuses).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        self.write(settlements, Statement::Settle).await
    }

    async fn release(&self, released: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        self.write(released, Statement::Release).await
    }

    async fn wait_for_work(&self, at_most: Duration) -> Wake {
        let wake = self.inner.wait_for_work(at_most).await;
        self.link.alive().await;
        wake
    }
}
