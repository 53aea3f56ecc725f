//! The body of a request that was let through: cut off when a newer one comes.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::admission::Superseded;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request's body, until a newer request of the same lock comes: a sender that is stopped
/// in the middle of its body must hold nobody up, and what the service has got so far is not
/// the whole request.
pub struct FencedBody<B> {
    body: B,
    /// `None` once it is whole.
    superseded: Option<Arc<Superseded>>,
    /// Once it had to wait for its sender.
    waiting: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    cut: Arc<AtomicBool>,
}

impl<B: Body> FencedBody<B> {
    pub(super) fn new(body: B, superseded: Arc<Superseded>) -> Self {
        let open = !body.is_end_stream();
        Self { body, superseded: open.then_some(superseded), waiting: None, cut: Arc::default() }
    }

    /// A body that goes through untouched.
    pub(super) fn unfenced(body: B) -> Self {
        Self { body, superseded: None, waiting: None, cut: Arc::default() }
    }

    /// Set when it was cut off.
    pub(super) fn cut(&self) -> Arc<AtomicBool> {
        self.cut.clone()
    }
}

impl<B: Body> FencedBody<B> {
    fn cut_off(&mut self) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        self.cut.store(true, Ordering::Release);
        Poll::Ready(Some(Err("a newer request of this lock has come".into())))
    }
}

impl<B> Body for FencedBody<B>
where
    B: Body + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let this = self.get_mut();
        let Some(superseded) = &this.superseded else {
            return Pin::new(&mut this.body).poll_frame(cx).map_err(Into::into);
        };
        if superseded.already() {
            return this.cut_off();
        }
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        if frame.is_pending() {
            let wait = || Box::pin(superseded.token().clone().cancelled_owned());
            if this.waiting.get_or_insert_with(wait).as_mut().poll(cx).is_ready() {
                return this.cut_off();
            }
        }
        if matches!(frame, Poll::Ready(None)) || this.body.is_end_stream() {
            (this.superseded, this.waiting) = (None, None);
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> fmt::Debug for FencedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedBody").finish_non_exhaustive()
    }
}
