//! A server's process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::PATIENCE;

/// A running server. Dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it and waits until it is `ready`. What it says goes to the file `log`.
    ///
    /// # Errors
    ///
    /// With what it said, if it ends or is not ready in time.
    pub fn start(
        mut command: Command,
        log: &Path,
        mut ready: impl FnMut() -> bool,
    ) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let out = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = command.spawn().with_context(|| {
            format!("cannot start {program}: scripts/test installs what the tests need")
        })?;
        let mut process = Self { child, log: log.to_owned() };
        let until = Instant::now() + PATIENCE;
        while !ready() {
            if let Some(status) = process.child.try_wait()? {
                bail!("{program} ended with {status}: {}", process.said());
            }
            if Instant::now() > until {
                bail!("{program} was not ready within {PATIENCE:?}: {}", process.said());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(process)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The last lines of what it said.
    pub fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process id is positive");
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }

    /// Stops it, as a paused machine would.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends it at once, with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }

    /// Asks it to end with this signal, and waits until it is gone.
    pub fn end(&mut self, signal: Signal) {
        self.signal(signal);
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
