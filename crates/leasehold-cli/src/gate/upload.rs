//! A body on its way to the service, and whose turn it is: the client's to send more, or the
//! service's to take it or to answer.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::Instant;

use super::worker::Phase;

/// How often to look whose turn it is, where it must not be the client's.
const LOOK: Duration = Duration::from_millis(100);

/// A body that notes when it waits for the client. It is dropped when it was sent.
pub(super) struct Upload<B> {
    body: B,
    turn: Turn,
}

/// Follows an upload.
#[derive(Clone)]
pub(super) struct Turn(Arc<Mutex<Whose>>);

#[derive(Clone, Copy)]
enum Whose {
    Clients,
    /// Since it last took something.
    Services(Instant),
}

/// Why an answer is not waited for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The service does nothing.
    Idle,
    /// The gate closes before the client has sent all of it.
    Closing,
}

impl<B> Upload<B> {
    pub(super) fn new(body: B) -> (Self, Turn) {
        let turn = Turn(Arc::new(Mutex::new(Whose::Services(Instant::now()))));
        (Self { body, turn: turn.clone() }, turn)
    }
}

impl Turn {
    fn is(&self, whose: Whose) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = whose;
    }

    /// Ends when the service has done nothing for so long although it was its turn, or when it is
    /// the client's although clients may not go on.
    pub(super) async fn stopped(
        self,
        limit: Duration,
        mut phase: watch::Receiver<Phase>,
    ) -> Stopped {
        loop {
            let whose = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let cut = *phase.borrow_and_update() == Phase::Cut;
            // Whoever's turn it is then: the service has the whole limit from its last.
            let left = match whose {
                Whose::Clients if cut => return Stopped::Closing,
                Whose::Clients => limit,
                Whose::Services(since) => limit.saturating_sub(since.elapsed()),
            };
            if left.is_zero() {
                return Stopped::Idle;
            }
            // Turns change without a word.
            let pause = if cut { left.min(LOOK) } else { left };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = phase.changed() => {}
            }
        }
    }
}

impl<B> Drop for Upload<B> {
    fn drop(&mut self) {
        self.turn.is(Whose::Services(Instant::now()));
    }
}

impl<B: Body + Unpin> Body for Upload<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        this.turn.is(match frame {
            Poll::Pending => Whose::Clients,
            Poll::Ready(_) => Whose::Services(Instant::now()),
        });
        frame
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
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn only_the_services_time_counts() {
        let (_open, phase) = watch::channel(Phase::Open);
        let (upload, turn) = Upload::new(());
        let began = Instant::now();
        upload.turn.is(Whose::Clients);
        let idle = tokio::spawn(turn.stopped(LIMIT, phase.clone()));
        tokio::time::sleep(LIMIT * 10 + LIMIT / 3).await;
        assert!(!idle.is_finished(), "the client takes its time");
        upload.turn.is(Whose::Services(Instant::now()));
        assert_eq!(idle.await.unwrap(), Stopped::Idle);
        assert_eq!(began.elapsed(), LIMIT * 11 + LIMIT / 3);

        let (upload, turn) = Upload::new(());
        let began = Instant::now();
        let idle = tokio::spawn(turn.stopped(LIMIT, phase));
        tokio::time::sleep(LIMIT / 2).await;
        drop(upload);
        assert_eq!(idle.await.unwrap(), Stopped::Idle);
        assert_eq!(began.elapsed(), LIMIT / 2 + LIMIT, "from when it had all of it");
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_end_only_the_service_is_waited_for() {
        let (closing, phase) = watch::channel(Phase::Open);
        let (upload, turn) = Upload::new(());
        let stopped = tokio::spawn(turn.stopped(LIMIT, phase));
        tokio::task::yield_now().await;
        closing.send(Phase::Closing).unwrap();
        upload.turn.is(Whose::Clients);
        tokio::time::sleep(LIMIT * 2).await;
        upload.turn.is(Whose::Services(Instant::now()));
        closing.send(Phase::Cut).unwrap();
        tokio::time::sleep(LIMIT / 2).await;
        assert!(!stopped.is_finished(), "the service has its time");
        upload.turn.is(Whose::Clients);
        assert_eq!(stopped.await.unwrap(), Stopped::Closing);
    }
}
