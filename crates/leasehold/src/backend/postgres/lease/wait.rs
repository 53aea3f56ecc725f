//! Waiting in line: until the server tells of a grant, the holder's time is up, or a
//! heartbeat is due. The table is the truth; all of these only say when to look.

use std::sync::Arc;
use std::time::Duration;

use super::LeaseStore;
use super::beats::Standing;
use super::seats::Next;
use crate::backend::{Claim, Turn};
use crate::error::Result;

/// How often a waiter says that it is still there; it counts as alive for three seconds.
const BEAT: Duration = Duration::from_secs(1);

/// How often to look where nothing can be listened to.
const POLL: Duration = Duration::from_millis(100);

/// Between a lease's end and the next look: clocks tick differently.
const GRACE: Duration = Duration::from_millis(2);

impl LeaseStore {
    /// Waits until the claim in line is granted. Dropping it leaves the place in line.
    pub(super) async fn wait_in_line(self: Arc<Self>, claim: Claim) -> Result<Turn> {
        self.seats.take(claim.owner, self.clock.now());
        self.listener.start().await;
        let patience = BEAT.min(claim.ttl / 3);
        loop {
            let beat = if self.seats.is_listening() { patience } else { patience.min(POLL) };
            match self.seats.next(claim.owner, self.clock.now(), beat) {
                Next::Granted(grant) => {
                    self.seats.leave(claim.owner);
                    return Ok(Turn::Granted(grant));
                }
                Next::Gone => return Ok(Turn::TryAgain),
                Next::Sleep(bell, until) => {
                    tokio::select! {
                        biased;
                        () = bell.notified() => {}
                        () = self.clock.sleep_until(until + GRACE) => {}
                    }
                }
                Next::Look => {
                    if let Some(turn) = self.look(&claim).await? {
                        self.seats.leave(claim.owner);
                        return Ok(turn);
                    }
                }
            }
        }
    }

    /// Looks where the claim stands; `None` while it waits.
    async fn look(self: &Arc<Self>, claim: &Claim) -> Result<Option<Turn>> {
        let mut standing = self.beat(claim).await?;
        if matches!(standing, Standing::Free) {
            self.serve(&claim.name).await?;
            standing = self.beat(claim).await?;
        }
        match standing {
            Standing::Granted(grant) => Ok(Some(Turn::Granted(grant))),
            Standing::Lost => Ok(Some(Turn::TryAgain)),
            Standing::Behind(asked, left) => {
                self.seats.queued(claim.owner, asked, left);
                Ok(None)
            }
            // Free and given to nobody: we are the only one, and not alive at the server.
            Standing::Free => Ok(Some(Turn::TryAgain)),
        }
    }
}
