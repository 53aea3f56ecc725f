//! A scope under a lock: it renews, stops the work on loss, and always releases.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::Lock;
use crate::error::{Error, ErrorKind};
use crate::failpoint::Point;
use crate::lease::{Lease, LeaseState};
use crate::loss::Loss;

impl Lock {
    /// Runs `work` under the lock: takes it, renews it, and releases it however the
    /// work ends. When the lease is lost, the work is dropped where it stands and not
    /// polled again.
    ///
    /// ```
    /// # use leasehold::{Error, Locks};
    /// # async fn demo(locks: Locks) -> Result<(), Error> {
    /// let written = locks.lock("nightly-report").run(async |lease| {
    ///     let mut written = 0;
    ///     for _page in 0..3 {
    ///         let token = lease.checkpoint().await?; // waits while in doubt, errs when lost
    ///         println!("write the page with token {token}");
    ///         written += 1;
    ///     }
    ///     Ok::<_, Error>(written)
    /// });
    /// assert_eq!(written.await?, 3);
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # demo(leasehold::connect("memory:").await.unwrap()).await.unwrap() })
    /// ```
    ///
    /// # Errors
    ///
    /// The work's own error; or, even if the work itself succeeded, [`ErrorKind::Lost`]
    /// when the lease was lost before it ended and [`ErrorKind::NotHeld`] when the store
    /// had already let it go: the work may have overlapped with another holder. Otherwise as for
    /// [`acquire`](Lock::acquire). A store that does not answer the release is no
    /// error: the lease then lapses.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, then releases the lock in the background.
    pub async fn run<T, E, W, F>(self, work: W) -> Result<T, E>
    where
        W: FnOnce(Arc<Lease>) -> F,
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let lease = Arc::new(self.acquire().await?);
        let outcome = self.watched(&lease, work(lease.clone())).await;
        let loss = match lease.state() {
            LeaseState::Lost(loss) => Some(loss),
            _ => None,
        };
        let released = lease.release_shared().await;
        match (outcome, released) {
            (Err(Stopped::ByLoss(loss)), _) => Err(lease.lost_error(loss).into()),
            (Err(Stopped::ByItself(error)), _) => Err(error),
            (Ok(_), Err(error)) if *error.kind() == ErrorKind::NotHeld => {
                Err(loss.map_or(error, |loss| lease.lost_error(loss)).into())
            }
            (Ok(done), _) => Ok(done),
        }
    }

    /// Polls the work while the lease is alive, and looks at the clock before each
    /// poll: a process that was stopped past its deadline does not take one more step.
    async fn watched<T, E>(
        &self,
        lease: &Lease,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Stopped<E>> {
        let mut work = pin!(work);
        let mut lost = pin!(lease.lost());
        let heedless = self.client.context.failpoints.skips(Point::StopWorkOnLoss);
        poll_fn(|cx| {
            // The signal wakes this task; the clock is what counts.
            if !heedless && let Poll::Ready(loss) = lost.as_mut().poll(cx) {
                return Poll::Ready(Err(Stopped::ByLoss(loss)));
            }
            match lease.state() {
                LeaseState::Lost(loss) if !heedless => Poll::Ready(Err(Stopped::ByLoss(loss))),
                _ => work.as_mut().poll(cx).map_err(Stopped::ByItself),
            }
        })
        .await
    }
}

enum Stopped<E> {
    ByLoss(Loss),
    ByItself(E),
}
