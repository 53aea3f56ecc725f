//! Every rejection, as a metric, a log line and an event. A rejection is a rare and
//! interesting thing: a holder was late, and fencing has just saved the data.

use std::sync::OnceLock;

use metrics::counter;
use tokio::sync::broadcast;

use super::error::StaleToken;

/// How many writes were turned away for a stale token, by `resource`: process, file, sqlite,
/// postgres, redis, object, http.
pub const REJECTIONS: &str = "leasehold_fencing_rejections_total";

/// How many rejections a slow reader may fall behind before it misses some.
const BACKLOG: usize = 256;

/// A write that was turned away.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// The kind of resource.
    pub resource: &'static str,
    /// Which one: a table, a key, a path, a lock.
    pub name: String,
    /// The tokens.
    pub stale: StaleToken,
}

/// A reader of this process's rejections, from the moment it was made.
#[derive(Debug)]
pub struct Rejections(broadcast::Receiver<Rejection>);

impl Rejections {
    /// The next rejection. One that is too slow misses the oldest.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Rejection {
        loop {
            match self.0.recv().await {
                Ok(rejection) => return rejection,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                // The sender is never dropped.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// Every rejection in this process from now on.
pub fn rejections() -> Rejections {
    Rejections(announcer().subscribe())
}

fn announcer() -> &'static broadcast::Sender<Rejection> {
    static ANNOUNCER: OnceLock<broadcast::Sender<Rejection>> = OnceLock::new();
    ANNOUNCER.get_or_init(|| broadcast::channel(BACKLOG).0)
}

/// Tells of a rejection, and gives it back to be returned.
pub(crate) fn rejected(
    resource: &'static str,
    name: impl Into<String>,
    stale: StaleToken,
) -> StaleToken {
    let name = name.into();
    let (given, seen) = (stale.given.get(), stale.seen.get());
    tracing::warn!(target: "leasehold", resource, name, given, seen, "rejected a stale token");
    counter!(REJECTIONS, "resource" => resource).increment(1);
    // Nobody may be listening.
    let _ = announcer().send(Rejection { resource, name, stale });
    stale
}
