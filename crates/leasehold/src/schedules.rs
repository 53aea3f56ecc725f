//! The client under shuttle's scheduler: tasks are switched at every mutex, channel and notification,
//! in an order drawn at random, and no timer ever fires by itself. A wake-up that is lost is a
//! deadlock, which shuttle reports with the schedule that leads there.
//!
//! `scripts/schedules` runs these: the whole library is built with `--cfg shuttle`, where
//! `tokio` and `parking_lot` are shuttle's. `SCHEDULES=100000` tries more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, yield_now};

use crate::backend::memory::MemoryStore;
use crate::backend::{
    Backend, Claim, Finding, Force, ForceRelease, Grant, Hold, Limits, LockId, LockInfo, Release,
    Renewal, Reply, Turn, Verdict,
};
use crate::clock::{Clock, ManualClock};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{EventKind, Events};
use crate::guarantees::Guarantees;
use crate::lease::LeaseState;
use crate::locks::Locks;
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(3_600);

/// Tries many schedules that switch at random, and as many with few but nasty switches.
fn try_schedules<F: Future<Output = ()> + 'static>(play: fn() -> F) {
    let schedules = std::env::var("SCHEDULES").ok();
    let schedules = schedules.map_or(1_000, |text| text.parse().expect("SCHEDULES: a number"));
    let run = move || {
        shuttle::future::block_on(async move {
            play().await;
            // What still runs comes to rest: shuttle cannot end tasks within a mutex.
            for _ in 0..300 {
                yield_now().await;
            }
        });
    };
    shuttle::check_random(run, schedules);
    shuttle::check_pct(run, schedules, 3);
}

/// Lets others run for a while.
async fn some_time() {
    for _ in 0..thread_rng().gen_range(0..4) {
        yield_now().await;
    }
}

/// Waits for something that others are about to do without being waited for.
async fn soon(what: &str, done: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if done() {
            return;
        }
        yield_now().await;
    }
    panic!("{what} does not happen");
}

/// The store in memory at the end of a network, whose requests take their time.
#[derive(Debug)]
struct Remote {
    store: Arc<MemoryStore>,
    limits: Limits,
    /// Whether it refuses batches now and then, so that each item goes alone.
    picky: bool,
    /// Whether renewals get no answer, until the end of the test.
    silent: AtomicBool,
    ended: Notify,
    /// Claims and releases under way, and the most of one kind.
    under_way: [AtomicUsize; 2],
    most: [AtomicUsize; 2],
}

impl Remote {
    fn new(hand: &Arc<ManualClock>, limits: Limits) -> Self {
        Self {
            store: MemoryStore::new(Clock::manual(hand.clone())),
            limits,
            picky: false,
            silent: AtomicBool::new(false),
            ended: Notify::new(),
            under_way: Default::default(),
            most: Default::default(),
        }
    }

    fn carry<T: Send + 'static>(self: Arc<Self>, answer: Reply<T>) -> Reply<T> {
        Box::pin(async move {
            some_time().await;
            let answer = answer.await;
            some_time().await;
            answer
        })
    }

    /// The same for a kind of request of which only so many may be under way.
    fn carry_batch<T: Send + 'static>(
        self: Arc<Self>,
        kind: usize,
        size: usize,
        answer: Reply<T>,
    ) -> Reply<T> {
        let counted = Counted::new(self.clone(), kind);
        let refused = self.picky && size > 1 && thread_rng().gen_bool(0.3);
        let carried = self.carry(answer);
        Box::pin(async move {
            let _counted = counted;
            if refused {
                some_time().await;
                let done = thread_rng().gen_bool(0.5);
                if !done {
                    return Err(Error::invalid("one of them is wrong"));
                }
                let _ = carried.await;
                return Err(Error::new(ErrorKind::RetryAlone, "some of it is done"));
            }
            carried.await
        })
    }
}

struct Counted(Arc<Remote>, usize);

impl Counted {
    fn new(remote: Arc<Remote>, kind: usize) -> Self {
        let now = remote.under_way[kind].fetch_add(1, Ordering::SeqCst) + 1;
        remote.most[kind].fetch_max(now, Ordering::SeqCst);
        Self(remote, kind)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.under_way[self.1].fetch_sub(1, Ordering::SeqCst);
    }
}

impl Backend for Remote {
    fn guarantees(&self) -> &Guarantees {
        self.store.guarantees()
    }

