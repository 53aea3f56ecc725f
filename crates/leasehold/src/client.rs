//! What all clones of a [`Locks`](crate::Locks) share: the way to the store, the
//! keeper, the batcher's lanes and the local queue. Nothing here is public.

use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::{Backend, Claim, Hold};
use crate::clock::{Alarm, Clock, Moment};
use crate::errand::Errands;
use crate::error::{Error, ErrorKind, Outcome, Result};
use crate::event::{Announcer, Event, EventKind, Subject};
use crate::failpoint::{Failpoints, Point};
use crate::holder::Holder;
use crate::observe::{self, Meter, StallWatch};

pub(crate) use attempt::{Unavailable, acquire};
pub(crate) use keeper::Keeper;
pub(crate) use lane::Lane;
pub(crate) use present::Present;
pub(crate) use release::Releasing;
pub(crate) use schedule::Place;
pub(crate) use step::Step;
pub(crate) use turnstile::Turnstile;

mod attempt;
#[cfg(test)]
mod callers;
mod company;
mod gate;
mod keeper;
mod lane;
mod present;
mod release;
mod request;
mod schedule;
mod step;
mod turnstile;
mod undo;

/// What every part of a client needs; it knows none of them.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Clock,
    pub(crate) announcer: Announcer,
    pub(crate) meter: Meter,
    pub(crate) stalls: StallWatch,
    pub(crate) failpoints: Failpoints,
    pub(crate) step: Step,
    pub(crate) present: Present,
    pub(crate) errands: Errands,
    /// Where background work runs, wherever the caller is.
    pub(crate) runtime: Handle,
    /// How long a request may take before its outcome counts as unknown.
    pub(crate) request_timeout: Duration,
}

impl Context {
    /// Tells everybody who wants to know: the log, the metrics, the event stream.
    pub(crate) fn announce(&self, subject: Subject<'_>, at: Moment, kind: EventKind) {
        let Subject { name, owner, class } = subject;
        observe::log(self.backend.guarantees().store, name, owner, &kind);
        self.meter.count(class, &kind);
        self.announcer.announce(|| Event { at, name: name.clone(), owner, kind });
    }

    /// Waits for a store's answer, but not for ever.
    pub(crate) async fn ask<T>(&self, asking: impl Future<Output = Result<T>>) -> Result<T> {
        self.ask_within(self.request_timeout, asking).await
    }

    /// Waits for a store's answer for at most `limit`; then its outcome is unknown.
    pub(crate) async fn ask_within<T>(
        &self,
        limit: Duration,
        asking: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(limit, asking).await {
            Ok(answer) => answer.map_err(|error| error.on_store(self.backend.guarantees().store)),
            Err(_) => Err(Error::no_answer(limit).on_store(self.backend.guarantees().store)),
        }
    }

    /// What is taken off every lease: clocks may differ by 1 %, and answers are
    /// rounded to milliseconds on both sides.
    pub(crate) fn drift(&self, term: Duration) -> Duration {
        if self.failpoints.skips(Point::SubtractDrift) {
            return Duration::ZERO;
        }
        term / 100 + Duration::from_millis(2) + self.backend.guarantees().extra_drift
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) context: Arc<Context>,
    pub(crate) holder: Arc<Holder>,
    pub(crate) keeper: Keeper,
    pub(crate) claims: Lane<Claim>,
    pub(crate) releases: Lane<Hold>,
    pub(crate) turnstile: Arc<Turnstile>,
}

impl Client {
    pub(crate) fn new(context: Context, holder: Holder, alarm: Alarm) -> Self {
        let context = Arc::new(context);
        Self {
            holder: Arc::new(holder),
            keeper: Keeper::start(context.clone(), alarm),
            claims: Lane::new(context.clone()),
            releases: Lane::new(context.clone()),
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

/// Timers and sockets that are made from now on belong to this runtime, until dropped.
#[cfg(not(shuttle))]
pub(crate) fn enter(runtime: &Handle) -> tokio::runtime::EnterGuard<'_> {
    runtime.enter()
}

/// shuttle has one runtime for all.
#[cfg(shuttle)]
pub(crate) fn enter(runtime: &Handle) -> &Handle {
    runtime
}

fn no_runtime() -> Error {
    let message = "the runtime that this client was connected on has ended, so nobody would \
                   keep its leases: connect again";
    Error::new(ErrorKind::NoRuntime, message)
}

/// Whether the store refused a batch for what is in it, and not because it could not
/// be reached: only then is it worth asking for each alone (etcd: one unknown lease
/// fails a whole batch).
fn is_about_one_of_them(error: &Error) -> bool {
    error.outcome() == Outcome::NotApplied
        && !matches!(
            error.kind(),
            ErrorKind::Unreachable | ErrorKind::Unavailable | ErrorKind::Gone
        )
}

/// A pause before asking again: full jitter, doubling up to a bound.
pub(crate) fn backoff(attempt: u32) -> Duration {
    const FIRST: u64 = 10;
    const LONGEST: u64 = 1_000;
    let bound = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
    Duration::from_millis(fastrand::u64(1..=bound))
}
