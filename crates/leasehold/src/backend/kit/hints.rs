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
        let mut hints = self.0.subscribe();
        let first = hints.recv().await.unwrap_or(Hint::All);
        // Those that came together with it go with this call's end.
        if hints.is_empty() { first } else { Hint::All }
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::owner::Owner;

    #[tokio::test]
    async fn of_several_hints_at_once_none_is_lost() {
        let hints = Hints::default();
        let owner = Owner::random();
        for (others, expected) in [(0, Hint::Lease(owner)), (1, Hint::All), (200, Hint::All)] {
            let mut next = Box::pin(hints.next());
            assert!(
                next.as_mut()
                    .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
                    .is_pending()
            );
            hints.announce(Hint::Lease(owner));
            (0..others).for_each(|_| hints.announce(Hint::Lease(Owner::random())));
            assert_eq!(next.await, expected, "{others} others");
        }
    }
}
