//! Detach on drop: a future that is polled by its caller, and goes on in a task of its own when
//! the caller is gone.
//!
//! A task for each request to a store would have to be made and scheduled, and then to wake its
//! caller, which is scheduled in turn. So the caller polls the work: that is [`DetachOnDrop`]. The
//! work is *detached*, and goes on by itself, when its caller drops it, and when others may depend
//! on it: at once where they know that they do, and otherwise after a tick or two. (A caller may
//! keep its future and not poll it, and with it what everybody needs: a connection that is being
//! made.) So a client's [`Detacher`] begins all its work, and knows what still depends on a caller.
//!
//! Detached work is spawned on its next wake: a task that is spawned is polled at once, and would
//! take the place of one that has something to do (the driver that is to send it).
//!
//! ```text
//!            polled                 woken
//!   (begin) ───────▶ Busy ─▶ Asleep ─────▶ Awake ── attached: its caller polls it ──▶ Busy
//!                     │                      └───── detached: a task takes it ──────▶ Away
//!                     └─ ready, or panicked ─▶ Over ◀── the task ends, however it does ─┘
//! ```

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;

use crate::runtime::enter;

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How long work depends on its caller: for one of these at least, for two at most.
const TICK: Duration = Duration::from_millis(50);

/// Starts the work of one client, and detaches it.
#[derive(Debug)]
pub(crate) struct Detacher {
    runtime: Handle,
    attached: Arc<Mutex<Attached>>,
}

/// The work that depends on its callers, and perhaps some that is over.
#[derive(Default)]
struct Attached {
    young: Vec<Weak<dyn Detach>>,
    /// What was there at the last tick.
    old: Vec<Weak<dyn Detach>>,
    ticking: bool,
}

/// Work under way, and its result: `None` if it panicked, or its runtime ended. When this is
/// dropped the work goes on.
pub(crate) struct DetachOnDrop<T: Send + 'static>(Arc<Shared<T>>);

struct Shared<T> {
    runtime: Handle,
    state: Mutex<State<T>>,
}

struct State<T> {
    stage: Stage<T>,
    /// The caller, who waits for the result and polls the work unless it is detached.
    waiter: Option<Waker>,
    detached: bool,
}

enum Stage<T> {
    /// It waits for something; that has its waker, and so keeps it.
    Asleep(Work<T>),
    /// It was woken, and not polled since.
    Awake(Work<T>),
    /// It is just polled; perhaps it was woken meanwhile.
    Busy {
        woken: bool,
    },
    /// A task has it.
    Away,
    Over(Option<T>),
}

impl Detacher {
    /// For a client on this runtime.
    pub(crate) fn on(runtime: Handle) -> Self {
        Self { runtime, attached: Arc::default() }
    }

    /// Begins this work: polls it once, here. A panic ends the work, not its caller.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> DetachOnDrop<T> {
        let state = State { stage: Stage::Busy { woken: false }, waiter: None, detached: false };
        let runtime = self.runtime.clone();
        let shared = Arc::new(Shared { runtime, state: Mutex::new(state) });
        let _inside = enter(&self.runtime);
        shared.step(Box::pin(work));
        if !matches!(shared.state.lock().stage, Stage::Over(_)) {
            self.look_after(&shared);
        }
        DetachOnDrop(shared)
    }

    /// Detaches all work: none depends on its caller any more.
    pub(crate) fn detach_all(&self) {
        let (young, old) = {
            let mut attached = self.attached.lock();
            (std::mem::take(&mut attached.young), std::mem::take(&mut attached.old))
        };
        detach(young.into_iter().chain(old));
    }

    fn look_after<T: Send + 'static>(&self, work: &Arc<Shared<T>>) {
        let mut attached = self.attached.lock();
        if attached.young.len() == attached.young.capacity() {
            attached.young.retain(|work| work.strong_count() > 0);
        }
        let work = Arc::downgrade(work);
        attached.young.push(work);
        if !std::mem::replace(&mut attached.ticking, true) {
            drop(attached);
            self.runtime.spawn(tick(Arc::downgrade(&self.attached)));
        }
    }
}

/// Detaches what has been attached for long. Ends when nothing is.
async fn tick(attached: Weak<Mutex<Attached>>) {
    loop {
        tokio::time::sleep(TICK).await;
        let Some(attached) = attached.upgrade() else { return };
        let long = {
            let mut attached = attached.lock();
            let young = std::mem::take(&mut attached.young);
            let long = std::mem::replace(&mut attached.old, young);
            if long.is_empty() && attached.old.is_empty() {
                attached.ticking = false;
                return;
            }
            long
        };
        detach(long.into_iter());
    }
}

fn detach(all: impl Iterator<Item = Weak<dyn Detach>>) {
    all.filter_map(|work| work.upgrade()).for_each(|work| work.detach());
}

