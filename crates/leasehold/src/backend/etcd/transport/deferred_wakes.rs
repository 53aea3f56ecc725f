//! Wakes that h2 does while it holds its own lock, put off until it has let go of it.
//!
//! Whoever is woken may run at once, or end (a task of a runtime that has ended is dropped where
//! it is woken), and then drops or asks for streams of the same connection: h2 would wait for
//! itself. So the wakers it gets only note who is to be woken, while it works on this thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

thread_local! {
    /// Who is to be woken later, while h2 works on this thread.
    static LATER: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
}

/// Lets h2 work on a connection, and wakes those whom that concerns when it is done.
pub(super) fn defer_wakes<T>(work: impl FnOnce() -> T) -> T {
    let before = LATER.try_with(|later| later.replace(Some(Vec::new()))).ok().flatten();
    // However it ends, they are woken.
    let _after = After(before);
    work()
}

struct After(Option<Vec<Waker>>);

impl Drop for After {
    fn drop(&mut self) {
        let before = self.0.take();
        let now = LATER.try_with(|later| later.replace(before)).ok().flatten();
        now.into_iter().flatten().for_each(Waker::wake);
    }
}

/// What such a waker does.
struct Deferring(Waker);

impl Wake for Deferring {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let put_off = LATER.try_with(|later| match &mut *later.borrow_mut() {
            Some(later) => {
                later.push(self.0.clone());
                true
            }
            None => false,
        });
        if put_off != Ok(true) {
            self.0.wake_by_ref();
        }
    }
}

/// A waker for h2 in place of this context's. Not kept by whoever polls: a future that has its
/// own waker would keep itself.
pub(super) fn deferring(cx: &Context<'_>) -> Waker {
    Arc::new(Deferring(cx.waker().clone())).into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn who_is_woken_meanwhile_is_woken_afterwards() {
        let count = Arc::<Count>::default();
        let waker = Waker::from(count.clone());
        let woken = || count.0.load(Ordering::SeqCst);
        let deferring = deferring(&Context::from_waker(&waker));
        deferring.wake_by_ref();
        assert_eq!(woken(), 1, "at once, when nobody works");
        defer_wakes(|| {
            deferring.wake_by_ref();
            defer_wakes(|| deferring.wake_by_ref());
            assert_eq!(woken(), 2, "only what was inside");
        });
        assert_eq!(woken(), 3);
    }
}
