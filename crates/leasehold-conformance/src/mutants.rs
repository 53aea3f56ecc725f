//! Stores and cores that are wrong on purpose. A suite that lets one of them pass
//! proves nothing, so each names the case that must reject it.

use std::sync::Arc;

use leasehold::backend::Backend;
use leasehold::failpoint::{Failpoints, Point};

pub use wrong_store::WrongStore;

mod wrong_store;

/// Something that is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A store that breaks its contract.
    Store(WrongStore),
    /// A core that leaves out what it should do at this point.
    Core(Point),
}

impl Mutant {
    /// Every mutant there is.
    pub fn all() -> Vec<Mutant> {
        let stores = WrongStore::ALL.iter().copied().map(Mutant::Store);
        stores.chain(CORES.iter().copied().map(Mutant::Core)).collect()
    }

    /// The case that must reject it.
    pub fn rejected_by(self) -> &'static str {
        match self {
            Mutant::Store(store) => store.rejected_by(),
            Mutant::Core(point) => core_rejected_by(point),
        }
    }

    pub(crate) fn spoil(
        self,
        store: Arc<dyn Backend>,
        failpoints: &Failpoints,
    ) -> Arc<dyn Backend> {
        match self {
            Mutant::Store(wrong) => wrong.spoil(store),
            Mutant::Core(point) => {
                failpoints.sabotage(point);
                store
            }
        }
    }
}

const CORES: &[Point] = &[
    Point::CheckGrantIsFresh,
    Point::SettleUnknown,
    Point::UndoCancelled,
    Point::ReleaseOnDrop,
    Point::StopRenewing,
    Point::FireLoss,
    Point::CompareOnCall,
    Point::SubtractDrift,
    Point::BelieveNotYours,
    Point::FallIntoDoubt,
    Point::SplitSameName,
    Point::StopWorkOnLoss,
];

/// No default arm: a point that no case guards does not build.
fn core_rejected_by(point: Point) -> &'static str {
    match point {
        Point::CheckGrantIsFresh => "a_grant_after_its_own_deadline_is_not_returned",
        Point::SettleUnknown => "a_lost_reply_is_adopted",
        Point::UndoCancelled => "a_cancelled_acquire_leaves_no_lock",
        Point::ReleaseOnDrop => "a_dropped_lease_is_released",
        Point::StopRenewing => "nothing_is_renewed_after_release",
        Point::FireLoss => "loss_fires_at_the_deadline_when_the_store_is_silent",
        Point::CompareOnCall => "a_process_that_slept_learns_on_the_first_call",
        Point::SubtractDrift => "the_drift_is_taken_off_the_deadline",
        Point::BelieveNotYours => "a_lease_taken_by_another_is_lost_at_once",
        Point::FallIntoDoubt => "doubt_pauses_the_checkpoint_until_proved_again",
        Point::SplitSameName => "one_lock_is_claimed_once_in_a_batch",
        Point::StopWorkOnLoss => "the_work_is_not_polled_after_a_loss",
    }
}
