//! How the command ends: exit codes, and the one line on stderr that explains them.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::panic::PanicHookInfo;
use std::process::ExitCode;

use leasehold::{Error, ErrorKind};

use crate::outbox::{self, Line};
use crate::{formatting, secrets};

/// `release`: nobody held the lock.
pub(crate) const NOBODY: u8 = 1;
/// `doctor`: something is unsafe.
pub(crate) const UNSAFE: u8 = 1;
/// The arguments cannot work; also what clap uses.
pub(crate) const USAGE: u8 = 2;
/// Leasehold itself failed, as `env` and `timeout` say it.
pub(crate) const BROKEN: u8 = 125;
/// The command cannot be executed, as shells say it.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found, as shells say it.
pub(crate) const NOT_FOUND: u8 = 127;
/// The lock is held by another, unless `--exit-code` says otherwise.
pub(crate) const HELD: u8 = 201;
/// The lease was lost while the command ran.
pub(crate) const LOST: u8 = 202;
/// The store cannot be reached or used.
pub(crate) const UNREACHABLE: u8 = 203;
/// The store was refused as unsafe.
pub(crate) const REFUSED: u8 = 204;

/// An exit code, and why.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Something that leasehold needs from the system did not work.
    pub(crate) fn broken(what: impl Display, error: &dyn StdError) -> Self {
        Self::new(BROKEN, format!("{what}: {}", Chain(error)))
    }

    /// What the library says, with this code for a lock that another holds.
    pub(crate) fn from_library(error: &Error, held: u8) -> Self {
        let code = match error.kind() {
            ErrorKind::Held(_) => held,
            ErrorKind::Lost(_) | ErrorKind::NotHeld => LOST,
            ErrorKind::Unreachable | ErrorKind::Unavailable => UNREACHABLE,
            ErrorKind::Unusable | ErrorKind::Gone => UNREACHABLE,
            ErrorKind::Refused => REFUSED,
            ErrorKind::Invalid => USAGE,
            _ => BROKEN,
        };
        Self::new(code, Chain(error).to_string())
    }

    /// Says it, and turns it into the process's exit code.
    pub(crate) fn report(self) -> ExitCode {
        tell(self.message);
        ExitCode::from(self.code)
    }
}

/// The exit code of a process that a signal ended, as shells say it.
pub(crate) fn killed_by(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128))
}

/// One line to the user, without secrets. It does not wait until somebody reads it.
pub(crate) fn tell(message: impl Display) {
    let line = formatting::printable(&secrets::blot(&message.to_string()));
    outbox::send(Line::Message, format!("leasehold: {line}\n"));
}

/// Tells of a panic, with a backtrace where RUST_BACKTRACE asks for one.
pub(crate) fn tell_panic(info: &PanicHookInfo<'_>) {
    tell(format_args!("this is a defect, please report it: {info}"));
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        outbox::send(Line::Message, secrets::blot(&format!("{trace}\n")));
    }
}

/// An error and what caused it, in one line. What a message quotes is not said again.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn StdError);

impl Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let more = error.to_string();
            if !said.contains(&more) {
                said = format!("{said}: {more}");
            }
            cause = error.source();
        }
        f.write_str(&said)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn every_kind_has_the_documented_code() {
        let code = |kind| Failure::from_library(&Error::new(kind, "x"), 77).code;
        assert_eq!(code(ErrorKind::Held(None)), 77);
        assert_eq!(code(ErrorKind::NotHeld), 202);
        assert_eq!(code(ErrorKind::Unreachable), 203);
        assert_eq!(code(ErrorKind::Unavailable), 203);
        assert_eq!(code(ErrorKind::Unusable), 203);
        assert_eq!(code(ErrorKind::Gone), 203);
        assert_eq!(code(ErrorKind::Refused), 204);
        assert_eq!(code(ErrorKind::Invalid), 2);
        assert_eq!(code(ErrorKind::Internal), 125);
    }

    #[test]
    fn causes_are_said_in_the_same_line() {
        let cause = io::Error::other("disk full");
        let error = Error::new(ErrorKind::Unavailable, "cannot write").caused_by(cause);
        assert_eq!(Failure::from_library(&error, HELD).message, "cannot write: disk full");
        let cause = io::Error::other("disk full");
        let error = Error::new(ErrorKind::Unavailable, "disk full, make room").caused_by(cause);
        assert_eq!(Failure::from_library(&error, HELD).message, "disk full, make room");
    }
}
