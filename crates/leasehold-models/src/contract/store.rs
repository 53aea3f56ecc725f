//! The store: what it answers to a request, and what it keeps. A pure function.

use super::{Habits, TOMBSTONE, TTL};

/// Who holds the lock at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Who {
    /// The client, as this owner.
    Us(u8),
    /// Somebody else, who does everything right.
    Other,
}

/// What the store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Store {
    /// Who holds the lock, and for how many more ticks.
    pub lock: Option<(Who, u8)>,
    /// Which of the client's owners is in the queue.
    pub queued: Option<u8>,
    /// For how many more ticks each of the client's owners has a tombstone; 0 is none.
    pub tombstones: [u8; super::OWNERS],
}

/// A request for one of the client's owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// The lock, or a place in the queue.
    Claim,
    /// Is it mine? If not, I get a tombstone.
    Settle,
    /// For the whole TTL again, if it is mine.
    Renew,
    /// Take it back, if it is mine.
    Release,
    /// Out of the queue, or out of the lock if it was granted meanwhile.
    Leave,
}

/// What the store answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It is yours for so many ticks.
    Yours(u8),
    /// It is another's.
    Held,
    /// Another has it; wait in the queue.
    Queued,
    /// It is not yours.
    NotYours,
    /// It was yours, and is free now.
    Released,
}

impl Store {
    /// Does what is asked, and answers.
    pub fn step(&mut self, habits: &Habits, owner: u8, order: Order) -> Answer {
        let left = match self.lock {
            Some((Who::Us(holder), left)) if holder == owner => Some(left),
            _ => None,
        };
        match (order, left) {
            (Order::Claim, _) if self.tombstones[usize::from(owner)] > 0 => Answer::Held,
            (Order::Claim | Order::Settle, Some(left)) => Answer::Yours(left),
            (Order::Claim, None) => match self.lock {
                None => self.grant(owner),
                Some((Who::Other, _)) => {
                    self.queued = Some(owner);
                    Answer::Queued
                }
                Some((Who::Us(_), _)) => Answer::Held,
            },
            (Order::Settle, None) => {
                self.dequeue(owner);
                if habits.tombstone_when_settled {
                    self.tombstones[usize::from(owner)] = TOMBSTONE;
                }
                Answer::NotYours
            }
            (Order::Renew, Some(_)) => self.grant(owner),
            (Order::Renew, None) if habits.renewal_retakes && self.lock.is_none() => {
                self.grant(owner)
            }
            (Order::Renew | Order::Release, None) => Answer::NotYours,
            (Order::Leave, None) => {
                self.dequeue(owner);
                Answer::NotYours
            }
            (Order::Leave, Some(_)) if !habits.leaving_releases => Answer::NotYours,
            (Order::Release | Order::Leave, Some(_)) => {
                self.lock = None;
                Answer::Released
            }
        }
    }

    fn dequeue(&mut self, owner: u8) {
        self.queued = self.queued.filter(|waiter| *waiter != owner);
    }

    /// Somebody else gives the lock back: it goes to the waiter in the queue.
    pub fn other_leaves(&mut self) {
        self.lock = self.queued.take().map(|waiter| (Who::Us(waiter), TTL));
    }

    fn grant(&mut self, owner: u8) -> Answer {
        self.lock = Some((Who::Us(owner), TTL));
        Answer::Yours(TTL)
    }

    /// Time passes. Somebody else's lease is renewed for as long as they like.
    pub fn tick(&mut self) {
        if let Some((Who::Us(_), left)) = &mut self.lock {
            *left -= 1;
            if *left == 0 {
                self.lock = None;
            }
        }
        for left in &mut self.tombstones {
            *left = left.saturating_sub(1);
        }
    }
}