    fn clock(&self) -> &Clock {
        self.store.clock()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        let (size, answer) = (claims.len(), self.store.clone().acquire(claims));
        self.carry_batch(0, size, answer)
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        let (size, answer) = (holds.len(), self.store.clone().release(holds));
        self.carry_batch(1, size, answer)
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        if self.silent.load(Ordering::SeqCst) {
            return Box::pin(async move {
                self.ended.notified().await;
                Err(Error::invalid("the test is over"))
            });
        }
        let answer = self.store.clone().renew(holds);
        self.carry(answer)
    }

    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        let answer = self.store.clone().wait(claim);
        self.carry(answer)
    }

    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        let answer = self.store.clone().leave(claim);
        self.carry(answer)
    }

    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        let answer = self.store.clone().settle(claims);
        self.carry(answer)
    }

    fn inspect(self: Arc<Self>, lock: LockId) -> Reply<Option<LockInfo>> {
        self.store.clone().inspect(lock)
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        self.store.clone().list(prefix)
    }

    fn force_release(self: Arc<Self>, lock: LockId, force: Force) -> Reply<ForceRelease> {
        self.store.clone().force_release(lock, force)
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        self.store.clone().examine()
    }
}

async fn next_renewal(events: &mut Events) {
    loop {
        let event = events.next().await.expect("the client lives");
        match event.kind {
            EventKind::Renewed => return,
            EventKind::Lost(loss) => panic!("{loss:?}"),
            _ => {}
        }
    }
}

/// A store, its clock, and how many held the lock at once.
struct Scene {
    hand: Arc<ManualClock>,
    remote: Arc<Remote>,
    holders: Arc<AtomicUsize>,
}

impl Scene {
    /// One of the ways in which stores limit their clients.
    fn any() -> Self {
        Self::of(|remote| remote.picky = thread_rng().gen_bool(0.5))
    }

    fn of(change: impl FnOnce(&mut Remote)) -> Self {
        let all = [
            Limits::new(1, 1),
            Limits::new(4, 1),
            Limits::new(4, 2),
            Limits::new(64, 1).in_step(),
            Limits::new(64, 2).in_halves(),
        ];
        let hand = Arc::new(ManualClock::new());
        let mut remote = Remote::new(&hand, all[thread_rng().gen_range(0..all.len())]);
        change(&mut remote);
        Self { hand, remote: Arc::new(remote), holders: Arc::default() }
    }

    async fn client(&self) -> Locks {
        Locks::on(self.remote.clone()).await.expect("connects")
    }

    /// Takes a lock, is alone with it, and gives it back.
    fn turn(&self, locks: &Locks, name: &'static str) -> JoinHandle<Result<()>> {
        let lock = locks.lock(name).ttl(TTL).wait(LONG);
        let holders = self.holders.clone();
        tokio::spawn(async move {
            let lease = lock.acquire().await?;
            let alone = name != "one" || holders.fetch_add(1, Ordering::SeqCst) == 0;
            assert!(alone, "two hold it");
            assert_eq!(lease.state(), LeaseState::Held);
            some_time().await;
            if name == "one" {
                holders.fetch_sub(1, Ordering::SeqCst);
            }
            lease.release().await
        })
    }

    /// All slots are back and no lock is held, although nobody waits for that.
    async fn is_quiet(&self, clients: &[Locks]) {
        soon("the return of every slot", || clients.iter().all(Locks::is_idle)).await;
        for _ in 0..10_000 {
            let all = self.remote.store.clone().list(String::new()).await.expect("it lists");
            if all.iter().all(|lock| lock.lease().is_none() && lock.waiters == 0) {
                return;
            }
            yield_now().await;
        }
        panic!("a lock or a place in the queue was left behind");
    }
}

/// Tasks of two clients pass one lock around, beside another lock of their own.
#[test]
fn everybody_has_a_turn() {
    try_schedules(|| async {
        let scene = Scene::any();
        let clients = [scene.client().await, scene.client().await];
        let mut turns = Vec::new();
        for locks in &clients {
            turns.extend(["one", "one", "other"].map(|name| scene.turn(locks, name)));
        }
        for turn in turns {
            turn.await.expect("no panic").expect("a turn");
        }
        scene.is_quiet(&clients).await;
        let Remote { limits, most, picky, .. } = &*scene.remote;
        // Those of a batch that was refused go alone, all at once; each client has its own.
        let most = most.iter().map(|most| most.load(Ordering::SeqCst)).max();
        assert!(*picky || most <= Some(limits.in_flight * clients.len()), "{most:?} {limits:?}");
    });
}

