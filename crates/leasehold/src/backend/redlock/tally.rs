//! The vote on one claim: what the nodes said, and what follows from it.

use std::time::Duration;

use redis::Value;

use super::super::redis::error::unexpected;
use super::super::redis::script::{bytes, decode_holder, left, micros, number, text};
use super::bids::owner_of;
use crate::error::Result;
use crate::holder::HeldBy;
use crate::owner::Owner;
use crate::token::Token;

/// What the nodes said to one claim.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The nodes that have the lock for us, and stored our guess.
    pub(super) stored: u64,
    /// The nodes that have the lock for us.
    pub(super) granted: u64,
    /// What others have at the other nodes that answered.
    pub(super) taken: Vec<Taken>,
    /// The highest token that those told who granted.
    last: u64,
    clocks: Vec<u64>,
}

/// The lock at a node where another has it.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    pub(super) node: usize,
    value: Vec<u8>,
    left: Option<Duration>,
    record: Value,
}

/// Where a vote stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Not enough answers yet.
    Open,
    /// A majority stored the guess.
    Won,
    /// A majority has the lock for us, without the guess.
    NeedsToken,
    /// There will be no majority.
    Lost,
}

impl Tally {
    /// A node's answer to the claim.
    pub(super) fn hear(&mut self, node: usize, answer: &Value, guess: u64) -> Result<()> {
        let bit = 1 << node;
        match answer {
            Value::Int(1) => {
                self.stored |= bit;
                self.granted |= bit;
                self.last = self.last.max(guess);
            }
            Value::Array(parts) => match &parts[..] {
                [Value::Int(1), last, clock] => {
                    self.granted |= bit;
                    self.last = self.last.max(natural(last)?);
                    self.clocks.push(natural(clock)?);
                }
                [Value::Int(0), _, clock, left_for, value, record] => {
                    self.clocks.push(natural(clock)?);
                    let (value, left) = (bytes(value)?.to_vec(), left(number(left_for)?));
                    self.taken.push(Taken { node, value, left, record: record.clone() });
                }
                _ => return Err(unexpected()),
            },
            _ => return Err(unexpected()),
        }
        Ok(())
    }

    /// Where the vote stands when so many nodes may still answer.
    pub(super) fn decide(&self, pending: usize, majority: usize) -> Decision {
        let (stored, granted) = (count(self.stored), count(self.granted));
        if stored >= majority {
            Decision::Won
        } else if granted >= majority {
            Decision::NeedsToken
        } else if granted + pending < majority && (pending == 0 || self.answered() >= majority) {
            // Not before it is known whether another has it, or nobody can say.
            Decision::Lost
        } else {
            Decision::Open
        }
    }

    /// A token above all that a majority has seen, and not behind the clocks of most.
    pub(super) fn next_token(&self, guess: u64) -> u64 {
        let mut clocks = self.clocks.clone();
        // Who stored the guess told no clock, but found it credible. Without its voice the one
        // clock that is told may be the one that is wrong.
        clocks.extend((0..count(self.stored)).map(|_| guess));
        self.last.max(lower_median(&mut clocks).unwrap_or(0)) + 1
    }

    /// The lower median of the clocks of a majority: a few that are far ahead do not count.
    pub(super) fn clock(&mut self, majority: usize) -> Option<u64> {
        if self.clocks.len() < majority {
            return None;
        }
        lower_median(&mut self.clocks)
    }

    /// How many nodes said anything about the lock.
    pub(super) fn answered(&self) -> usize {
        count(self.granted) + self.taken.len()
    }

    /// The holder, if one owner may have a majority when those that said nothing are with it.
    pub(super) fn holder(
        &self,
        silent: usize,
        majority: usize,
    ) -> Option<(HeldBy, Option<Duration>)> {
        let same =
            |one: &&Taken| self.taken.iter().filter(|other| other.value == one.value).count();
        let first = self.taken.iter().max_by_key(same)?;
        if same(&first) + silent < majority {
            return None;
        }
        let records = self.taken.iter().filter(|taken| taken.value == first.value);
        let known = records.filter_map(|taken| Known::read(&taken.record, &taken.value)).next();
        let held_by = known.map_or_else(|| HeldBy::new(None, None), |known| known.held_by);
        let mut left: Vec<_> = self.taken.iter().filter_map(|taken| taken.left).collect();
        left.sort_unstable();
        Some((held_by, left.first().copied()))
    }
}

/// What a record says of the attempt that a lock key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) owner: Owner,
    pub(super) token: Token,
    pub(super) held_by: HeldBy,
}

impl Known {
    pub(super) fn read(record: &Value, holds: &[u8]) -> Option<Self> {
        let mut words = text(record).ok()?.split(' ');
        let token = Token::new(words.next()?.parse().ok()?);
        let since = micros(words.next()?);
        let attempt = words.next()?;
        if attempt.as_bytes() != holds {
            return None;
        }
        let (_channel, holder) = (words.next()?, words.next()?);
        let held_by = HeldBy::new(decode_holder(holder), since);
        Some(Self { owner: owner_of(attempt)?, token, held_by })
    }
}

pub(super) fn natural(value: &Value) -> Result<u64> {
    u64::try_from(number(value)?).map_err(|_| unexpected())
}

pub(super) fn count(nodes: u64) -> usize {
    nodes.count_ones() as usize
}

/// At least half of them are not below it, and one that is far ahead is not it.
pub(super) fn lower_median(clocks: &mut [u64]) -> Option<u64> {
    clocks.sort_unstable();
    clocks.get(clocks.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_clock_far_ahead_moves_no_token() {
        assert_eq!(lower_median(&mut [5, 9_000, 6]), Some(6));
        assert_eq!(lower_median(&mut [9_000, 5]), Some(5));
        assert_eq!(lower_median(&mut []), None);
        let mut tally = Tally::default();
        for (node, clock) in [(0, 100), (1, 1_000_000), (2, 101)] {
            let answer = Value::Array(vec![Value::Int(1), Value::Int(7), Value::Int(clock)]);
            tally.hear(node, &answer, 0).unwrap();
        }
        assert_eq!(tally.decide(0, 2), Decision::NeedsToken);
        assert_eq!(tally.next_token(0), 102);
    }

    /// Who stored the guess says no more than that; the other one's clock must not decide.
    #[test]
    fn the_only_clock_that_is_told_is_not_believed() {
        let mut tally = Tally::default();
        tally.hear(0, &Value::Int(1), 100).unwrap();
        let ahead = Value::Array(vec![Value::Int(1), Value::Int(105), Value::Int(1_000_000)]);
        tally.hear(1, &ahead, 100).unwrap();
        assert_eq!(tally.decide(1, 2), Decision::NeedsToken);
        assert_eq!(tally.next_token(100), 106);
        assert_eq!(tally.clock(2), None);
    }

    #[test]
    fn a_vote_is_decided_as_soon_as_it_can_be() {
        let mut tally = Tally::default();
        assert_eq!(tally.decide(5, 3), Decision::Open);
        assert_eq!(tally.decide(2, 3), Decision::Open, "they may say who has it");
        assert_eq!(tally.decide(0, 3), Decision::Lost);
        for node in 0..3 {
            tally.hear(node, &Value::Int(1), 9).unwrap();
        }
        assert_eq!(tally.decide(2, 3), Decision::Won);
        assert_eq!(tally.next_token(9), 10);
    }
}
