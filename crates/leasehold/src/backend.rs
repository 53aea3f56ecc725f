//! The [`Backend`] trait: what a store must do, and no more.
//!
//! A store speaks its protocol. Time, loss, doubt, cancellation, batching,
//! local queueing and events are written once, above this trait, and nothing
//! above it knows which store it talks to.
//!
//! # The contract
//!
//! * **Atomic per item.** Each claim, hold or write is applied as a whole or not at all, as
//!   seen by other clients. Only [`acquire_all`](Backend::acquire_all) joins several.
//!   Where some of a batch fail and the store can tell which, it says so in their verdicts. Where
//!   it cannot tell, it answers [`ErrorKind::RetryAlone`], and each is sent again by itself.
//! * **Idempotent on the owner.** [`acquire`](Backend::acquire) for an owner that
//!   already has the lock answers with its grant again; for an owner that already
//!   waits it keeps its place.
//! * **Tokens** strictly increase per lock, across release, expiry, force-release
//!   and restart. The same owner always gets the same token.
//! * **Proofs are dated before they were asked for.** [`Proof::at`] is this client's
//!   clock just before it sent what proved the lease; never the time of the answer.
//! * **Futures may be dropped** at any await point. What was sent may then still be
//!   applied; the caller settles it.
//! * **Errors tell the outcome.** An error of [`Error::new`](crate::Error::new) says that it is
//!   unknown; add [`not_applied`](crate::Error::not_applied) only when the store certainly
//!   did not do any of what it was asked, and will not.
//! * **Renewal never re-takes**: a lease that lapsed or went to another is gone.
//! * **Gone is final.** A store that finds that others who connect would meet elsewhere (its
//!   file was removed, say) answers everything with [`ErrorKind::Gone`]
//!   from then on. That is no doubt: all its leases are lost at once. It should look for
//!   it between requests as well, and [hint](Backend::hint) at it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::guarantees::Guarantees;
use crate::holder::{HeldBy, Holder};
use crate::loss::{Forced, LossReason};
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

#[cfg(feature = "etcd")]
pub mod etcd;
mod info;
mod kit;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod state;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use crate::kind::{LockId, LockKind};
pub use info::{Finding, ForcedInfo, LeaseInfo, LockInfo, Severity};
pub use state::{Change, Changes, Record, State, Version, Watched, Written};

/// A store's answer, once it comes.
pub type Reply<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// A store of locks. See the [module](self) for the contract.
///
/// Requests with a `Vec` answer with one verdict for each item, in order. No two
/// items of one request name the same lock.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this store promises.
    fn guarantees(&self) -> &Guarantees;

    /// How much may travel in one request, and how many requests at once.
    fn limits(&self) -> Limits;

    /// The clock that proofs are dated by. The client counts its deadlines on the same one.
    fn clock(&self) -> &Clock;

    /// Takes each lock that is free; where a claim asks to queue, takes a place in the queue.
    ///
    /// A free lock with waiters goes to the first of them, not to the newcomer.
    /// An owner that got a tombstone from [`settle`](Backend::settle) is refused as `Held`.
    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>>;

    /// Takes all of these locks, or none of them, in one step: what [`Limits::together`] allows.
    ///
    /// Nothing queues here. Where one lock is not free, its verdict is `Held`, and that of the
    /// free ones `Withheld`. Idempotent like [`acquire`](Backend::acquire), and settled the same way.
    fn acquire_all(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        let (store, asked) = (self.guarantees().store, claims.len());
        let message = format!("it cannot take {asked} locks in one step: take them one by one");
        Box::pin(std::future::ready(Err(Error::new(ErrorKind::Refused, message).on_store(store))))
    }

    /// Waits until a queued claim gets the lock, or should ask again.
    ///
    /// Dropping the future gives nothing up: the place in the queue stays until
    /// [`leave`](Backend::leave), and lapses by itself only if nobody waits on it for long.
    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn>;

    /// Gives up a place in the queue, or the lock itself if it was granted meanwhile.
    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()>;

    /// After an acquire of unknown outcome: the grant if the lock is this owner's;
    /// otherwise the owner leaves the queue and gets a *tombstone* for its TTL, so that a
    /// request that is still on its way can no longer take effect.
    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>>;

    /// Proves each lease and extends it to its full TTL from now.
    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>>;

    /// Gives each lock back, if it is still the owner's, and lets the next waiter in.
    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>>;

    /// Looks at one lock; `None` if the store knows nothing of it.
    fn inspect(self: Arc<Self>, lock: LockId) -> Reply<Option<LockInfo>>;

    /// Looks at every lock that is held or waited for and whose name starts with
    /// `prefix`, in the order of their names.
    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>>;

    /// Takes a lock away from its holders, or from those that `force` names; records who and
    /// why; lets the next waiters in.
    fn force_release(self: Arc<Self>, lock: LockId, force: Force) -> Reply<ForceRelease>;

    /// Examines the store's set-up: what about it is unsafe.
    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>>;

    /// Completes when the store hints that a lease of this client may be over, sooner
    /// than the next renewal would show it. Only a hint: the lease is then renewed,
    /// and the verdict counts. A store that has no such channel never completes.
    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(std::future::pending())
    }

    /// The records that this store keeps beside its locks, if it can.
    fn state(self: Arc<Self>) -> Option<Arc<dyn State>> {
        None
    }
}

