//! What a fenced resource answers instead of doing it.

use std::error::Error as StdError;
use std::fmt;

use crate::outcome::Outcome;
use crate::token::Token;

/// The token is lower than the highest that the resource has seen: a newer lease has been
/// here. Whoever gets this must stop; nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "stale fencing token {given}: a newer holder with {seen} has been here; nothing was written, \
     stop the work and take the lock again"
)]
pub struct StaleToken {
    /// The token that came with the write.
    pub given: Token,
    /// The highest that the resource has seen.
    pub seen: Token,
}

/// Why a fenced write was not done, or may not have been.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A newer lease has been here.
    #[error(transparent)]
    Stale(#[from] StaleToken),
    /// The write came without a token.
    #[error("{resource} is fenced and takes no write without a token: {hint}")]
    NoToken {
        /// What was to be written.
        resource: String,
        /// How to present one.
        hint: &'static str,
    },
    /// There is nothing to change or delete.
    #[error("{resource} is not there; nothing was written")]
    NotFound {
        /// What was looked for.
        resource: String,
    },
    /// A state transition began from another state than the one that is there.
    #[error("{resource} is in state {found:?}, not in {expected:?}; nothing was written")]
    WrongState {
        /// Which row.
        resource: String,
        /// The state it should be in.
        expected: String,
        /// The state it is in.
        found: String,
    },
    /// A name, a number or a token that cannot work.
    #[error("{0}")]
    Invalid(String),
    /// The lock, not the resource, failed.
    #[error(transparent)]
    Lock(LockError),
    /// The resource failed.
    #[error("{resource}: {message}")]
    Failed {
        /// Which one.
        resource: String,
        /// Whether the write was done.
        outcome: Outcome,
        /// What happened.
        message: String,
        /// The error below.
        #[source]
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
}

/// Why the lock behind a write failed: `leasehold::Error`, or another library's error.
#[derive(Debug)]
pub struct LockError {
    outcome: Outcome,
    error: Box<dyn StdError + Send + Sync>,
}

impl LockError {
    /// An error of a lock, and whether the write was done nevertheless.
    pub fn new(outcome: Outcome, error: impl StdError + Send + Sync + 'static) -> Self {
        Self { outcome, error: error.into() }
    }

    /// The error, if it is of this type.
    pub fn get<E: StdError + 'static>(&self) -> Option<&E> {
        self.error.downcast_ref()
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl StdError for LockError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

impl FenceError {
    /// The stale token behind it, where that is what happened.
    pub fn stale(&self) -> Option<StaleToken> {
        match self {
            Self::Stale(stale) => Some(*stale),
            _ => None,
        }
    }

    /// Whether the write was done, as far as we know.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Failed { outcome, .. } => *outcome,
            Self::Lock(error) => error.outcome,
            _ => Outcome::NotApplied,
        }
    }

    /// Whether trying the same write again may help. Never so for a stale token.
    pub fn may_be_retried(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }

    pub(crate) fn failed(
        resource: impl Into<String>,
        outcome: Outcome,
        source: impl StdError + Send + Sync + 'static,
    ) -> Self {
        let message = source.to_string();
        Self::Failed { resource: resource.into(), outcome, message, source: Some(source.into()) }
    }
}

/// The token as databases keep it, in a signed number.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn signed(token: Token) -> Result<i64, FenceError> {
    i64::try_from(token.get()).map_err(|_| {
        FenceError::Invalid(format!("token {token} is beyond 2^63 - 1, which no store grants"))
    })
}

/// A token from a database's signed number. The column's CHECK keeps it from being negative.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn unsigned(token: i64) -> Token {
    Token::new(u64::try_from(token).unwrap_or(0))
}
