//! Giving a lock back, and telling the truth about it.

use std::sync::Arc;

use super::{Client, backoff};
use crate::backend::{Hold, Release};
use crate::clock::Moment;
use crate::error::{Error, Operation, Outcome, Result};

/// How often a release is sent before its caller is told; it goes on in the background.
const ATTEMPTS: u32 = 3;

/// Releases a hold, sending it again until the store answers or the lease lapses.
///
/// # Cancel safety
///
/// Dropped, it goes on in the background.
pub(crate) async fn release(client: &Arc<Client>, hold: Hold, deadline: Moment) -> Result<()> {
    let mut releasing = Releasing { client, hold, deadline, may_be_done: false, over: false };
    for attempt in 0..ATTEMPTS {
        match releasing.once().await {
            Some(verdict) => return verdict,
            None => client.context.clock.sleep(backoff(attempt)).await,
        }
    }
    let message = "the store does not answer; the release is sent again until the lease lapses";
    let error = Error::new(crate::error::ErrorKind::Unreachable, message).outcome_unknown();
    let store = client.context.backend.guarantees().store;
    Err(error.on_store(store).during(Operation::Release, Some(&releasing.hold.name)))
}

/// Goes on releasing until the store answers or the lease lapses.
pub(crate) async fn release_in_background(client: Arc<Client>, hold: Hold, deadline: Moment) {
    let mut releasing =
        Releasing { client: &client, hold, deadline, may_be_done: false, over: true };
    let mut attempt = 0;
    while releasing.once().await.is_none() {
        if client.now() >= deadline {
            tracing::warn!(lock = %releasing.hold.name,
                "the store did not answer a release; the lease lapses by its TTL");
            return;
        }
        client.context.clock.sleep(backoff(attempt)).await;
        attempt += 1;
    }
}

struct Releasing<'a> {
    client: &'a Arc<Client>,
    hold: Hold,
    deadline: Moment,
    /// An attempt went out before the deadline and its answer was lost.
    may_be_done: bool,
    over: bool,
}

impl Releasing<'_> {
    /// Sends it once; the verdict, or `None` without an answer.
    async fn once(&mut self) -> Option<Result<()>> {
        let in_time = self.client.now() < self.deadline;
        let answer = self.client.releases.send(self.hold.clone()).await;
        let verdict = match answer {
            Ok(Release::Released) => Ok(()),
            // Our own lost answer: it was there, and we gave it back.
            Ok(Release::NotHeld) if self.may_be_done => Ok(()),
            Ok(Release::NotHeld) => {
                let store = self.client.context.backend.guarantees().store;
                let error = Error::not_held().on_store(store);
                Err(error.during(Operation::Release, Some(&self.hold.name)))
            }
            Err(error) => {
                self.may_be_done |= in_time && error.outcome() == Outcome::Unknown;
                return None;
            }
        };
        self.over = true;
        Some(verdict)
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if !self.over {
            let hold = self.hold.clone();
            let going_on = release_in_background(self.client.clone(), hold, self.deadline);
            self.client.context.runtime.spawn(going_on);
        }
    }
}
