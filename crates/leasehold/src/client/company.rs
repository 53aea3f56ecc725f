//! Whether a request is alone: what a lane knows of who was there just now.

use std::time::Duration;

use tokio::task;

use crate::clock::Moment;

/// Whether others are likely to come along.
#[derive(Debug, Default)]
pub(super) struct Company {
    /// How many travelled together last time.
    pub(super) last_batch: usize,
    /// Who was here last, and when.
    last: Option<(Option<task::Id>, Moment)>,
}

impl Company {
    /// What happened longer ago says nothing about now.
    const RECENT: Duration = Duration::from_micros(200);

    /// Notes the present task; whether it is not alone.
    pub(super) fn expected(&mut self, now: Moment) -> bool {
        let here = task::try_id();
        let last = self.last.replace((here, now));
        let other = last.is_some_and(|(who, at)| who != here && at.until(now) < Self::RECENT);
        other || self.last_batch > 1
    }
}
