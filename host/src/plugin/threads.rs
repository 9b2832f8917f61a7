use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

use super::cpu::CpuMeter;

/// How far the patient threads stand back, in the steps of `nice`: about a tenth of a core is theirs even on a machine that
/// is busy with other work. The lowest class of all would starve there, with locks in its hands that others wait for.
const PATIENCE: i32 = 10;

/// The threads that guests run on, none of them the relay's: a guest that computes never delays a lease.
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

    /// Runs the work of one call, which `cpu` measures, to its end. Dropping the future aborts it.
    pub(crate) async fn run<F>(
        &self,
        cpu: Arc<CpuMeter>,
        work: impl FnOnce(Arc<CpuMeter>) -> F,
    ) -> Result<F::Output, JoinError>
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
        let rest = match AbortOnDropHandle::new(quick.spawn(begun)).await? {
            Ok(output) => return Ok(output),
            Err(rest) => rest,
        };
        AbortOnDropHandle::new(patient.spawn(Rest { work: rest, quick: quick.handle().clone() })).await
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
    async fn a_long_call_that_is_dropped_is_dropped_among_the_quick_threads() {
        let threads = GuestThreads::start(1).unwrap();
        let (tells, told) = mpsc::channel();
        let is_patient = Arc::new(Notify::new());
        let tell_patient = is_patient.clone();
        let call = threads.run(CpuMeter::new(Duration::from_secs(1)), |cpu| async move {
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
