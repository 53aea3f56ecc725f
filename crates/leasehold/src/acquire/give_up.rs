//! The end of patience: out of the queue, and what to tell the caller. Another holder and a
//! store that does not answer are two different things, and neither takes long to find out.

use std::time::Duration;

use super::Attempt;
use super::undo::{Trace, undo_once};
use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::holder::{HeldBy, Holder};

/// How much longer than its patience an acquisition may take: for a request that is under way,
/// or for leaving the queue and asking who holds the lock.
const LAST_LOOK: Duration = Duration::from_secs(1);

impl Context {
    /// How long what has to be asked at the end of patience may take.
    pub(super) fn last_look(&self) -> Duration {
        LAST_LOOK.min(self.request_timeout)
    }
}

impl Attempt<'_> {
    /// Patience is over: leaves the queue, and asks who holds the lock. An error if the store
    /// does not answer any more.
    pub(super) async fn give_up(&mut self) -> Result<Option<HeldBy>> {
        let context = self.context;
        let undoing = undo_once(context, &self.claim, self.trace);
        let looking = context.backend.clone().inspect(self.claim.lock());
        // Both at once: a silent store is not waited for twice.
        let (undone, looked) = tokio::join!(
            context.ask_within(context.last_look(), undoing),
            context.ask_within(context.last_look(), looking),
        );
        let left_the_line = undone.is_ok() && self.trace != Trace::None;
        if undone.is_ok() {
            self.trace = Trace::None;
        }
        match looked.map(|info| info?.leases.pop()) {
            Ok(Some(lease)) if lease.owner != Some(self.claim.owner) => Ok(Some(lease.held_by)),
            // Between two holders, or behind tasks of this client that had no turn yet.
            Ok(_) => Ok(self.waits_for.take().flatten()),
            // The store is there, and has only no answer to this question.
            Err(_) if left_the_line => Ok(self.waits_for.take().flatten()),
            Err(error) => Err(self.since_when(error)),
        }
    }

    /// The store did not answer what was under way when patience ended.
    pub(super) fn silence(&self) -> Error {
        let limit = match self.waits_for {
            Some(_) => self.context.last_look(),
            None => self.asked.until(self.context.now()),
        };
        self.since_when(Error::no_answer(limit))
    }

    /// If the store went away during a wait in the queue: since when, and who held the lock before.
    pub(super) fn since_when(&self, error: Error) -> Error {
        let away = matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Unavailable);
        let (Some(by), true) = (&self.waits_for, away) else { return error };
        let holder = by.as_ref().and_then(|by| by.holder.as_ref());
        let holder = holder.map_or_else(|| "another owner".to_owned(), Holder::to_string);
        let seconds = |since: Moment| since.until(self.context.now()).as_secs_f64();
        let message = match self.troubled {
            Some(since) => {
                let failed = seconds(since);
                format!(
                    "the store has failed for {failed:.1} s; before that {holder} held the lock"
                )
            }
            None => {
                let ago = seconds(self.heard);
                format!("the store does not answer; {ago:.1} s ago {holder} held the lock")
            }
        };
        Error::new(error.kind().clone(), message).with_outcome_of(&error).caused_by(error)
    }
}
