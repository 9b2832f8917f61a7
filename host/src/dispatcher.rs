//! One attempt: admit, call, decide, hand over to be settled.

use std::sync::Arc;
use std::time::Duration;

use outboxd_core::{
    AttemptRecord, Blame, Called, Claim, Jitter, Order, Outcome, Payload, Reason, Rest, RetryPolicy, Settlement,
    Transition, admit, decide, one_line, planted, rest,
};
use outboxd_store::OutboxStore;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::handler::{CallControl, Handled, Handlers, Route};
use crate::leases::{HeldLease, Leases, LetGo};
use crate::settler::{Haste, Ready, Settler};
use crate::slots::{Slots, Ticket};

/// How long a message that was claimed ahead waits for its turn.
const TURN_WITHIN: Duration = Duration::from_secs(1);

/// Draws the jitter of a wait. Passed in, so that a simulation can draw from its seed.
pub type DrawJitter = Arc<dyn Fn() -> Jitter + Send + Sync>;

pub struct Dispatcher {
    pub store: Arc<dyn OutboxStore>,
    pub handlers: Arc<dyn Handlers>,
    pub slots: Arc<Slots>,
    pub leases: Arc<Leases>,
    pub settler: Settler,
    pub draw_jitter: DrawJitter,
    /// How long after its lease a result of unknown fate is still tried.
    pub settle_grace: Duration,
    pub running: TaskTracker,
    /// No call begins any more.
    pub stopping: CancellationToken,
    /// Interrupts every call under way: the grace of a stop is over.
    pub interrupt: CancellationToken,
    /// So many lost leases make a message `crashed`.
    pub max_lapses: u32,
    /// One permit, held by the message that runs on its last life.
    pub last_life: Arc<Semaphore>,
}

impl Dispatcher {
    /// The most leases that a message may have lost to be claimed now.
    ///
    /// A message that lost all but one is on its last life: it may be what kills relays. While one of those runs no other
    /// is claimed, so that a poison takes none with it.
    pub fn lapses_max(&self) -> u32 {
        match self.last_life.available_permits() {
            0 => self.max_lapses.saturating_sub(2),
            _ => u32::MAX,
        }
    }

    /// Starts an attempt for each claim that was asked for at `asked`; of those on their last life for one, and only when
    /// the others have been given back.
    pub async fn dispatch(self: &Arc<Self>, claims: Vec<Claim>, asked: Instant) {
        let (last_lives, others): (Vec<_>, Vec<_>) =
            claims.into_iter().partition(|claim| claim.lapses.saturating_add(1) == self.max_lapses);
        for claim in others {
            self.start(claim, asked, None);
        }
        let mut last_lives = last_lives.into_iter();
        let Some(claim) = last_lives.next() else { return };
        let alone = planted!(16, None, self.last_life.clone().try_acquire_owned().ok());
        let waiting: Vec<Settlement> = last_lives.map(|claim| given_back(&claim)).collect();
        if !waiting.is_empty() && self.store.release(&waiting).await.is_err() {
            // They may still be held by this relay, so the one may not start either.
            for settlement in waiting.into_iter().chain([given_back(&claim)]) {
                let give_up_at = asked + self.settle_grace;
                let place = self.settler.place().await;
                self.settler.hand_over(Ready { settlement, give_up_at, place, alone: None, haste: Haste::None });
            }
            return;
        }
        self.start(claim, asked, alone);
    }

    fn start(self: &Arc<Self>, claim: Claim, asked: Instant, alone: Option<OwnedSemaphorePermit>) {
        let bytes = match &claim.message.payload {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::TooLarge { .. } => 0,
        };
        let routed = self.handlers.route(&claim.message.topic).map(|route| (self.slots.take(&route, bytes), route));
        let threads = routed.as_ref().and_then(|(_, route)| route.handler.threads());
        let lease = self.leases.hold(&claim, asked, &self.interrupt);
        let dispatcher = self.clone();
        let attempt = async move {
            let (ticket, route) = routed.unzip();
            let turn = dispatcher.turn(&claim, ticket.as_ref().zip(route), &lease).await;
            // Before the call: no call begins while too many results wait to be written.
            let place = dispatcher.settler.place().await;
            let attempted = match turn {
                Ok((_turn, route)) => dispatcher.attempt(&claim, route, &lease).await,
                Err(later) => Attempted::refused(later, RetryPolicy::default().into()),
            };
            let haste = haste(claim.order, ticket.as_ref());
            if let Some((settlement, give_up_at)) = dispatcher.finish(claim, attempted, lease, asked) {
                dispatcher.settler.hand_over(Ready { settlement, give_up_at, place, alone, haste });
            }
            drop(ticket);
        };
        match threads {
            Some(threads) => self.running.spawn_on(attempt, &threads),
            None => self.running.spawn(attempt),
        };
    }

    /// Waits for the right to run; answers it with the route as it is by then. What was claimed ahead of calls that turned out
    /// slow is given back, so that another relay may have it.
    async fn turn(
        &self,
        claim: &Claim,
        routed: Option<(&Ticket, Route)>,
        lease: &HeldLease,
    ) -> Result<(OwnedSemaphorePermit, Route), Outcome> {
        let Some((ticket, route)) = routed else {
            let error = format!("topic {:?} has no plugin any more", claim.message.topic);
            return Err(host_fault(Reason::Unrouted, error));
        };
        let stops = || Err(host_fault(Reason::Interrupted, "the relay stopped before its turn came".into()));
        if self.stopping.is_cancelled() {
            return stops();
        }
        if let Some(turn) = ticket.turn_now() {
            return Ok((turn, route));
        }
        let turn = tokio::select! {
            biased;
            () = lease.stop.cancelled() => return stops(),
            () = self.stopping.cancelled() => return stops(),
            turn = ticket.turn() => turn,
            () = sleep(TURN_WITHIN) => {
                let error = "the calls before it took long: it was given back before its turn came".into();
                // Due again at once: another relay may have room, and this one has as soon as a call ends.
                return Err(host_fault(Reason::Interrupted, error));
            }
        };
        match self.handlers.route(&claim.message.topic) {
            Some(route) if route.plugin == ticket.plugin && !route.is_parked() => Ok((turn, route)),
            _ => Err(host_fault(Reason::Overload, "its plugin was parked or replaced before its turn came".into())),
        }
    }

