//! Work that begins where its caller is, and goes on in a task of its own.
//!
//! A task that is spawned is polled once more before there is anything to do, and takes the
//! place of the task that has (a driver that was just given something to send): that one is
//! then sent to another thread, which is woken for it. So work that waits for an answer gets
//! its task when the answer is there.

use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tokio::runtime::Handle;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls this once, here; the rest is done by a task of that runtime, whether or not the
/// caller is still there. A panic ends the work, not its caller.
pub(crate) fn begin(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    let mut work: Work = Box::pin(work);
    let state = Mutex::new(State::Beginning { woken: false });
    let asleep = Arc::new(Asleep { runtime: runtime.clone(), state });
    let waker = Waker::from(asleep.clone());
    let _inside = runtime.enter();
    let polled = panic::catch_unwind(AssertUnwindSafe(|| {
        work.as_mut().poll(&mut Context::from_waker(&waker))
    }));
    if let Ok(Poll::Pending) = polled {
        asleep.fall_asleep(work);
    }
}

/// Work that waits for something. Whatever it waits for has its waker, and so keeps it.
struct Asleep {
    runtime: Handle,
    state: Mutex<State>,
}

enum State {
    /// It is polled for the first time; perhaps it was woken meanwhile.
    Beginning {
        woken: bool,
    },
    Waiting(Work),
    Awake,
}

impl Asleep {
    fn fall_asleep(&self, work: Work) {
        let mut state = self.state.lock();
        if let State::Beginning { woken: true } = *state {
            *state = State::Awake;
            drop(state);
            self.runtime.spawn(work);
        } else {
            *state = State::Waiting(work);
        }
    }
}

impl Wake for Asleep {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if let State::Beginning { woken } = &mut *state {
            *woken = true;
            return;
        }
        let woken = std::mem::replace(&mut *state, State::Awake);
        // A runtime that has ended drops the work here, and that may wake this again.
        drop(state);
        if let State::Waiting(work) = woken {
            self.runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn it_goes_on_without_its_caller() {
        let (go, gone) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        begin(&Handle::current(), async move {
            gone.await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            tell.send("done").unwrap();
        });
        go.send(()).unwrap();
        assert_eq!(told.await, Ok("done"));
    }

    #[tokio::test]
    async fn it_may_be_woken_while_it_begins() {
        let (tell, told) = oneshot::channel();
        begin(&Handle::current(), async move {
            tokio::task::yield_now().await;
            let mut first = true;
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if std::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            tell.send("done").unwrap();
        });
        assert_eq!(told.await, Ok("done"));
    }

    #[tokio::test]
    async fn a_panic_is_not_its_callers() {
        let (tell, told) = oneshot::channel::<()>();
        begin(&Handle::current(), async move {
            let _tell = tell;
            panic!("on purpose");
        });
        assert!(told.await.is_err());
    }

    /// Its timers are those of the runtime that it goes on in.
    #[test]
    fn it_begins_outside_of_a_runtime() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (tell, told) = oneshot::channel();
        begin(runtime.handle(), async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tell.send("done").unwrap();
        });
        assert_eq!(told.blocking_recv(), Ok("done"));
    }

    #[test]
    fn a_runtime_that_ends_drops_it() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (tell, told) = oneshot::channel::<()>();
        begin(runtime.handle(), async move {
            tokio::time::sleep(Duration::from_secs(3_600)).await;
            drop(tell);
        });
        drop(runtime);
        assert!(told.blocking_recv().is_err());
    }
}
