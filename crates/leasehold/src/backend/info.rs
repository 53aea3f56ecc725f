//! What a store tells of its locks and of itself, for people.

use std::time::{Duration, SystemTime};

use super::{LockId, LockKind};
use crate::holder::HeldBy;
use crate::loss::Forced;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// A lock as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// What kind of lock it is: locks of one name and different kinds are different locks.
    pub kind: LockKind,
    /// Its name.
    pub name: Name,
    /// The leases that cover it, in the order of their tokens. Only a shared lock has several.
    pub leases: Vec<LeaseInfo>,
    /// How much the weights of its leases may add up to, where it is shared and in use.
    pub capacity: Option<u32>,
    /// How many clients wait for it.
    pub waiters: usize,
    /// The last time it was released by force, where the store still knows.
    pub forced: Option<ForcedInfo>,
}

impl LockInfo {
    /// A lock that nobody holds.
    pub fn free(lock: impl Into<LockId>) -> Self {
        let LockId { kind, name } = lock.into();
        Self { kind, name, leases: Vec::new(), capacity: None, waiters: 0, forced: None }
    }

    /// The lease that covers it: the first one, if it is shared.
    pub fn lease(&self) -> Option<&LeaseInfo> {
        self.leases.first()
    }

    /// The same lock, covered by this lease.
    #[must_use]
    pub fn held(self, lease: Option<LeaseInfo>) -> Self {
        Self { leases: lease.into_iter().collect(), ..self }
    }
}

/// A lease as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// Its owner; `None` for a foreign client with ids of another kind.
    pub owner: Option<Owner>,
    /// Its token; `None` for a foreign client without one.
    pub token: Option<Token>,
    /// Who, since when.
    pub held_by: HeldBy,
    /// How long the store keeps it from now, if it is not renewed.
    pub remaining: Option<Duration>,
    /// How much of the lock's capacity it takes; 1 of an exclusive lock.
    pub weight: u32,
}

impl LeaseInfo {
    /// A lease with these parts.
    pub fn new(
        owner: Option<Owner>,
        token: Option<Token>,
        held_by: HeldBy,
        remaining: Option<Duration>,
    ) -> Self {
        Self { owner, token, held_by, remaining, weight: 1 }
    }
}

/// A force-release, as the store recorded it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForcedInfo {
    /// Who and why.
    pub forced: Forced,
    /// When.
    pub at: SystemTime,
    /// The token of the lease that was ended.
    pub token: Token,
}

impl ForcedInfo {
    /// A record with these parts.
    pub fn new(forced: Forced, at: SystemTime, token: Token) -> Self {
        Self { forced, at, token }
    }
}

/// What [`Backend::examine`](super::Backend::examine) found about a store's set-up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// What can go wrong, and what to do.
    pub advice: String,
}

impl Finding {
    /// A finding.
    pub fn new(severity: Severity, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { severity, what: what.into(), advice: advice.into() }
    }

    /// All is well with this.
    pub fn fine(what: impl Into<String>) -> Self {
        Self::new(Severity::Fine, what, "")
    }

    /// This can cost comfort or speed.
    pub fn warning(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Severity::Warning, what, advice)
    }

    /// This can cost a lock.
    pub fn danger(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Severity::Unsafe, what, advice)
    }
}

/// How bad a [`Finding`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Fine,
    /// It can cost comfort or speed.
    Warning,
    /// It can cost a lock.
    Unsafe,
}
