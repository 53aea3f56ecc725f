//! A store under test, its clients, and the passing of time.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use leasehold::backend::Backend;
use leasehold::clock::{Clock, ManualClock};
use leasehold::failpoint::Failpoints;
use leasehold::{Event, EventKind, Events, Guarantees, Lock, Locks};
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::faulty_backend::FaultyBackend;
use crate::mutants::Mutant;

/// A connection to be.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Arc<dyn Backend>> + Send + 'a>>;

/// A store as a case sees it: something that clients can be opened on.
pub trait StoreUnderTest: fmt::Debug + Send + Sync {
    /// A new connection to the one store, on this clock.
    fn open(&self, clock: Clock) -> Opening<'_>;

    /// Whose time the store's leases run on.
    fn time(&self) -> Time {
        Time::Turned
    }

    /// How much longer than its TTL a lease may last that nobody renews.
    fn lag(&self) -> Duration {
        Duration::ZERO
    }
}

/// How time passes around a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// As the case turns the clock, which stands still while the case waits for something: a
    /// store that asks its server again and again sleeps by tokio's clock in between.
    Turned,
    /// As it does: a server has a clock of its own. A fixture in real time wants a runtime
    /// with one thread, so that a case can stop everything that its clients do.
    Real,
}

/// One store, and everything that happens around it in one case.
#[derive(Debug)]
pub struct Fixture {
    store: Arc<dyn StoreUnderTest>,
    time: Time,
    hand: Arc<ManualClock>,
    mutant: Option<Mutant>,
    names: AtomicU64,
    backends: Mutex<Vec<Weak<FaultyBackend>>>,
}

/// A client of the store, and the faulty backend it speaks through.
#[derive(Debug)]
pub struct Client {
    /// The client.
    pub locks: Locks,
    /// Its way to the store, where faults are ordered.
    pub faults: Arc<FaultyBackend>,
    /// The store as the client sees it, faults included.
    pub store: Arc<dyn Backend>,
    ttl: Duration,
}

impl Fixture {
    /// How long a case waits, in real time, for what must happen.
    pub const BOUND: Duration = Duration::from_secs(15);

    /// A fixture around a store; with a mutant, everything in it is wrong in one way.
    pub fn new(store: impl Into<Arc<dyn StoreUnderTest>>, mutant: Option<Mutant>) -> Self {
        let store = store.into();
        Self {
            time: store.time(),
            store,
            hand: Arc::new(ManualClock::new()),
            mutant,
            names: AtomicU64::new(0),
            backends: Mutex::default(),
        }
    }

    /// What the store promises.
    pub async fn guarantees(&self) -> Guarantees {
        self.store.open(self.clock()).await.guarantees().clone()
    }

    /// The TTL of the leases in the cases.
    pub fn ttl(&self) -> Duration {
        match self.time {
            Time::Turned => Duration::from_secs(2),
            // Long enough for a busy machine to renew in time.
            Time::Real => Duration::from_secs(3),
        }
    }

    /// How late something may be that a timer does.
    pub fn tolerance(&self) -> Duration {
        match self.time {
            Time::Turned => Duration::from_millis(20),
            Time::Real => Duration::from_secs(1),
        }
    }

    /// The clock of everything in this fixture.
    pub fn clock(&self) -> Clock {
        match self.time {
            Time::Turned => Clock::manual(self.hand.clone()),
            Time::Real => Clock::boot(),
        }
    }

    /// Turns the clock on at once, without a pause for what happens meanwhile.
    pub async fn advance(&self, duration: Duration) {
        match self.time {
            Time::Turned => self.hand.advance(duration),
            Time::Real => tokio::time::sleep(duration).await,
        }
    }

    /// Lets time pass in which this process does nothing at all, as if it were stopped.
    pub fn stop(&self, duration: Duration) {
        match self.time {
            Time::Turned => self.hand.advance(duration),
            Time::Real => std::thread::sleep(duration),
        }
    }

    /// Sets the wall clock, if it can be set: a server's own is set by libfaketime, in the
    /// tests of that store.
    pub fn set_wall(&self, wall: SystemTime) {
        if self.time == Time::Turned {
            self.hand.set_wall(wall);
        }
    }

    /// Lets a lease end that nobody renews, on both sides.
    pub async fn pass_ttl(&self) {
        self.pass(self.ttl() + self.store.lag()).await;
    }

    /// The name of a lock that no case has used.
    pub fn name(&self) -> String {
        let count = self.names.fetch_add(1, Ordering::Relaxed);
        format!("case:{}:{count}", leasehold::Owner::random())
    }

