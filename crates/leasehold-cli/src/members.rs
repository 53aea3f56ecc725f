//! The members of a process group, as `/proc` shows them.

use std::fmt;
use std::fs;

use rustix::process::{Pid, getpid};

/// A process that lives in a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) pid: Pid,
    name: String,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid.as_raw_nonzero())
    }
}

/// The processes that live in this group; zombies do not. `None` if `/proc` does not show the
/// processes of all users, or those of another pid namespace.
pub(crate) fn living(group: Pid) -> Option<Vec<Member>> {
    let me = getpid().as_raw_nonzero().to_string();
    if fs::read_link("/proc/self").ok()?.as_os_str() != me.as_str() {
        return None;
    }
    // Where the processes of other users are hidden, the first one is, too.
    Stat::of(Pid::INIT)?;
    let entries = fs::read_dir("/proc").ok()?;
    let pids =
        entries.filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?));
    let living = pids.filter_map(|pid| {
        let stat = Stat::of(pid).filter(|stat| stat.lives_in(group))?;
        Some(Member { pid, name: stat.name })
    });
    Some(living.collect())
}

/// Whether this process lives in this group.
pub(crate) fn lives_in(pid: Pid, group: Pid) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.lives_in(group))
}

struct Stat {
    name: String,
    state: char,
    group: i32,
    threads: u32,
}

impl Stat {
    fn of(pid: Pid) -> Option<Self> {
        let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
        // The name may be anything, also no text.
        Self::parse(&String::from_utf8_lossy(&fs::read(path).ok()?))
    }

    /// The name in parentheses may contain some: the last one ends it.
    fn parse(stat: &str) -> Option<Self> {
        let (before, fields) = stat.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let mut fields = fields.split_ascii_whitespace();
        Some(Self {
            name: name.to_owned(),
            state: fields.next()?.chars().next()?,
            group: fields.nth(1)?.parse().ok()?,
            threads: fields.nth(14)?.parse().ok()?,
        })
    }

    /// A zombie acts no more, unless only its first thread has ended.
    fn lives_in(&self, group: Pid) -> bool {
        let dead = matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1;
        self.group == group.as_raw_nonzero().get() && !dead
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let line = "7 (a) b) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 4242 20";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.name.as_str(), stat.state), ("a) b", 'Z'));
        assert_eq!((stat.group, stat.threads), (2, 1));
        let alive_in = |line: &str| Stat::parse(line).unwrap().lives_in(Pid::from_raw(2).unwrap());
        assert!(!alive_in(line) && alive_in(&line.replace(" Z ", " S ")));
        assert!(alive_in(&line.replace(" 16 1 18", " 16 3 18")), "other threads go on");
    }

    #[test]
    fn a_member_lives_until_it_is_a_zombie() {
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let group = Pid::from_child(&child);
        let pids = || living(group).unwrap().iter().map(|member| member.pid).collect::<Vec<_>>();
        assert_eq!(pids(), [group]);
        assert!(lives_in(group, group));
        child.kill().unwrap();
        let killed = Instant::now();
        while lives_in(group, group) && killed.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!lives_in(group, group) && pids().is_empty(), "a zombie");
        child.wait().unwrap();
    }
}