/// How much a store takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The most items of one request.
    pub batch: usize,
    /// The most requests of one kind in flight. Claims that come while this many
    /// are under way travel together afterwards.
    pub in_flight: usize,
    /// Whether requests take turns, one at a time whatever their kind, while several tasks send
    /// them.
    pub in_step: bool,
    /// Whether a request takes at most half of the tasks that are there.
    pub in_halves: bool,
    /// The most claims of one [`acquire_all`](Backend::acquire_all); 0 where there is none.
    pub together: usize,
}

impl Limits {
    /// At most `batch` items in a request, `in_flight` requests of a kind at once.
    pub const fn new(batch: usize, in_flight: usize) -> Self {
        Self { batch, in_flight, in_step: false, in_halves: false, together: 0 }
    }

    /// For a store that pays more for a request than for what is in it: claims wait for a
    /// release that is under way and the other way round, and each for its own kind, for a
    /// moment at most. So all tasks of a client come to travel together. (More than one of a
    /// kind are in flight only when one hangs.)
    #[must_use]
    pub const fn in_step(self) -> Self {
        Self { in_step: true, ..self }
    }

    /// For a store that works on one request while the client could serve those of another:
    /// no request takes more than half of the tasks, so that there are two. Left alone, all
    /// tasks of a client come to travel together, and either side waits for the other.
    #[must_use]
    pub const fn in_halves(self) -> Self {
        Self { in_halves: true, ..self }
    }

    /// For a store that takes so many locks in one step, all of them or none.
    #[must_use]
    pub const fn together(self, most: usize) -> Self {
        Self { together: most, ..self }
    }
}

/// A wish for a lock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Claim {
    /// The lock.
    pub name: Name,
    /// Who claims it: a fresh owner for each acquisition.
    pub owner: Owner,
    /// How long the lease lasts without renewal.
    pub ttl: Duration,
    /// Whether to wait in the queue when the lock is held.
    pub queue: bool,
    /// Exclusive, or how it shares the lock.
    pub mode: Mode,
    /// Who is behind it, for people.
    pub holder: Arc<Holder>,
}

impl Claim {
    /// An exclusive claim by a fresh owner that does not queue.
    pub fn new(name: Name, ttl: Duration, holder: Arc<Holder>) -> Self {
        Self { name, owner: Owner::random(), ttl, queue: false, mode: Mode::Exclusive, holder }
    }

    /// The hold that a grant of this claim gives.
    pub fn hold(&self, token: Token) -> Hold {
        let (name, owner, ttl) = (self.name.clone(), self.owner, self.ttl);
        Hold { name, owner, token, ttl, mode: self.mode }
    }

    /// Which lock it is about.
    pub fn lock(&self) -> LockId {
        LockId { kind: self.mode.kind(), name: self.name.clone() }
    }
}

/// How a lease has its lock.
///
/// A claim is granted when no live waiter stands before it and the weights of *all leases that
/// are there* plus its own are within the capacity. A waiter that others passed because it
/// seemed dead has lost its place and queues at the end: if it kept the place, a writer could
/// come back beside a reader that was let past it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With other readers.
    Read,
    /// Alone, where others may read.
    Write,
    /// With so many of the permits of a semaphore.
    Permits {
        /// How many it takes, at least one.
        weight: u32,
        /// How many there are. As long as anybody holds or awaits one, a claim with another
        /// number is refused with [`Verdict::OtherCapacity`].
        of: u32,
    },
}

