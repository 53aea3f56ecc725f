//! What is where: the nodes, the attempts, and what is under way between them.
//!
//! Messages are not kept in a bag. What an attempt sent to a node and what it was answered
//! is one [`Slot`] for each pair of them: a request that is late is a slot that is still
//! [`Slot::Asked`], one that is lost stays so for ever, and an answer that is lost or late is
//! one that its client decides without.

use std::hash::{Hash, Hasher};

use super::Quorum;
use super::node::{Epoch, Node, Owner, Token};

/// The most nodes of a model.
pub const MOST_NODES: usize = 5;
/// The most attempts of a model.
pub const MOST_ATTEMPTS: usize = 4;

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The nodes, each with what the attempts have to do with it.
    pub columns: [Column; MOST_NODES],
    /// The attempts, in the order in which they began.
    pub attempts: [Attempt; MOST_ATTEMPTS],
    /// The recovery that is under way.
    pub recovery: Option<Recovery>,
    /// How often a node may still forget everything.
    pub wipes: u8,
    /// Which attempt's holder renews its lease, if any does.
    pub renewer: Option<u8>,
    /// Which tokens were returned, a bit for each.
    pub returned: u32,
    /// What should not have happened.
    pub broken: Broken,
}

/// A node, and what every attempt has to do with it. Nodes are interchangeable: states
/// that differ only by their order are one.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// On whose list of nodes it is. Only nodes of one side are interchangeable.
    pub side: Side,
    /// The node.
    pub node: Node,
    /// What became of each attempt's requests to it.
    pub slots: [Slot; MOST_ATTEMPTS],
    /// Which attempts' present renewals it has proved, a bit for each.
    pub proved: u8,
    /// The present recovery has sealed it.
    pub sealed: bool,
    /// The present recovery is for it.
    pub recovering: bool,
    /// What it is called when the story is told. It takes no part in comparisons.
    pub name: u8,
}

/// On whose list of nodes a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// On the list that most clients have.
    Ours,
    /// On both lists.
    Both,
    /// On the list that one client has by mistake.
    Theirs,
    /// On none: there are fewer nodes than places.
    Nobodys,
}

/// What became of an attempt's requests to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// The claim is on its way (or not sent yet, or lost).
    Asked,
    /// The lock was granted; this was the last token.
    Granted(Token),
    /// The token is on its way.
    Storing,
    /// The token was stored.
    Stored,
    /// Nothing more comes of it.
    Done,
}

/// One attempt to take the lock, with an owner of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// How far it is.
    pub phase: Phase,
    /// The epoch of its claims and its token.
    pub epoch: Epoch,
    /// The epoch in which the lease was last proved.
    pub proved_epoch: Epoch,
    /// The epoch of the renewal that is under way.
    pub renewal_epoch: Epoch,
    /// The token it hopes for.
    pub guess: Option<Token>,
    /// The token it decided on.
    pub token: Token,
    /// The newest token that had been returned when it asked, or began its renewal.
    pub floor: Token,
}

/// How far an attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not begun.
    Idle,
    /// It asks for the lock.
    Asking,
    /// It has a majority, and stores its token.
    Storing,
    /// It returned: its holder believes in it.
    Held,
    /// And renews it.
    Renewing,
    /// It is over; what it sent may still arrive.
    Over,
}

/// A recovery of a node that has forgotten everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recovery {
    /// The epoch it seals with.
    pub epoch: Epoch,
    /// The highest token read.
    pub most: Token,
    /// The node has been told it.
    pub installed: bool,
}

/// What should not have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Broken {
    /// A token was returned twice.
    pub unique: bool,
    /// A token was returned that is not above one that was returned before it was asked for.
    pub ordered: bool,
    /// A lease was renewed although a newer one had been returned before.
    pub renewed: bool,
    /// A token was returned after a newer one. (That is not promised.)
    pub completed: bool,
}

impl Column {
    /// All of it but the name, in one number: what is compared, ordered and hashed millions
    /// of times.
    fn packed(&self) -> u64 {
        let node = &self.node;
        let owner = |owner: Option<Owner>| owner.map_or(0, |owner| u64::from(owner) + 1);
        let mut bits = Bits::default();
        bits.push(self.side as u64, 2);
        bits.push(node.status as u64, 3);
        bits.push(node.epoch.into(), 3);
        bits.push(node.list.into(), 1);
        bits.push(owner(node.lock), 3);
        bits.push(node.token.into(), 4);
        bits.push(owner(node.token_owner), 3);
        for slot in self.slots {
            let (kind, last) = match slot {
                Slot::Asked => (0, 0),
                Slot::Granted(last) => (1, last),
                Slot::Storing => (2, 0),
                Slot::Stored => (3, 0),
                Slot::Done => (4, 0),
            };
            bits.push(kind, 3);
            bits.push(last.into(), 4);
        }
        bits.push(self.proved.into(), 4);
        bits.push(self.sealed.into(), 1);
        bits.push(self.recovering.into(), 1);
        bits.0
    }
}

