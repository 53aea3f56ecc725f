//! Undoing an acquisition that nobody wants any more: whatever the store did or
//! may still do with the claim, no lock and no place in the queue is left behind.

use std::sync::Arc;

use crate::backend::{Claim, Grant};
use crate::context::{Context, backoff};
use crate::error::{Error, ErrorKind, Result};

/// What a claim may have left at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trace {
    /// Nothing: it was never sent, or the store said no.
    None,
    /// A place in the queue, and nothing under way.
    Place,
    /// Anything: a request may still be on its way.
    Unknown,
}

/// How many grants of one claim are given back before the store is doubted: it was sent
/// less often than that.
const GRANTS: usize = 8;

/// Undoes the claim, trying until the store answers or the claim could not matter any more.
pub(crate) async fn undo(context: Arc<Context>, claim: Claim, trace: Trace) {
    if trace == Trace::None {
        return;
    }
    // A lease that was granted meanwhile lapses by then.
    let matters_until = context.now() + claim.ttl + claim.ttl;
    let mut attempt = 0;
    while let Err(error) = undo_once(&context, &claim, trace).await {
        if error.says_gone() {
            return; // And what the claim left there.
        }
        if context.now() >= matters_until {
            tracing::warn!(lock = %claim.name, owner = %claim.owner, %error,
                "gave up undoing a cancelled acquisition; it lapses by its TTL");
            return;
        }
        context.clock.sleep(backoff(attempt)).await;
        attempt += 1;
    }
}

/// One try. Leaving is enough for a place in the queue; otherwise the owner is settled,
/// which leaves it a tombstone, and what it got is given back.
pub(crate) async fn undo_once(context: &Context, claim: &Claim, trace: Trace) -> Result<()> {
    match trace {
        Trace::None => Ok(()),
        Trace::Place => {
            let leaving = context.backend.clone().leave(claim.clone());
            context.ask(leaving).await
        }
        Trace::Unknown => {
            // Settling leaves a tombstone only for an owner that it does not find, and a second
            // request of this one may arrive after each release: asked until the answer is no.
            for _ in 0..GRANTS {
                let Some(grant) = settle(context, claim).await? else { return Ok(()) };
                let hold = claim.hold(grant.token);
                context.ask(context.backend.clone().release(vec![hold])).await?;
            }
            let message = "the store goes on granting a claim that was given up";
            Err(Error::new(ErrorKind::Unavailable, message))
        }
    }
}

/// Asks the store whether the claim succeeded; if not, its owner gets a tombstone.
pub(crate) async fn settle(context: &Context, claim: &Claim) -> Result<Option<Grant>> {
    let settling = context.backend.clone().settle(vec![claim.clone()]);
    Ok(context.ask(settling).await?.pop().flatten())
}
