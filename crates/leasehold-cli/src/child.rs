//! The command and everything it starts: one process group, watched until nothing
//! of it is left.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as Blockable};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, kill_process, kill_process_group,
    set_child_subreaper, test_kill_process, test_kill_process_group, wait,
};
use tokio::signal::unix::{self, SignalKind};

use crate::exit::killed_by;
use crate::members;
use crate::nested::Inherited;
use crate::start_handshake::{Start, Starter};
use crate::trampoline;

/// How often to look whether the rest of the group is gone, once its leader is:
/// a member whose parent left the group tells nobody of its end.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The command's process group. Its id stays ours as long as a member is left.
#[derive(Debug)]
pub(crate) struct Child {
    group: Pid,
    /// Until the command began.
    starter: Option<Starter>,
    deaths: unix::Signal,
    exit_code: Option<u8>,
    /// A member that lived the last time: while it does, there is no need to look for others.
    witness: Option<Pid>,
}

/// What happened to the group.
#[derive(Debug)]
pub(crate) enum Change {
    /// The command was stopped, by this signal.
    Stopped(Signal),
    /// The command ended with this exit code, and no member of its group lives.
    Gone(u8),
}

impl Child {
    /// Prepares the command: its process is there and waits for the start message, through the
    /// [trampoline](crate::trampoline). Must be called on the main thread: the command
    /// dies with the thread that started it. Dropped, it ends. These variables are added to
    /// the command's environment.
    pub(crate) fn prepare(command: &[OsString], inherited: Inherited) -> io::Result<Self> {
        // Orphans of the group come to us instead of to init, so that their ends are
        // seen (not every container's init reaps them).
        set_child_subreaper(Some(getpid()))?;
        // Whoever started us may have blocked it, and then no end would be seen.
        SigSet::from(Blockable::SIGCHLD).thread_unblock()?;
        // Before the first death could happen.
        let deaths = unix::signal(SignalKind::child())?;
        let (starter, pipe) = Starter::new()?;
        let child = trampoline::start(command, &pipe, inherited)?;
        let group = Pid::from_child(&child);
        Ok(Self { group, starter: Some(starter), deaths, exit_code: None, witness: None })
    }

    /// Lets the command begin.
    pub(crate) fn start(&mut self, message: &Start) -> io::Result<()> {
        self.starter.take().map_or(Ok(()), |starter| starter.give(message))
    }

    /// The group's id.
    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Waits for the next change. Cancel safe.
    pub(crate) async fn changed(&mut self) -> Change {
        loop {
            if let Some(signal) = self.reap() {
                return Change::Stopped(signal);
            }
            match self.exit_code {
                Some(code) => {
                    if self.is_gone() {
                        return Change::Gone(code);
                    }
                    let _ = tokio::time::timeout(LOOK_AGAIN, self.deaths.recv()).await;
                }
                None => {
                    self.deaths.recv().await;
                }
            }
        }
    }

    /// Sends a signal to every member of the group that may be signalled, and to the command
    /// itself if it has joined another. `false` if that is none of those that are there.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let mut sent = kill_process_group(self.group, signal);
        if self.has_left_its_group() {
            sent = kill_process(self.group, signal);
        }
        sent != Err(Errno::PERM)
    }

    /// Asks the group to end. What is stopped has to run to hear of it.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Whether nothing of the command may be signalled: all of it runs as another user.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        test_kill_process_group(self.group) == Err(Errno::PERM)
    }

    /// What lives of the command and may not be signalled: what `sudo` and the like started.
    /// A group of which a part may be signalled takes the signal without an error.
    pub(crate) fn out_of_reach(&self) -> Option<String> {
        let protected = |pid| test_kill_process(pid) == Err(Errno::PERM);
        if let Some(living) = members::living(self.group) {
            let protected = living.iter().filter(|member| protected(member.pid));
            let protected: Vec<_> = protected.map(ToString::to_string).collect();
            if !protected.is_empty() {
                return Some(protected.join(", "));
            }
        } else if self.is_out_of_reach() {
            return Some(format!("process group {}", self.group));
        }
        (self.has_left_its_group() && protected(self.group)).then(|| format!("pid {}", self.group))
    }

    /// Until it is reaped the number is the command's.
    fn has_left_its_group(&self) -> bool {
        self.exit_code.is_none() && getpgid(Some(self.group)) != Ok(self.group)
    }

    /// Whether processes go on that the command started and that left its group.
    /// To be asked when the group is gone.
    pub(crate) fn has_strays(&self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => continue,
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Collects what has ended; the signal, if the command was stopped.
    fn reap(&mut self) -> Option<Signal> {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.group => {
                    if let Some(signal) = status.stopping_signal() {
                        return Signal::from_named_raw(signal);
                    }
                    self.exit_code = Some(exit_code(status));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    fn is_gone(&mut self) -> bool {
        // Other errors mean that members are there which we may not signal.
        if test_kill_process_group(self.group) == Err(Errno::SRCH) {
            return true;
        }
        if self.witness.is_some_and(|pid| members::lives_in(pid, self.group)) {
            return false;
        }
        // Members may be zombies that are not ours to reap: their parent left the group. Two
        // looks, since a member that forks during one may be missed by it.
        for _ in 0..2 {
            let living = members::living(self.group);
            if living.as_ref().is_none_or(|living| !living.is_empty()) {
                self.witness = living.and_then(|living| Some(living.first()?.pid));
                return false;
            }
        }
        true
    }
}

fn exit_code(status: WaitStatus) -> u8 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => killed_by(signal),
        (None, None) => u8::MAX,
    }
}
