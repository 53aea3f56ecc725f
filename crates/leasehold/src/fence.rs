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
//! Besides: [`Once`] runs a closure once per key and remembers the outcome,
//! [`Persistence`] bounds the retries of a failing write and then gives the lock back,
//! [`rejections`] tells every rejection of this process.

/// The guide's examples compile.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/guide/fencing.md")]
pub struct Guide;

pub use error::{FenceError, StaleToken};
pub use fenced::Fenced;
pub use file::FencedFile;
pub use moved::Moved;
pub use once::{Answer, DEFAULT_KEEP, Done, Once, Outcomes, Standing};
pub use persistence::{GaveUp, Persistence};
pub use rejection::{REJECTIONS, Rejection, Rejections, rejections};

mod error;
mod fenced;
mod file;
#[cfg(feature = "fence-http")]
pub mod http;
mod moved;
#[cfg(feature = "fence-objects")]
pub mod objects;
mod once;
mod persistence;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
mod rejection;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod rows;
#[cfg(feature = "sqlite")]
pub mod sqlite;
