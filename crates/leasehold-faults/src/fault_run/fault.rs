//! The faults of a fault run, by name.

use super::deployment::Store;
use crate::faults::disk::SmallDisk;
use crate::faults::faketime::FakeTime;
use crate::faults::freezer::Freezer;

/// A fault, as `scripts/faults` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Row 1: holders stopped for longer than their TTL.
    Pause,
    /// Row 1: the same by the kernel's freezer.
    Freeze,
    /// Row 2: stopped at any moment, most of which are spent in the queue.
    Queue,
    /// Row 3: workers cut off from the servers, both ways or one way.
    Partition,
    /// Row 4: delays, resets, lost replies, late requests.
    Network,
    /// Row 5: the servers' wall clocks jump.
    Clock,
    /// Row 6: a server killed and started again without its data.
    Amnesia,
    /// Row 7: a server killed and started again with its data.
    Restart,
    /// Rows 16 and 19: the leader of a cluster killed, or also stopped where it is all the
    /// same to the store.
    Leader,
    /// Row 16: the leader of a cluster stopped, and awake again when there is another.
    Stopped,
    /// Row 20: workers killed anywhere and started again, among many processes.
    Kill,
    /// Row 20: the store's disk is full.
    Disk,
    /// Row 22: a thousand clients wait for one lock.
    Waiters,
    /// Row 23: a server killed and started again with older data.
    Older,
}

/// Who injects a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It strikes a worker: the fault run does it, the same for every store.
    Worker,
    /// It strikes the way between a worker and the servers: the fault run does it, by proxies.
    Proxy,
    /// It strikes the store: its deployment does it.
    Deployment,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 14] = [
        Fault::Pause,
        Fault::Freeze,
        Fault::Queue,
        Fault::Partition,
        Fault::Network,
        Fault::Clock,
        Fault::Amnesia,
        Fault::Restart,
        Fault::Leader,
        Fault::Stopped,
        Fault::Kill,
        Fault::Disk,
        Fault::Waiters,
        Fault::Older,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Freeze => "freeze",
            Self::Queue => "queue",
            Self::Partition => "partition",
            Self::Network => "network",
            Self::Clock => "clock",
            Self::Amnesia => "amnesia",
            Self::Restart => "restart",
            Self::Leader => "leader",
            Self::Stopped => "stopped",
            Self::Kill => "kill",
            Self::Disk => "disk",
            Self::Waiters => "waiters",
            Self::Older => "older",
        }
    }

    /// Its row in the table of faults that must be survived.
    pub const fn row(self) -> u32 {
        match self {
            Self::Pause | Self::Freeze => 1,
            Self::Queue => 2,
            Self::Partition => 3,
            Self::Network => 4,
            Self::Clock => 5,
            Self::Amnesia => 6,
            Self::Restart => 7,
            Self::Leader | Self::Stopped => 16,
            Self::Kill | Self::Disk => 20,
            Self::Waiters => 22,
            Self::Older => 23,
        }
    }

    /// Who injects it.
    pub const fn place(self) -> Place {
        match self {
            Self::Pause | Self::Freeze | Self::Queue | Self::Kill | Self::Waiters => Place::Worker,
            Self::Partition | Self::Network => Place::Proxy,
            Self::Clock | Self::Amnesia | Self::Restart | Self::Disk => Place::Deployment,
            Self::Leader | Self::Stopped | Self::Older => Place::Deployment,
        }
    }

    /// Whether it keeps workers from running.
    pub const fn pauses(self) -> bool {
        matches!(self, Self::Pause | Self::Freeze | Self::Queue)
    }

    /// Why this machine cannot inject it into this store, if so.
    pub fn impossible(self, store: &dyn Store) -> Option<String> {
        if let Some(why) = store.missing() {
            return Some(why);
        }
        let folder = tempfile::tempdir().ok()?;
        let tried = match self {
            Self::Freeze => Freezer::create().map(drop),
            Self::Disk => SmallDisk::mount(folder.path(), 64).map(drop),
            Self::Clock => FakeTime::new(folder.path()).map(drop),
            _ => Ok(()),
        };
        tried.err().map(|error| error.to_string())
    }
}