/// Small numbers side by side.
#[derive(Default)]
struct Bits(u64);

impl Bits {
    fn push(&mut self, value: u64, width: u32) {
        debug_assert!(value < 1 << width, "{value} does not fit into {width} bits");
        self.0 = self.0 << width | value;
    }
}

impl PartialEq for Column {
    fn eq(&self, other: &Self) -> bool {
        self.packed() == other.packed()
    }
}

impl Eq for Column {}

impl Hash for Column {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.packed());
    }
}

impl Hash for Attempt {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { phase, epoch, proved_epoch, renewal_epoch, guess, token, floor } = *self;
        let mut bits = Bits::default();
        bits.push(phase as u64, 3);
        bits.push(epoch.into(), 3);
        bits.push(proved_epoch.into(), 3);
        bits.push(renewal_epoch.into(), 3);
        bits.push(guess.map_or(0, |guess| u64::from(guess) + 1), 5);
        bits.push(token.into(), 5);
        bits.push(floor.into(), 5);
        hasher.write_u64(bits.0);
    }
}

impl Attempt {
    /// One that has not begun.
    pub const IDLE: Self = Self {
        phase: Phase::Idle,
        epoch: 0,
        proved_epoch: 0,
        renewal_epoch: 0,
        guess: None,
        token: 0,
        floor: 0,
    };

    /// Whether its holder believes that it holds the lock.
    pub fn believes(&self) -> bool {
        matches!(self.phase, Phase::Held | Phase::Renewing)
    }

    /// Whether it may still come to hold the lock, or does.
    pub fn lives(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Over)
    }
}

impl State {
    /// Before anything happened.
    pub fn new(sides: &[Side], wipes: u8) -> Self {
        let column = |at: usize| {
            let side = sides.get(at).copied().unwrap_or(Side::Nobodys);
            Column {
                side,
                node: Node::new(u8::from(side == Side::Theirs)),
                slots: [Slot::Asked; MOST_ATTEMPTS],
                proved: 0,
                sealed: false,
                recovering: false,
                name: at as u8 + 1,
            }
        };
        Self {
            columns: std::array::from_fn(column),
            attempts: [Attempt::IDLE; MOST_ATTEMPTS],
            recovery: None,
            wipes,
            renewer: None,
            returned: 0,
            broken: Broken::default(),
        }
    }

    /// The newest token that was returned.
    pub fn newest(&self) -> Token {
        (31 - (self.returned | 1).leading_zeros()) as Token
    }

    /// How many believe that they hold the lock.
    pub fn holders(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.believes()).count()
    }

    /// Whether this attempt's holder renews its lease.
    pub fn renews(&self, at: usize) -> bool {
        self.renewer == Some(at as u8)
    }

    /// How many nodes' slots for this attempt are like that.
    pub fn count(&self, attempt: usize, like: impl Fn(Slot) -> bool) -> usize {
        self.columns
            .iter()
            .filter(|column| column.side != Side::Nobodys && like(column.slots[attempt]))
            .count()
    }

    /// Puts interchangeable nodes into one order, and forgets what cannot matter any more.
    pub fn canonical(&mut self, model: &Quorum) {
        for at in 0..MOST_ATTEMPTS {
            if model.reduced {
                self.forget_what_only_blocks(model, at);
            }
            let on_its_way =
                |like: Slot| self.columns.iter().any(|column| column.slots[at] == like);
            let (asked, storing) = (on_its_way(Slot::Asked), on_its_way(Slot::Storing));
            let attempt = &mut self.attempts[at];
            if !asked && !matches!(attempt.phase, Phase::Idle | Phase::Asking) {
                attempt.guess = None;
            }
            if !storing && attempt.phase == Phase::Over {
                attempt.token = 0;
            }
        }
        for column in &mut self.columns {
            // The token's owner matters to its resend only, which needs the lock as well.
            if model.habits.fresh_owner && column.node.token_owner != column.node.lock {
                column.node.token_owner = None;
            }
        }
        self.columns.sort_unstable_by_key(Column::packed);
    }

    /// A key that its owner has no use for any more can do nothing but stand in the way of
    /// others, and so can a late claim for it. Whatever may happen while it stands there, may
    /// happen when it has vanished, too: as all that must hold is that some things never
    /// happen, it is enough to look at what may happen without it.
    fn forget_what_only_blocks(&mut self, model: &Quorum, at: usize) {
        let attempt = self.attempts[at];
        let kept = model.bounded || self.renews(at);
        let past = match attempt.phase {
            Phase::Idle | Phase::Asking => false,
            Phase::Over => true,
            _ => !kept,
        };
        for column in &mut self.columns {
            let slot = &mut column.slots[at];
            if past && *slot == Slot::Asked && attempt.guess.is_none() {
                *slot = Slot::Done;
            }
            let unused = past || (attempt.phase == Phase::Storing && !kept);
            let mine = column.node.lock == Some(model.owner(at));
            if mine && unused && !matches!(slot, Slot::Storing | Slot::Asked) {
                column.node.lock = None;
            }
        }
    }
}
