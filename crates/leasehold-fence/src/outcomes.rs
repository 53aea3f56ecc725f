//! Outcomes that are remembered by key: what a store of them must do.

use std::pin::Pin;
use std::time::Duration;

use crate::error::FenceError;
use crate::token::Token;

/// How long an outcome is kept, unless told: 90 days.
pub const DEFAULT_KEEP: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// The most outcomes that one new key removes: so many that a table gets smaller, so few that
/// nobody waits for it.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const PRUNED: i64 = 16;

/// Where outcomes are kept, durably: a table with a unique key underneath.
///
/// `sqlite::SqliteOutcomes` and `postgres::PostgresOutcomes` implement it.
pub trait Outcomes: Send + Sync {
    /// How a key stands.
    fn standing<'a>(&'a self, key: &'a str) -> Answer<'a, Standing>;

    /// Writes down that the lease with this token works on the key; takes over from an
    /// older lease that did. Says how the key stood before: when it was finished already,
    /// nothing is written.
    fn begin<'a>(&'a self, key: &'a str, token: Token) -> Answer<'a, Standing>;

    /// Writes the outcome down, if the key is still this lease's.
    fn finish<'a>(&'a self, key: &'a str, token: Token, outcome: &'a [u8]) -> Answer<'a, ()>;
}

/// An answer, once it comes.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, FenceError>> + Send + 'a>>;

/// How a key stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has begun.
    New,
    /// The lease with this token has begun and not finished; it may be dead.
    Running(Token),
    /// It was done, with this outcome.
    Finished(Vec<u8>),
}
