//! The relay: find what is due, claim what can start now, dispatch it; wait when there is nothing.
//!
//! Waits are cancellable and work is not: dropping a claim half-way would leave rows leased to nobody until they lapse, and
//! three such lapses declare a sound message `crashed`. So `select!` and the like stand around waits only.

use std::sync::Arc;
use std::time::Duration;

use outboxd_core::{Lane, MAX_LAPSES_DEFAULT, Order, planted};
use outboxd_store::{DueTopic, Hold, OutboxStore, StoreError};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::alarms::Alarms;
use crate::dispatcher::{Dispatcher, DrawJitter};
use crate::handler::Handlers;
use crate::lanes::{Reach, plan};
use crate::leases::Leases;
use crate::outage::Outage;
use crate::settler::Settler;
use crate::slots::Slots;
use crate::turns::{Claimed, Short, Turns};

/// How long a stop may take beyond the grace: to end interrupted calls and to write what they came to.
const AFTER_GRACE: Duration = Duration::from_secs(2);

/// What was read of the due topics counts for so many times what reading it took, and at least for [`DUE_FRESH_MIN`]: that
/// bounds what it costs, and how long a plugin with a backlog can hide that another one has become due.
const DUE_FRESH_FACTOR: u32 = 10;
const DUE_FRESH_MIN: Duration = Duration::from_millis(20);

/// While something that was claimed ahead waits for its turn there is soon room for more: so long a relay does not say that it
/// sleeps, since taking it back at once would cost two statements each time.
const NAP: Duration = Duration::from_millis(20);

/// How a relay works.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// Calls at once. Default 64.
    pub concurrency: usize,
    /// How long a missed wake can go unnoticed. Default 1 s.
    pub poll_interval: Duration,
    /// How long a message stays claimed when its relay dies. Default 30 s, renewed every third of it.
    pub lease: Duration,
    /// How long a stop waits for calls under way. Default 25 s.
    pub grace: Duration,
    /// So many lost leases make a message `crashed`: it probably kills its relays. At least 2. Default 3.
    pub max_lapses: u32,
    /// Calls under way and results not written yet, at most, for each call at once: a relay that dies has so many delivered
    /// twice at worst, and one whose disk is slow goes on calling meanwhile. Default 16.
    pub places_per_call: usize,
}

impl Default for RelayOptions {
    fn default() -> Self {
        RelayOptions {
            concurrency: 64,
            poll_interval: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            grace: Duration::from_secs(25),
            max_lapses: MAX_LAPSES_DEFAULT,
            places_per_call: 16,
        }
    }
}

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Every call ended by itself and was settled.
    Drained,
    /// The grace was over: calls were interrupted and their messages given back.
    Interrupted { calls: usize },
    /// Not everything could be ended and written in time, mostly since the database was away: those messages come again when
    /// their leases lapse.
    Unsettled,
}

/// What a run to the end of what is due came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    pub stopped: Stopped,
    /// Whether something could start, or a place was found for what must wait.
    pub has_claimed: bool,
}

/// One relay. Any number of them may share a database.
pub struct Relay {
    store: Arc<dyn OutboxStore>,
    handlers: Arc<dyn Handlers>,
    slots: Arc<Slots>,
    leases: Arc<Leases>,
    draw_jitter: DrawJitter,
    options: RelayOptions,
    alarms: Arc<Alarms>,
}

/// A relay at work: what lives from its start to its stop.
struct Work {
    dispatcher: Arc<Dispatcher>,
    due: Vec<DueTopic>,
    /// Until when what was read of them counts.
    due_fresh: Option<Instant>,
    /// Until when claims may reach ahead, past messages that lost a lease.
    carefree: Option<Instant>,
    turns: Turns,
    /// How long it took, at the last look, until a plugin that had something due and whose rate left no call could begin one.
    until_allowed: Option<Duration>,
    /// Ends the renewing of leases.
    end: CancellationToken,
    chores: TaskTracker,
}

/// What one look at the outbox came to.
enum Look {
    /// Something, or a place was found for what must wait: look again.
    Claimed,
    /// Nothing yet: messages that lost a lease may be due, or others in the way of what is, and the next look sees to them.
    Again,
    /// Nothing that can start now.
    Nothing,
}

impl Relay {
    pub fn new(
        store: Arc<dyn OutboxStore>,
        handlers: Arc<dyn Handlers>,
        draw_jitter: DrawJitter,
        options: RelayOptions,
    ) -> Self {
        let slots = Slots::new(options.concurrency);
        let leases = Leases::new(store.clone(), options.lease);
        let alarms = Arc::new(Alarms::new(options.poll_interval));
        Relay { store, handlers, slots, leases, draw_jitter, options, alarms }
    }

