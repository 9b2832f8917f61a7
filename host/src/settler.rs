//! Writes what attempts came to: in batches, and again and again while the fate of a batch is unknown.
//!
//! Batches form by themselves: while one statement runs, results gather for the next. Where some did, the next waits a moment for
//! more; when idle, none waits.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use outboxd_core::{LeaseStatus, Settlement, Transition, planted};
use outboxd_store::{OutboxStore, StoreError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::alarms::Alarms;
use crate::outage::Outage;

/// Results in one statement, at most.
const BATCH_MAX: usize = 500;

/// So many results that came while one statement ran say that more are coming.
const BUSY: usize = 4;

/// A statement of so many is worth no more wait: most of what it costs is theirs. One of a few costs three times as much a result.
const ENOUGH: usize = 400;

/// How long fewer than that wait for more. Nobody waits for them: their calls are over. Those that die with their relay meanwhile come twice.
const LINGER: Duration = Duration::from_millis(10);

/// A result to be written.
pub struct Ready {
    pub settlement: Settlement,
    /// No try begins after this: the lease has ended and its grace too.
    pub give_up_at: Instant,
    /// One of the bounded places for results that are not written yet.
    pub place: OwnedSemaphorePermit,
    /// Held by a message on its last life until its result is written: what is claimed after it may kill this relay.
    pub alone: Option<OwnedSemaphorePermit>,
    pub haste: Haste,
}

/// How soon a result has to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// Nobody waits for it.
    None,
    /// The next message of its key does, and would queue up behind others.
    Some,
    /// The next message of its key does, which could start.
    Great,
}

impl Haste {
    /// So many are worth no more wait.
    fn enough(self) -> usize {
        match self {
            Haste::None => ENOUGH,
            Haste::Some => ENOUGH / 3,
            Haste::Great => 1,
        }
    }
}

/// Where results are handed over.
#[derive(Clone)]
pub struct Settler {
    queue: mpsc::UnboundedSender<Ready>,
    hurry: Arc<Notify>,
    /// How many wait to be written.
    queued: Arc<AtomicUsize>,
    places: Arc<Semaphore>,
    places_all: usize,
}

/// The other end: run it until every [`Settler`] is dropped.
pub struct SettleLoop {
    store: Arc<dyn OutboxStore>,
    queue: mpsc::UnboundedReceiver<Ready>,
    /// Something came that does not wait for more, or enough have come.
    hurry: Arc<Notify>,
    queued: Arc<AtomicUsize>,
    outage: Outage,
    alarms: Arc<Alarms>,
}

impl Settler {
    /// At most `places` calls run or wait for their result to be written: each takes a place first.
    /// `alarms` are set for keys that rest.
    pub fn new(store: Arc<dyn OutboxStore>, places: usize, alarms: Arc<Alarms>) -> (Settler, SettleLoop) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (hurry, queued) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let free = Arc::new(Semaphore::new(places));
        let settler =
            Settler { queue: sender, hurry: hurry.clone(), queued: queued.clone(), places: free, places_all: places };
        (settler, SettleLoop { store, queue: receiver, hurry, queued, outage: Outage::new("settling"), alarms })
    }

    /// How many calls may begin before results have to be written.
    pub fn places_free(&self) -> usize {
        self.places.available_permits()
    }

    /// Takes a place. Waits while all are taken, mostly because the database is away.
    pub async fn place(&self) -> OwnedSemaphorePermit {
        self.places.clone().acquire_owned().await.expect("the places are never closed")
    }

    /// Every result there was is written or given up.
    pub fn all_is_written(&self) -> bool {
        self.places_free() == self.places_all
    }

    /// Waits for that.
    pub async fn wait_until_written(&self) {
        let all = u32::try_from(self.places_all).unwrap_or(u32::MAX);
        let _ = self.places.acquire_many(all).await.expect("the places are never closed");
    }

    pub fn hand_over(&self, ready: Ready) {
        planted!(
            9,
            if self.places_free() == 0 {
                return;
            }
        );
        let haste = ready.haste;
        let queued = self.queued.fetch_add(1, Relaxed) + 1;
        // The loop outlives every settler; if it panicked, the leases lapse and the messages come round again.
        let _ = self.queue.send(ready);
        // Once, not for each: that would wake the loop for nothing. No call begins while all places are taken.
        if queued == haste.enough() || haste == Haste::Great || self.places_free() == 0 {
            self.hurry.notify_one();
        }
    }
}

