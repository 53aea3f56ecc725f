//! What a member answers to a request, as the driver reads it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body, Frame, SizeHint};

use super::connection::UnderWay;
use super::deferred_wakes::deferring;

/// The body of an answer.
pub(super) struct Answer {
    stream: RecvStream,
    /// All data was read: only the status is to come.
    all_read: bool,
    _under_way: UnderWay,
}

impl Answer {
    pub(super) fn new(stream: RecvStream, under_way: UnderWay) -> Self {
        Self { stream, all_read: false, _under_way: under_way }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let Self { stream, all_read, .. } = &mut *self;
        let waker = deferring(cx);
        let mut cx = Context::from_waker(&waker);
        if !*all_read {
            match ready!(stream.poll_data(&mut cx)) {
                Some(Ok(data)) => {
                    // It is as good as read: the member may send as much again.
                    let released = stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(released.map(|()| Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => *all_read = true,
            }
        }
        let trailers = ready!(stream.poll_trailers(&mut cx))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("all_read", &self.all_read).finish_non_exhaustive()
    }
}
