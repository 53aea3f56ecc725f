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

#[cfg(feature = "failpoints")]
mod armed {
    use std::collections::HashSet;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::Point;

    /// The points of one client that are sabotaged.
    #[derive(Debug, Clone, Default)]
    pub struct Failpoints(Arc<Mutex<HashSet<Point>>>);

    impl Failpoints {
        /// From now on the client leaves out what it should do at `point`.
        pub fn sabotage(&self, point: Point) {
            self.0.lock().insert(point);
        }

        pub(crate) fn skips(&self, point: Point) -> bool {
            self.0.lock().contains(&point)
        }
    }
}

#[cfg(not(feature = "failpoints"))]
mod armed {
    use super::Point;

    /// Nothing: the `failpoints` feature is off.
    #[derive(Debug, Clone, Default)]
    pub struct Failpoints(());

    impl Failpoints {
        #[inline(always)]
        pub(crate) fn skips(&self, _point: Point) -> bool {
            false
        }
    }
}

pub use armed::Failpoints;
