//! The in-memory store: the reference implementation of the contract, for tests,
//! examples and tasks of one process. It is written for reading: one mutex, and
//! the same grant-on-release queue that the stores with a server have.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::hints::Hints;
use super::{
    Backend, Claim, Finding, Hint, Hold, Limits, LockInfo, Release, Renewal, Reply, Severity, Turn,
    Verdict,
};
use crate::backend::Grant;
use crate::clock::Clock;
use crate::guarantees::{Consistency, Guarantees, Scope};
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

use state::{Place, State};

mod registry;
mod state;

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
        Box::pin(async move {
            let mut state = self.state.lock();
            Ok(work(&mut state, &self))
        })
    }
}

impl Backend for MemoryStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn limits(&self) -> Limits {
        // A batch saves nothing here, and bounds how long the mutex is held.
        Limits::new(256, usize::MAX)
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        self.answer(|state, store| {
            let now = store.clock.now();
            claims.into_iter().map(|claim| state.acquire(claim, now, &store.clock)).collect()
        })
    }

    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        Box::pin(async move {
            loop {
                let now = self.clock.now();
                let place = self.state.lock().look(&claim, now, &self.clock);
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
            claims.iter().map(|claim| state.settle(claim, now)).collect()
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

    fn inspect(self: Arc<Self>, name: Name) -> Reply<Option<LockInfo>> {
        self.answer(move |state, store| state.inspect(&name, store.clock.now()))
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        self.answer(move |state, store| state.list(&prefix, store.clock.now()))
    }

    fn force_release(self: Arc<Self>, name: Name, forced: Forced) -> Reply<Option<Token>> {
        self.answer(move |state, store| {
            let (owner, token) =
                state.force_release(&name, forced, store.clock.now(), &store.clock)?;
            store.hints.announce(Hint::Lease(owner));
            Some(token)
        })
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        self.answer(|_, _| {
            vec![Finding::new(
                Severity::Warning,
                "locks live in the memory of this process",
                "other processes see none of them; use sqlite: for the processes of one machine",
            )]
        })
    }

    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(async move { Ok(self.hints.next().await) })
    }
}
