//! Whether the process behind a lease is still there. *Gone* is only what we are
//! sure of: same pid namespace, and no such process, a zombie, or another start
//! time; and nothing left of its process group, where it named one. Cannot see is
//! not gone.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process, test_kill_process_group};
use tokio::io::unix::AsyncFd;

use crate::readiness;

/// A process as it was when it introduced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Field 22 of its `stat`; `None` if it could not be seen.
    pub(super) started: Option<i64>,
    /// Its pid namespace; `None` if unknown.
    pub(super) namespace: Option<String>,
    /// A process group that acts for it.
    pub(super) group: Option<u32>,
}

/// From where we look: our own pid namespace, if `/proc` shows it.
#[derive(Debug, Clone)]
pub(super) struct Viewer {
    namespace: Option<String>,
    /// This process: it is not gone while it asks.
    me: Option<Process>,
}

impl Viewer {
    pub(super) fn here() -> Self {
        // A /proc of another namespace shows other processes under the same numbers.
        let ours = fs::read_link("/proc/self")
            .is_ok_and(|link| link.as_os_str() == std::process::id().to_string().as_str());
        let namespace = fs::read_link("/proc/self/ns/pid").ok().filter(|_| ours);
        let namespace = namespace.map(|link| link.to_string_lossy().into_owned());
        let mut viewer = Self { namespace, me: None };
        viewer.me = Some(viewer.describe(std::process::id()));
        viewer
    }

    /// Describes the process with this pid, as seen now.
    pub(super) fn describe(&self, pid: u32) -> Process {
        let started = self.namespace.as_ref().and_then(|_| Stat::of(pid)).map(|stat| stat.started);
        Process { pid, started, namespace: self.namespace.clone(), group: None }
    }

    /// Whether it certainly is not there any more, nor anything of its group.
    pub(super) fn is_gone(&self, process: &Process) -> bool {
        self.has_ended(process) && process.group.is_none_or(group_is_gone)
    }

    /// Whether it can be told from here if it is gone.
    pub(super) fn sees(&self, process: &Process) -> bool {
        process.started.is_some() && self.visible(process).is_some()
    }

    /// Whether the process itself certainly is not there any more.
    pub(super) fn has_ended(&self, process: &Process) -> bool {
        if self.me.as_ref() == Some(process) {
            return false;
        }
        let (Some(started), Some(pid)) = (process.started, self.visible(process)) else {
            return false;
        };
        // Under hidepid /proc hides what exists; kill(2) tells the truth.
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return true;
        }
        Stat::of(process.pid).is_some_and(|stat| stat.is_dead() || stat.started != started)
    }

    /// Becomes readable when the process ends. Needs a runtime with I/O.
    pub(super) fn exit_of(&self, process: &Process) -> Option<AsyncFd<OwnedFd>> {
        if process.pid == std::process::id() {
            return None;
        }
        let pid = self.visible(process)?;
        let descriptor = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
        let exit = readiness::watch(descriptor).ok()?;
        // The pid may have been reused before the descriptor was opened. (A zombie keeps
        // its start time, and its descriptor is readable at once.)
        let started = Stat::of(process.pid).map(|stat| stat.started);
        (started.is_some() && started == process.started).then_some(exit)
    }

    fn visible(&self, process: &Process) -> Option<Pid> {
        let ours = self.namespace.is_some() && self.namespace == process.namespace;
        Pid::from_raw(i32::try_from(process.pid).ok()?).filter(|_| ours)
    }
}

/// Whether nothing is left of a process group of our own pid namespace. Its id may be
/// another group's by now: then the lease's term decides.
fn group_is_gone(group: u32) -> bool {
    let Some(id) = i32::try_from(group).ok().and_then(Pid::from_raw) else { return false };
    match test_kill_process_group(id) {
        Err(Errno::SRCH) => true,
        // Zombies that nobody reaps, in a container whose init does not, act no more. Two
        // looks, since a member that forks during one may be missed by it.
        Ok(()) if Stat::of(group).is_some_and(|leader| leader.is_dead()) => {
            all_are_dead(group) && all_are_dead(group)
        }
        _ => false,
    }
}

