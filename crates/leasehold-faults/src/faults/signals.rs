//! Processes stopped and continued by signal. Only by the id of a child of ours, never by
//! name.

use std::io;

use rustix::process::{Pid, Signal, kill_process};

/// Stops a process where it stands.
pub fn pause(pid: Pid) -> io::Result<()> {
    Ok(kill_process(pid, Signal::STOP)?)
}

/// Lets it go on.
pub fn resume(pid: Pid) -> io::Result<()> {
    Ok(kill_process(pid, Signal::CONT)?)
}
