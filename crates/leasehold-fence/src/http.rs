//! HTTP services that turn late requests away.
//!
//! A request carries `Fencing-Token: <lock>;<token>`. [`FenceLayer`] goes around a
//! `tower` service; `leasehold gate` is the same in front of a service that knows nothing
//! of tokens. The answers, as problem documents (RFC 9457):
//!
//! | status | when |
//! |---|---|
//! | 412 | the token is stale: a newer lease of this lock has been here |
//! | 428 | there is no token |
//! | 400 | the header cannot be read |
//! | 403 | it is a token of a lock that is not on the [list](FenceLayer::locks) |
//! | 503 | the marks cannot be kept, or older requests do not end: nothing was let through |
//!
//! # The rule
//!
//! **Once a request of a lock was let through, no request with a lower token is.** The mark
//! is durable before the first request with a higher token goes on, so a restart keeps the rule.
//!
//! And **a newer request waits for the older ones that are inside**, so that the service
//! cannot act on them in the wrong order: until each is answered (the head of its response is
//! there), at most for the [drain time](FenceLayer::drain); then it gets 503 and may come again.
//! An older request whose body is still on its way when a newer one comes is cut off: its
//! sender may be stopped, and the service has not got it whole.
//!
//! What it cannot do: stop a service that goes on after it has answered, or that acts on a
//! request whose body was cut off.

use std::time::Duration;

pub use admission::{Pass, Refusal};
pub use body::FencedBody;
pub use header::{FENCING_TOKEN, Presented};
pub use layer::{FenceLayer, FenceService};
pub use marks::{Marks, MarksError, MemoryMarks, Raised};
#[cfg(feature = "sqlite")]
pub use sqlite_marks::SqliteMarks;

mod admission;
mod body;
mod detach;
mod header;
mod layer;
mod marks;
mod problem;
#[cfg(feature = "sqlite")]
mod sqlite_marks;

/// How long a newer request waits for older ones, unless told.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(10);
