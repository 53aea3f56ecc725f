//! A body on its way to the service, and whose turn it is: the client's to send more, or the
//! service's to take it or to answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;

/// A body that tells when it waits for the client. It is dropped when it was sent.
pub(super) struct Upload<B> {
    body: B,
    clients_turn: watch::Sender<bool>,
}

/// Follows an upload.
pub(super) struct Turn(watch::Receiver<bool>);

impl<B> Upload<B> {
    pub(super) fn new(body: B) -> (Self, Turn) {
        let (clients_turn, turn) = watch::channel(false);
        (Self { body, clients_turn }, Turn(turn))
    }
}

impl Turn {
    /// Ends when the service has done nothing for so long although it was its turn.
    pub(super) async fn idle(mut self, limit: Duration) {
        loop {
            let clients = *self.0.borrow_and_update();
            let changed = match clients {
                true => self.0.changed().await,
                false => match tokio::time::timeout(limit, self.0.changed()).await {
                    Ok(changed) => changed,
                    Err(_) => return,
                },
            };
            if changed.is_err() {
                // All of it was sent.
                return tokio::time::sleep(limit).await;
            }
        }
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
        this.clients_turn.send_replace(frame.is_pending());
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
        let (upload, turn) = Upload::new(());
        let began = tokio::time::Instant::now();
        upload.clients_turn.send_replace(true);
        let idle = tokio::spawn(turn.idle(LIMIT));
        tokio::time::sleep(LIMIT * 10).await;
        assert!(!idle.is_finished(), "the client takes its time");
        upload.clients_turn.send_replace(false);
        idle.await.unwrap();
        assert_eq!(began.elapsed(), LIMIT * 11);

        let (upload, turn) = Upload::new(());
        drop(upload);
        turn.idle(LIMIT).await;
        assert_eq!(began.elapsed(), LIMIT * 12);
    }
}
