//! What a [trampoline](crate::trampoline) waits for: the start message, which names the lease. It
//! comes through a pipe whose other end only the supervisor has, so that a supervisor
//! that gives up or dies is noticed as its end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use leasehold::Lease;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};

/// The start message for a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) lock: String,
    pub(crate) token: String,
    pub(crate) owner: String,
    /// The terminal is given to the command's group: wait for it.
    pub(crate) terminal: bool,
}

impl Start {
    pub(crate) fn under(lease: &Lease, terminal: bool) -> Self {
        Self {
            lock: lease.name().to_string(),
            token: lease.token().to_string(),
            owner: lease.owner().to_string(),
            terminal,
        }
    }

    /// A line each; a name has no control characters.
    fn to_text(&self) -> String {
        let terminal = if self.terminal { "terminal" } else { "-" };
        format!("{}\n{}\n{}\n{terminal}\n", self.lock, self.token, self.owner)
    }

    /// `None` if it is not whole.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n').map(str::to_owned);
        let (lock, token, owner) = (lines.next()?, lines.next()?, lines.next()?);
        Some(Self { lock, token, owner, terminal: lines.next()? == "terminal" })
    }
}

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct Starter(File);

impl Starter {
    /// The supervisor's end, and one that a process started now inherits.
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let (inherited, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfd(&inherited, FdFlags::empty())?;
        Ok((Self(File::from(ours)), inherited))
    }

    /// Gives the start message. An error if nobody waits for it any more.
    pub(crate) fn give(mut self, start: &Start) -> io::Result<()> {
        self.0.write_all(start.to_text().as_bytes())
    }
}

/// Waits for the start message at the inherited end with this number; `None` if it will not come.
pub(crate) fn wait(inherited: RawFd) -> io::Result<Option<Start>> {
    // Opened anew, since a number alone cannot be owned; ours is closed by `exec`, and
    // the inherited one must not be left to the command.
    let mut pipe = File::open(format!("/proc/self/fd/{inherited}"))?;
    debug_assert_ne!(pipe.as_raw_fd(), inherited);
    nix::unistd::close(inherited)?;
    let mut text = String::new();
    pipe.read_to_string(&mut text)?;
    Ok(Start::parse(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_message_is_understood_only_when_it_is_whole() {
        let (lock, token, owner) = ("größe 日本".into(), "7".into(), "0f".into());
        let start = Start { lock, token, owner, terminal: true };
        let text = start.to_text();
        assert_eq!(Start::parse(&text), Some(start));
        for (cut, _) in text.char_indices() {
            assert_eq!(Start::parse(&text[..cut]), None, "{:?}", &text[..cut]);
        }
    }
}
