//! The tokio runtime that a client's background work, timers and sockets belong to.

use tokio::runtime::Handle;

/// Timers and sockets that are made from now on belong to this runtime, until dropped.
#[cfg(not(all(test, shuttle)))]
pub(crate) fn enter(runtime: &Handle) -> tokio::runtime::EnterGuard<'_> {
    runtime.enter()
}

/// shuttle has one runtime for all.
#[cfg(all(test, shuttle))]
pub(crate) fn enter(runtime: &Handle) -> &Handle {
    runtime
}