impl Mode {
    /// The most readers of one lock.
    pub const MOST_READERS: u32 = 1 << 30;

    /// Of which kind its lock is.
    pub const fn kind(self) -> LockKind {
        match self {
            Self::Exclusive => LockKind::Exclusive,
            Self::Read | Self::Write => LockKind::ReadWrite,
            Self::Permits { .. } => LockKind::Semaphore,
        }
    }

    /// How much of the capacity it takes.
    pub const fn weight(self) -> u32 {
        match self {
            Self::Exclusive | Self::Read => 1,
            Self::Write => Self::MOST_READERS,
            Self::Permits { weight, .. } => weight,
        }
    }

    /// How much the weights of all leases of the lock may add up to.
    pub const fn capacity(self) -> u32 {
        match self {
            Self::Exclusive => 1,
            Self::Read | Self::Write => Self::MOST_READERS,
            Self::Permits { of, .. } => of,
        }
    }

    /// Whether nobody else can have a lease beside it: only such a lease writes [`State`].
    pub const fn is_alone(self) -> bool {
        matches!(self, Self::Exclusive | Self::Write)
    }
}

/// A store's answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The lock is the claimant's.
    Granted(Grant),
    /// Another has it, or waiters are before us, and the claim did not ask to queue.
    Held(Option<HeldBy>),
    /// The claim has its place in the queue: go on with [`Backend::wait`].
    Queued(Option<HeldBy>),
    /// The lock is free, but another of those that were to be taken with it is not.
    Withheld,
    /// Others hold or await the lock with this capacity, not with the claim's.
    OtherCapacity(u32),
}

/// What became of a claim in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// The lock is the claimant's.
    Granted(Grant),
    /// Something changed, or the place in the queue was lost: claim again with the same owner.
    TryAgain,
}

/// A lock that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token.
    pub token: Token,
    /// What the lease's deadline is counted from. A grant that a releaser pushed to
    /// a waiter may be shorter than the TTL; the first renewal makes it whole.
    pub proof: Proof,
}

/// What proves a lease, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// This client's clock just before it sent what proved the lease (or its session).
    pub at: Moment,
    /// How long the store keeps the lease from the time it applied it.
    pub valid_for: Duration,
}

/// A lease as its client presents it to the store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Hold {
    /// The lock.
    pub name: Name,
    /// The owner that holds it.
    pub owner: Owner,
    /// The token it was granted with.
    pub token: Token,
    /// The time to live that a renewal restores.
    pub ttl: Duration,
    /// How it has the lock.
    pub mode: Mode,
}

impl Hold {
    /// Which lock it is about.
    pub fn lock(&self) -> LockId {
        LockId { kind: self.mode.kind(), name: self.name.clone() }
    }
}

/// A store's answer to a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// Still ours, and proved.
    Renewed(Proof),
    /// Certainly not ours any more, and why.
    NotYours(LossReason),
}

/// A store's answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// It was the owner's and is free now.
    Released,
    /// It was not the owner's any more.
    NotHeld,
}

/// What [`Backend::hint`] tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// Ask about the lease of this owner.
    Lease(Owner),
    /// Ask about all leases: the session may have ended.
    All,
}

/// An operator's order to [end leases](Backend::force_release).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Force {
    /// Who orders it, and why.
    pub forced: Forced,
    /// Only the lease of this owner.
    pub owner: Option<Owner>,
    /// Only the lease with this token: the one that the operator has seen.
    pub expected: Option<Token>,
}

impl Force {
    /// Ends whoever holds the lock.
    pub fn new(forced: Forced) -> Self {
        Self { forced, owner: None, expected: None }
    }

    /// Whether it is about this lease.
    pub fn is_about(&self, owner: Owner, token: Token) -> bool {
        self.owner.is_none_or(|named| named == owner)
            && self.expected.is_none_or(|expected| expected == token)
    }
}

/// What became of a [`Force`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForceRelease {
    /// The leases with these tokens ended.
    Ended(Vec<Token>),
    /// Nobody held the lock.
    NobodyHeld,
    /// Others hold it than the order named; nothing was done.
    Others(Vec<LeaseInfo>),
}
