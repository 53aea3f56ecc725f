//! What a request says: mostly one message, which leaves at once. A stream says more later.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body as _;
use tonic::body::Body;

use super::deferred_wakes::deferring;

/// The body of a request on its way: completes when all was said, or nobody listens any more.
/// What fails here is told to whoever waits for the answer.
pub(super) struct Upload {
    body: Body,
    stream: SendStream<Bytes>,
    /// Held back for one step: if it is the last one, its own frame ends the stream.
    message: Option<Bytes>,
}

impl Upload {
    pub(super) fn new(body: Body, stream: SendStream<Bytes>) -> Self {
        Self { body, stream, message: None }
    }

    /// Sends what is there. A task waits for the rest, if there is any.
    pub(super) fn begin(mut self) {
        let at_once = Pin::new(&mut self).poll(&mut Context::from_waker(Waker::noop()));
        if at_once.is_pending() {
            tokio::spawn(self);
        }
    }
}

impl Future for Upload {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { body, stream, message } = &mut *self;
        if stream.poll_reset(&mut Context::from_waker(&deferring(cx))).is_ready() {
            return Poll::Ready(());
        }
        loop {
            let sent = match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    match message.replace(frame.into_data().unwrap_or_default()) {
                        Some(before) => stream.send_data(before, false),
                        None => Ok(()),
                    }
                }
                Poll::Ready(Some(Err(_))) => {
                    stream.send_reset(Reason::CANCEL);
                    return Poll::Ready(());
                }
                Poll::Ready(None) => {
                    let _ = stream.send_data(message.take().unwrap_or_default(), true);
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    let sent = message.take().map_or(Ok(()), |last| stream.send_data(last, false));
                    return if sent.is_ok() { Poll::Pending } else { Poll::Ready(()) };
                }
            };
            if sent.is_err() {
                return Poll::Ready(());
            }
        }
    }
}
