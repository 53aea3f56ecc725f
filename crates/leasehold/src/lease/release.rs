//! Giving a lock back, and telling the truth about it.

use std::sync::Arc;

use super::Leases;
use super::state::LeaseCore;
use crate::acquire::undo::{Trace, undo};
use crate::backend::{Claim, Release};
use crate::clock::Moment;
use crate::context::backoff;
use crate::error::{Error, ErrorKind, Operation, Outcome, Result};
use crate::loss::LossReason;

/// How often a release is sent before its caller is told; it goes on in the background.
const ATTEMPTS: u32 = 3;

/// A lease that is being given back. Dropped without an answer, it goes on in the
/// background.
pub(crate) struct Releasing {
    leases: Arc<Leases>,
    core: Arc<LeaseCore>,
    /// Until when the lease lasts, and a release makes sense.
    deadline: Moment,
    /// Another claim of its owner may still be on its way to the store.
    stray_claim: bool,
    /// An attempt went out before the deadline, and its answer was lost or is not yet there.
    may_be_done: bool,
    sent: bool,
    over: bool,
}

impl Releasing {
    pub(crate) fn new(
        leases: Arc<Leases>,
        core: Arc<LeaseCore>,
        deadline: Moment,
        stray_claim: bool,
    ) -> Self {
        Self { leases, core, deadline, stray_claim, may_be_done: false, sent: false, over: false }
    }

    /// Sends it, again if the answer is lost, and tells how it ended.
    pub(crate) async fn release(mut self) -> Result<()> {
        for attempt in 0..ATTEMPTS {
            match self.send_once().await {
                Some(verdict) => return verdict,
                None => self.leases.context.clock.sleep(backoff(attempt)).await,
            }
        }
        let message = "the store does not answer; the release is sent again until the lease lapses";
        let error = Error::new(ErrorKind::Unreachable, message);
        Err(self.explain(error))
    }

    /// Goes on until the store answers or the lease lapses.
    pub(crate) fn in_background(mut self) {
        self.over = true;
        let runtime = self.leases.context.runtime.clone();
        runtime.spawn(async move {
            let mut attempt = 0;
            while self.send_once().await.is_none() {
                if self.leases.context.now() >= self.deadline {
                    tracing::warn!(lock = %self.core.name(),
                        "the store did not answer a release; the lease lapses by its TTL");
                    self.core.released(&self.leases.context);
                    self.settle_stray_claim();
                    return;
                }
                self.leases.context.clock.sleep(backoff(attempt)).await;
                attempt += 1;
            }
        });
    }

    /// Sends it once in the background, for a lease whose end has been told: others need
    /// not wait for the rest of its TTL.
    pub(crate) fn of_a_lost_lease(mut self) {
        self.over = true;
        let runtime = self.leases.context.runtime.clone();
        runtime.spawn(async move {
            // Without an answer it lapses.
            let _ = self.leases.releases.send(self.core.hold()).await;
            self.settle_stray_claim();
        });
    }

    /// Sends nothing, for a lease that the store has let go of; but that knows nothing of
    /// a claim that is still on its way.
    pub(crate) fn of_a_lease_that_is_gone(mut self) {
        self.over = true;
        self.settle_stray_claim();
    }

    /// Sends it once; the verdict, or `None` without an answer.
    async fn send_once(&mut self) -> Option<Result<()>> {
        // The first attempt follows the look at the clock that made it possible.
        let in_time =
            !std::mem::replace(&mut self.sent, true) || self.leases.context.now() < self.deadline;
        // Noted before it is sent: dropped meanwhile, it may be done all the same.
        let may_have_been_done = self.may_be_done;
        self.may_be_done |= in_time;
        let released = match self.leases.releases.send(self.core.hold()).await {
            Ok(Release::Released) => true,
            // Our own lost answer: it was there, and we gave it back.
            Ok(Release::NotHeld) => may_have_been_done,
            // The same, within a batch that was sent again one by one.
            Err(error) if *error.kind() == ErrorKind::RetryAlone => self.may_be_done,
            Err(error) if error.says_gone() => {
                self.over = true;
                self.core.found_gone(&self.leases.context, LossReason::StoreGone);
                return Some(Err(self.explain(Error::not_held())));
            }
            Err(error) => {
                if error.outcome() == Outcome::NotApplied {
                    self.may_be_done = may_have_been_done;
                }
                return None;
            }
        };
        self.over = true;
        self.settle_stray_claim();
        if released {
            self.core.released(&self.leases.context);
            Some(Ok(()))
        } else {
            self.core.found_gone(&self.leases.context, LossReason::Expired);
            Some(Err(self.explain(Error::not_held())))
        }
    }

    /// Keeps a claim that is still on its way from taking the lock that is no longer held.
    fn settle_stray_claim(&self) {
        if !self.stray_claim {
            return;
        }
        let context = &self.leases.context;
        let mut claim =
            Claim::new(self.core.name().clone(), self.core.ttl(), context.holder.clone());
        claim.owner = self.core.owner();
        context.runtime.spawn(undo(context.clone(), claim, Trace::Unknown));
    }

    fn explain(&self, error: Error) -> Error {
        let store = self.leases.context.backend.guarantees().store;
        error.on_store(store).during(Operation::Release, Some(self.core.name()))
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        if !self.over {
            let (leases, core) = (self.leases.clone(), self.core.clone());
            let mut rest = Self::new(leases, core, self.deadline, self.stray_claim);
            rest.may_be_done = self.may_be_done;
            rest.sent = self.sent;
            rest.in_background();
        }
    }
}
