use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use outboxd_core::Target;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

use super::call::{CallEgress, LastResponse};
use super::error::EgressError;
use super::target::{Awaited, Sight};

/// The body of a request on its way out.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, EgressError>;

/// The body of an answer as it comes in, not yet counted.
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, EgressError>;

/// Takes bytes from what is left of a budget, or leaves it as it is where it does not suffice.
pub(crate) fn take(left: &AtomicU64, bytes: usize) -> bool {
    left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(bytes as u64)).is_ok()
}

/// After a target has answered, or was refused, so much more of a guest's body is read and thrown away: guests of several
/// languages break when their body closes under them.
const DRAIN_BYTES_MAX: u64 = 8 << 20;

/// Reads the guest's body, counts it, and passes it on for as long as anybody listens; afterwards drains it.
pub(crate) async fn pump<B>(mut body: B, call: CallEgress, onward: mpsc::Sender<Result<Bytes, EgressError>>)
where
    B: Body<Data = Bytes> + Unpin,
{
    let fail = async |error: EgressError| {
        call.note(&error);
        // Nobody listens where the target has answered already.
        onward.send(Err(error)).await.ok();
    };
    let mut drained = 0u64;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            // The guest dropped its body without ending it, or ended it at another length than it announced.
            return fail(EgressError::BodyLength).await;
        };
        // Trailers are not sent on; empty frames neither (GHSA-f8mm).
        let Ok(data) = frame.into_data() else { continue };
        if data.is_empty() {
            continue;
        }
        let bytes = data.len();
        if !onward.is_closed() {
            if !take(&call.upload_left, bytes) {
                return fail(EgressError::UploadSpent).await;
            }
            if onward.send(Ok(data)).await.is_ok() {
                continue;
            }
        }
        drained += bytes as u64;
        if drained > DRAIN_BYTES_MAX {
            return;
        }
    }
}

/// What [`pump`] passes on, as a body. With a known length it is sent with `content-length`, else in chunks.
pub(crate) struct Pumped {
    frames: mpsc::Receiver<Result<Bytes, EgressError>>,
    length_left: Option<u64>,
}

impl Pumped {
    pub(crate) fn new(frames: mpsc::Receiver<Result<Bytes, EgressError>>, length: Option<u64>) -> Self {
        Pumped { frames, length_left: length }
    }
}

impl Body for Pumped {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        let polled = self.frames.poll_recv(cx);
        Poll::Ready(match std::task::ready!(polled) {
            Some(Ok(data)) => match self.length_left.map(|left| left.checked_sub(data.len() as u64)) {
                Some(None) => Some(Err(EgressError::BodyLength)),
                Some(left) => {
                    self.length_left = left;
                    Some(Ok(Frame::data(data)))
                }
                None => Some(Ok(Frame::data(data))),
            },
            Some(Err(error)) => Some(Err(error)),
            None if self.length_left.is_some_and(|left| left > 0) => Some(Err(EgressError::BodyLength)),
            None => None,
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.length_left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// The body of an answer on its way in: counted, bounded, timed between bytes, its start kept for the record.
pub(crate) struct ResponseBody {
    body: AnswerBody,
    left: Arc<AtomicU64>,
    record: Arc<LastResponse>,
    sight: Arc<Mutex<Sight>>,
    /// Somebody waits for what comes next. A guest that does not read a body waits for none.
    awaited: Option<Awaited>,
    between_bytes: Duration,
    timer: Pin<Box<Sleep>>,
    _under_way: OwnedSemaphorePermit,
}

impl ResponseBody {
    pub(super) fn new(
        body: AnswerBody,
        left: Arc<AtomicU64>,
        record: Arc<LastResponse>,
        sight: Arc<Mutex<Sight>>,
        between_bytes: Duration,
        under_way: OwnedSemaphorePermit,
    ) -> Self {
        let timer = Box::pin(sleep(between_bytes));
        ResponseBody { body, left, record, sight, awaited: None, between_bytes, timer, _under_way: under_way }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        loop {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                std::task::ready!(self.timer.as_mut().poll(cx));
                return Poll::Ready(Some(Err(EgressError::BetweenBytesTimeout)));
            };
            let next = Instant::now() + self.between_bytes;
            self.timer.as_mut().reset(next);
            match frame {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        if data.is_empty() {
                            continue;
                        }
                        if !take(&self.left, data.len()) {
                            return Poll::Ready(Some(Err(EgressError::DownloadSpent)));
                        }
                        self.record.keep(data);
                    }
                    return Poll::Ready(Some(Ok(frame)));
                }
            }
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        let this = self.get_mut();
        let polled = this.poll_next(cx);
        if polled.is_pending() {
            this.awaited.get_or_insert_with(|| Awaited::new(&this.sight));
        } else if let Some(awaited) = this.awaited.take() {
            awaited.end(Target::Unseen);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::sync::Semaphore;

    use super::super::call::lock;
    use super::*;

    #[tokio::test]
    async fn a_body_that_is_read_has_failed_while_nothing_comes() {
        let (drips, frames) = mpsc::channel(1);
        let sight = Arc::<Mutex<Sight>>::default();
        let mut body = ResponseBody::new(
            Pumped::new(frames, None).boxed_unsync(),
            Arc::new(AtomicU64::new(100)),
            Arc::default(),
            sight.clone(),
            Duration::from_secs(10),
            Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap(),
        );
        let mut read = || Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop())).is_ready();
        let target = || lock(&sight).target();

        assert_eq!(target(), Target::Unseen);
        for _ in 0..2 {
            assert_eq!((read(), target()), (false, Target::Failed));
            drips.try_send(Ok(Bytes::from_static(b"."))).unwrap();
            assert_eq!((read(), target()), (true, Target::Unseen));
        }
        assert_eq!((read(), target()), (false, Target::Failed));
        drop(drips);
        assert_eq!((read(), target()), (true, Target::Unseen));
    }
}