impl SettleLoop {
    pub async fn run(mut self) {
        let mut ready = Vec::with_capacity(BATCH_MAX);
        while let Some(first) = self.queue.recv().await {
            ready.push(first);
            // Whoever hurried before now is in the queue by now.
            tokio::select! {
                biased;
                () = self.hurry.notified() => {}
                () = std::future::ready(()) => {}
            }
            self.take(&mut ready);
            if is_worth_a_wait(&ready) {
                tokio::select! {
                    () = sleep(LINGER) => {}
                    () = self.hurry.notified() => {}
                }
                self.take(&mut ready);
            }
            self.queued.fetch_sub(ready.len(), Relaxed);
            while !ready.is_empty() {
                let (batch, later) = without_repetition(std::mem::take(&mut ready));
                let (released, settled) = batch.into_iter().partition::<Vec<Ready>, _>(|ready| {
                    matches!(ready.settlement.transition, Transition::Released { .. })
                });
                self.write(Batch::of(settled), Statement::Settle).await;
                self.write(Batch::of(released), Statement::Release).await;
                ready = later;
            }
        }
    }

    /// Takes what is there.
    fn take(&mut self, ready: &mut Vec<Ready>) {
        while ready.len() < BATCH_MAX
            && let Ok(more) = self.queue.try_recv()
        {
            ready.push(more);
        }
    }

    /// Returns when the fate of every result is known, or its time has passed.
    async fn write(&mut self, mut batch: Batch, statement: Statement) {
        let mut first = true;
        while !batch.settlements.is_empty() {
            match statement.run(&*self.store, &batch.settlements).await {
                Ok(statuses) => {
                    self.outage.over();
                    count_lost(&batch.settlements, &statuses, first);
                    batch.settlements.iter().for_each(|settlement| self.alarms.set(settlement.rest.time));
                    return;
                }
                Err(error) => {
                    planted!(7, return);
                    planted!(8, return give_back(&*self.store, batch).await);
                    sleep(self.outage.note(&error)).await;
                }
            }
            first = false;
            batch.give_up_what_is_over(Instant::now());
        }
    }
}

/// Whether there are few, but more are coming.
fn is_worth_a_wait(ready: &[Ready]) -> bool {
    ready.len() >= BUSY && ready.iter().all(|one| ready.len() < one.haste.enough())
}

/// The first result of each message, and the rest: a relay that was frozen past its lease may have claimed a message twice,
/// and a statement answers for each message once.
fn without_repetition(ready: Vec<Ready>) -> (Vec<Ready>, Vec<Ready>) {
    let mut seen = HashSet::with_capacity(ready.len());
    ready.into_iter().partition(|ready| seen.insert(ready.settlement.id))
}

/// What goes out in one statement, and beside each result its terms.
struct Batch {
    settlements: Vec<Settlement>,
    terms: Vec<Terms>,
}

