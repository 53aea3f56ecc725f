//! A future that is brought to its end even if whoever waits for it goes away.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Runs where it is awaited; when it is dropped before its end, it goes on as a task. So the
/// usual case costs no task and no hop, and what was begun is ended all the same.
pub(super) struct Detach<F: Future<Output: Send> + Send + 'static> {
    /// `None` once it has ended, or panicked.
    future: Option<Pin<Box<F>>>,
    runtime: Handle,
}

impl<F: Future<Output: Send> + Send + 'static> Detach<F> {
    /// In this runtime.
    pub(super) fn new(future: F) -> Self {
        Self { future: Some(Box::pin(future)), runtime: Handle::current() }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for Detach<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        // Out of its place while it runs: if it panics, it must not be polled again.
        let Some(mut future) = this.future.take() else { return Poll::Pending };
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            this.future = Some(future);
        }
        polled
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Detach<F> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            drop(self.runtime.spawn(future));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_when_nobody_waits_any_more() {
        let (ended, end) = oneshot::channel();
        let detach = Detach::new(async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let _ = ended.send("ended");
        });
        let waited = tokio::time::timeout(Duration::from_secs(1), detach).await;
        assert!(waited.is_err(), "it was dropped in the middle");
        assert_eq!(end.await, Ok("ended"));
        // Also if it was never polled.
        let (ended, end) = oneshot::channel();
        drop(Detach::new(async { ended.send("ended") }));
        assert_eq!(end.await, Ok("ended"));
    }

    #[tokio::test]
    async fn a_panic_goes_to_whoever_waits_and_drops_what_it_held() {
        let held = Arc::new(());
        let theirs = held.clone();
        let waiting = tokio::spawn(Detach::new(async move {
            let _theirs = theirs;
            tokio::task::yield_now().await;
            panic!("as the service does");
        }));
        assert!(waiting.await.unwrap_err().is_panic());
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
