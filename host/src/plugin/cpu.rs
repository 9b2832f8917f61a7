use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A call that has computed for longer is a long one.
const LONG: Duration = Duration::from_millis(2);

/// What a call has spent computing, measured by the clock of the thread that polls it: a guest that waits for a reply, or
/// for a core on a busy machine, is charged nothing.
#[derive(Debug)]
pub(crate) struct CpuMeter {
    budget: Duration,
    /// Nanoseconds of the slices that ended.
    spent: AtomicU64,
    /// When the running slice began, in nanoseconds of its thread's clock, plus one; 0 while none runs.
    slice_start: AtomicU64,
}

impl CpuMeter {
    pub(crate) fn new(budget: Duration) -> Arc<Self> {
        Arc::new(CpuMeter { budget, spent: AtomicU64::new(0), slice_start: AtomicU64::new(0) })
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

    /// Whether it should leave the quick threads to others.
    pub(crate) fn is_long(&self) -> bool {
        self.spent() >= LONG
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
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_costs_nothing_and_computing_does() {
        let meter = CpuMeter::new(Duration::from_millis(20));

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
