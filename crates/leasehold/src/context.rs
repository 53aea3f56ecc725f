//! What every part of a client needs: the store, the clock, and where events go.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::{Backend, Proof};
use crate::clock::{Clock, Moment};
use crate::detach::Detacher;
use crate::error::{Error, ErrorKind, Outcome, Result};
use crate::event::{Announcer, Event, EventKind};
use crate::failpoint::{Failpoints, Point};
use crate::holder::Holder;
use crate::name::Name;
use crate::observe::{self, ClassId, Meter, StallWatch};
use crate::owner::Owner;

/// What every part of a client needs.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Clock,
    /// Who this client says it is.
    pub(crate) holder: Arc<Holder>,
    pub(crate) announcer: Announcer,
    pub(crate) meter: Meter,
    pub(crate) stalls: StallWatch,
    pub(crate) failpoints: Failpoints,
    pub(crate) detacher: Detacher,
    /// Where background work runs, wherever the caller is.
    pub(crate) runtime: Handle,
    /// How long a request may take before its outcome counts as unknown.
    pub(crate) request_timeout: Duration,
}

/// The lock and the acquisition that an event is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a Name,
    pub(crate) owner: Option<Owner>,
    pub(crate) class: ClassId,
}

impl Context {
    /// One of a client that tests see only a part of.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn of_a_part(backend: Arc<dyn Backend>) -> Self {
        const STORE: &str = "part";
        Self {
            clock: backend.clock().clone(),
            backend,
            holder: Arc::new(Holder::this_process()),
            announcer: Announcer::default(),
            meter: Meter::new(STORE),
            stalls: StallWatch::new(STORE),
            failpoints: Failpoints::default(),
            detacher: Detacher::on(Handle::current()),
            runtime: Handle::current(),
            request_timeout: Duration::from_secs(3_600),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

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

    /// The last moment that a holder may act on this proof.
    pub(crate) fn deadline(&self, proof: Proof) -> Moment {
        proof.at + proof.valid_for.saturating_sub(self.drift(proof.valid_for))
    }

    /// What is taken off every lease: clocks may differ by 1 %, and answers are
    /// rounded to milliseconds on both sides.
    fn drift(&self, term: Duration) -> Duration {
        if self.failpoints.skips(Point::SubtractDrift) {
            return Duration::ZERO;
        }
        term / 100 + Duration::from_millis(2) + self.backend.guarantees().extra_drift
    }
}

/// Whether the store refused a batch for what is in it, and not because it could not
/// be reached: only then is it worth asking for each alone (etcd: one unknown lease
/// fails a whole batch).
pub(crate) fn is_about_one_of_them(error: &Error) -> bool {
    if *error.kind() == ErrorKind::RetryAlone {
        return true;
    }
    error.outcome() == Outcome::NotApplied
        && !matches!(
            error.kind(),
            ErrorKind::Unreachable | ErrorKind::Unavailable | ErrorKind::Gone
        )
}

/// The error of a store that did not answer each of these requests once.
pub(crate) fn wrong_count(asked: usize) -> Error {
    let kind = if asked > 1 { ErrorKind::RetryAlone } else { ErrorKind::Internal };
    Error::new(kind, "the store did not answer each request once; please report this")
}

/// A pause before asking again: full jitter, doubling up to a bound.
pub(crate) fn backoff(attempt: u32) -> Duration {
    const FIRST: u64 = 10;
    const LONGEST: u64 = 1_000;
    let bound = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
    Duration::from_millis(fastrand::u64(1..=bound))
}