/// When to give a result up, and the permits that end with it.
type Terms = (Instant, OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl Batch {
    fn of(ready: Vec<Ready>) -> Batch {
        let (settlements, terms) =
            ready.into_iter().map(|ready| (ready.settlement, (ready.give_up_at, ready.place, ready.alone))).unzip();
        Batch { settlements, terms }
    }

    fn give_up_what_is_over(&mut self, now: Instant) {
        let all = self.settlements.drain(..).zip(self.terms.drain(..)).collect::<Vec<_>>();
        let (kept, over) = all.into_iter().partition::<Vec<_>, _>(|(_, (give_up_at, ..))| now < *give_up_at);
        (self.settlements, self.terms) = kept.into_iter().unzip();
        for (Settlement { id, .. }, _) in over {
            metrics::counter!("outboxd_settles_unknown_total").increment(1);
            warn!(message.id = %id, "what message {id} came to could not be written before its lease ended; it will be delivered again");
        }
    }
}

/// A row that a first try did not find was fenced. One that a later try did not find may have been written by the try
/// whose answer was lost: its fate stays unknown, and nothing is guessed.
fn count_lost(settlements: &[Settlement], statuses: &[LeaseStatus], first: bool) {
    for (settlement, _) in settlements.iter().zip(statuses).filter(|(_, status)| **status == LeaseStatus::Lost) {
        let id = settlement.id;
        if first {
            metrics::counter!("outboxd_settles_fenced_total").increment(1);
            warn!(message.id = %id, lease.id = %settlement.lease_id, "message {id} was settled by another relay or deleted; result dropped");
        } else {
            metrics::counter!("outboxd_settles_unknown_total").increment(1);
            info!(message.id = %id, "message {id} was settled by a statement whose answer was lost, or by another relay");
        }
    }
}

/// Bug 8: a settle of unknown fate is taken for one that failed.
#[cfg(feature = "planted-bugs")]
async fn give_back(store: &dyn OutboxStore, mut batch: Batch) {
    let (after, reason) = (std::time::Duration::ZERO, outboxd_core::Reason::Overload);
    for settlement in &mut batch.settlements {
        settlement.transition = Transition::Released { after, reason, error: "taken for failed".into() };
    }
    let _ = store.release(&batch.settlements).await;
}

#[derive(Clone, Copy)]
enum Statement {
    Settle,
    Release,
}

impl Statement {
    async fn run(self, store: &dyn OutboxStore, settlements: &[Settlement]) -> Result<Vec<LeaseStatus>, StoreError> {
        match self {
            Statement::Settle => store.settle(settlements).await,
            Statement::Release => store.release(settlements).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use outboxd_core::{Attempt, AttemptRecord, LeaseId, MessageId, Order};
    use outboxd_store::MemoryStore;
    use uuid::Uuid;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_results_wait_for_more_but_not_one_alone_nor_many_nor_those_that_hold_up_a_key() {
        assert!(waited(BUSY, Haste::None).await >= LINGER);
        assert_eq!(waited(1, Haste::None).await, Duration::ZERO);
        assert_eq!(waited(ENOUGH, Haste::None).await, Duration::ZERO);
        assert_eq!(waited(BUSY, Haste::Great).await, Duration::ZERO);
        assert!(waited(BUSY, Haste::Some).await >= LINGER);
        assert_eq!(waited(Haste::Some.enough(), Haste::Some).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_holds_up_a_key_ends_the_wait_of_the_others() {
        let (settler, settle_loop) = Settler::new(Arc::new(MemoryStore::default()), 1000, alarms());
        hand_over(&settler, BUSY, Haste::None).await;
        let begun = Instant::now();
        tokio::spawn(settle_loop.run());
        tokio::task::yield_now().await;
        assert!(!settler.all_is_written());

        hand_over(&settler, 1, Haste::Great).await;
        settler.wait_until_written().await;

        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_waits_while_all_places_are_taken() {
        let (settler, settle_loop) = Settler::new(Arc::new(MemoryStore::default()), 2 * BUSY, alarms());
        hand_over(&settler, BUSY, Haste::None).await;
        let begun = Instant::now();
        tokio::spawn(settle_loop.run());
        tokio::task::yield_now().await;

        hand_over(&settler, BUSY, Haste::None).await;
        settler.wait_until_written().await;

        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn enough_end_the_wait_and_one_less_does_not() {
        let came_meanwhile = async |more: usize| {
            let (settler, settle_loop) = Settler::new(Arc::new(MemoryStore::default()), 1000, alarms());
            hand_over(&settler, BUSY, Haste::None).await;
            let begun = Instant::now();
            tokio::spawn(settle_loop.run());
            tokio::task::yield_now().await;
            hand_over(&settler, more, Haste::None).await;
            settler.wait_until_written().await;
            begun.elapsed()
        };

        assert_eq!(came_meanwhile(ENOUGH - BUSY).await, Duration::ZERO);
        assert!(came_meanwhile(ENOUGH - BUSY - 1).await >= LINGER);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_writes_what_waits_for_more() {
        let (settler, settle_loop) = Settler::new(Arc::new(MemoryStore::default()), 100, alarms());
        hand_over(&settler, BUSY, Haste::None).await;
        let places = settler.places.clone();

        drop(settler);
        settle_loop.run().await;

        assert_eq!(places.available_permits(), 100);
    }

    /// How long so many results wait that are there at once.
    async fn waited(count: usize, haste: Haste) -> Duration {
        let (settler, settle_loop) = Settler::new(Arc::new(MemoryStore::default()), 1000, alarms());
        hand_over(&settler, count, haste).await;
        let begun = Instant::now();
        tokio::spawn(settle_loop.run());

        settler.wait_until_written().await;

        begun.elapsed()
    }

    fn alarms() -> Arc<Alarms> {
        Arc::new(Alarms::new(Duration::ZERO))
    }

    async fn hand_over(settler: &Settler, count: usize, haste: Haste) {
        for _ in 0..count {
            let record = AttemptRecord::of(Attempt(1));
            let settlement = Settlement {
                id: MessageId(Uuid::now_v7()),
                lease_id: LeaseId(Uuid::new_v4()),
                transition: Transition::Delivered,
                order: Order::None,
                rest: Default::default(),
                record,
            };
            let give_up_at = Instant::now() + Duration::from_secs(60);
            settler.hand_over(Ready { settlement, give_up_at, place: settler.place().await, alone: None, haste });
        }
    }
}