    /// Claims and dispatches until told to stop, then lets running calls settle.
    pub async fn run(&self, shutdown: CancellationToken) -> Stopped {
        let mut work = self.start();
        let mut outage = Outage::new("claiming");
        while !shutdown.is_cancelled() {
            // Not raced against shutdown: see the module's comment.
            let wait = match self.look(&mut work).await {
                Ok(Look::Claimed | Look::Again) => {
                    outage.over();
                    continue;
                }
                Ok(Look::Nothing) => {
                    outage.over();
                    shutdown.run_until_cancelled(self.idle(&mut work)).await
                }
                Err(error) => {
                    work.due_fresh = None;
                    shutdown.run_until_cancelled(sleep(outage.note(&error))).await
                }
            };
            if wait.is_none() {
                break;
            }
        }
        self.stop(work).await
    }

    /// Delivers what is due and returns when nothing more can be claimed: it waits for the rate of a plugin, and for no key that
    /// rests. An error of the database ends it.
    pub async fn run_once(&self, shutdown: CancellationToken) -> Result<Once, StoreError> {
        let mut work = self.start();
        let (mut failed, mut has_claimed) = (None, false);
        while !shutdown.is_cancelled() {
            work.due_fresh = None;
            // Asked before the look, which does not see what a call that ends meanwhile lets go.
            let is_over = self.slots.usage().is_idle() && work.dispatcher.settler.all_is_written();
            match self.look(&mut work).await {
                Ok(Look::Claimed) => has_claimed = true,
                Ok(Look::Again) => {}
                Ok(Look::Nothing) if is_over => match work.until_allowed {
                    // Another plugin may have something to do before.
                    Some(next) => {
                        shutdown.run_until_cancelled(sleep(next.min(self.options.poll_interval))).await;
                    }
                    None => break,
                },
                Ok(Look::Nothing) if work.dispatcher.settler.places_free() == 0 => {
                    shutdown.run_until_cancelled(work.dispatcher.settler.place()).await;
                }
                // A call under way may free the slot that another due message waits for, and its settle must land; or a rate allows
                // a call before.
                Ok(Look::Nothing) if !self.slots.usage().is_idle() => {
                    let at_most = work.until_allowed.unwrap_or(Duration::MAX);
                    // A wait alone: it may be dropped.
                    let _ = shutdown.run_until_cancelled(timeout(at_most, self.slots.room())).await;
                }
                // The last of a key that was delivered lets the next one go, once that is written.
                Ok(Look::Nothing) => work.dispatcher.settler.wait_until_written().await,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let stopped = self.stop(work).await;
        failed.map_or(Ok(Once { stopped, has_claimed }), Err)
    }

    fn start(&self) -> Work {
        let (settler, settle_loop) = Settler::new(
            self.store.clone(),
            self.options.places_per_call * self.options.concurrency,
            self.alarms.clone(),
        );
        let (end, chores) = (CancellationToken::new(), TaskTracker::new());
        chores.spawn(settle_loop.run());
        let (leases, until) = (self.leases.clone(), end.clone());
        chores.spawn(async move { leases.renew_until(until).await });
        let (leases, until) = (self.leases.clone(), end.clone());
        chores.spawn(async move { leases.expire_until(until).await });
        let dispatcher = Dispatcher {
            store: self.store.clone(),
            handlers: self.handlers.clone(),
            slots: self.slots.clone(),
            leases: self.leases.clone(),
            settler,
            draw_jitter: self.draw_jitter.clone(),
            settle_grace: self.options.lease,
            running: TaskTracker::new(),
            stopping: CancellationToken::new(),
            interrupt: CancellationToken::new(),
            max_lapses: self.options.max_lapses,
            last_life: Arc::new(Semaphore::new(1)),
        };
        Work {
            dispatcher: Arc::new(dispatcher),
            due: Vec::new(),
            due_fresh: None,
            carefree: None,
            turns: Turns::new(Instant::now(), self.options.poll_interval),
            until_allowed: None,
            end,
            chores,
        }
    }

    /// Finds what is due, claims what can start now and dispatches it.
    async fn look(&self, work: &mut Work) -> Result<Look, StoreError> {
        work.until_allowed = None;
        if self.slots.usage().is_full() {
            return Ok(Look::Nothing);
        }
        if work.due_fresh.is_none_or(|until| until <= Instant::now()) {
            let asked = Instant::now();
            work.due = self.store.due_topics().await?;
            let fresh = (asked.elapsed() * DUE_FRESH_FACTOR).max(DUE_FRESH_MIN).min(self.options.poll_interval);
            work.due_fresh = Some(Instant::now() + fresh);
        }
        // A message that lost its lease may be what kills relays. It is not claimed beside hundreds of others that would lose
        // theirs with it, but now and then in a claim of its own, which takes no more than a plugin runs at once.
        let reach = match work.carefree {
            Some(until) if Instant::now() < until => Reach::Ahead,
            _ => Reach::Careful,
        };
        let places = work.dispatcher.settler.places_free();
        let plan = plan(&work.due, &*self.handlers, &self.slots.usage(), places, reach);
        work.until_allowed = plan.until_allowed;
        if plan.lanes.is_empty() {
            return Ok(Look::Nothing);
        }
        let arranged = self.arrange(&plan.lanes, &mut work.turns).await?;
        let passes_lapsed = plan.ahead && reach == Reach::Ahead;
        let lapses_max = if passes_lapsed { 0 } else { work.dispatcher.lapses_max() };
        let asked = Instant::now();
        let claims = self.store.claim(&plan.lanes, self.options.lease, lapses_max).await?;
        // A lane that came back short is empty: what else is due has to be read anew.
        if claims.len() < plan.lanes.iter().map(|lane| lane.slots as usize).sum() {
            work.due_fresh = None;
        }
        // Of keys it is usual to find less: there only nothing says that what lost a lease may be due.
        let plain = plan.lanes.iter().filter(|lane| lane.order == Order::None).map(|lane| lane.slots as usize).sum();
        let plain_short = claims.iter().filter(|claim| claim.order == Order::None).count() < plain;
        if passes_lapsed && (claims.is_empty() || plain_short) {
            work.carefree = None;
        }
        if reach == Reach::Careful {
            let lapsed = claims.iter().any(|claim| claim.lapses > 0);
            work.carefree = (!lapsed).then(|| Instant::now() + self.options.poll_interval);
        }
        let short = Short::of(&plan.lanes, &claims);
        if claims.is_empty() {
            let claimed = if passes_lapsed { Claimed::NothingSound } else { Claimed::Nothing };
            work.turns.claimed(claimed, arranged, &short, self.has_idle_slots(&short));
            return Ok(match arranged {
                _ if passes_lapsed => Look::Again,
                // What was arranged is out of the way: behind it something may be due.
                Some((_, 1..)) => Look::Claimed,
                _ if work.turns.are_wanted() => Look::Again,
                _ => Look::Nothing,
            });
        }
        work.dispatcher.dispatch(claims, planted!(5, Instant::now(), asked)).await;
        work.turns.claimed(Claimed::Something, arranged, &short, self.has_idle_slots(&short));
        Ok(Look::Claimed)
    }

    /// Has it chosen whose turn it is, where that is due. Answers what was held, and for how much a place was found.
    async fn arrange(&self, lanes: &[Lane], turns: &mut Turns) -> Result<Option<(Hold, u64)>, StoreError> {
        let by_key = lanes.iter().any(|lane| lane.order != Order::None);
        let Some(hold) = turns.due(Instant::now()).filter(|_| by_key) else { return Ok(None) };
        let arranged = self.store.arrange(lanes, hold).await?;
        turns.arranged(hold, Instant::now());
        Ok(Some((hold, arranged)))
    }

    /// Whether a plugin of these topics could begin more at once than it has.
    fn has_idle_slots(&self, short: &Short<'_>) -> bool {
        let usage = self.slots.usage();
        let is_idle = |plugin: &str| usage.of(plugin).held <= usage.of(plugin).running;
        short.topics.iter().any(|topic| self.handlers.route(topic).is_some_and(|route| is_idle(&route.plugin)))
    }

    /// Waits until something may be due, a slot is free, or the poll's time has come.
    async fn idle(&self, work: &mut Work) {
        let settler = &work.dispatcher.settler;
        if settler.places_free() == 0 {
            drop(settler.place().await);
            return;
        }
        if self.slots.usage().is_full() {
            return self.slots.room().await;
        }
        // Jittered, so that a fleet does not poll in step: 0.75 to 1.25 of the interval.
        let at_most = self.options.poll_interval.mul_f64(0.75 + 0.5 * (self.draw_jitter)().share());
        let at_most = if self.slots.usage().has_waiting() { at_most.min(NAP) } else { at_most };
        // Sooner where a key will have rested, or a rate allows a call.
        let at_most = self.alarms.next().into_iter().chain(work.until_allowed).fold(at_most, Duration::min);
        tokio::select! {
            biased;
            _ = self.store.wait_for_work(at_most) => work.due_fresh = None,
            () = self.slots.room() => {}
        }
    }

    /// Lets calls end within the grace, interrupts the rest, and writes what they came to.
    async fn stop(&self, work: Work) -> Stopped {
        let Work { dispatcher, end, chores, .. } = work;
        dispatcher.stopping.cancel();
        let begun = Instant::now();
        let calls = dispatcher.running.clone();
        calls.close();
        if !calls.is_empty() {
            info!("stopping: {} calls are under way and have {:.0?} to end", calls.len(), self.options.grace);
        }
        let mut interrupted = 0;
        if timeout(self.options.grace, calls.wait()).await.is_err() {
            interrupted = calls.len();
            warn!("the grace is over: {interrupted} calls are interrupted and their messages given back");
            dispatcher.interrupt.cancel();
        }
        let written = async {
            calls.wait().await;
            end.cancel();
            // The last settler: the settle loop ends when it has written everything.
            drop(dispatcher);
            chores.close();
            chores.wait().await;
        };
        // Only the wait is bounded; what is being written is not dropped half-way but ends with the process.
        match (timeout_at(begun + self.options.grace + AFTER_GRACE, written).await, interrupted) {
            (Err(_), _) => {
                warn!(
                    "not everything could be ended and written in time; those messages come again when their leases lapse"
                );
                Stopped::Unsettled
            }
            (Ok(()), 0) => Stopped::Drained,
            (Ok(()), calls) => Stopped::Interrupted { calls },
        }
    }
}
