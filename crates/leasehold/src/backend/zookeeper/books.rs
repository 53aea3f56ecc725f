//! What all parts of one store share: who has which node, and whom to tell.

use tokio::sync::Notify;

use super::table::Table;
use crate::backend::kit::hints::Hints;
use crate::clock::Clock;

#[derive(Debug)]
pub(super) struct Books {
    pub(super) clock: Clock,
    pub(super) table: Table,
    pub(super) hints: Hints,
    /// Wakes the janitor: something is due earlier than it knows.
    pub(super) ring: Notify,
}

impl Books {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, table: Table::default(), hints: Hints::default(), ring: Notify::new() }
    }
}
