//! Tasks of one client that want the same lock queue here, so that the store sees
//! one waiter per client and lock, and clients are served in the order they came.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::name::{Name, NameMap};

#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    /// A name is present while somebody has its pass; behind it, who comes next.
    queues: Mutex<NameMap<VecDeque<oneshot::Sender<()>>>>,
}

/// The right to ask the store for a lock. Dropping it lets the next task ask.
#[derive(Debug)]
pub(crate) struct Pass {
    turnstile: Arc<Turnstile>,
    name: Name,
}

impl Turnstile {
    /// Waits for this task's turn. Dropping the future leaves the queue.
    pub(crate) async fn enter(self: &Arc<Self>, name: &Name) -> Pass {
        if let Some(turn) = self.join(name) {
            Place { turnstile: self, name, turn }.reached().await;
        }
        Pass { turnstile: self.clone(), name: name.clone() }
    }

    fn join(&self, name: &Name) -> Option<oneshot::Receiver<()>> {
        match self.queues.lock().entry(name.clone()) {
            Entry::Vacant(nobody) => {
                nobody.insert(VecDeque::new());
                None
            }
            Entry::Occupied(mut queue) => {
                let (sender, turn) = oneshot::channel();
                queue.get_mut().push_back(sender);
                Some(turn)
            }
        }
    }

    /// Gives the turn to the next task that still wants it.
    fn hand_on(&self, name: &Name) {
        // Outside of the lock: a waker may come here again (an executor that polls inside
        // `wake`).
        while let Some(next) = self.next(name) {
            if next.send(()).is_ok() {
                return;
            }
        }
    }

    /// Who comes next; if nobody does, the name is forgotten.
    fn next(&self, name: &Name) -> Option<oneshot::Sender<()>> {
        let mut queues = self.queues.lock();
        let Entry::Occupied(mut queue) = queues.entry(name.clone()) else { return None };
        let next = queue.get_mut().pop_front();
        if next.is_none() {
            queue.remove();
        }
        next
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.turnstile.hand_on(&self.name);
    }
}

/// A place in the queue.
struct Place<'a> {
    turnstile: &'a Turnstile,
    name: &'a Name,
    turn: oneshot::Receiver<()>,
}

impl Place<'_> {
    async fn reached(mut self) {
        // Senders are dropped only after they were used. Once received, the drop
        // below finds the channel empty and hands nothing on.
        let _ = (&mut self.turn).await;
    }
}

impl Drop for Place<'_> {
    /// A turn that came just as the task gave up goes to the next one.
    fn drop(&mut self) {
        self.turn.close();
        if self.turn.try_recv().is_ok() {
            self.turnstile.hand_on(self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;
    use crate::callers::{Callers, polls, seeds};

    fn name() -> Name {
        Name::new("x").unwrap()
    }

    async fn poll_once(future: &mut (impl Future + Unpin)) -> bool {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_ready())
        })
        .await
    }

    #[tokio::test]
    async fn serves_in_order_and_forgets_the_name() {
        let turnstile = Arc::new(Turnstile::default());
        let name = name();
        let first = turnstile.enter(&name).await;
        let mut second = Box::pin(turnstile.enter(&name));
        let mut third = Box::pin(turnstile.enter(&name));
        assert!(!poll_once(&mut second).await);
        assert!(!poll_once(&mut third).await);
        drop(first);
        let second = second.await;
        assert!(!poll_once(&mut third).await);
        drop(second);
        drop(third.await);
        assert!(turnstile.queues.lock().is_empty());
    }

    #[tokio::test]
    async fn a_turn_given_to_a_task_that_gives_up_is_handed_on() {
        let turnstile = Arc::new(Turnstile::default());
        let name = name();
        let first = turnstile.enter(&name).await;
        let mut quitter = Box::pin(turnstile.enter(&name));
        let mut third = Box::pin(turnstile.enter(&name));
        assert!(!poll_once(&mut quitter).await);
        assert!(!poll_once(&mut third).await);
        drop(first);
        drop(quitter);
        drop(third.await);
        assert!(turnstile.queues.lock().is_empty());
    }

    #[test]
    fn a_turn_is_told_outside_the_lock() {
        struct Looks(Arc<Turnstile>, AtomicBool);
        impl Wake for Looks {
            fn wake(self: Arc<Self>) {
                self.1.store(self.0.queues.try_lock().is_some(), Ordering::SeqCst);
            }
        }
        let turnstile = Arc::new(Turnstile::default());
        let looks = Arc::new(Looks(turnstile.clone(), AtomicBool::new(false)));
        let waker = Waker::from(looks.clone());
        let (name, mut context) = (name(), Context::from_waker(&waker));
        let Poll::Ready(first) = pin!(turnstile.enter(&name)).poll(&mut context) else {
            panic!("nobody was before it");
        };
        let mut second = pin!(turnstile.enter(&name));
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(looks.1.load(Ordering::SeqCst), "woken under the lock");
    }

    /// Whoever is polled when or gives up: nobody is stuck, and no name is left.
    #[test]
    fn no_schedule_loses_a_pass() {
        for seed in seeds() {
            let turnstile = Arc::new(Turnstile::default());
            let mut callers = Callers::new(seed);
            for _ in 0..200 {
                match callers.dice.u8(..8) {
                    0 | 1 => {
                        let name = Name::new(callers.dice.u8(..3).to_string()).unwrap();
                        let (times, turnstile) = (callers.dice.u8(..4), &turnstile);
                        callers.add(async move {
                            let _pass = turnstile.enter(&name).await;
                            polls(times).await;
                        });
                    }
                    2 => callers.drop_one(),
                    _ => {
                        callers.poll_one();
                    }
                }
            }
            while callers.poll_one() {}
            assert_eq!(callers.len(), 0, "seed {seed}: tasks wait, and nobody wakes them");
            assert!(turnstile.queues.lock().is_empty(), "seed {seed}: a name is left");
        }
    }
}
