//! What all clones of a [`Locks`](crate::Locks) share: the way to the store, the
//! keeper, the batchers and the local queue. Nothing here is public.

use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::acquire::batcher::Batcher;
use crate::acquire::turnstile::Turnstile;
use crate::backend::{Claim, Hold};
use crate::clock::{Alarm, Moment};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::holder::Holder;
use crate::lease::keeper::Keeper;
use crate::runtime::enter;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) context: Arc<Context>,
    pub(crate) holder: Arc<Holder>,
    pub(crate) keeper: Keeper,
    pub(crate) claims: Batcher<Claim>,
    pub(crate) releases: Batcher<Hold>,
    pub(crate) turnstile: Arc<Turnstile>,
}

impl Client {
    pub(crate) fn new(context: Context, holder: Holder, alarm: Alarm) -> Self {
        let context = Arc::new(context);
        Self {
            holder: Arc::new(holder),
            keeper: Keeper::start(context.clone(), alarm),
            claims: Batcher::new(context.clone()),
            releases: Batcher::new(context.clone()),
            turnstile: Arc::default(),
            context,
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.context.clock.now()
    }

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
