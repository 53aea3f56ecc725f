//! What travels in a batcher: claims, and holds that are to be released.

use std::fmt;
use std::sync::Arc;

use crate::backend::{Backend, Claim, Hold, Release, Reply, Verdict};
use crate::name::Name;

/// A request that can travel with others of its kind.
pub(crate) trait Request: Clone + fmt::Debug + Send + 'static {
    type Answer: fmt::Debug + Send + 'static;
    /// Whether a request that was not sent yet goes with its caller.
    const GOES_WITH_CALLER: bool;

    fn name(&self) -> &Name;
    fn send(backend: Arc<dyn Backend>, batch: Vec<Self>) -> Reply<Vec<Self::Answer>>;
}

impl Request for Claim {
    type Answer = Verdict;
    const GOES_WITH_CALLER: bool = true;

    fn name(&self) -> &Name {
        &self.name
    }

    fn send(backend: Arc<dyn Backend>, batch: Vec<Self>) -> Reply<Vec<Verdict>> {
        backend.acquire(batch)
    }
}

/// A hold in a batcher is to be released; renewals go through the keeper.
impl Request for Hold {
    type Answer = Release;
    const GOES_WITH_CALLER: bool = false;

    fn name(&self) -> &Name {
        &self.name
    }

    fn send(backend: Arc<dyn Backend>, batch: Vec<Self>) -> Reply<Vec<Release>> {
        backend.release(batch)
    }
}
