//! One relay's connection to the database, and all that can happen to it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use outboxd_core::{Claim, Held, Lane, LeaseStatus, Settlement};
use outboxd_store::{DueTopic, Hold, MemoryStore, OutboxStore, StoreError, Wake};
use tokio::time::{Instant, sleep};

use crate::ledger::Ledger;
use crate::plugins::CONCURRENCY;
use crate::world::LEASE;

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

    pub fn millis(&self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.draw(|rng| rng.u64(range)))
    }
}

/// What happens to one relay and its statements.
#[derive(Debug)]
pub struct Link {
    /// The relay's process is gone: nothing it began goes on.
    dead: AtomicBool,
    troubles: Mutex<Vec<(Trouble, Range<Instant>)>>,
    /// The chance that a request, and that an answer, is lost.
    pub loss: f64,
    pub in_claim: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// As SIGSTOP and SIGCONT: nothing of the relay goes on meanwhile.
    Frozen,
    /// No statement arrives.
    Cut,
    /// Nothing can be settled, released or renewed for a short time: a lock, a slow disk. Claims go on.
    Stuck,
    /// Answers come late, by up to [`LATE_MAX`].
    Late,
    /// One settle, release or renewal, or its answer, was lost by chance.
    Lost,
}

const LATE_MAX: Duration = Duration::from_secs(3);
/// A relay tries again at least each second: two statements lost by chance one after the other, the answer of a renewal and the next
/// renewal, may take all of a lease.
const LOST_MAX: usize = 1;

