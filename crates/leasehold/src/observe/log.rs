//! A line for who acquired what, how long it waited, how long it held, why it ended.
//! They go to `tracing`, under the target `leasehold`.

use crate::event::{EventKind, Refusal};
use crate::name::Name;
use crate::owner::Owner;

/// Logs what happened to a lock.
pub(crate) fn log(store: &'static str, lock: &Name, owner: Option<Owner>, kind: &EventKind) {
    let owner = owner.map(tracing::field::display);
    match kind {
        EventKind::Asked => tracing::trace!(target: "leasehold", store, %lock, owner, "asked"),
        EventKind::Waiting(by) => {
            let by = by.as_ref().map(tracing::field::display);
            tracing::debug!(target: "leasehold", store, %lock, owner, by, "waiting");
        }
        EventKind::Troubled(error) => {
            tracing::warn!(target: "leasehold", store, %lock, owner, %error, "waiting, in trouble");
        }
        EventKind::Granted { token, waited } => {
            let token = token.get();
            tracing::info!(target: "leasehold", store, %lock, owner, token, ?waited, "acquired");
        }
        EventKind::Renewed => tracing::trace!(target: "leasehold", store, %lock, owner, "renewed"),
        EventKind::Doubtful(error) => {
            tracing::warn!(target: "leasehold", store, %lock, owner, %error, "in doubt");
        }
        EventKind::Lost(loss) => {
            let held = loss.held;
            tracing::warn!(target: "leasehold", store, %lock, owner, ?held, reason = %loss, "lost");
        }
        EventKind::Released { held } => {
            tracing::info!(target: "leasehold", store, %lock, owner, ?held, "released");
        }
        EventKind::Forced(forced) => {
            tracing::warn!(target: "leasehold", store, %lock, %forced, "released by force");
        }
        EventKind::Refused { why, waited } => match why {
            Refusal::Held(by) => {
                let by = by.as_ref().map(tracing::field::display);
                tracing::info!(target: "leasehold", store, %lock, owner, ?waited, by, "not acquired: held");
            }
            Refusal::Failed(error) => {
                tracing::warn!(target: "leasehold", store, %lock, owner, ?waited, %error, "not acquired");
            }
            Refusal::Cancelled => {
                tracing::info!(target: "leasehold", store, %lock, owner, ?waited, "not acquired: cancelled");
            }
        },
    }
}
