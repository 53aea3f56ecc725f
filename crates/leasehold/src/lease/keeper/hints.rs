//! What the store hints at is renewed at once, whenever that was due.

use std::sync::Arc;

use tokio::task;

use super::abort::AbortOnDrop;
use super::{COARSEST, Due, PORTION, Place, Shared, Why};
use crate::backend::Hint;
use crate::lease::schedule::Entry;
use crate::lease::state::LeaseCore;

impl Shared {
    /// Renews at once what the store hints at.
    pub(super) async fn follow_hints(self: Arc<Self>) {
        loop {
            // In a task of its own: a store that panics does not end the following.
            let hinting = self.context.runtime.spawn(self.context.backend.clone().hint());
            let Ok(Ok(hint)) = AbortOnDrop(hinting).await else {
                self.context.clock.sleep(COARSEST).await;
                continue;
            };
            let mut from = 0;
            while let Some(suspects) = self.suspects(hint, from) {
                let found = !suspects.is_empty();
                for due in self.batches(suspects) {
                    let shared = self.clone();
                    self.context.runtime.spawn(async move { shared.renew(due, None).await });
                }
                if found && hint != Hint::All {
                    break; // There is no other of its owner.
                }
                from += PORTION;
                task::yield_now().await;
            }
        }
    }

    /// Those of a portion of all leases that the store hints at; `None` behind the last. In
    /// portions for the same reason as what is due.
    fn suspects(&self, hint: Hint, from: usize) -> Option<Vec<Due>> {
        let now = self.context.clock.now();
        let schedule = self.schedule.lock();
        let suspect = |core: &LeaseCore| match hint {
            Hint::Lease(owner) => core.owner() == owner && self.lasts(core, now),
            Hint::All => self.lasts(core, now),
        };
        let portion = schedule.portion(from, PORTION)?;
        let suspects = portion.filter(|(_, entry)| suspect(&entry.core));
        let asked = |(place, entry): (Place, &Entry)| {
            self.question(place, entry.core.clone(), Why::Scheduled, now)
        };
        Some(suspects.map(asked).collect())
    }
}
