//! What a member answers to a request, as the driver reads it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body, Frame, SizeHint};

use super::channel::UnderWay;

/// The body of an answer. Dropped before its end, it takes the request back.
pub(super) struct Answer {
    stream: RecvStream,
    /// Whether only the status is to come.
    read: bool,
    _under_way: UnderWay,
}

impl Answer {
    pub(super) fn new(stream: RecvStream, under_way: UnderWay) -> Self {
        Self { stream, read: false, _under_way: under_way }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.read {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // It is as good as read: the member may send as much again.
                    let released = self.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(released.map(|()| Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.read = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(cx))?;
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
        f.debug_struct("Answer").field("read", &self.read).finish_non_exhaustive()
    }
}
