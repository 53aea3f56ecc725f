//! The guard: one acquisition of a lock, with its token and its deadline.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::acquire::Granted;
use crate::acquire::batcher::Batcher;
use crate::backend::Hold;
use crate::clock::{Alarm, Moment};
use crate::context::Context;
use crate::error::{Error, Operation, Result};
use crate::failpoint::Point;
use crate::loss::{Loss, LossReason};
use crate::name::Name;
use crate::owner::Owner;
use crate::terms::Terms;
use crate::token::Token;

use keeper::Keeper;
use release::Releasing;
use schedule::Place;
use state::LeaseCore;
pub use state::LeaseState;

mod inside;
mod keeper;
mod release;
mod renewal_limiter;
mod schedule;
mod state;

/// What the leases of one client share.
#[derive(Debug)]
pub(crate) struct Leases {
    context: Arc<Context>,
    keeper: Keeper,
    releases: Batcher<Hold>,
}

impl Leases {
    pub(crate) fn new(context: Arc<Context>, releases: Batcher<Hold>, alarm: Alarm) -> Self {
        Self { keeper: Keeper::start(context.clone(), alarm), context, releases }
    }

    /// Whether no release is under way or collected.
    #[cfg(all(test, shuttle))]
    pub(crate) fn is_idle(&self) -> bool {
        self.releases.is_idle()
    }
}

/// One acquisition of a lock: its guard.
///
/// Hold it while you work, give its [`token`](Lease::token) to the resource with
/// every write, and [`release`](Lease::release) it.
///
/// # Dropping
///
/// Dropping a lease releases it in the background, on the runtime its client was
/// connected on. If that runtime is gone, the lock is free at latest after its TTL.
/// [`release`](Lease::release) tells how it ended; dropping cannot.
///
/// A lease that was lost by its own deadline or `max_hold` may still be there at the
/// store, which keeps it until its TTL or until this guard is dropped: so the holder has
/// that long to roll back.
#[must_use = "a lease that is dropped at once is released at once"]
pub struct Lease {
    leases: Arc<Leases>,
    core: Arc<LeaseCore>,
    place: Place,
    /// Another claim of its owner may still be on its way to the store.
    stray_claim: bool,
}

impl Lease {
    /// From now on the lease is kept.
    pub(crate) fn new(leases: Arc<Leases>, granted: Granted, terms: &Terms) -> Self {
        let (proof, stray_claim) = (granted.grant.proof, granted.stray_claim);
        let core = Arc::new(LeaseCore::new(&leases.context, granted, terms));
        let place = leases.keeper.keep(core.clone(), proof);
        Self { leases, core, place, stray_claim }
    }

    /// The lock.
    pub fn name(&self) -> &Name {
        self.core.name()
    }

    /// The fencing token: what the resource compares.
    pub fn token(&self) -> Token {
        self.core.token()
    }

    /// The unique id of this acquisition.
    pub fn owner(&self) -> Owner {
        self.core.owner()
    }

    /// The time to live that each renewal restores.
    pub fn ttl(&self) -> Duration {
        self.core.ttl()
    }

    /// The lease as the store is shown it: for what only one store offers, such as
    /// `EtcdStore::is_owner`.
    pub fn hold(&self) -> Hold {
        self.core.hold()
    }

    /// Where it stands, by this process's own clock and what the store last said.
    pub fn state(&self) -> LeaseState {
        self.core.state(&self.leases.context)
    }

    /// The last moment the holder may act, as far as it is proved.
    pub fn deadline(&self) -> Moment {
        self.core.deadline()
    }

    /// The [deadline](Lease::deadline) for tokio's timers: now, once the lease is over.
    ///
    /// ```
    /// # use leasehold::Lease;
    /// # use tokio::time::error::Elapsed;
    /// # async fn example(lease: Lease, write: impl Future<Output = ()>) -> Result<(), Elapsed> {
    /// tokio::time::timeout_at(lease.deadline_instant(), write).await
    /// # }
    /// ```
    ///
    /// It knows of no renewal after this call. Those timers stand still while the machine is
    /// suspended; [`Lease::lost`] and [`Lease::checkpoint`] go by the clock.
    pub fn deadline_instant(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// How long the holder may still act, as far as it is proved; zero once it is over.
    pub fn remaining(&self) -> Duration {
        match self.state() {
            LeaseState::Held | LeaseState::Doubtful => {
                self.leases.context.now().until(self.core.deadline())
            }
            LeaseState::Lost(_) | LeaseState::Released => Duration::ZERO,
        }
    }

    /// Waits until the lease is lost; for ever if it never is.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> Loss {
        let lost = |state| match state {
            LeaseState::Lost(loss) => Some(loss),
            _ => None,
        };
        self.core.until(&self.leases.context, lost).await
    }

