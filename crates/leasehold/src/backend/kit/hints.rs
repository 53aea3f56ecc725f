//! Hints for the clients of one store, each of which waits on its own.

use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::backend::Hint;

/// How many hints may be on their way; a client that missed some asks about all its leases.
const BACKLOG: usize = 64;

/// The receivers are those that no client waits on just now: what comes meanwhile is for the next
/// call, so that nothing is lost between two calls of a client.
#[derive(Debug)]
pub(in crate::backend) struct Hints(broadcast::Sender<Hint>, Mutex<Vec<broadcast::Receiver<Hint>>>);

impl Default for Hints {
    fn default() -> Self {
        Self(broadcast::channel(BACKLOG).0, Mutex::default())
    }
}

impl Hints {
    /// All hints from now on. (Too many at once are an error, which stands for [`Hint::All`].)
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
        let unused = self.1.lock().pop();
        let mut receiver = unused.unwrap_or_else(|| self.0.subscribe());
        let hint = receiver.recv().await.unwrap_or(Hint::All);
        if hint == Hint::All {
            // The client asks about all its leases: what was announced until now is among them.
            receiver = receiver.resubscribe();
        }
        self.1.lock().push(receiver);
        hint
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

#[cfg(all(test, not(shuttle), feature = "remote"))]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::owner::Owner;

    /// Sessions end together: the second was announced while a client was busy with the first.
    #[tokio::test]
    async fn a_hint_between_two_calls_of_a_client_is_not_lost() {
        let (hints, one) = (Hints::default(), Hint::Lease(Owner::random()));
        let (mut first, mut second) = (Box::pin(hints.next()), Box::pin(hints.next()));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        hints.announce(one);
        assert_eq!((first.await, second.await), (one, one));
        hints.announce(Hint::All);
        hints.announce(one);
        assert_eq!(hints.next().await, Hint::All);
        let mut again = Box::pin(hints.next());
        assert!((&mut again).now_or_never().is_none(), "it asks about all leases since");
        assert_eq!(hints.next().await, Hint::All, "the other client");
    }
}
