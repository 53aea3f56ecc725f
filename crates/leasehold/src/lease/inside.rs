//! Where a client's futures are polled: in the runtime that keeps its leases.

use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::task::Poll;

use super::Leases;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::enter;

impl Leases {
    /// Polls a future inside this client's runtime, wherever the caller is: timers and
    /// sockets then belong to the runtime that keeps the leases, and a caller without
    /// one is served as well. Once that runtime has ended nothing could be kept any
    /// more: then it is an error.
    pub(crate) async fn inside<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        let mut future = pin!(future);
        let mut begun = false;
        std::future::poll_fn(|cx| {
            // Each time: timers of a runtime that has ended panic when they are polled.
            if !self.keeper.is_running() {
                let error = no_runtime();
                return Poll::Ready(Err(if begun { error.outcome_unknown() } else { error }));
            }
            begun = true;
            let _inside = enter(&self.context.runtime);
            let polling = AssertUnwindSafe(|| future.as_mut().poll(cx));
            panic::catch_unwind(polling).unwrap_or_else(|panicked| {
                // It may have ended just while we polled; any other panic is the caller's.
                if self.keeper.is_running() {
                    panic::resume_unwind(panicked);
                }
                Poll::Ready(Err(no_runtime().outcome_unknown()))
            })
        })
        .await
    }
}

fn no_runtime() -> Error {
    let message = "the runtime that this client was connected on has ended, so nobody would \
                   keep its leases: connect again";
    Error::new(ErrorKind::NoRuntime, message)
}