    /// A token that is cancelled when the lease ends, lost or released: for work that
    /// already knows how to be cancelled.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.core.cancellation_token(&self.leases.context)
    }

    /// The token, if the lease may be acted on now: waits while it is in doubt.
    ///
    /// Call it between steps that have side effects. It asks the clock, not the
    /// store, so it costs next to nothing; the resource has the last word.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) with the reason, once it is lost;
    /// [`ErrorKind::NotHeld`](crate::ErrorKind::NotHeld) once it was released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn checkpoint(&self) -> Result<Token> {
        let decided = |state| match state {
            LeaseState::Held => Some(Ok(self.token())),
            LeaseState::Doubtful => None,
            LeaseState::Lost(loss) => Some(Err(Error::lost(loss))),
            LeaseState::Released => Some(Err(Error::not_held())),
        };
        let verdict = self.core.until(&self.leases.context, decided).await;
        verdict.map_err(|error| self.explain(error, Operation::Work))
    }

    /// Asks the store whether the lease still covers the lock, in doubt as well.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if it does not (the lease is then
    /// lost), [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) if there is no
    /// answer (nothing changes).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn verify(&self) -> Result<Token> {
        self.usable(Operation::Inspect)?;
        let context = &self.leases.context;
        let asking = context.ask(context.backend.clone().inspect(self.core.hold().lock()));
        let info = match self.leases.inside(asking).await {
            Err(error) if error.says_gone() => {
                self.leases.keeper.lose_all_with_the_store();
                return self.usable(Operation::Inspect);
            }
            info => info.map_err(|error| self.explain(error, Operation::Inspect))?,
        };
        let leases = info.as_ref().map_or(&[][..], |info| &info.leases);
        if leases.iter().any(|lease| lease.owner == Some(self.owner())) {
            self.core.seen(context);
        } else {
            let forced = info.as_ref().and_then(|info| info.forced.as_ref());
            let reason = match forced.filter(|forced| forced.token == self.token()) {
                Some(record) => LossReason::Forced(record.forced.clone()),
                None if !leases.is_empty() => LossReason::Taken,
                None => LossReason::Expired,
            };
            self.core.lose(context, reason);
        }
        self.usable(Operation::Inspect)
    }

    /// Proves the lease now and extends it to its whole TTL, for those who renew by hand.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if it is lost,
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) if there is no answer:
    /// the lease is then in doubt, and the keeper proves it again.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the renewal may or may not happen.
    pub async fn renew(&self) -> Result<()> {
        self.usable(Operation::Renew)?;
        let renewing = self.leases.keeper.renew_now(self.place, &self.core);
        let renewed = self.leases.inside(renewing).await;
        self.usable(Operation::Renew)?;
        renewed
    }

    /// Gives the lock back, and tells the truth about it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotHeld`](crate::ErrorKind::NotHeld) when the lease had already
    /// gone: what was done under it may have overlapped with another holder.
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when the store did not
    /// answer; the release is then sent again in the background until the lease lapses.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        self.release_shared().await
    }

    /// As [`Lease::release`], for those who share the lease with the work.
    pub(crate) async fn release_shared(&self) -> Result<()> {
        let gone = |_| self.explain(Error::not_held(), Operation::Release);
        let deadline = self.core.begin_release(&self.leases.context).map_err(gone)?;
        self.leases.keeper.let_go(self.place, &self.core);
        self.leases.inside(pin!(self.releasing(deadline).release())).await
    }

    fn releasing(&self, deadline: Moment) -> Releasing {
        Releasing::new(self.leases.clone(), self.core.clone(), deadline, self.stray_claim)
    }

    /// The token, unless the lease is over; doubt does not count.
    fn usable(&self, operation: Operation) -> Result<Token> {
        match self.state() {
            LeaseState::Held | LeaseState::Doubtful => Ok(self.token()),
            LeaseState::Lost(loss) => Err(self.explain(Error::lost(loss), operation)),
            LeaseState::Released => Err(self.explain(Error::not_held(), operation)),
        }
    }

    /// The error of work that was stopped by this loss.
    pub(crate) fn lost_error(&self, loss: Loss) -> Error {
        self.explain(Error::lost(loss), Operation::Work)
    }

    fn explain(&self, error: Error, operation: Operation) -> Error {
        let store = self.leases.context.backend.guarantees().store;
        error.on_store(store).during(operation, Some(self.name()))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let context = &self.leases.context;
        let ended = self.core.begin_release(context);
        if matches!(ended, Err(LeaseState::Released)) {
            return; // And let go of, by whoever released it.
        }
        self.leases.keeper.let_go(self.place, &self.core);
        if context.failpoints.skips(Point::ReleaseOnDrop) {
            return;
        }
        match ended {
            Ok(deadline) => self.releasing(deadline).in_background(),
            // Lost by our own clock or count: the store may still have it, and others
            // need not wait for the rest of its TTL now that its holder is done.
            Err(LeaseState::Lost(Loss {
                reason: LossReason::Expired | LossReason::Unreachable | LossReason::MaxHold,
                ..
            })) => self.releasing(self.leases.context.now()).of_a_lost_lease(),
            Err(LeaseState::Lost(_)) => {
                self.releasing(self.leases.context.now()).of_a_lease_that_is_gone()
            }
            Err(_) => {}
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("token", &self.token())
            .field("owner", &self.owner())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