    /// Runs one attempt. Everything that can go wrong is an outcome.
    async fn attempt(&self, claim: &Claim, route: Route, lease: &HeldLease) -> Attempted {
        if let Err(refused) = admit(claim, &route.policy, self.max_lapses) {
            return Attempted::refused(refused, route.policy);
        }
        // The claim was answered late, or the relay stood still while the message waited.
        if !lease.is_trusted() {
            let error = "its lease could not be trusted any more when its turn came".into();
            return Attempted::refused(host_fault(Reason::Overload, error), route.policy);
        }
        let started = Instant::now();
        let call = CallControl { stop: lease.stop.clone() };
        let handled = planted!(
            10,
            settled_before_it_ended(route.handler, claim.clone(), call),
            route.handler.handle(claim, call).await,
        );
        Attempted { handled, took: started.elapsed(), policy: route.policy, spacing: route.spacing }
    }

    /// What is to be written, and until when; nothing where the lease is lost.
    fn finish(
        &self,
        claim: Claim,
        attempted: Attempted,
        lease: HeldLease,
        asked: Instant,
    ) -> Option<(Settlement, Instant)> {
        let Attempted { handled, took, policy, spacing } = attempted;
        let LetGo::Trusted { until } = lease.let_go() else { return None };
        let called = Called {
            outcome: &handled.outcome,
            target: handled.target,
            asked: handled.pause_key,
            failures: claim.key_failures,
            took,
        };
        let rest = match claim.message.key {
            Some(_) => rest(claim.order, &called, &policy, spacing, (self.draw_jitter)()),
            None => Rest::default(),
        };
        let transition = decide(handled.outcome, claim.attempt, &policy, (self.draw_jitter)());
        let transition = claim.order.after_rest(transition, rest.time);
        let record = AttemptRecord {
            attempt: claim.attempt,
            took,
            http_status: handled.http_status,
            response_excerpt: handled.response_excerpt,
            digest: handled.digest.map(|digest| digest.to_string()),
        };
        report(&claim, &transition, asked);
        let settlement =
            Settlement { id: claim.message.id, lease_id: claim.lease_id, transition, order: claim.order, rest, record };
        Some((settlement, until + self.settle_grace))
    }
}

/// What came of one attempt, and the policy that decides its consequence.
struct Attempted {
    handled: Handled,
    took: Duration,
    policy: Arc<RetryPolicy>,
    spacing: Duration,
}

impl Attempted {
    /// No plugin ran.
    fn refused(outcome: Outcome, policy: Arc<RetryPolicy>) -> Self {
        Attempted { handled: Handled::new(outcome), took: Duration::ZERO, policy, spacing: Duration::ZERO }
    }
}

fn haste(order: Order, ticket: Option<&Ticket>) -> Haste {
    match order {
        Order::None => Haste::None,
        _ if ticket.is_some_and(Ticket::is_awaited) => Haste::Some,
        _ => Haste::Great,
    }
}

/// Bug 10: a call is taken for a success while it runs.
#[cfg(feature = "planted-bugs")]
fn settled_before_it_ended(handler: Arc<dyn crate::handler::Handler>, claim: Claim, call: CallControl) -> Handled {
    tokio::spawn(async move { handler.handle(&claim, call).await });
    Handled::new(Outcome::Success)
}

/// The settlement of a claim on its last life that must wait for another.
fn given_back(claim: &Claim) -> Settlement {
    let error = "on its last life, it waits until another such message has ended".into();
    let pause = RetryPolicy::default().pause;
    let transition = Transition::Released { after: pause, reason: Reason::Overload, error };
    Settlement::of(claim, transition)
}

fn host_fault(reason: Reason, error: String) -> Outcome {
    Outcome::Fault { reason, error, blame: Blame::Host }
}

fn report(claim: &Claim, transition: &Transition, asked: Instant) {
    let (id, topic, attempt) = (claim.message.id, &claim.message.topic, claim.attempt.0);
    let ms = asked.elapsed().as_millis();
    match transition {
        Transition::Delivered => {
            tracing::debug!(message.id = %id, topic, attempt, "message {id} was delivered in {ms} ms");
        }
        Transition::Pending { after, reason, error } => {
            let (after, error) = (after.as_secs_f64(), one_line(error, 300));
            tracing::info!(message.id = %id, topic, attempt, reason = %reason, "message {id} is tried again in {after:.1} s: {reason}: {error}");
        }
        Transition::Released { reason, error, .. } => {
            let error = one_line(error, 300);
            tracing::info!(message.id = %id, topic, attempt, reason = %reason, "message {id} was given back, its attempt unspent: {reason}: {error}");
        }
        Transition::Dead { reason, error } => {
            let error = one_line(error, 300);
            tracing::warn!(message.id = %id, topic, attempt, reason = %reason, "message {id} is dead: {reason}: {error}");
        }
    }
}