impl Link {
    pub fn new(loss: f64) -> Arc<Self> {
        Arc::new(Link {
            dead: AtomicBool::new(false),
            troubles: Mutex::default(),
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

    /// Begins a trouble that lasts for `time`.
    pub fn begin(&self, trouble: Trouble, time: Duration) {
        let now = Instant::now();
        self.troubles().push((trouble, now..now + time));
    }

    /// Ends all trouble.
    pub fn heal(&self) {
        let now = Instant::now();
        self.troubles().iter_mut().for_each(|(_, time)| time.end = time.end.min(now));
    }

    pub fn is_in(&self, trouble: Trouble) -> bool {
        let now = Instant::now();
        self.troubles().iter().any(|(kind, time)| *kind == trouble && time.contains(&now))
    }

    /// Whether the relay stood still at some time since `since`: it can have noticed nothing of what happened meanwhile.
    pub fn was_frozen_since(&self, since: Instant) -> bool {
        self.troubles().iter().any(|(kind, time)| *kind == Trouble::Frozen && time.end > since)
    }

    /// Whether a lease of this relay may have lapsed at `end` without a settle.
    pub fn may_have_let_lapse(&self, end: Instant) -> bool {
        let troubles = self.troubles();
        // A renewal may land at the end of the trouble, when its call was stopped already: so a whole lease counts.
        let recently = end - LEASE - LEASE / 10;
        let times = |trouble: Trouble, since: Instant| {
            let hit = |time: &Range<Instant>| time.start < end && time.end > since;
            troubles.iter().filter(|(kind, time)| *kind == trouble && hit(time)).count()
        };
        let lost = times(Trouble::Lost, recently);
        self.is_dead()
            || times(Trouble::Frozen, recently) + times(Trouble::Cut, recently) > 0
            || times(Trouble::Late, recently - LATE_MAX) > 0
            || (times(Trouble::Stuck, recently) > 0 && lost > 0)
            || lost > LOST_MAX
    }

    fn troubles(&self) -> MutexGuard<'_, Vec<(Trouble, Range<Instant>)>> {
        self.troubles.lock().expect("not poisoned")
    }

    /// Where the relay's own code would run: waits while it is frozen, and for ever once it is dead.
    pub async fn alive(&self) {
        loop {
            if self.is_dead() {
                std::future::pending::<()>().await;
            }
            if !self.is_in(Trouble::Frozen) {
                return;
            }
            // In small steps: it may be healed before its time.
            sleep(Duration::from_millis(20)).await;
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
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Arrives,
    Lost,
}

impl FaultyStore {
    /// Before a statement takes effect: it travels, and may not arrive.
    async fn travel(&self, what: What) -> Result<Answer, StoreError> {
        self.link.alive().await;
        self.ledger.note(|seen| {
            seen.statements += 1;
            seen.steps += 1;
        });
        sleep(self.dice.millis(0..4)).await;
        self.link.alive().await;
        let lost = || StoreError::Unavailable("the connection was lost".into());
        let is_stuck = what == What::Write && self.link.is_in(Trouble::Stuck);
        if is_stuck || self.link.is_in(Trouble::Cut) {
            return Err(lost());
        }
        if self.dice.chance(self.link.loss) {
            if what == What::Write {
                self.link.begin(Trouble::Lost, Duration::ZERO);
            }
            return Err(lost());
        }
        if self.dice.chance(self.link.loss) {
            if what == What::Write {
                self.link.begin(Trouble::Lost, Duration::ZERO);
            }
            return Ok(Answer::Lost);
        }
        Ok(Answer::Arrives)
    }

    async fn answer<T>(&self, answer: Answer, value: T) -> Result<T, StoreError> {
        let late_ms = if self.link.is_in(Trouble::Late) { LATE_MAX.as_millis() as u64 } else { 4 };
        sleep(self.dice.millis(0..late_ms)).await;
        self.link.alive().await;
        match answer {
            Answer::Arrives => Ok(value),
            Answer::Lost => Err(StoreError::Unavailable("the connection was lost before the answer came".into())),
        }
    }

    async fn write(&self, settlements: &[Settlement], statement: Statement) -> Result<Vec<LeaseStatus>, StoreError> {
        let answer = self.travel(What::Write).await.inspect_err(|_| {
            self.ledger.note(|seen| seen.unknown_not_landed += 1);
        })?;
        let statuses = match statement {
            Statement::Settle => self.inner.settle(settlements).await?,
            Statement::Release => self.inner.release(settlements).await?,
        };
        for (settlement, status) in settlements.iter().zip(&statuses) {
            self.ledger.settled(settlement, *status);
        }
        if answer == Answer::Lost {
            self.ledger.note(|seen| seen.unknown_landed += 1);
        }
        self.answer(answer, statuses).await
    }
}

enum Statement {
    Settle,
    Release,
}

/// What kind of statement travels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Read,
    /// Settles, releases, renewals.
    Write,
}

#[async_trait]
impl OutboxStore for FaultyStore {
    async fn due_topics(&self) -> Result<Vec<DueTopic>, StoreError> {
        let answer = self.travel(What::Read).await?;
        let topics = self.inner.due_topics().await?;
        self.answer(answer, topics).await
    }

    async fn arrange(&self, lanes: &[Lane], hold: Hold) -> Result<u64, StoreError> {
        let answer = self.travel(What::Read).await?;
        let arranged = self.inner.arrange(lanes, hold).await?;
        self.answer(answer, arranged).await
    }

    async fn claim(&self, lanes: &[Lane], lease: Duration, lapses_max: u32) -> Result<Vec<Claim>, StoreError> {
        self.link.in_claim.store(true, Ordering::Relaxed);
        let answer = self.travel(What::Read).await?;
        let claims = self.inner.claim(lanes, lease, lapses_max).await?;
        for lane in lanes {
            let count = claims.iter().filter(|claim| claim.message.topic == lane.topic).count();
            assert!(count <= lane.slots as usize, "{count} claims in a lane of {}", lane.slots);
        }
        let ahead = claims.len() > lanes.len() * CONCURRENCY;
        self.ledger.note(|seen| seen.claimed_ahead += u64::from(ahead));
        self.ledger.claimed(&claims, lease, &self.link, answer == Answer::Arrives);
        let claims = self.answer(answer, claims).await;
        self.link.in_claim.store(false, Ordering::Relaxed);
        claims
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<LeaseStatus>, StoreError> {
        let answer = self.travel(What::Write).await?;
        let statuses = self.inner.renew(held, lease).await?;
        for (held, status) in held.iter().zip(&statuses) {
            self.ledger.renewed(held.id, held.lease_id, *status, lease);
        }
        let statuses = self.answer(answer, statuses).await?;
        self.ledger.told(held, &statuses);
        Ok(statuses)
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
