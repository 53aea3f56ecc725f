//! What identifies a lock.

use std::fmt;

use crate::name::Name;

/// What kind of lock it is. Locks of one name and different kinds are different locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// One lease at a time.
    Exclusive,
    /// One writer, or any number of readers.
    ReadWrite,
    /// A number of permits.
    Semaphore,
}

/// A lock: its kind and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct LockId {
    /// Its kind.
    pub kind: LockKind,
    /// Its name.
    pub name: Name,
}

impl LockId {
    /// The lock of this kind and name.
    pub fn new(kind: LockKind, name: Name) -> Self {
        Self { kind, name }
    }
}

impl From<Name> for LockId {
    /// The exclusive lock of this name.
    fn from(name: Name) -> Self {
        Self::new(LockKind::Exclusive, name)
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::ReadWrite => "read/write",
            Self::Semaphore => "semaphore",
        })
    }
}