    /// A new client, with a connection of its own.
    pub async fn client(&self) -> Client {
        self.client_with_timeout(Duration::from_secs(2)).await
    }

    /// A client that waits for an answer longer than a lease lasts.
    pub async fn patient_client(&self) -> Client {
        self.client_with_timeout(Self::BOUND).await
    }

    /// A client that soon counts a request as unanswered.
    pub async fn impatient_client(&self) -> Client {
        self.client_with_timeout(Duration::from_millis(300)).await
    }

    async fn client_with_timeout(&self, timeout: Duration) -> Client {
        let faults = FaultyBackend::new(self.store.open(self.clock()).await);
        self.backends.lock().push(Arc::downgrade(&faults));
        let failpoints = Failpoints::default();
        let store = match &self.mutant {
            Some(mutant) => mutant.spoil(faults.clone(), &failpoints),
            None => faults.clone(),
        };
        let connect =
            Locks::on(store.clone()).failpoints(failpoints).label("case").request_timeout(timeout);
        let locks = connect.await.expect("connects inside a runtime");
        Client { locks, faults, store, ttl: self.ttl() }
    }

    /// Lets time pass, in steps small enough for timers to do their work, and never faster
    /// than those who have something to do: on a busy machine the clock waits for them.
    pub async fn pass(&self, duration: Duration) {
        const STEP: Duration = Duration::from_millis(100);
        if self.time == Time::Real {
            return tokio::time::sleep(duration).await;
        }
        let mut left = duration;
        while !left.is_zero() {
            let step = left.min(STEP);
            self.hand.advance(step);
            left -= step;
            self.settle_down().await;
        }
    }

    /// Lets time pass until the client's next renewal has been answered.
    pub async fn pass_until_renewed(&self, events: &mut Events) {
        self.pass_until(events, |kind| matches!(kind, EventKind::Renewed)).await;
    }

    /// Lets time pass until an event that is `wanted`.
    pub async fn pass_until(
        &self,
        events: &mut Events,
        wanted: impl Fn(&EventKind) -> bool,
    ) -> Event {
        if self.time == Time::Real {
            return next_event(events, wanted).await;
        }
        let passing = async {
            loop {
                self.hand.advance(Duration::from_millis(20));
                self.settle_down().await;
            }
        };
        tokio::select! {
            event = next_event(events, wanted) => event,
            () = passing => unreachable!("passes for ever"),
        }
    }

    /// Lets everybody do what is due, and get the answers to what they ask.
    pub async fn settle_down(&self) {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        // Stores with threads and sockets of their own need real time, if little.
        let resting = async {
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if !self.is_busy() {
                    return;
                }
            }
        };
        within_bound("a moment of rest", resting).await;
    }

    /// Whether a request is under way, or a task of the runtime could run.
    fn is_busy(&self) -> bool {
        let backends = self.backends.lock();
        backends.iter().filter_map(Weak::upgrade).any(|backend| backend.is_busy()) || has_work()
    }
}

/// Whether a task is ready but has no thread yet, or a worker has not gone to rest. (With
/// one thread there is no such thing: whoever yields lets all the others run.)
fn has_work() -> bool {
    let runtime = Handle::current();
    if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
        return false;
    }
    let metrics = runtime.metrics();
    // In this order: a worker is up before it takes a task from the queue. It has gone to
    // rest as often as it got up, and once more.
    let rests = |worker| metrics.worker_park_unpark_count(worker) % 2 == 1;
    metrics.global_queue_depth() > 0 || !(0..metrics.num_workers()).all(rests)
}

impl Client {
    /// A lock with the TTL of the cases.
    pub fn lock(&self, name: &str) -> Lock {
        self.locks.lock(name).ttl(self.ttl)
    }
}

/// The next event that is `wanted`, within the bound.
pub async fn next_event(events: &mut Events, mut wanted: impl FnMut(&EventKind) -> bool) -> Event {
    let searching = async {
        loop {
            let event = events.next().await.expect("the client lives");
            if wanted(&event.kind) {
                return event;
            }
        }
    };
    within_bound("an event", searching).await
}

/// Waits until `done` says so, within the bound.
pub async fn eventually<F: Future<Output = bool>>(what: &str, done: impl Fn() -> F) {
    let waiting = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within_bound(what, waiting).await;
}

/// What a future gives, which must be within the bound.
pub async fn within_bound<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Fixture::BOUND, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not happen within {:?}", Fixture::BOUND),
    }
}
