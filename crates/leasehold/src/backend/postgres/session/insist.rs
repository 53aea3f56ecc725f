//! A future that is carried to its end, whether or not its caller waits for it.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Polled by its caller for as long as that waits, which costs no task; then by one of its own.
pub(super) struct Insist<T: Send + 'static>(Option<Boxed<T>>);

/// Carries this to its end.
pub(super) fn insist<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> Insist<T> {
    Insist(Some(Box::pin(future)))
}

impl<T: Send + 'static> Future for Insist<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Insist<T> {
    fn drop(&mut self) {
        // Without a runtime its connection is gone, and with it what it was about.
        if let (Some(future), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(future);
        }
    }
}
