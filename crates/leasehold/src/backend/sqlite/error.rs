//! SQLite's errors, when to try again, and what they mean to a user: one place, so that every
//! operation tells the same story.

use std::path::Path;
use std::time::Duration;

use rusqlite::ErrorCode;

use crate::error::{Error, ErrorKind, Result};

/// How long to try again while another process is in the way.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_micros(500);

/// Why an attempt on the database ended without a result.
#[derive(Debug)]
pub(super) enum Fault {
    /// Another connection writes: try again.
    Busy,
    /// A token beyond the fsynced ceiling is wanted: raise it, then try again.
    Ceiling(u64),
    /// Before COMMIT: it was rolled back.
    Sqlite(rusqlite::Error),
    /// During COMMIT, or in a statement that commits by itself.
    Commit(rusqlite::Error),
    /// Something that is no fault of SQLite.
    Other(Error),
}

impl Fault {
    /// The fault of a COMMIT, or of a statement that commits by itself.
    pub(super) fn in_commit(self) -> Self {
        if let Self::Sqlite(error) = self { Self::Commit(error) } else { self }
    }

    /// Whether the disk is full.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::Sqlite(error) | Self::Commit(error) => {
                error.sqlite_error_code() == Some(ErrorCode::DiskFull)
            }
            _ => false,
        }
    }

    /// The error for the user.
    pub(super) fn into_error(self, path: &Path) -> Error {
        match self {
            Self::Busy | Self::Ceiling(_) => {
                let path = path.display();
                let message = format!(
                    "another process blocks {path} for seconds; look who has it open \
                     (`fuser {path}`): a stopped process, a debugger or an sqlite3 shell inside \
                     a transaction"
                );
                Error::new(ErrorKind::Unavailable, message).not_applied()
            }
            Self::Sqlite(error) => explain(error, path),
            Self::Commit(error) => {
                let in_doubt = error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure);
                let error = explain(error, path);
                if in_doubt { error.outcome_unknown() } else { error }
            }
            Self::Other(error) => error,
        }
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed,
            ) => Self::Busy,
            _ => Self::Sqlite(error),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Repeats `work` while others are in the way, with short and jittered pauses.
pub(super) fn retry_while_busy<T>(
    patience: Duration,
    mut work: impl FnMut() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let (mut waited, mut longest) = (Duration::ZERO, FIRST_PAUSE);
    loop {
        match work() {
            Err(Fault::Busy | Fault::Ceiling(_)) if waited < patience => {
                let pause = longest.mul_f64(0.5 + fastrand::f64() / 2.0);
                std::thread::sleep(pause);
                waited += pause;
                longest = (longest * 2).min(LONGEST_PAUSE);
            }
            done => return done,
        }
    }
}

fn explain(error: rusqlite::Error, path: &Path) -> Error {
    use ErrorKind::{Internal, Unavailable, Unusable};
    let file = path.display();
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            let advice = "make room, then try again";
            (Unavailable, format!("the disk is full, {file} cannot grow; {advice}"))
        }
        // It may be anybody's file: never advise to remove it.
        Some(ErrorCode::NotADatabase) => {
            let advice = "choose another path, it was left as it is (if it was a store, it is \
                          damaged: restore it)";
            (Unusable, format!("{file} is no SQLite database, and so no Leasehold store; {advice}"))
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            let advice = "restore it from a copy, or choose another path";
            (Unusable, format!("{file} is damaged; {advice}"))
        }
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            let advice = "its directory must exist, and file and directory must be writable for \
                          this user";
            (Unusable, format!("{file} cannot be opened for writing: {error}; {advice}"))
        }
        Some(ErrorCode::SystemIoFailure) => {
            let advice = "look at the kernel's log";
            (Unavailable, format!("the disk below {file} failed: {error}; {advice}"))
        }
        Some(ErrorCode::OutOfMemory) => (Unavailable, "SQLite ran out of memory".to_owned()),
        _ => (Internal, format!("{file}: {error}")),
    };
    Error::new(kind, message).not_applied().caused_by(error)
}
