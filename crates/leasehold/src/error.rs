//! The one public error: what went wrong, whether the store did it anyway,
//! and what to do next. Every store maps its own errors to it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use leasehold_fence::{FenceError, LockError};

use crate::holder::HeldBy;
use crate::loss::Loss;
use crate::name::{InvalidName, Name};

pub use leasehold_fence::Outcome;

/// The result of this library's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Cheap to clone, since one failed batch fails many callers.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    outcome: Outcome,
    message: String,
    store: Option<&'static str>,
    operation: Option<Operation>,
    lock: Option<Name>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What kind of thing went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Patience ran out while another held the lock; who, where the store knows.
    Held(Option<HeldBy>),
    /// The lease had already gone when it was to be released or renewed.
    NotHeld,
    /// The lease was lost while it was needed.
    Lost(Loss),
    /// The store did not answer in time or could not be reached.
    Unreachable,
    /// The store is there, but something keeps it from working (another process
    /// blocks it, its disk is full): it may work again later.
    Unavailable,
    /// The store's data cannot be used: corrupt, unreadable, of a newer version.
    Unusable,
    /// The store that was connected to is gone: what kept its locks was removed or replaced,
    /// so that others who connect meet elsewhere. All leases of it are lost. Connect again.
    Gone,
    /// The store does not promise what was demanded, or is not safe to use.
    Refused,
    /// A name, an option or a URL that cannot work.
    Invalid,
    /// No async runtime is there to work on.
    NoRuntime,
    /// From a store to its client: it did not do all of a batch, and cannot tell what. Each
    /// request is sent again alone.
    RetryAlone,
    /// A promise of the library or of the store was broken: please report it.
    Internal,
}

impl ErrorKind {
    /// Whether errors of this kind mean that nothing was done.
    pub const fn is_a_refusal(&self) -> bool {
        use ErrorKind::{Held, Invalid, Lost, NoRuntime, NotHeld, Refused};
        matches!(self, Held(_) | NotHeld | Lost(_) | Refused | Invalid | NoRuntime)
    }
}

/// What was asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Open the store.
    Connect,
    /// Take a lock.
    Acquire,
    /// Wait in a lock's queue.
    Wait,
    /// Give up waiting.
    Leave,
    /// Find out how an acquire ended.
    Settle,
    /// Prove a lease again.
    Renew,
    /// Give a lock back.
    Release,
    /// Look at one lock.
    Inspect,
    /// Look at many locks.
    List,
    /// Take a lock away from its holder.
    ForceRelease,
    /// Examine the store's set-up.
    Examine,
    /// Act under a lease.
    Work,
}

impl Error {
    /// An error of this kind. Nobody knows whether the store did what was asked, unless the kind
    /// says that it did not ([`ErrorKind::is_a_refusal`]), or [`Error::not_applied`] is added.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let refused = kind.is_a_refusal();
        Self(Arc::new(Inner {
            kind,
            outcome: if refused { Outcome::NotApplied } else { Outcome::Unknown },
            message: message.into(),
            store: None,
            operation: None,
            lock: None,
            source: None,
        }))
    }

    pub(crate) fn held(by: Option<HeldBy>, waited: std::time::Duration) -> Self {
        let who = by.as_ref().map_or_else(|| "another owner".to_owned(), HeldBy::to_string);
        let waited = waited.as_secs_f64();
        Self::new(ErrorKind::Held(by), format!("still held by {who} after {waited:.1} s"))
    }

    pub(crate) fn lost(loss: Loss) -> Self {
        let message = format!("the lease is lost: {loss}; stop the work and roll it back");
        Self::new(ErrorKind::Lost(loss), message)
    }

    pub(crate) fn not_held() -> Self {
        Self::new(
            ErrorKind::NotHeld,
            "the lease had already gone; what was done since may have overlapped with another holder",
        )
    }

    pub(crate) fn no_answer(after: std::time::Duration) -> Self {
        let message = format!("the store did not answer within {} ms", after.as_millis());
        Self::new(ErrorKind::Unreachable, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// The store certainly did not do it, and will not.
    #[must_use]
    pub fn not_applied(self) -> Self {
        self.with(|inner| inner.outcome = Outcome::NotApplied)
    }

    /// With the outcome of the error that this one explains.
    pub(crate) fn with_outcome_of(self, explained: &Error) -> Self {
        self.with(|inner| inner.outcome = explained.outcome())
    }

    /// Nobody knows whether the store carried it out.
    #[must_use]
    pub fn outcome_unknown(self) -> Self {
        self.with(|inner| inner.outcome = Outcome::Unknown)
    }

    /// The error below this one.
    #[must_use]
    pub fn caused_by(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.with(|inner| inner.source = Some(Arc::new(source)))
    }

    /// The store it happened on.
    #[must_use]
    pub fn on_store(self, store: &'static str) -> Self {
        self.with(|inner| inner.store = Some(store))
    }

    /// What was being done, and to which lock.
    #[must_use]
    pub fn during(self, operation: Operation, lock: Option<&Name>) -> Self {
        self.with(|inner| {
            inner.operation = Some(operation);
            inner.lock = lock.cloned();
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Whether the store carried it out.
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// The store it happened on.
    pub fn store(&self) -> Option<&'static str> {
        self.0.store
    }

    /// What was asked of the store.
    pub fn operation(&self) -> Option<Operation> {
        self.0.operation
    }

    /// The lock it was about.
    pub fn lock(&self) -> Option<&Name> {
        self.0.lock.as_ref()
    }

    /// Whether the store said that it is gone, and its leases with it.
    pub(crate) fn says_gone(&self) -> bool {
        self.0.kind == ErrorKind::Gone
    }

    /// The loss behind it, where that is what happened.
    pub fn loss(&self) -> Option<&Loss> {
        match self.kind() {
            ErrorKind::Lost(loss) => Some(loss),
            _ => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::Acquire => "acquire",
            Self::Wait => "wait for",
            Self::Leave => "leave the queue of",
            Self::Settle => "settle",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Inspect => "inspect",
            Self::List => "list locks",
            Self::ForceRelease => "force-release",
            Self::Examine => "examine the store",
            Self::Work => "go on under",
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let Some(store) = inner.store {
            write!(f, "{store}: ")?;
        }
        if let Some(operation) = inner.operation {
            write!(f, "cannot {operation}")?;
            if let Some(lock) = &inner.lock {
                write!(f, " {lock:?}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&inner.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("outcome", &self.0.outcome)
            .field("message", &self.to_string())
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<InvalidName> for Error {
    fn from(invalid: InvalidName) -> Self {
        Self::invalid(invalid.to_string())
    }
}

/// A fenced write that failed because of its lock.
impl From<Error> for FenceError {
    fn from(error: Error) -> Self {
        Self::Lock(LockError::new(error.outcome(), error))
    }
}
