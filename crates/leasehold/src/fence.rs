//! The resource side: fencing that is enforced, from the [`leasehold_fence`] crate, and what needs
//! a lease besides.
//!
//! A lock coordinates who should try; the resource decides who may win. A holder that was
//! stopped past its deadline does not know it when it wakes up, and no lock can stop it.
//! Its **token** can: every lease of a lock has a higher one than the leases before it,
//! and a resource that remembers the highest it has seen turns the late one away.
//!
//! The [crate's page](leasehold_fence) has the rule and the resources. A service that only checks
//! tokens can depend on it alone: it has no store's driver.
//!
//! Besides: [`Once`] runs a closure once per key and remembers the outcome,
//! [`RetryPolicy`] bounds the retries of a failing write and then gives the lock back.

/// The guide's examples compile.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/guide/fencing.md")]
pub struct Guide;

pub use leasehold_fence::*;

pub use once::{Done, Once};
pub use retry_policy::{GaveUp, RetryPolicy};

mod once;
mod retry_policy;
