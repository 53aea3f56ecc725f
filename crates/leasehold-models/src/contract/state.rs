//! Where the client stands, and what is under way between it and the store.

use super::store::{Answer, Order, Store};
use super::{DELAY, TTL};

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The store.
    pub store: Store,
    /// Where the acquisition stands.
    pub phase: Phase,
    /// Its present owner.
    pub owner: u8,
    /// A second claim of this owner may still be on its way.
    pub stray: bool,
    /// For how many more ticks the holder may act.
    pub deadline: u8,
    /// What the caller waits for.
    pub caller: Option<Call>,
    /// The renewal that is under way.
    pub keeper: Option<Call>,
    /// What is undone in the background.
    pub background: Option<Task>,
    /// Requests that nobody waits for any more, and that may still arrive.
    pub orphans: Vec<Orphan>,
    /// How many more answers may be lost or late.
    pub losses: u8,
    /// The store has taken the lock back because we asked.
    pub given_back: bool,
    /// What should not have happened.
    pub broken: Broken,
}

/// Where an acquisition stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not begun.
    Idle,
    /// Asking; again, if it is in the queue already.
    Asking {
        /// In the queue already.
        again: bool,
    },
    /// In the queue.
    Place,
    /// Finding out what became of a claim without an answer.
    Settling {
        /// How often it was asked.
        asked: u8,
    },
    /// Undoing a grant that came too late, to start over with a fresh owner.
    StartingOver(Undo),
    /// It has the lock; in doubt, if a renewal got no answer.
    Held {
        /// In doubt.
        doubtful: bool,
    },
    /// Giving it back.
    Releasing {
        /// How often it was sent.
        sent: u8,
        /// An earlier one went out before the deadline, and got no answer.
        may_be_done: bool,
        /// The present one went out before the deadline.
        in_time: bool,
    },
    /// Over.
    Over(Ending),
}

/// What the caller was told, or did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Another holds it.
    Refused,
    /// There was no answer.
    Failed,
    /// The caller does not want it any more.
    Cancelled,
    /// It was lost.
    Lost,
    /// It was given back.
    Released,
    /// It had gone before it was given back.
    NotHeld,
}

/// How far the undoing of a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Undo {
    /// Is it there? If not, it gets a tombstone.
    Settle,
    /// Give it back.
    Release,
    /// Is it there? But what is found is left there.
    Tombstone,
    /// Leave the queue: nothing is on its way.
    Leave,
}

/// A request that somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// What is asked.
    pub order: Order,
    /// For whom.
    pub owner: u8,
    /// How many ticks ago it was sent.
    pub age: u8,
    /// The answer, on its way back.
    pub answer: Option<Answer>,
}

/// A request that nobody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Orphan {
    /// What is asked.
    pub order: Order,
    /// For whom.
    pub owner: u8,
    /// How many ticks ago it was sent.
    pub age: u8,
}

/// What is done in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Task {
    /// For whom.
    pub owner: u8,
    /// What.
    pub work: Work,
    /// What it waits for.
    pub call: Option<Call>,
}

/// The work of a background task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// Undoes a claim.
    Undo(Undo),
    /// Gives a lease back; its owner gets a tombstone if a second claim may be on its way.
    Release,
}

/// What should not have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Broken {
    /// The caller was told that another holds the lock, and nobody else did.
    pub own_key: bool,
    /// The caller was told that its lease had gone, and it had given it back itself.
    pub untrue: bool,
    /// A lease was handed out after its own deadline.
    pub stale: bool,
    /// A lease that had been lost was held again.
    pub revived: bool,
}

impl Call {
    /// One that is sent now.
    pub fn new(order: Order, owner: u8) -> Self {
        Self { order, owner, age: 0, answer: None }
    }

    /// Whether it may still reach the store.
    pub fn may_arrive(&self) -> bool {
        self.answer.is_none() && self.age <= DELAY
    }

    fn tick(&mut self) {
        self.age = (self.age + 1).min(TTL + 1);
    }
}

impl State {
    /// Before anything happened.
    pub fn new(losses: u8) -> Self {
        Self {
            store: Store::default(),
            phase: Phase::Idle,
            owner: 0,
            stray: false,
            deadline: 0,
            caller: None,
            keeper: None,
            background: None,
            orphans: Vec::new(),
            losses,
            given_back: false,
            broken: Broken::default(),
        }
    }

    /// Whether the holder believes that it holds the lock.
    pub fn believes(&self) -> bool {
        matches!(self.phase, Phase::Held { .. })
    }

    /// Whether nothing is under way any more, and nothing will be.
    pub fn is_quiet(&self) -> bool {
        let ended = matches!(self.phase, Phase::Over(_));
        ended && self.caller.is_none() && self.background.is_none() && self.orphans.is_empty()
    }

    /// Nobody waits for this request any more; if it is still on its way, it may arrive.
    pub fn abandon(&mut self, call: Option<Call>) {
        if let Some(call) = call
            && call.may_arrive()
        {
            self.orphans.push(Orphan { order: call.order, owner: call.owner, age: call.age });
            self.orphans.sort_unstable();
        }
    }

    /// Time passes for everything that is under way.
    pub fn tick(&mut self) {
        self.store.tick();
        for call in [&mut self.caller, &mut self.keeper].into_iter().flatten() {
            call.tick();
        }
        if let Some(call) = self.background.as_mut().and_then(|task| task.call.as_mut()) {
            call.tick();
        }
        for orphan in &mut self.orphans {
            orphan.age += 1;
        }
        self.orphans.retain(|orphan| orphan.age <= DELAY);
        self.deadline = self.deadline.saturating_sub(1);
    }
}
