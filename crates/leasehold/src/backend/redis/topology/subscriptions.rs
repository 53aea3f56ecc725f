//! The connection on which messages of one node's shards are heard.
//!
//! Its own, because a slot that moves away ends its subscriptions, and its connection is given
//! up with that: requests under way would have no answer.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::kit::reconnect::Connected;
use crate::backend::redis::error::Failure;
use crate::backend::redis::session::{Live, Server};

/// What is heard of one node.
pub(super) struct Subscriptions {
    server: Arc<Server>,
    /// The slots, and the connection that they are heard on.
    heard: Mutex<Option<(Live, HashSet<u16>)>>,
}

impl Subscriptions {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self { server, heard: Mutex::default() }
    }

    /// Whether messages about this slot are heard.
    pub(super) fn hear(&self, slot: u16) -> bool {
        let heard = self.heard.lock();
        heard.as_ref().is_some_and(|(live, slots)| live.is_open() && slots.contains(&slot))
    }

    /// From now on they are, on this channel of the slot.
    pub(super) async fn listen(&self, slot: u16, channel: &str) -> Result<(), Failure> {
        if self.hear(slot) {
            return Ok(());
        }
        let live = self.server.live().await.map_err(Failure::NotSent)?;
        self.server.listen(&live, channel).await?;
        let mut heard = self.heard.lock();
        match &mut *heard {
            Some((on, slots)) if on.is(&live) => slots.extend([slot]),
            other => *other = Some((live, HashSet::from([slot]))),
        }
        Ok(())
    }
}