/// Callers that are dropped anywhere leave neither a slot nor a lock nor a waiter behind, and
/// hold nobody up.
#[test]
fn who_gives_up_leaves_nothing() {
    try_schedules(|| async {
        let scene = Scene::any();
        let clients = [scene.client().await, scene.client().await];
        let mut turns = Vec::new();
        for locks in &clients {
            turns.extend(["one", "one", "other"].map(|name| scene.turn(locks, name)));
        }
        let holders = scene.holders.clone();
        let doomed = turns.split_off(3);
        for turn in doomed {
            let gives_up = clients[1].lock("one").ttl(TTL).wait(LONG);
            let quitter = tokio::spawn(async move { gives_up.acquire().await.map(drop) });
            some_time().await;
            quitter.abort();
            turn.await.expect("no panic").expect("a turn");
        }
        for turn in turns {
            turn.await.expect("no panic").expect("a turn");
        }
        assert_eq!(holders.load(Ordering::SeqCst), 0);
        scene.is_quiet(&clients).await;
    });
}

/// Leases that are taken while the keeper is about to sleep are renewed all the same.
#[test]
fn every_lease_is_renewed_in_time() {
    try_schedules(|| async {
        let scene = Scene::any();
        let locks = scene.client().await;
        let mut events = locks.events();
        let mut taking = Vec::new();
        for name in ["a", "b"] {
            let lock = locks.lock(name).ttl(TTL);
            taking.push(tokio::spawn(async move { lock.acquire().await }));
        }
        let mut leases = Vec::new();
        for taken in taking {
            leases.push(taken.await.expect("no panic").expect("it is free"));
        }
        // Nothing else moves the clock: who sleeps through this sleeps for ever.
        for _ in 0..4 {
            scene.hand.advance(TTL / 5);
            some_time().await;
            scene.hand.advance(TTL / 5);
            for _ in &leases {
                next_renewal(&mut events).await;
            }
        }
        assert!(leases.iter().all(|lease| lease.state() == LeaseState::Held));
        for lease in leases {
            lease.release().await.expect("it is held");
        }
        scene.is_quiet(&[locks]).await;
    });
}

/// The keeper is about to sleep for good, because the last lease went, when the next one comes.
#[test]
fn a_lease_that_comes_as_the_last_one_goes_is_renewed() {
    try_schedules(|| async {
        let scene = Scene::any();
        let locks = scene.client().await;
        let last = locks.lock("last").ttl(TTL).acquire().await.expect("it is free");
        let next = locks.lock("next").ttl(TTL);
        let taking = tokio::spawn(async move { next.acquire().await });
        let releasing = tokio::spawn(async move { last.release().await });
        some_time().await;
        // The keeper looks around.
        scene.hand.advance(TTL / 6);
        releasing.await.expect("no panic").expect("it was held");
        let next = taking.await.expect("no panic").expect("it is free");
        let mut events = locks.events();
        for _ in 0..3 {
            scene.hand.advance(TTL / 8);
        }
        next_renewal(&mut events).await;
        next.release().await.expect("it is held");
        scene.is_quiet(&[locks]).await;
    });
}

/// A store that stops answering renewals costs the lease, and its holder hears of it.
#[test]
fn the_loss_of_a_silent_store_is_told() {
    try_schedules(|| async {
        let scene = Scene::any();
        let locks = scene.client().await;
        let lease = Arc::new(locks.lock("one").ttl(TTL).acquire().await.expect("it is free"));
        let watching = lease.clone();
        let told = tokio::spawn(async move { watching.lost().await });
        some_time().await;
        scene.remote.silent.store(true, Ordering::SeqCst);
        for _ in 0..10 {
            scene.hand.advance(TTL / 8);
            some_time().await;
        }
        told.await.expect("no panic");
        assert!(matches!(lease.state(), LeaseState::Lost(_)));
        scene.remote.ended.notify_one();
    });
}

/// A lease that is given back while its renewal is under way is over, on both sides.
#[test]
fn a_release_ends_what_is_being_renewed() {
    try_schedules(|| async {
        let scene = Scene::any();
        let locks = scene.client().await;
        let (one, other) = (locks.lock("one").ttl(TTL), locks.lock("other").ttl(TTL));
        let (one, other) = (one.acquire().await.unwrap(), other.acquire().await.unwrap());
        let hand = scene.hand.clone();
        let turning = tokio::spawn(async move {
            for _ in 0..3 {
                hand.advance(TTL / 5);
                some_time().await;
            }
        });
        some_time().await;
        let released = tokio::spawn(async move { one.release().await });
        some_time().await;
        drop(other);
        released.await.expect("no panic").expect("it was held");
        turning.await.expect("no panic");
        scene.is_quiet(&[locks]).await;
    });
}
