//! The protocol in small: what claims, calls, settles, renewals and faults make of rows and relays. What becomes of a message is
//! decided by the core's own `admit` and `decide`.
//!
//! Kinder than the real relay in one thing: here a relay that wakes up notices at once that it no longer has its lease. The real
//! one looks every thirtieth of a lease, and for so long it may go on with a call that is not its own any more.

use std::time::Duration;

use outboxd_core::{
    Attempt, Blame, Claim, Jitter, LeaseId, Message, MessageId, Order, Outcome, Payload, Reason, RetryPolicy,
    Transition, admit, decide,
};
use uuid::Uuid;

pub const RELAYS: usize = 2;
pub const MAX_MESSAGES: usize = 3;
pub const MAX_ATTEMPTS: u32 = 3;
pub const MAX_LAPSES: u32 = 2;

/// What fences a settle, and whom a relay trusts. All but the first are mistakes, to see that the checks find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    AsBuilt,
    NoFence,
    FenceByAttempts,
    TrustsTooLong,
    CallsTheSpent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowState {
    Pending,
    Processing,
    Delivered,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row {
    pub state: RowState,
    pub attempts: u8,
    pub lapses: u8,
    /// The lease has ended, on the database's clock.
    pub is_over: bool,
    pub has_succeeded: bool,
    /// A lapse or a person may make it come again.
    pub may_repeat: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Write {
    Delivered,
    Pending,
    Released,
    Dead,
}

/// What a relay does for one message. Lease ids never come back, so all that matters of one is whether it is the row's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Task {
    pub message: u8,
    pub attempt: u8,
    pub has_the_lease: bool,
    /// A person discarded the message: the relay learns it when it renews.
    pub was_discarded: bool,
    /// The relay believes in its lease, on its own clock.
    pub is_trusted: bool,
    /// Nothing while the call runs.
    pub result: Option<Write>,
}

/// A relay with one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Relay {
    pub is_paused: bool,
    pub is_stopping: bool,
    pub task: Option<Task>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World<const N: usize> {
    pub rows: [Row; N],
    pub relays: [Relay; RELAYS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    Claimed,
    ClaimAnswerLost,
    Refused,
    Succeeded,
    /// It did not succeed, and the result says delivered.
    FailedAndDelivered,
    /// Succeeded again, and nothing was done that explains it.
    CameTwice,
    Failed,
    Interrupted,
    Settled,
    SettledLate,
    Fenced,
    /// A settle found the row though its relay had lost the lease, whether the answer came or not.
    SettledWithoutLease,
    SettleAnswerLost,
    GivenUp,
    Renewed,
    FoundLost,
    TrustEnded,
    Lapsed,
    LapsedInACall,
    Crashed,
    Paused,
    Resumed,
    Stopping,
    Left,
    Discarded,
    Redriven,
}

impl Event {
    /// What a healed world does by itself.
    pub fn is_progress(self) -> bool {
        use Event::*;
        !matches!(
            self,
            ClaimAnswerLost | SettleAnswerLost | Failed | Crashed | Paused | Stopping | Discarded | Redriven
        )
    }
}

impl<const N: usize> World<N> {
    pub fn new() -> Self {
        let row = Row {
            state: RowState::Pending,
            attempts: 0,
            lapses: 0,
            is_over: false,
            has_succeeded: false,
            may_repeat: false,
        };
        World { rows: [row; N], relays: [Relay::default(); RELAYS] }
    }

    /// The same for every naming of the relays.
    pub fn sorted(mut self) -> Self {
        self.relays.sort_unstable();
        self
    }

    /// Everything that may happen next.
    pub fn next(&self, rules: Rules) -> Vec<(Event, World<N>)> {
        let mut next = Vec::new();
        for relay in 0..RELAYS {
            self.next_of_relay(relay, rules, &mut next);
        }
        for message in 0..N {
            self.next_of_message(message, rules, &mut next);
        }
        next
    }

    fn next_of_relay(&self, relay: usize, rules: Rules, next: &mut Vec<(Event, World<N>)>) {
        let with = |change: &dyn Fn(&mut Relay)| {
            let mut world = *self;
            change(&mut world.relays[relay]);
            world
        };
        let me = self.relays[relay];
        next.push((Event::Crashed, with(&|relay| *relay = Relay::default())));
        if me.is_paused {
            let mut world = with(&|relay| relay.is_paused = false);
            if let Some(task) = &mut world.relays[relay].task {
                task.is_trusted &= task.has_the_lease && !self.rows[task.message as usize].is_over;
            }
            next.push((Event::Resumed, world));
            return;
        }
        next.push((Event::Paused, with(&|relay| relay.is_paused = true)));
        let Some(task) = me.task else {
            if me.is_stopping {
                next.push((Event::Left, with(&|relay| relay.is_stopping = false)));
            } else {
                (0..N).for_each(|message| self.claim(relay, message, rules, next));
            }
            return;
        };
        if !me.is_stopping {
            next.push((Event::Stopping, with(&|relay| relay.is_stopping = true)));
        }
        let with_task = |task: Option<Task>| with(&|relay| relay.task = task);
        if task.is_trusted {
            next.push((Event::TrustEnded, with_task(Some(Task { is_trusted: false, ..task }))));
        }
        match task.result {
            None => {
                for (event, outcome) in outcomes(me.is_stopping) {
                    let result = decided(outcome, task.attempt);
                    let mut world = with_task(Some(Task { result: Some(result), ..task }));
                    let row = &mut world.rows[task.message as usize];
                    let came_twice = event == Event::Succeeded && row.has_succeeded && !row.may_repeat;
                    row.has_succeeded |= event == Event::Succeeded;
                    let is_wrong = result == Write::Delivered && event != Event::Succeeded;
                    next.push(match (came_twice, is_wrong) {
                        (true, _) => (Event::CameTwice, world),
                        (_, true) => (Event::FailedAndDelivered, world),
                        _ => (event, world),
                    });
                }
                if !task.is_trusted {
                    next.push((Event::FoundLost, with_task(None)));
                }
                self.renew(task, with_task(Some(Task { is_trusted: true, ..task })), with_task(None), next);
            }
            Some(write) => {
                let (found, world) = self.settled(task, write, rules);
                let is_late = self.rows[task.message as usize].is_over;
                let (event, unanswered) = match found {
                    true if !task.has_the_lease => (Event::SettledWithoutLease, Event::SettledWithoutLease),
                    true if is_late => (Event::SettledLate, Event::SettleAnswerLost),
                    true => (Event::Settled, Event::SettleAnswerLost),
                    false => (Event::Fenced, Event::SettleAnswerLost),
                };
                let done = |mut world: World<N>| {
                    world.relays[relay].task = None;
                    world
                };
                next.push((event, done(world)));
                next.push((unanswered, world));
                if !task.is_trusted {
                    next.push((Event::GivenUp, with_task(None)));
                }
            }
        }
    }

    fn claim(&self, relay: usize, message: usize, rules: Rules, next: &mut Vec<(Event, World<N>)>) {
        let row = self.rows[message];
        let has_lapsed = row.state == RowState::Processing;
        if !(row.state == RowState::Pending || has_lapsed && row.is_over) {
            return;
        }
        let mut world = *self;
        world.forget_leases_of(message);
        // Claims whose answers are lost go on for ever: above the limits one count is as good as another, for what is refused
        // gives no attempt back.
        let attempts = (row.attempts + 1).min(MAX_ATTEMPTS as u8 + 1);
        let lapses = (row.lapses + u8::from(has_lapsed)).min(MAX_LAPSES as u8);
        world.rows[message] =
            Row { state: RowState::Processing, attempts, lapses, is_over: false, ..self.rows[message] };
        next.push((Event::ClaimAnswerLost, world));
        let refused = admit(&claim(attempts, lapses), &policy(), MAX_LAPSES).err();
        let (event, result) = match refused {
            Some(refused) if rules != Rules::CallsTheSpent => (Event::Refused, Some(decided(refused, attempts))),
            _ => (Event::Claimed, None),
        };
        let message = message as u8;
        world.relays[relay].task = Some(Task {
            message,
            attempt: attempts,
            has_the_lease: true,
            was_discarded: false,
            is_trusted: true,
            result,
        });
        next.push((event, world));
    }

    /// `kept` and `lost` are the worlds in which the relay has got the answer.
    fn renew(&self, task: Task, mut kept: World<N>, lost: World<N>, next: &mut Vec<(Event, World<N>)>) {
        if task.has_the_lease {
            kept.rows[task.message as usize].is_over = false;
            next.push((Event::Renewed, kept));
        } else {
            next.push((Event::FoundLost, lost));
        }
    }

    /// The statement has come to the database: whether it found its row, and the world after it.
    fn settled(&self, task: Task, write: Write, rules: Rules) -> (bool, World<N>) {
        let mut world = *self;
        let row = &mut world.rows[task.message as usize];
        let is_found = row.state == RowState::Processing
            && match rules {
                Rules::NoFence => true,
                Rules::FenceByAttempts => row.attempts == task.attempt,
                _ => task.has_the_lease,
            };
        if !is_found {
            return (false, world);
        }
        row.is_over = false;
        match write {
            Write::Delivered => row.state = RowState::Delivered,
            Write::Dead => row.state = RowState::Dead,
            Write::Pending => row.state = RowState::Pending,
            Write::Released => {
                row.state = RowState::Pending;
                row.attempts -= 1;
            }
        }
        if write != Write::Released {
            row.lapses = 0;
        }
        world.forget_leases_of(task.message as usize);
        (true, world)
    }

    fn next_of_message(&self, message: usize, rules: Rules, next: &mut Vec<(Event, World<N>)>) {
        let row = self.rows[message];
        let mut world = *self;
        let of_it =
            |relay: &&Relay| relay.task.is_some_and(|task| task.message as usize == message && task.has_the_lease);
        let holder = self.relays.iter().find(of_it);
        match row.state {
            RowState::Processing if !row.is_over => {
                // A relay trusts its lease for a shorter time than the database grants it, unless it stands still.
                let is_trusted =
                    holder.is_some_and(|relay| !relay.is_paused && relay.task.is_some_and(|task| task.is_trusted));
                if !is_trusted || rules == Rules::TrustsTooLong {
                    world.rows[message] = Row { is_over: true, may_repeat: true, ..row };
                    let in_a_call = holder.and_then(|relay| relay.task).is_some_and(|task| task.result.is_none());
                    next.push((if in_a_call { Event::LapsedInACall } else { Event::Lapsed }, world));
                }
            }
            RowState::Dead => {
                let pending = RowState::Pending;
                world.rows[message] = Row { state: pending, attempts: 0, lapses: 0, may_repeat: true, ..row };
                next.push((Event::Redriven, world));
            }
            _ => {}
        }
        if matches!(row.state, RowState::Pending | RowState::Processing) {
            world = *self;
            world.rows[message] = Row { state: RowState::Dead, is_over: false, may_repeat: true, ..row };
            for relay in &mut world.relays {
                let task = relay.task.as_mut().filter(|task| task.message as usize == message && task.has_the_lease);
                task.into_iter().for_each(|task| task.was_discarded = true);
            }
            world.forget_leases_of(message);
            next.push((Event::Discarded, world));
        }
    }

    fn forget_leases_of(&mut self, message: usize) {
        for relay in &mut self.relays {
            if let Some(task) = relay.task.as_mut().filter(|task| task.message as usize == message) {
                task.has_the_lease = false;
            }
        }
    }

    pub fn is_finished(&self) -> bool {
        self.rows.iter().all(|row| matches!(row.state, RowState::Delivered | RowState::Dead))
            && self.relays.iter().all(|relay| relay.task.is_none())
    }
}

fn outcomes(is_stopping: bool) -> Vec<(Event, Outcome)> {
    let error = String::new;
    let mut outcomes = vec![
        (Event::Succeeded, Outcome::Success),
        (Event::Failed, Outcome::Retry { error: error(), after: None }),
        (Event::Failed, Outcome::Cancel { error: error() }),
        (Event::Failed, Outcome::Fault { reason: Reason::Trap, error: error(), blame: Blame::Plugin }),
    ];
    if is_stopping {
        let interrupted = Outcome::Fault { reason: Reason::Interrupted, error: error(), blame: Blame::Host };
        outcomes.push((Event::Interrupted, interrupted));
    }
    outcomes
}

fn policy() -> RetryPolicy {
    RetryPolicy { max_attempts: MAX_ATTEMPTS, pause: Duration::ZERO, ..RetryPolicy::default() }
}

fn decided(outcome: Outcome, attempt: u8) -> Write {
    match decide(outcome, Attempt(attempt.into()), &policy(), Jitter::new(1.0)) {
        Transition::Delivered => Write::Delivered,
        Transition::Pending { .. } => Write::Pending,
        Transition::Released { .. } => Write::Released,
        Transition::Dead { .. } => Write::Dead,
    }
}

fn claim(attempts: u8, lapses: u8) -> Claim {
    let payload = Payload::Bytes(Vec::new());
    let (topic, headers) = (String::new(), Vec::new());
    let message = Message { id: MessageId(Uuid::nil()), topic, key: None, payload, headers, created_at_ms: 0 };
    let (attempt, lapses) = (Attempt(attempts.into()), lapses.into());
    Claim {
        message,
        lease_id: LeaseId(Uuid::nil()),
        attempt,
        lapses,
        lapsed: false,
        expired: false,
        order: Order::None,
        key_failures: 0,
    }
}
