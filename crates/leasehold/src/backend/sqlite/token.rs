//! Where tokens come from: the lock's last one, the floor of forgotten rows and the
//! wall clock; never beyond a ceiling that was fsynced first, so that after a power
//! cut the ceiling is above every token that was ever seen.

use rusqlite::params;

use super::connection::Session;
use super::error::Fault;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::token::Token;

/// How far the ceiling is raised above the clock, in microseconds: one minute.
const HEADROOM: u64 = 60_000_000;

/// How far it is raised above a token that is ahead of the clock. Such tokens count up by one,
/// so this is many; and boots that come after each other (or containers that take turns, each
/// with its own boot id) do not carry the tokens away from the clock.
const STEP: u64 = 10_000;

/// Less than this below the ceiling, housekeeping raises it.
const LOW: u64 = 30_000_000;

/// The clock as the lowest token; a clock that is not believed counts as zero.
pub(super) fn clock_floor(clock: &Clock) -> i64 {
    Token::after(Token::new(0), clock.wall_micros()).map_or(1, |token| token.get() as i64)
}

/// A ceiling above this token and the clock.
pub(super) fn ceiling_above(token: i64, clock: &Clock) -> i64 {
    let above_clock = (clock_floor(clock) as u64).saturating_add(HEADROOM);
    let above_token = (token as u64).saturating_add(STEP);
    above_clock.max(above_token).min(Token::MAX_PORTABLE.get()) as i64
}

/// Whether the clock comes near the ceiling.
pub(super) fn is_low(ceiling: i64, clock: &Clock) -> bool {
    (ceiling as u64) < (clock_floor(clock) as u64).saturating_add(LOW)
}

/// What bounds every token, as read in the transaction under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks {
    floor: i64,
    ceiling: i64,
}

impl Marks {
    /// The token after `last`; `None` where the ceiling must be raised first.
    pub(super) fn token_after(self, last: i64, wall_micros: u64) -> Option<Token> {
        let token = Token::after(Token::new(last.max(self.floor) as u64), wall_micros)?;
        (token.get() <= self.ceiling as u64).then_some(token)
    }
}

impl Session {
    /// The marks of the database. Inside a transaction.
    pub(super) fn marks(&mut self) -> Result<Marks, Fault> {
        let read = |row: &rusqlite::Row<'_>| Ok(Marks { floor: row.get(0)?, ceiling: row.get(1)? });
        let marks = self.prepare("select floor, ceiling from meta")?.query_row((), read)?;
        self.ceiling = marks.ceiling;
        Ok(marks)
    }

    /// The token after `last`. Inside a write transaction.
    pub(super) fn next_token(&mut self, last: Token) -> Result<Token, Fault> {
        let Marks { floor, ceiling } = self.marks()?;
        let last = last.max(Token::new(floor as u64));
        let token = Token::after(last, self.clock.wall_micros()).ok_or_else(|| {
            Error::new(ErrorKind::Unusable, "no token below 2^53 is left in this database")
        })?;
        if token.get() > ceiling as u64 {
            return Err(Fault::Ceiling(token.get()));
        }
        Ok(token)
    }

    /// Raises the ceiling above `token` and waits until the disk has it.
    pub(super) fn raise_ceiling(&mut self, token: u64) -> Result<(), Fault> {
        let target = ceiling_above(token as i64, &self.clock);
        self.connection.pragma_update(None, "synchronous", "full")?;
        let raised = self.write(|session| {
            let raise = "update meta set ceiling = max(ceiling, ?1) returning ceiling";
            Ok(session.prepare(raise)?.query_one(params![target], |row| row.get::<_, i64>(0))?)
        });
        self.connection.pragma_update(None, "synchronous", "normal")?;
        self.ceiling = raised?;
        Ok(())
    }
}
