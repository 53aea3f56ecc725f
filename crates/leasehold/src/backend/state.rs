//! Records beside locks: small values that only the present holder of a lock can write.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Hold, LockId, Reply};
use crate::error::Result;
use crate::loss::LossReason;
use crate::token::Token;

/// What a store keeps beside its locks: one record for each.
///
/// * **A write is checked where it happens.** The store compares the lease and the version in the
///   step that writes: a holder that lost its lease on the way writes nothing.
/// * **A write of unknown outcome** is settled by reading: the version tells.
/// * **A record outlives the lease that wrote it**, and is forgotten when nobody has written it for
///   as long as its last writer asked.
/// * Only leases that are [alone](super::Mode::is_alone) write.
pub trait State: fmt::Debug + Send + Sync {
    /// The record of a lock.
    fn read(self: Arc<Self>, lock: LockId) -> Reply<Option<Record>>;

    /// Writes the record if the lease is live and the record still has the `expected` version
    /// (`None`: if there is no record). `keep`: how long the record lasts if nobody writes it again;
    /// `None` for ever.
    fn write(
        self: Arc<Self>,
        hold: Hold,
        expected: Option<Version>,
        value: Arc<[u8]>,
        keep: Option<Duration>,
    ) -> Reply<Written>;

    /// The time on the store's clock, by which it dates records; `None` where it has no clock
    /// (etcd).
    fn now(self: Arc<Self>) -> Reply<Option<SystemTime>>;

    /// What is written from now on, in the order of writing.
    fn watch(self: Arc<Self>, what: Watched) -> Box<dyn Changes>;
}

impl dyn State {
    /// The longest value of a record, in bytes.
    pub const LONGEST: usize = 64 * 1024;
}

/// Which of several writes of a record it was: each one has a higher version than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// A record as it was last written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// What was written.
    pub value: Arc<[u8]>,
    /// Which write it was.
    pub version: Version,
    /// The token of the lease that wrote it.
    pub token: Token,
    /// When, on the store's clock.
    pub written: SystemTime,
}

impl Record {
    /// A record with these parts.
    pub fn new(value: Arc<[u8]>, version: Version, token: Token, written: SystemTime) -> Self {
        Self { value, version, token, written }
    }
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It is the record's value now, with this version.
    At(Version),
    /// The lease is gone, and why; nothing was written.
    NotYours(LossReason),
    /// The record has another version than was expected; nothing was written.
    Changed(Option<Record>),
}

/// Which records to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Watched {
    /// That of one lock.
    One(LockId),
    /// Those of all locks of all kinds whose names begin like this.
    Prefix(String),
}

impl Watched {
    /// Whether it covers this lock.
    pub fn covers(&self, lock: &LockId) -> bool {
        match self {
            Self::One(one) => one == lock,
            Self::Prefix(prefix) => lock.name.as_str().starts_with(prefix.as_str()),
        }
    }
}

/// A stream of changes.
pub trait Changes: fmt::Debug + Send {
    /// The next change. Dropping the future loses none.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Change>> + Send + '_>>;
}

/// What happened to the records that are watched.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// One was written. `sampled`: the store is asked now and then, so writes before it may have
    /// gone unseen.
    Written {
        /// Whose record.
        lock: LockId,
        /// The record.
        record: Record,
        /// Whether there may have been others before it.
        sampled: bool,
    },
    /// Changes were missed: read what matters again.
    Gap,
}
