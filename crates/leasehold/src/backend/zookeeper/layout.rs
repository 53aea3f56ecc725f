//! How the nodes of a lock are named: as kazoo's `Lock` does, or as Curator's recipes do.
//! Clients that count the same names exclude each other.
//!
//! The name carries the owner, so that a node whose creation got no answer is found again.

use std::cmp::Ordering;

use crate::owner::Owner;

/// Whose names are used on a path. Both sides must say the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `<owner>__lock__0000000042`, as kazoo's `Lock`.
    Kazoo,
    /// `_c_<owner>-lock-0000000042`, as Curator's `InterProcessMutex`.
    Curator,
}

/// A node that stands in a lock's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Contender {
    /// The node's name below the lock's.
    pub(super) child: String,
    /// ZooKeeper's number: signed, 32 bits, wraps around.
    pub(super) sequence: i32,
}

/// A lock's children, as they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// Those that stand in the queue, first come first.
    pub(super) queue: Vec<Contender>,
    /// Lock nodes of the other layout: their clients do not count ours.
    pub(super) foreign: Vec<String>,
}

/// Where a node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    First,
    Behind(usize),
    /// Gone, or not seen yet.
    Absent,
    /// A node of the other layout is there, too: this one.
    Mixed(String),
    /// Nothing can be said just now.
    Unknown,
    /// Its queue is followed no more.
    Over,
}

impl Listing {
    /// How many are before this node; `None` if it is not in the queue.
    pub(super) fn ahead_of(&self, child: &str) -> Option<usize> {
        self.queue.iter().position(|contender| contender.child == child)
    }

    /// Where this node stands. A foreign node that was made before it has been read with it.
    pub(super) fn place(&self, child: &str) -> Place {
        match (self.foreign.first(), self.ahead_of(child)) {
            (Some(foreign), _) => Place::Mixed(foreign.clone()),
            (None, Some(0)) => Place::First,
            (None, Some(ahead)) => Place::Behind(ahead),
            (None, None) => Place::Absent,
        }
    }
}

impl Layout {
    /// What the name of an owner's node begins with; ZooKeeper adds the number.
    pub(super) fn prefix(self, owner: Owner) -> String {
        match self {
            Self::Kazoo => format!("{owner}__lock__"),
            Self::Curator => format!("_c_{}-lock-", with_dashes(owner)),
        }
    }

    /// The number of a node that counts in this layout.
    pub(super) fn sequence(self, child: &str) -> Option<i32> {
        let number = match self {
            // A shared lock of kazoo's (`__rlock__`) excludes us as well.
            Self::Kazoo => after(child, "__lock__").or_else(|| after(child, "__rlock__")),
            Self::Curator => after(child, "lock-"),
        }?;
        let digits = number.strip_prefix('-').unwrap_or(number);
        let whole = digits.len() >= 9 && digits.bytes().all(|byte| byte.is_ascii_digit());
        whole.then(|| number.parse().ok()).flatten()
    }

    /// The owner in a node's name, if it is one of ours (or looks like one).
    pub(super) fn owner(self, child: &str) -> Option<Owner> {
        self.sequence(child)?;
        match self {
            Self::Kazoo => {
                let hex = child.split_once("__lock__")?.0;
                (hex.len() == 32).then(|| hex.parse().ok()).flatten()
            }
            Self::Curator => {
                let uuid = child.strip_prefix("_c_")?.split_once("-lock-")?.0;
                let hex: String = uuid.split('-').collect();
                (uuid.len() == 36 && hex.len() == 32).then(|| hex.parse().ok()).flatten()
            }
        }
    }

    /// A lock's children: those in its queue, and those that should not be there.
    pub(super) fn read(self, children: Vec<String>) -> Listing {
        let foreign = children.iter().filter(|child| self.is_foreign(child)).cloned().collect();
        let contender =
            |child: String| self.sequence(&child).map(|sequence| Contender { child, sequence });
        let mut queue: Vec<_> = children.into_iter().filter_map(contender).collect();
        queue.sort_unstable_by(|a, b| in_order(a.sequence, b.sequence));
        Listing { queue, foreign }
    }