trait Detach: Send + Sync {
    fn detach(self: Arc<Self>);
}

impl<T: Send + 'static> Detach for Shared<T> {
    fn detach(self: Arc<Self>) {
        let mut state = self.state.lock();
        state.detached = true;
        self.go_on(state);
    }
}

impl<T: Send + 'static> DetachOnDrop<T> {
    /// From now on it does not depend on its caller.
    pub(crate) fn detach(&self) {
        self.0.clone().detach();
    }
}

impl<T: Send + 'static> Future for DetachOnDrop<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let shared = &self.0;
        let awake = shared.state.lock().take_awake();
        if let Some((work, before)) = awake {
            // The caller that polls it needs no wake-up.
            drop(before);
            shared.step(work);
        }
        let waiter = cx.waker().clone();
        let mut state = shared.state.lock();
        if let Stage::Over(result) = &mut state.stage {
            return Poll::Ready(result.take());
        }
        let lets_others_run = matches!(state.stage, Stage::Awake(_));
        let before = state.waiter.replace(waiter);
        // Not under the lock: a waker is foreign code.
        drop(state);
        drop(before);
        if lets_others_run {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<T: Send + 'static> Drop for DetachOnDrop<T> {
    fn drop(&mut self) {
        self.detach();
    }
}

impl<T> State<T> {
    /// The work if it is awake, and who waited for that before.
    fn take_awake(&mut self) -> Option<(Work<T>, Option<Waker>)> {
        match std::mem::replace(&mut self.stage, Stage::Busy { woken: false }) {
            Stage::Awake(work) => Some((work, self.waiter.take())),
            stage => {
                self.stage = stage;
                None
            }
        }
    }
}

impl<T: Send + 'static> Shared<T> {
    /// Polls it; the stage is [`Stage::Busy`].
    fn step(self: &Arc<Self>, mut work: Work<T>) {
        let waker = Waker::from(self.clone());
        let polled = panic::catch_unwind(AssertUnwindSafe(|| {
            work.as_mut().poll(&mut Context::from_waker(&waker))
        }));
        match polled {
            Ok(Poll::Pending) => {
                let mut state = self.state.lock();
                let woken = matches!(state.stage, Stage::Busy { woken: true });
                state.stage = if woken { Stage::Awake(work) } else { Stage::Asleep(work) };
                self.go_on(state);
            }
            Ok(Poll::Ready(result)) => self.end(Some(result)),
            Err(_) => self.end(None),
        }
    }

    /// Has it polled if it is awake: by a task if it is detached, otherwise by its caller.
    fn go_on(self: &Arc<Self>, mut state: MutexGuard<'_, State<T>>) {
        if !matches!(state.stage, Stage::Awake(_)) {
            return;
        }
        if !state.detached {
            let waiter = state.waiter.take();
            drop(state);
            waiter.inspect(Waker::wake_by_ref);
            return;
        }
        let Stage::Awake(work) = std::mem::replace(&mut state.stage, Stage::Away) else { return };
        drop(state);
        let ending = Ending(self.clone());
        // A runtime that has ended drops it here.
        self.runtime.spawn(async move {
            let result = work.await;
            ending.0.end(Some(result));
        });
    }

    fn end(&self, result: Option<T>) {
        let mut state = self.state.lock();
        if let Stage::Over(_) = state.stage {
            return;
        }
        state.stage = Stage::Over(result);
        let waiter = state.waiter.take();
        drop(state);
        waiter.inspect(Waker::wake_by_ref);
    }
}

impl<T: Send + 'static> Wake for Shared<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.state.lock();
        match std::mem::replace(&mut state.stage, Stage::Away) {
            Stage::Asleep(work) => {
                state.stage = Stage::Awake(work);
                self.go_on(state);
            }
            Stage::Busy { .. } => state.stage = Stage::Busy { woken: true },
            stage => state.stage = stage,
        }
    }
}

/// However its task ends, whoever waits is told.
struct Ending<T: Send + 'static>(Arc<Shared<T>>);

impl<T: Send + 'static> Drop for Ending<T> {
    fn drop(&mut self) {
        self.0.end(None);
    }
}

