//! Between the supervisor and the command: a process that ties its life to the
//! supervisor's, waits for the [start message](crate::start_handshake) and then becomes the
//! command. The death signal survives `exec`, so no code has to run between `fork` and
//! `exec`, and none of it is `unsafe`. It exists before the lock is asked for, so that its
//! group can be named with the claim.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;
use std::{env, io, thread};

use rustix::process::{Signal, getpgrp, getpid, getppid, set_parent_process_death_signal};
use rustix::termios::tcgetpgrp;

use crate::exit::{BROKEN, Failure};
use crate::nested::Inherited;
use crate::start_handshake::{self, Start};
use crate::{program, terminal};

/// The word that asks for it. Not for people, so no part of the documented arguments.
const WORD: &str = "__exec";

/// Starts a trampoline for this command, as leader of a process group of its own. It
/// waits at the end of a pipe, and passes these variables on.
pub(crate) fn start(
    command: &[OsString],
    pipe: &OwnedFd,
    inherited: Inherited,
) -> io::Result<Child> {
    // Not the path of this program: that may be another one by now.
    Command::new("/proc/self/exe")
        .arg0("leasehold")
        .arg(WORD)
        .arg(getpid().as_raw_nonzero().to_string())
        .arg(pipe.as_raw_fd().to_string())
        .args(command)
        .envs(inherited)
        .process_group(0)
        .spawn()
}

/// What a trampoline was started with.
#[derive(Debug)]
pub(crate) struct Trampoline {
    /// The supervisor that must still be there.
    parent: i32,
    inherited: RawFd,
    command: Vec<OsString>,
}

impl Trampoline {
    /// `None` if this process was not started as one.
    pub(crate) fn from_args() -> Option<Self> {
        let mut args = env::args_os().skip(1);
        args.next().filter(|word| word == WORD)?;
        let mut number = || args.next()?.to_str()?.parse().ok();
        let (parent, inherited) = (number()?, number()?);
        Some(Self { parent, inherited, command: args.collect() })
    }

    /// Waits for the start message and becomes the command; returns if there is none, or why that
    /// failed.
    pub(crate) fn exec(self) -> Result<u8, Failure> {
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| {
            Failure::broken("cannot tie the command's life to leasehold's", &error)
        })?;
        // The supervisor may have died before the signal was asked for.
        let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
        if parent != Some(self.parent) {
            return Ok(BROKEN);
        }
        let start = start_handshake::wait(self.inherited)
            .map_err(|error| Failure::broken("cannot wait for the lock", &error))?;
        // It gave up, and said why.
        let Some(start) = start else { return Ok(BROKEN) };
        terminal::unblock_stops()
            .map_err(|error| Failure::broken("cannot unblock signals", &error))?;
        if start.terminal {
            await_terminal();
        }
        Err(become_command(&self.command, &start))
    }
}

fn become_command(command: &[OsString], start: &Start) -> Failure {
    let [program, arguments @ ..] = command else {
        return Failure::new(BROKEN, "there is no command to run");
    };
    let error = Command::new(program)
        .args(arguments)
        .env("LEASEHOLD_LOCK", &start.lock)
        .env("LEASEHOLD_TOKEN", &start.token)
        .env("LEASEHOLD_OWNER", &start.owner)
        .exec();
    program::not_run(OsStr::new(program), &error)
}

/// A command that asks for the terminal's attention before it has it may get an error.
/// It is given right after the start message; if not, the command has to cope.
fn await_terminal() {
    for _ in 0..500 {
        match tcgetpgrp(rustix::stdio::stdin()) {
            Ok(foreground) if foreground != getpgrp() => thread::sleep(Duration::from_millis(1)),
            _ => return,
        }
    }
}
