//! The controlling terminal, shared with the command as shells share theirs: only the
//! foreground group may read it, so the command's group has to become that.
//!
//! A background process that changes the terminal is stopped by SIGTTOU unless it
//! blocks it. So leasehold blocks it (and SIGTTIN) for good: a supervisor must not be
//! stopped by what its neighbours in a pipeline do, while its command runs on.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::signal::{SigSet, Signal as Blockable};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, getpgrp, kill_current_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal of this session.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    modes: Option<Termios>,
    given: bool,
}

/// Keeps the terminal from stopping this process. To be called before there are
/// other threads, which inherit it, as what we start does: see [`unblock_stops`].
pub(crate) fn block_stops() -> io::Result<()> {
    Ok(stops().thread_block()?)
}

/// Lets the terminal stop this process again, before it becomes the command: with the
/// signal blocked, reading in the background is an error instead.
pub(crate) fn unblock_stops() -> io::Result<()> {
    Ok(stops().thread_unblock()?)
}

fn stops() -> SigSet {
    SigSet::from_iter([Blockable::SIGTTOU, Blockable::SIGTTIN])
}

impl Terminal {
    /// The terminal, where the session has one.
    pub(crate) fn open() -> Option<Self> {
        let flags = (OFlags::NOCTTY | OFlags::CLOEXEC).bits() as i32;
        let tty = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/tty");
        let tty = tty.ok()?;
        Some(Self { modes: tcgetattr(&tty).ok(), tty, given: false })
    }

    /// Whether the command will want it at once: it talks to it, and we may give it.
    /// In a pipeline the neighbours may need it more (`leasehold run … | less`).
    pub(crate) fn is_wanted(&self) -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal() && self.is_ours()
    }

    /// Whether our own group is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(getpgrp())
    }

    /// Puts a group in the foreground.
    pub(crate) fn give(&mut self, group: Pid) {
        self.given |= tcsetpgrp(&self.tty, group).is_ok();
    }

    /// Puts our own group in the foreground again, if another was there by our doing.
    pub(crate) fn take_back(&mut self) {
        if self.given {
            self.given = tcsetpgrp(&self.tty, getpgrp()).is_err();
        }
    }

    /// Undoes what a command that was killed may have left: no echo, raw input.
    pub(crate) fn reset_modes(&self) {
        if let Some(modes) = self.modes.as_ref().filter(|_| self.is_ours()) {
            // Not after the output is drained: Ctrl-S may have stopped that for good.
            let _ = tcsetattr(&self.tty, OptionalActions::Now, modes);
        }
    }

    /// Stops this process and its group, as Ctrl-Z would have if the command had not
    /// been in the foreground. Returns when it is continued, or at once where there
    /// is no shell that could do that (the kernel knows: an orphaned group).
    pub(crate) fn suspend(&self) {
        if stops().thread_unblock().is_ok() {
            let _ = kill_current_process_group(Signal::TTOU);
            let _ = stops().thread_block();
        }
    }
}
