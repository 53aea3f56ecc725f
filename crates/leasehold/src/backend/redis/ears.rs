//! A connection that hears the messages of one node's shards.
//!
//! Its own, because a slot that moves away ends its subscriptions with a message that the
//! driver takes for the answer to a request: on a connection with requests every answer
//! after it would be somebody else's. Such a connection is given up.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::error::{Failure, Login, not_connected};
use super::server::{Live, Server};

/// What one node is listened to for.
#[derive(Debug)]
pub(super) struct Ears {
    server: Arc<Server>,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    /// The connection on which.
    on: Option<Live>,
    slots: HashSet<u16>,
}

impl Ears {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self { server, heard: Mutex::default() }
    }

    /// Whether messages about this slot are heard.
    pub(super) fn hear(&self, slot: u16) -> bool {
        let heard = self.heard.lock();
        heard.on.as_ref().is_some_and(|live| !live.ended()) && heard.slots.contains(&slot)
    }

    /// From now on they are, on this channel of the slot.
    pub(super) async fn listen(&self, slot: u16, channel: &str) -> Result<(), Failure> {
        if self.hear(slot) {
            return Ok(());
        }
        let mut live = self.server.live().await.map_err(Failure::NotSent)?;
        let mut subscribe = redis::cmd("SSUBSCRIBE");
        match live.connection.ask(subscribe.arg(channel)).await {
            Ok(_) => {
                let mut heard = self.heard.lock();
                if !heard.on.as_ref().is_some_and(|on| on.is(&live)) {
                    *heard = Heard { on: Some(live), slots: HashSet::new() };
                }
                heard.slots.insert(slot);
                Ok(())
            }
            Err(error) if error.code().is_some() => Err(Failure::of(error)),
            Err(error) => {
                self.server.give_up(&live);
                let address = self.server.host.to_string();
                Err(Failure::NotSent(not_connected(&address, Login::Server, error)))
            }
        }
    }
}
