//! The in-memory store: the reference implementation of the contract, for tests,
//! examples and tasks of one process. It is written for reading: one mutex, and
//! the same grant-on-release queue that the stores with a server have.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::kit::hints::Hints;
use super::{
    Backend, Changes, Claim, Finding, Force, ForceRelease, Grant, Hint, Hold, Limits, LockId,
    LockInfo, LockKind, Record, Release, Renewal, Reply, Turn, Verdict, Version, Watched, Written,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::guarantees::{Consistency, Guarantees, Scope};

use lock::Place;
use state::State;

mod lock;
mod records;
mod registry;
mod state;
mod table;

/// How often a waiter shows that it still waits.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a waiter that shows nothing keeps its place, and how long a grant
/// lasts that was pushed to a waiter who has not been heard of since.
const PATIENCE_WITH_WAITERS: Duration = Duration::from_secs(3);

/// Locks in the memory of this process. Clone the `Arc` to share them between clients.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    guarantees: Guarantees,
    state: Mutex<State>,
    hints: Hints,
}

impl MemoryStore {
    /// A store of its own.
    pub fn new(clock: Clock) -> Arc<Self> {
        let guarantees = Guarantees {
            consistency: Consistency::Linearizable,
            scope: Scope::Process,
            tokens: "a counter in memory, lifted to the wall clock in µs",
            fair: true,
            kinds: &[LockKind::Exclusive, LockKind::ReadWrite, LockKind::Semaphore],
            state: true,
            may_lose: &["the end of the process ends the store with all its locks"],
            ..Guarantees::of("memory")
        };
        Arc::new(Self {
            clock,
            guarantees,
            state: Mutex::new(State::default()),
            hints: Hints::default(),
        })
    }

    /// The store of this name, shared by all who ask for it in this process for as
    /// long as one of them keeps it.
    pub fn named(name: &str) -> Arc<Self> {
        registry::find_or_create(name, || Self::new(Clock::boot()))
    }

    fn answer<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&mut State, &Self) -> T + Send + 'static,
    ) -> Reply<T> {
        Box::pin(async move { Ok(self.step(|state| work(state, &self))) })
    }

    /// Takes a step under the mutex, and rings for those it concerns after that.
    fn step<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let done = work(&mut state);
        let bells = state.take_bells();
        drop(state);
        bells.iter().for_each(|bell| bell.notify_one());
        done
    }
}

impl Backend for MemoryStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn limits(&self) -> Limits {
        // A batch saves nothing here, and bounds how long the mutex is held.
        Limits::new(256, usize::MAX).together(256)
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        Box::pin(async move {
            check(&claims)?;
            let (now, clock) = (self.clock.now(), &self.clock);
            let claims = claims.into_iter();
            Ok(self.step(|state| claims.map(|claim| state.acquire(claim, now, clock)).collect()))
        })
    }

    fn acquire_all(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        Box::pin(async move {
            check(&claims)?;
            let now = self.clock.now();
            Ok(self.step(|state| state.acquire_all(claims, now, &self.clock)))
        })
    }

    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        Box::pin(async move {
            loop {
                let now = self.clock.now();
                let place = self.step(|state| state.look(&claim, now, &self.clock));
                let (bell, free_at) = match place {
                    Place::Granted(grant) => return Ok(Turn::Granted(grant)),
                    Place::Gone => return Ok(Turn::TryAgain),
                    Place::Waiting { bell, free_at } => (bell, free_at),
                };
                let look_again = free_at.min(now + HEARTBEAT);
                tokio::select! {
                    // A ring between the look and this line is kept by the bell.
                    () = bell.notified() => {}
                    () = self.clock.sleep_until(look_again) => {}
                }
            }
        })
    }

    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        self.answer(move |state, store| state.leave(&claim, store.clock.now(), &store.clock))
    }

    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        self.answer(move |state, store| {
            let now = store.clock.now();
            claims.iter().map(|claim| state.settle(claim, now, &store.clock)).collect()
        })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        self.answer(move |state, store| {
            let now = store.clock.now();
            holds.iter().map(|hold| state.renew(hold, now)).collect()
        })
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        self.answer(move |state, store| {
            let now = store.clock.now();
            holds.into_iter().map(|hold| state.release(hold, now, &store.clock)).collect()
        })
    }

    fn inspect(self: Arc<Self>, lock: LockId) -> Reply<Option<LockInfo>> {
        self.answer(move |state, store| state.inspect(&lock, store.clock.now()))
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        self.answer(move |state, store| state.list(&prefix, store.clock.now()))
    }

    fn force_release(self: Arc<Self>, lock: LockId, force: Force) -> Reply<ForceRelease> {
        Box::pin(async move {
            let now = self.clock.now();
            let (done, owners) =
                self.step(|state| state.force_release(&lock, force, now, &self.clock));
            owners.into_iter().for_each(|owner| self.hints.announce(Hint::Lease(owner)));
            Ok(done)
        })
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        self.answer(|_, _| {
            vec![Finding::warning(
                "locks live in the memory of this process",
                "other processes see none of them; use sqlite: for the processes of one machine",
            )]
        })
    }

    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(async move { Ok(self.hints.next().await) })
    }

    fn state(self: Arc<Self>) -> Option<Arc<dyn super::State>> {
        Some(self)
    }
}