    /// Whether this looks like a lock node of the other layout. Its client does not count our
    /// nodes, so that counting it would not exclude us from each other.
    pub(super) fn is_foreign(self, child: &str) -> bool {
        self.other().sequence(child).is_some()
    }

    /// The other one.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Kazoo => Self::Curator,
            Self::Curator => Self::Kazoo,
        }
    }

    /// As in the URL.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Kazoo => "kazoo",
            Self::Curator => "curator",
        }
    }
}

/// Which of two numbers was given first. They wrap around at 2^31 (kazoo#606, #730), and a
/// queue is never half that long.
pub(super) fn in_order(a: i32, b: i32) -> Ordering {
    a.wrapping_sub(b).cmp(&0)
}

/// What follows the last `marker`.
fn after<'a>(child: &'a str, marker: &str) -> Option<&'a str> {
    child.rfind(marker).map(|at| &child[at + marker.len()..])
}

fn with_dashes(owner: Owner) -> String {
    let hex = owner.to_string();
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];

    /// Do not change these: programs that run count on them, kazoo and Curator too.
    #[test]
    fn names_are_what_kazoo_and_curator_count() {
        let owner = Owner::from_bytes(OWNER);
        let kazoo = Layout::Kazoo.prefix(owner);
        assert_eq!(kazoo, "000102030405060708090a0b0c0d0eff__lock__");
        let curator = Layout::Curator.prefix(owner);
        assert_eq!(curator, "_c_00010203-0405-0607-0809-0a0b0c0d0eff-lock-");
        for (layout, prefix) in [(Layout::Kazoo, kazoo), (Layout::Curator, curator)] {
            let child = format!("{prefix}0000000042");
            assert_eq!(layout.sequence(&child), Some(42));
            assert_eq!(layout.owner(&child), Some(owner));
            assert_eq!(layout.other().sequence(&child), None, "{child}");
        }
    }

    #[test]
    fn foreign_names_count_but_are_nobodys_we_know() {
        assert_eq!(Layout::Curator.sequence("lock-0000000007"), Some(7));
        assert_eq!(Layout::Curator.owner("lock-0000000007"), None);
        assert_eq!(Layout::Kazoo.sequence("x__rlock__0000000007"), Some(7));
        assert_eq!(Layout::Kazoo.owner("x__rlock__0000000007"), None);
        for child in ["", "42", "__lock__", "a__lock__12", "a__lock__000000004x", "config"] {
            assert_eq!(Layout::Kazoo.sequence(child), None, "{child:?}");
        }
    }

    #[test]
    fn nodes_of_the_other_layout_are_kept_apart() {
        let children = ["a__lock__0000000003", "_c_x-lock-0000000002", "lock-0000000001", "config"];
        let children = children.map(str::to_owned).to_vec();
        let listing = Layout::Kazoo.read(children.clone());
        assert_eq!(listing.ahead_of("a__lock__0000000003"), Some(0));
        assert_eq!(listing.foreign, ["_c_x-lock-0000000002", "lock-0000000001"]);
        let listing = Layout::Curator.read(children);
        assert_eq!(listing.ahead_of("_c_x-lock-0000000002"), Some(1));
        assert_eq!(listing.foreign, ["a__lock__0000000003"]);
    }

    /// kazoo#606, #730: text order, and numbers that wrap around.
    #[test]
    fn the_order_is_that_of_numbers_that_wrap_around() {
        let children = ["b__lock__-2147483648", "c__lock__2147483647", "a__lock__-2147483647"];
        let Listing { queue, .. } = Layout::Kazoo.read(children.map(str::to_owned).to_vec());
        let sequences: Vec<_> = queue.iter().map(|contender| contender.sequence).collect();
        assert_eq!(sequences, [i32::MAX, i32::MIN, i32::MIN + 1]);
        let ordinary = ["x__lock__0000000010", "a__lock__0000000011", "m__lock__0000000009"];
        let Listing { queue, .. } = Layout::Kazoo.read(ordinary.map(str::to_owned).to_vec());
        let sequences: Vec<_> = queue.iter().map(|contender| contender.sequence).collect();
        assert_eq!(sequences, [9, 10, 11]);
    }
}
