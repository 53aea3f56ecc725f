//! Processes frozen by the kernel, as a container runtime's pause does: unlike with
//! SIGSTOP neither they nor their parents are told.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use rustix::process::Pid;

/// A cgroup of its own for one process. Thawed and removed when dropped.
#[derive(Debug)]
pub struct Freezer {
    folder: PathBuf,
    switch: Switch,
}

#[derive(Debug, Clone, Copy)]
enum Switch {
    /// Version 2: `cgroup.freeze`.
    Unified,
    /// Version 1: `freezer.state`.
    State,
}

/// Where cgroups with a freezer may be, and of which version.
const ROOTS: [(&str, Switch); 3] = [
    ("/sys/fs/cgroup", Switch::Unified),
    ("/sys/fs/cgroup/unified", Switch::Unified),
    ("/sys/fs/cgroup/freezer", Switch::State),
];

impl Freezer {
    /// A new cgroup, or why there cannot be one.
    pub fn create() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-faults-{}-{count}", std::process::id());
        let mut why = "no cgroup file system with a freezer is mounted".to_owned();
        for (root, switch) in ROOTS {
            let folder = Path::new(root).join(&name);
            if !Path::new(root).join("cgroup.procs").exists() {
                continue;
            }
            match fs::create_dir(&folder) {
                Ok(()) => {
                    let freezer = Self { folder, switch };
                    if freezer.file().exists() {
                        return Ok(freezer);
                    }
                    why = format!("{root} has no freezer");
                }
                Err(error) => why = format!("{root}: {error}"),
            }
        }
        bail!("{why}")
    }

    fn file(&self) -> PathBuf {
        self.folder.join(match self.switch {
            Switch::Unified => "cgroup.freeze",
            Switch::State => "freezer.state",
        })
    }

    /// Puts a process in, without freezing it.
    pub fn admit(&self, pid: Pid) -> Result<()> {
        let procs = self.folder.join("cgroup.procs");
        fs::write(&procs, pid.as_raw_nonzero().to_string())
            .with_context(|| format!("{}", procs.display()))
    }

    /// Freezes what is inside.
    pub fn freeze(&self) -> Result<()> {
        self.set(match self.switch {
            Switch::Unified => "1",
            Switch::State => "FROZEN",
        })
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<()> {
        self.set(match self.switch {
            Switch::Unified => "0",
            Switch::State => "THAWED",
        })
    }

    fn set(&self, value: &str) -> Result<()> {
        let file = self.file();
        fs::write(&file, value).with_context(|| format!("{}", file.display()))
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = self.thaw();
        // Fails while a process is inside; they are gone when a run ends.
        let _ = fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_frozen_process_does_not_even_die_of_its_closed_input() {
        let freezer = Freezer::create().expect("root may freeze");
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        freezer.admit(Pid::from_child(&child)).unwrap();
        freezer.freeze().unwrap();
        drop(child.stdin.take());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(child.try_wait().unwrap().is_none(), "it is frozen");
        freezer.thaw().unwrap();
        assert!(child.wait().unwrap().success());
    }
}