/// Whether `/proc` shows members of a group, and none that lives.
fn all_are_dead(group: u32) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut members = pids.filter_map(Stat::of).filter(|stat| stat.group == i64::from(group));
    // Where others' processes are hidden, the first one is, too.
    Stat::of(1).is_some()
        && members.next().is_some_and(|first| first.is_dead())
        && members.all(|member| member.is_dead())
}

/// Refuses a time namespace with a clock of its own: expiries are compared between processes.
pub(super) fn boot_clock_is_shifted() -> bool {
    fs::read_to_string("/proc/self/timens_offsets").is_ok_and(|offsets| {
        offsets
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("boottime"))
            .any(|offset| offset.split_whitespace().any(|part| part != "0"))
    })
}

/// The kernel's id of this boot.
pub(super) fn boot_id() -> std::io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

struct Stat {
    state: u8,
    group: i64,
    threads: i64,
    started: i64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        // One read: the kernel makes the line anew for each. It is a few hundred bytes.
        let mut line = [0; 2048];
        let length = fs::File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut line).ok()?;
        Self::parse(&line[..length])
    }

    /// The name in parentheses may contain anything, so count from the last one.
    fn parse(stat: &[u8]) -> Option<Self> {
        let end_of_name = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&stat[end_of_name + 1..]).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        let group = fields.nth(1)?.parse().ok()?;
        let threads = fields.nth(14)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        Some(Self { state, group, threads, started })
    }

    /// A zombie; not a process whose first thread ended while others work on.
    fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let line = b"7 (a) b) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 4242 20";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.state, stat.group, stat.threads, stat.started), (b'Z', 2, 1, 4242));
    }

    #[tokio::test]
    async fn a_killed_child_is_gone_as_zombie_and_after_it_was_reaped() {
        let viewer = Viewer::here();
        let mut child = sleeper();
        let process = viewer.describe(child.id());
        assert!(process.started.is_some());
        assert!(!viewer.is_gone(&process));

        let exit = viewer.exit_of(&process).unwrap();
        child.kill().unwrap();
        exit.readable().await.unwrap().retain_ready();
        assert!(viewer.is_gone(&process), "a zombie");
        child.wait().unwrap();
        assert!(viewer.is_gone(&process), "no such process");
    }

    #[test]
    fn another_start_time_is_another_process() {
        let viewer = Viewer::here();
        let mut me = viewer.describe(std::process::id());
        assert!(!viewer.is_gone(&me));
        me.started = me.started.map(|started| started - 1);
        assert!(viewer.is_gone(&me));
    }

    #[test]
    fn what_cannot_be_seen_is_not_gone() {
        let viewer = Viewer::here();
        let mut child = sleeper();
        let process = viewer.describe(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        let elsewhere = Process { namespace: Some("pid:[1]".to_owned()), ..process.clone() };
        assert!(!viewer.is_gone(&elsewhere));
        assert!(!viewer.is_gone(&Process { started: None, ..process }));
    }

    #[tokio::test]
    async fn a_process_is_not_gone_while_its_group_is_not() {
        use std::os::unix::process::CommandExt;
        let viewer = Viewer::here();
        let mut leader = sleeper();
        let mut member = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let process = Process { group: Some(member.id()), ..viewer.describe(leader.id()) };
        leader.kill().unwrap();
        leader.wait().unwrap();
        assert!(viewer.has_ended(&process) && !viewer.is_gone(&process));
        member.kill().unwrap();
        let exit = viewer.exit_of(&viewer.describe(member.id())).unwrap();
        exit.readable().await.unwrap().retain_ready();
        assert!(viewer.is_gone(&process), "a zombie");
        member.wait().unwrap();
        assert!(viewer.is_gone(&process));
    }
}
