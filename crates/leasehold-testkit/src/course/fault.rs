//! The faults that need no server, and what a run of each looks like.

use std::time::Duration;

use super::Store;
use super::schedule::Rhythm;
use crate::faults::disk::SmallDisk;
use crate::faults::freezer::Freezer;

/// A fault, as `scripts/faults` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Row 1: holders stopped for longer than their TTL.
    Pause,
    /// Row 1: the same by the kernel's freezer.
    Freeze,
    /// Row 2: stopped at any moment, most of which are spent in line.
    Queue,
    /// Row 20: killed anywhere and started again, among many processes.
    Kill,
    /// Row 20: the store's disk is full.
    Disk,
    /// Row 22: a thousand clients wait for one lock.
    Waiters,
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 6] =
        [Fault::Pause, Fault::Freeze, Fault::Queue, Fault::Kill, Fault::Disk, Fault::Waiters];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Freeze => "freeze",
            Self::Queue => "queue",
            Self::Kill => "kill",
            Self::Disk => "disk",
            Self::Waiters => "waiters",
        }
    }

    /// Its row in the table of faults that must be survived.
    pub const fn row(self) -> u32 {
        match self {
            Self::Pause | Self::Freeze => 1,
            Self::Queue => 2,
            Self::Kill | Self::Disk => 20,
            Self::Waiters => 22,
        }
    }

    /// Why it says nothing about a store, if so.
    pub const fn does_not_apply(self, store: Store) -> Option<&'static str> {
        match (store, self) {
            (Store::Memory, Self::Freeze) => Some("freezing the process freezes the store"),
            (Store::Memory, Self::Kill) => Some("the store dies with its process"),
            (Store::Memory, Self::Disk) => Some("the store has no disk"),
            _ => None,
        }
    }

    /// Why this machine cannot inject it, if so.
    pub fn impossible(self) -> Option<String> {
        match self {
            Self::Freeze => Freezer::create().err().map(|error| error.to_string()),
            Self::Disk => {
                let folder = tempfile::tempdir().ok()?;
                SmallDisk::mount(folder.path(), 64).err().map(|error| error.to_string())
            }
            _ => None,
        }
    }

    /// Whether it keeps processes from running.
    pub const fn pauses(self) -> bool {
        matches!(self, Self::Pause | Self::Freeze | Self::Queue)
    }

    /// Whether a strike waits, for a moment, until its victim is between reading and writing.
    pub(super) const fn aims(self, slot: usize) -> bool {
        match self {
            Self::Pause | Self::Freeze => true,
            // Any moment will do for most; some must hit for the control to show anything.
            Self::Queue => slot.is_multiple_of(3),
            Self::Kill | Self::Disk | Self::Waiters => false,
        }
    }

    pub(super) const fn workers(self) -> usize {
        match self {
            Self::Waiters => 1,
            Self::Kill | Self::Queue => 12,
            _ => 8,
        }
    }

    /// Of how many one is chosen for a strike: there is only one disk.
    pub(super) const fn slots(self) -> usize {
        match self {
            Self::Disk => 1,
            _ => self.workers(),
        }
    }

    pub(super) const fn clients(self) -> usize {
        match self {
            Self::Waiters => 1_000,
            _ => 1,
        }
    }

    pub(super) const fn locks(self) -> usize {
        match self {
            Self::Waiters => 1,
            _ => 4,
        }
    }

    pub(super) const fn only_queues(self) -> bool {
        matches!(self, Self::Queue | Self::Waiters)
    }

    pub(super) const fn ttl(self) -> Duration {
        match self {
            Self::Waiters => ms(5_000),
            _ => ms(300),
        }
    }

    pub(super) const fn gap(self) -> Duration {
        match self {
            Self::Waiters => ms(0),
            _ => ms(2),
        }
    }

    pub(super) fn rhythm(self) -> Option<Rhythm> {
        let ttl = self.ttl();
        let rhythm = |every, shortest, longest| Some(Rhythm { every, shortest, longest });
        match self {
            Self::Pause | Self::Freeze => rhythm(ms(350), ttl * 2, ttl * 5),
            Self::Queue => rhythm(ms(250), ms(5), ttl * 5),
            Self::Kill => rhythm(ms(100), ms(1), ms(50)),
            Self::Disk => rhythm(ms(1_500), ms(50), ttl * 2),
            Self::Waiters => None,
        }
    }
}
