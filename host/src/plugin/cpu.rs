use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A call that has computed for longer takes turns with others of its kind.
const LONG: Duration = Duration::from_millis(20);

/// Keeps a thread free for short calls: calls that compute for long share all threads but one, a tick each in turn. Without
/// it every short call would wait for a tick of each that spins.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Semaphore>);

impl Turns {
    pub(crate) fn new(threads: usize) -> Self {
        Turns(Arc::new(Semaphore::new(threads.saturating_sub(1).max(1))))
    }
}

/// What a call has spent computing, measured by the clock of the thread that polls it: a guest that waits for a reply, or
/// for a core on a busy machine, is charged nothing.
#[derive(Debug)]
pub(crate) struct CpuMeter {
    budget: Duration,
    /// Nanoseconds of the slices that ended.
    spent: AtomicU64,
    /// When the running slice began, in nanoseconds of its thread's clock, plus one; 0 while none runs.
    slice_start: AtomicU64,
    turns: Turns,
    /// Held while a long call computes, and given back whenever it pauses.
    turn: Mutex<Option<OwnedSemaphorePermit>>,
}

impl CpuMeter {
    pub(crate) fn new(budget: Duration, turns: Turns) -> Arc<Self> {
        let (spent, slice_start) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(CpuMeter { budget, spent, slice_start, turns, turn: Mutex::default() })
    }

    /// Shares the thread with whoever else waits for it; returns when it is this call's turn again.
    pub(crate) async fn pause(self: Arc<Self>) {
        // Ends the slice, and with it a turn.
        tokio::task::yield_now().await;
        if self.spent() >= LONG {
            // Never closed; were it so, the call would go on out of turn.
            let turn = self.turns.0.clone().acquire_owned().await.ok();
            self.set_turn(turn);
        }
    }

    fn set_turn(&self, turn: Option<OwnedSemaphorePermit>) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = turn;
    }

    /// The running slice included, where it is asked from within.
    pub(crate) fn spent(&self) -> Duration {
        let spent = Duration::from_nanos(self.spent.load(Ordering::Relaxed));
        match self.slice_start.load(Ordering::Relaxed) {
            0 => spent,
            start => spent + Duration::from_nanos((thread_time() + 1).saturating_sub(start)),
        }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.spent() >= self.budget
    }

    /// Charges the polls of `future` to this meter.
    pub(crate) fn measure<F: Future>(self: &Arc<Self>, future: F) -> Measured<F> {
        Measured { meter: self.clone(), future: Box::pin(future) }
    }
}

/// What this thread has computed so far. Nanoseconds.
fn thread_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

pub(crate) struct Measured<F> {
    meter: Arc<CpuMeter>,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Measured<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let start = thread_time();
        self.meter.slice_start.store(start + 1, Ordering::Relaxed);
        let polled = self.future.as_mut().poll(cx);
        self.meter.slice_start.store(0, Ordering::Relaxed);
        self.meter.spent.fetch_add(thread_time().saturating_sub(start), Ordering::Relaxed);
        self.meter.set_turn(None);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_costs_nothing_and_computing_does() {
        let meter = CpuMeter::new(Duration::from_millis(20), Turns::new(2));

        meter.measure(tokio::time::sleep(Duration::from_millis(60))).await;
        assert!(!meter.is_spent());

        let busy = async {
            let start = thread_time();
            while thread_time() - start < 25_000_000 {}
        };
        meter.measure(busy).await;
        assert!(meter.is_spent());
    }
}
