//! A client that wants one lock again and again, and what it saw.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use leasehold::Lock;
use leasehold::clock::{Clock, Moment};
use tokio::sync::Mutex;

/// What a contender wants: one of ours, or the yardstick.
#[derive(Debug, Clone)]
pub(crate) enum Wanted {
    Lease(Lock),
    Tokio(Arc<Mutex<u64>>),
}

/// How long to hold the lock, and what to do between. Nothing, if zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rhythm {
    pub(crate) hold: Duration,
    pub(crate) pause: Duration,
}

/// One acquisition. Moments are on the boot-time clock, which all processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) client: usize,
    /// Tokens rise: they tell the order of the turns.
    pub(crate) token: u64,
    pub(crate) asked: Moment,
    pub(crate) granted: Moment,
    /// The start of the release.
    pub(crate) released: Moment,
}

/// Takes and releases the lock until `end`.
pub(crate) async fn contend(
    client: usize,
    wanted: Wanted,
    rhythm: Rhythm,
    end: Moment,
) -> Result<Vec<Turn>> {
    let clock = Clock::boot();
    let mut turns = Vec::with_capacity(1 << 16);
    loop {
        let asked = clock.now();
        if asked >= end {
            return Ok(turns);
        }
        let turn = |token, granted, released| Turn { client, token, asked, granted, released };
        match &wanted {
            Wanted::Lease(lock) => {
                let lease = lock.acquire().await?;
                let granted = clock.now();
                stay(rhythm.hold).await;
                turns.push(turn(lease.token().get(), granted, clock.now()));
                lease.release().await?;
            }
            Wanted::Tokio(mutex) => {
                let mut count = mutex.lock().await;
                let granted = clock.now();
                *count += 1;
                stay(rhythm.hold).await;
                turns.push(turn(*count, granted, clock.now()));
                drop(count);
                // A mutex that is free needs no await: let the others come and ask.
                tokio::task::yield_now().await;
            }
        }
        stay(rhythm.pause).await;
    }
}

async fn stay(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

/// A line from a worker to its parent.
impl Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moments = [self.asked, self.granted, self.released].map(Moment::as_nanos);
        write!(f, "{} {} {} {} {}", self.client, self.token, moments[0], moments[1], moments[2])
    }
}

impl FromStr for Turn {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let mut word = || -> Result<u64> {
            Ok(words.next().with_context(|| format!("a short line: {line:?}"))?.parse()?)
        };
        Ok(Self {
            client: usize::try_from(word()?)?,
            token: word()?,
            asked: Moment::from_nanos(word()?),
            granted: Moment::from_nanos(word()?),
            released: Moment::from_nanos(word()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_survives_the_pipe() {
        let turn = Turn {
            client: 3,
            token: 17,
            asked: Moment::from_nanos(1),
            granted: Moment::from_nanos(2),
            released: Moment::from_nanos(3),
        };
        assert_eq!(turn.to_string().parse::<Turn>().unwrap(), turn);
        assert!("1 2 3".parse::<Turn>().is_err());
    }
}
