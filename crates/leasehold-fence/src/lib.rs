//! The resource side: fencing that is enforced.
//!
//! A lock coordinates who should try; the resource decides who may win. A holder that was
//! stopped past its deadline does not know it when it wakes up, and no lock can stop it.
//! Its **token** can: every lease of a lock has a higher one than the leases before it,
//! and a resource that remembers the highest it has seen turns the late one away.
//!
//! The rule is the same for every resource: an *equal* token is the same lease and is let
//! in, a *higher* one is a newer lease and raises the mark, a *lower* one is
//! [`StaleToken`]. What was deleted leaves its mark behind, so that a late writer cannot
//! bring it back. `advance(token)` raises the mark without a write: a new holder does so
//! before it reads, and from then on the old one is shut out.
//!
//! | resource | here | who checks |
//! |---|---|---|
//! | a value in this process | [`Fenced`] | a mutex |
//! | a file on a local disk | [`FencedFile`] | a sidecar under a file lock |
//! | SQLite | `sqlite` | triggers, conditional writes |
//! | PostgreSQL | `postgres` | triggers, conditional writes: for every client, psql too |
//! | Redis | `redis` | a script around your script |
//! | objects (S3 and others) | `objects` | conditional puts |
//! | an HTTP service | `http`, `leasehold gate` | a layer, or a proxy in front |
//!
//! Marks belong to a lock: compare only tokens of the same lock with one mark.
//! Two locks that guard one resource count independently, and comparing their tokens
//! means nothing.
//!
//! This crate knows no stores and no leases: a token is a number, wherever it comes from. The
//! `leasehold` crate has all of it as `leasehold::fence`, and what needs a lease besides:
//! closures that run once per key, retries that give the lock back.
//! [`rejections`] tells of every rejection of this process.

pub use error::{FenceError, LockError, StaleToken};
pub use fenced::Fenced;
pub use file::FencedFile;
pub use moved::Moved;
pub use name::{InvalidName, MAX_NAME_BYTES, Name};
pub use outcome::Outcome;
pub use outcomes::{Answer, DEFAULT_KEEP, Outcomes, Standing};
pub use rejection::{REJECTIONS, Rejection, Rejections, rejections};
pub use token::Token;

mod error;
mod fenced;
mod file;
#[cfg(feature = "http")]
pub mod http;
mod moved;
mod name;
#[cfg(feature = "objects")]
pub mod objects;
mod outcome;
mod outcomes;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
mod rejection;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod rows;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod token;
