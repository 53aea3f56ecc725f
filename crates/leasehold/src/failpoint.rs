//! Named points where tests make the library pause, die or do wrong.
//!
//! Two uses: faults that only strike between two steps (a client stopped right
//! after the store granted it), and a *wrong core* that the conformance suite
//! must reject. Without the `failpoints` feature every point compiles to nothing.

/// A place in the library where a test may interfere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// Before a grant is believed: is its own deadline still ahead?
    CheckGrantIsFresh,
    /// When an acquire got no answer: ask whether it succeeded.
    SettleUnknown,
    /// When an acquire future is dropped: undo what it may have done.
    UndoCancelled,
    /// When a guard is dropped: give the lock back.
    ReleaseOnDrop,
    /// When a lease is released: stop renewing it.
    StopRenewing,
    /// When the deadline passes: fire the loss by timer.
    FireLoss,
    /// When state is asked: compare with the clock.
    CompareOnCall,
    /// When the deadline is computed: take the drift off.
    SubtractDrift,
    /// When a renewal says that the lease is another's: believe it.
    BelieveNotYours,
    /// When a renewal gets no answer: fall into doubt.
    FallIntoDoubt,
    /// Before a batch is sent: never two claims on one lock in it.
    SplitSameName,
    /// When a lease is lost under `run`: stop polling the work.
    StopWorkOnLoss,
}

/// A moment between two steps of an acquisition, at which a test may stop the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// The claim is about to be sent.
    Asking,
    /// The store answered; nothing was made of it yet.
    Answered,
    /// In the queue, and about to wait for the turn.
    Queued,
    /// Its turn came; nothing was made of it yet.
    Called,
    /// The grant was looked at and believed; the caller does not have the lease yet.
    Believed,
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::fmt;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, OnceLock};

    use super::{Point, Step};

    type Hook = Box<dyn Fn(Step) + Send + Sync>;

    /// The points of one client that are sabotaged.
    #[derive(Clone, Default)]
    pub struct Failpoints(Arc<Points>);

    /// Looked at many times in an acquisition, by benchmarks too: so without a lock.
    #[derive(Default)]
    struct Points {
        /// A bit for each point.
        sabotaged: AtomicU32,
        hook: OnceLock<Hook>,
    }

    impl Failpoints {
        /// From now on the client leaves out what it should do at `point`.
        pub fn sabotage(&self, point: Point) {
            self.0.sabotaged.fetch_or(1 << point as u32, Ordering::SeqCst);
        }

        /// From now on the client calls `hook` at every step, in place: while it blocks, so
        /// does whatever runs on this thread, as if the process were stopped.
        ///
        /// # Panics
        ///
        /// When there is a hook already.
        pub fn at_each_step(&self, hook: impl Fn(Step) + Send + Sync + 'static) {
            assert!(self.0.hook.set(Box::new(hook)).is_ok(), "there is a hook already");
        }

        pub(crate) fn skips(&self, point: Point) -> bool {
            self.0.sabotaged.load(Ordering::SeqCst) & (1 << point as u32) != 0
        }

        pub(crate) fn reach(&self, step: Step) {
            if let Some(hook) = self.0.hook.get() {
                hook(step);
            }
        }
    }

    impl fmt::Debug for Failpoints {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let mut failpoints = f.debug_struct("Failpoints");
            failpoints.field("sabotaged", &self.0.sabotaged).finish_non_exhaustive()
        }
    }
}

#[cfg(not(feature = "failpoints"))]
mod armed {
    use super::{Point, Step};

    /// Nothing: the `failpoints` feature is off.
    #[derive(Debug, Clone, Default)]
    pub struct Failpoints(());

    impl Failpoints {
        #[inline(always)]
        pub(crate) fn skips(&self, _point: Point) -> bool {
            false
        }

        #[inline(always)]
        pub(crate) fn reach(&self, _step: Step) {}
    }
}

pub use armed::Failpoints;
