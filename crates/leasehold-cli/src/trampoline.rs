//! Between the supervisor and the command: a process that ties its life to the
//! supervisor's and then becomes the command. The death signal survives `exec`, so
//! no code has to run between `fork` and `exec`, and none of it is `unsafe`.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpgrp, getppid, set_parent_process_death_signal};
use rustix::termios::tcgetpgrp;

use crate::args::Exec;
use crate::exit::{BROKEN, Failure, NOT_EXECUTABLE, NOT_FOUND};
use crate::terminal;

/// Becomes the command; returns only if that fails.
pub(crate) fn exec(args: Exec) -> Failure {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return Failure::broken("cannot tie the command's life to leasehold's", &error);
    }
    // The supervisor may have died before the signal was asked for.
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
    if parent != Some(args.parent) {
        return Failure::new(BROKEN, "leasehold ended before its command began");
    }
    if let Err(error) = terminal::unblock_stops() {
        return Failure::broken("cannot unblock signals", &error);
    }
    if args.terminal {
        await_terminal();
    }
    let [program, arguments @ ..] = args.command.as_slice() else {
        return Failure::new(BROKEN, "there is no command to run");
    };
    let error = Command::new(program).args(arguments).exec();
    not_run(program, &error)
}

/// A command that asks for the terminal's attention before it has it may get an error.
/// It is given right after this process was started; if not, the command has to cope.
fn await_terminal() {
    for _ in 0..500 {
        match tcgetpgrp(rustix::stdio::stdin()) {
            Ok(foreground) if foreground != getpgrp() => thread::sleep(Duration::from_millis(1)),
            _ => return,
        }
    }
}

fn not_run(program: &OsString, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound => Failure::new(
            NOT_FOUND,
            format!(
                "command {program:?} not found; check its name, PATH, and its first line if it is a script"
            ),
        ),
        _ => Failure::new(
            NOT_EXECUTABLE,
            format!("cannot execute {program:?}: {error}; is it a program, and executable?"),
        ),
    }
}
