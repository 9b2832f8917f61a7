use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

use super::cpu::CpuMeter;
use super::outcome::panic_text;

/// How far the patient threads stand back, in the steps of `nice`: about a tenth of a core is theirs even on a machine that
/// is busy with other work. The lowest class of all would starve there, with locks in its hands that others wait for.
const PATIENCE: i32 = 10;

/// The threads that guests run on, none of them the relay's: a guest that computes never delays a lease. Attempts live there
/// from their claim until their result is handed over, so that a call crosses to no other thread.
///
/// Every call begins on the quick threads. One that computes for long goes on on the patient ones, to which the machine
/// prefers the others: so a short call waits for the first milliseconds of long ones at most, and the relay, or a database
/// beside it, for a moment.
pub(crate) struct GuestThreads {
    /// Taken only when this is dropped.
    runtimes: Option<Runtimes>,
}

struct Runtimes {
    quick: Runtime,
    patient: Runtime,
}

impl GuestThreads {
    /// `threads` of each kind.
    pub(crate) fn start(threads: usize) -> std::io::Result<GuestThreads> {
        // A guest may hold its thread for a tick: the defaults, 61 polls between two looks at the clock, the network and the
        // queue of new calls, would be a long time.
        let quick = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("guests")
            .enable_all()
            .event_interval(2)
            .global_queue_interval(1)
            .build()?;
        // Has no clock and no network of its own: what a call waits for there belongs to the quick threads.
        let patient = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("guests-patient")
            .global_queue_interval(1)
            .on_thread_start(|| {
                // Of this thread alone, on Linux. Without it they only compete as equals.
                rustix::process::nice(PATIENCE).ok();
            })
            .build()?;
        Ok(GuestThreads { runtimes: Some(Runtimes { quick, patient }) })
    }

    /// The threads that every call begins on. One that is asked for there stays there.
    pub(crate) fn begin_on(&self) -> Handle {
        self.runtimes().quick.handle().clone()
    }

    /// Runs the work of one call, which `cpu` measures, to its end. Dropping the future aborts it. The error is a panic.
    pub(crate) async fn run<F>(
        &self,
        cpu: Arc<CpuMeter>,
        work: impl FnOnce(Arc<CpuMeter>) -> F,
    ) -> Result<F::Output, String>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let Runtimes { quick, patient } = self.runtimes();
        let mut work = Some(Box::pin(work(cpu.clone())));
        let begun = poll_fn(move |cx| {
            let Some(running) = &mut work else { return Poll::Pending };
            match running.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Ok(output)),
                Poll::Pending if cpu.is_long() => Poll::Ready(Err(work.take())),
                Poll::Pending => Poll::Pending,
            }
        });
        let begun = AssertUnwindSafe(begun).catch_unwind();
        let is_here = Handle::try_current().is_ok_and(|here| here.id() == quick.handle().id());
        let begun = match is_here {
            true => begun.await,
            false => AbortOnDropHandle::new(quick.spawn(begun)).await.map_err(|error| error.to_string())?,
        };
        let rest = match begun.map_err(|panic| panic_text(panic.as_ref()))? {
            Ok(output) => return Ok(output),
            Err(rest) => rest,
        };
        let rest = Rest { work: rest, quick: quick.handle().clone() };
        AbortOnDropHandle::new(patient.spawn(rest)).await.map_err(|error| error.to_string())
    }

    fn runtimes(&self) -> &Runtimes {
        self.runtimes.as_ref().expect("taken only when this is dropped")
    }
}

/// What is left of a call that goes on on the patient threads. Timers and tasks that it starts are the quick threads', also
/// those that it starts as it is dropped.
struct Rest<F> {
    /// Taken only at its drop.
    work: Option<Pin<Box<F>>>,
    quick: Handle,
}

impl<F: Future> Future for Rest<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Rest { work, quick } = &mut *self;
        let _quick = quick.enter();
        match work {
            Some(work) => work.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Rest<F> {
    fn drop(&mut self) {
        let _quick = self.quick.enter();
        self.work = None;
    }
}

impl Drop for GuestThreads {
    fn drop(&mut self) {
        // Dropping a runtime waits for it, which must not happen within another.
        if let Some(Runtimes { quick, patient }) = self.runtimes.take() {
            patient.shutdown_background();
            quick.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use tokio::runtime::Id;
    use tokio::sync::Notify;

    use super::*;

    /// Tells which runtime's it is when it is dropped.
    struct Tells(mpsc::Sender<Id>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(Handle::current().id()).ok();
        }
    }

    #[tokio::test]
    async fn a_call_asked_for_on_its_threads_stays_there_and_may_be_the_last_to_hold_them() {
        let threads = GuestThreads::start(1).unwrap();

        let caller = threads.begin_on().spawn(async move {
            let asked_on = thread::current().id();
            let ran_on = threads.run(meter(), |_| async { thread::current().id() }).await;
            drop(threads);
            (asked_on, ran_on)
        });

        let (asked_on, ran_on) = caller.await.unwrap();
        assert_eq!(ran_on, Ok(asked_on));
    }

    #[tokio::test]
    async fn a_panic_is_an_error_wherever_the_call_was_asked_for() {
        let threads = Arc::new(GuestThreads::start(1).unwrap());
        let panics = |_| async { panic!("the host is wrong") };

        let from_elsewhere = threads.run(meter(), panics).await;
        let there = threads.clone();
        let from_there = threads.begin_on().spawn(async move { there.run(meter(), panics).await }).await.unwrap();

        assert_eq!(from_elsewhere, Err::<(), _>("the host is wrong".into()));
        assert_eq!(from_there, Err("the host is wrong".into()));
    }

    fn meter() -> Arc<CpuMeter> {
        CpuMeter::new(Duration::from_secs(1))
    }

    #[tokio::test]
    async fn a_long_call_that_is_dropped_is_dropped_among_the_quick_threads() {
        let threads = GuestThreads::start(1).unwrap();
        let (tells, told) = mpsc::channel();
        let is_patient = Arc::new(Notify::new());
        let tell_patient = is_patient.clone();
        let call = threads.run(meter(), |cpu| async move {
            let _tells = Tells(tells);
            let meter = cpu.clone();
            cpu.measure(async move { while !meter.is_long() {} }).await;
            tokio::task::yield_now().await;
            tell_patient.notify_one();
            std::future::pending::<()>().await
        });

        tokio::select! {
            ended = call => panic!("it ended: {ended:?}"),
            () = is_patient.notified() => {}
        }

        let dropped_in = told.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(dropped_in, threads.runtimes().quick.handle().id());
    }
}