impl<T: Send + 'static> fmt::Debug for DetachOnDrop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DetachOnDrop")
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attached").field(&(self.young.len() + self.old.len())).finish()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
    }

    fn here() -> Detacher {
        Detacher::on(Handle::current())
    }

    /// Something to wait for twice, and what it says in the end.
    async fn two_steps(first: oneshot::Receiver<()>) -> &'static str {
        first.await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        "done"
    }

    #[tokio::test]
    async fn who_waits_for_it_does_it_in_place() {
        let (go, gone) = oneshot::channel();
        let work = here().begin(async move {
            gone.await.unwrap();
            tokio::task::id()
        });
        go.send(()).unwrap();
        let here = tokio::spawn(async move { (work.await, tokio::task::id()) });
        let (done_by, waiter) = here.await.unwrap();
        assert_eq!(done_by, Some(waiter));
    }

    #[tokio::test]
    async fn it_goes_on_without_its_caller() {
        let (go, gone) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let work = async move { tell.send(two_steps(gone).await) };
        drop(here().begin(work));
        go.send(()).unwrap();
        assert_eq!(told.await, Ok("done"));
    }

    /// The caller is there, and does not poll: it goes on all the same, sooner or later.
    #[tokio::test]
    async fn detached_it_goes_on_whoever_waits() {
        for (at_once, woken_before) in [(true, false), (true, true), (false, false), (false, true)]
        {
            let detacher = here();
            let (go, gone) = oneshot::channel();
            let (tell, told) = oneshot::channel();
            let mut work = detacher.begin(async move { tell.send(two_steps(gone).await) });
            let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut work).poll(cx).is_ready()));
            assert!(!polled.await);
            let mut go = Some(go);
            let mut wake = |now: bool| {
                if let Some(go) = go.take_if(|_| now) {
                    go.send(()).unwrap();
                }
            };
            wake(woken_before);
            if at_once {
                detacher.detach_all();
            }
            wake(true);
            assert_eq!(told.await, Ok("done"));
            assert_eq!(work.await, Some(Ok(())), "its result is still for its caller");
        }
    }

    /// Others wait for it: not for a tick as well.
    #[tokio::test(start_paused = true)]
    async fn detached_with_all_the_others_it_goes_on_at_once() {
        let (detacher, began) = (here(), tokio::time::Instant::now());
        let (tell, told) = oneshot::channel();
        let _work = detacher.begin(async move {
            tokio::task::yield_now().await;
            tell.send(()).unwrap();
        });
        detacher.detach_all();
        told.await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    /// Those that are over are forgotten where the room is used up, and only those.
    #[tokio::test(start_paused = true)]
    async fn however_many_there_are_each_goes_on_without_its_caller() {
        let detacher = here();
        let (mut kept, mut told) = (Vec::new(), tokio::task::JoinSet::new());
        for _ in 0..40 {
            drop(detacher.begin(std::future::pending::<()>()));
            let (tell, done) = oneshot::channel();
            kept.push(detacher.begin(async move {
                tokio::task::yield_now().await;
                tell.send(()).unwrap();
            }));
            told.spawn(done);
        }
        let all = tokio::time::timeout(Duration::from_secs(1), told.join_all()).await;
        assert!(all.is_ok_and(|told| told.iter().all(Result::is_ok)), "forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_ticks_where_nothing_is_attached() {
        let detacher = here();
        let ticking = || detacher.attached.lock().ticking;
        for _ in 0..2 {
            assert_eq!(detacher.begin(tokio::time::sleep(TICK / 2)).await, Some(()));
            assert!(ticking());
            tokio::time::sleep(4 * TICK).await;
            assert!(!ticking());
        }
    }

    #[tokio::test]
    async fn it_may_be_woken_while_it_is_polled() {
        let work = || async {
            tokio::task::yield_now().await;
            let mut first = true;
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if std::mem::take(&mut first) { Poll::Pending } else { Poll::Ready("done") }
            })
            .await
        };
        assert_eq!(here().begin(work()).await, Some("done"));
        let (tell, told) = oneshot::channel();
        drop(here().begin(async move { tell.send(work().await) }));
        assert_eq!(told.await, Ok("done"));
    }

    #[tokio::test]
    async fn a_panic_is_not_its_callers() {
        let panics = |at_once: bool| async move {
            if !at_once {
                tokio::task::yield_now().await;
            }
            panic!("on purpose");
        };
        for at_once in [true, false] {
            let work: DetachOnDrop<()> = here().begin(panics(at_once));
            assert_eq!(work.await, None);
            let work: DetachOnDrop<()> = here().begin(panics(at_once));
            work.detach();
            assert_eq!(work.await, None);
        }
    }

    /// Its timers are those of the runtime that it goes on in.
    #[test]
    fn it_begins_outside_of_a_runtime() {
        let runtime = runtime();
        let (tell, told) = oneshot::channel();
        drop(Detacher::on(runtime.handle().clone()).begin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tell.send("done").unwrap();
        }));
        assert_eq!(told.blocking_recv(), Ok("done"));
    }

    #[test]
    fn a_runtime_that_ends_drops_it_and_tells() {
        let ended = runtime();
        let (tell, told) = oneshot::channel::<()>();
        let work = Detacher::on(ended.handle().clone()).begin(async move {
            tokio::time::sleep(Duration::from_secs(3_600)).await;
            drop(tell);
        });
        work.detach();
        drop(ended);
        assert!(told.blocking_recv().is_err());
        assert_eq!(runtime().block_on(work), None);
    }
}