impl super::State for MemoryStore {
    fn read(self: Arc<Self>, lock: LockId) -> Reply<Option<Record>> {
        self.answer(move |state, store| state.records.get(&lock, store.clock.now()).cloned())
    }

    fn write(
        self: Arc<Self>,
        hold: Hold,
        expected: Option<Version>,
        value: Arc<[u8]>,
        keep: Option<Duration>,
    ) -> Reply<Written> {
        Box::pin(async move {
            if !hold.mode.is_alone() {
                return Err(Error::invalid("a lease that shares its lock cannot write its record"));
            }
            let (most, len) = (<dyn super::State>::LONGEST, value.len());
            if len > most {
                let message = format!("a record has at most {most} bytes, this one {len}");
                return Err(Error::invalid(message));
            }
            let now = self.clock.now();
            let wall = self.clock.wall();
            Ok(self.step(|state| state.write(&hold, expected, value, keep, now, wall)))
        })
    }

    fn now(self: Arc<Self>) -> Reply<Option<SystemTime>> {
        self.answer(|_, store| Some(store.clock.wall()))
    }

    fn watch(self: Arc<Self>, what: Watched) -> Box<dyn Changes> {
        Box::new(self.step(|state| state.records.watch(what)))
    }
}

/// Refuses what no semaphore could grant.
fn check(claims: &[Claim]) -> Result<()> {
    let fits = |claim: &&Claim| (1..=claim.mode.capacity()).contains(&claim.mode.weight());
    match claims.iter().find(|claim| !fits(claim)) {
        None => Ok(()),
        Some(claim) => {
            let (weight, capacity) = (claim.mode.weight(), claim.mode.capacity());
            let message = format!("{weight} of {capacity} permits cannot be granted");
            Err(Error::invalid(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;
    use crate::holder::Holder;
    use crate::name::Name;

    struct Looks(Arc<MemoryStore>, AtomicBool);

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            self.1.store(self.0.state.try_lock().is_some(), Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn bells_are_rung_outside_the_mutex() {
        let store = MemoryStore::new(Clock::boot());
        let claim = || {
            let (name, holder) = (Name::new("x").unwrap(), Arc::new(Holder::new("host", 1, "me")));
            Claim { queue: true, ..Claim::new(name, Duration::from_secs(30), holder) }
        };
        let (first, second) = (claim(), claim());
        let granted = store.clone().acquire(vec![first.clone()]).await.unwrap();
        let [Verdict::Granted(grant)] = granted[..] else { panic!("{granted:?}") };
        let queued = store.clone().acquire(vec![second.clone()]).await.unwrap();
        assert!(matches!(queued[..], [Verdict::Queued(_)]), "{queued:?}");

        let looks = Arc::new(Looks(store.clone(), AtomicBool::new(false)));
        let waker = Waker::from(looks.clone());
        let mut context = Context::from_waker(&waker);
        let mut waiting = pin!(store.clone().wait(second));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        store.clone().release(vec![first.hold(grant.token)]).await.unwrap();
        assert!(looks.1.load(Ordering::SeqCst), "rung under the mutex");
        let turn = waiting.as_mut().poll(&mut context);
        assert!(matches!(turn, Poll::Ready(Ok(Turn::Granted(_)))), "{turn:?}");
    }
}
