//! Hints for the clients of one store, each of which waits on its own.

use tokio::sync::broadcast;

use crate::backend::Hint;

/// How many hints may be on their way; a client that missed some asks about all its leases.
const BACKLOG: usize = 64;

#[derive(Debug)]
pub(in crate::backend) struct Hints(broadcast::Sender<Hint>);

impl Default for Hints {
    fn default() -> Self {
        Self(broadcast::channel(BACKLOG).0)
    }
}

impl Hints {
    /// All hints from now on: none between two of them is missed. (Too many at once are an error,
    /// which stands for [`Hint::All`].)
    pub(in crate::backend) fn subscribe(&self) -> broadcast::Receiver<Hint> {
        self.0.subscribe()
    }
}

#[cfg(not(all(test, shuttle)))]
impl Hints {
    pub(in crate::backend) fn announce(&self, hint: Hint) {
        // Fails when nobody listens, and then nobody has leases.
        let _ = self.0.send(hint);
    }

    pub(in crate::backend) async fn next(&self) -> Hint {
        // A hint between two calls is missed; the next renewal then tells instead.
        self.0.subscribe().recv().await.unwrap_or(Hint::All)
    }
}

/// shuttle has no such channel. A hint may be lost, so all of them are.
#[cfg(all(test, shuttle))]
impl Hints {
    pub(in crate::backend) fn announce(&self, _: Hint) {}

    pub(in crate::backend) async fn next(&self) -> Hint {
        std::future::pending().await
    }
}
