//! Regressions around runtimes that end, stores that panic or are slow, on the real clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold::backend::memory::MemoryStore;
use leasehold::backend::{
    Backend, Claim, Finding, Grant, Hint, Hold, Limits, LockInfo, Release, Renewal, Reply, Turn,
    Verdict,
};
use leasehold::clock::{Clock, ManualClock};
use leasehold::{Error, ErrorKind, EventKind, Forced, Guarantees, LeaseState, Locks, Name, Token};
use leasehold_conformance::fixture::{Fixture, eventually, next_event};

/// A store with one bad habit.
#[derive(Debug)]
struct Odd {
    store: Arc<MemoryStore>,
    guarantees: Guarantees,
    limits: Limits,
    /// Each acquire takes this long.
    slow: Duration,
    /// The next renewal panics.
    renew_panics: AtomicBool,
    /// The next renewal is lost.
    renew_lost: AtomicBool,
    /// The next renewal is answered without a verdict.
    renew_says_nothing: AtomicBool,
    /// Renewals of several leases are refused for what is in them; each alone takes this long.
    renew_one_by_one: Duration,
    /// Renewals get no answer for now.
    renew_away: AtomicBool,
    /// Renewals are proved by a session's keep-alive that was this long ago.
    proved_ago: Duration,
    /// The next release panics.
    release_panics: AtomicBool,
    /// Hints about all leases that are on their way.
    hints: tokio::sync::Semaphore,
    /// Claims on names that contain this panic.
    acquire_panics: Option<&'static str>,
    /// Terms are rounded down to whole milliseconds, as a server's are.
    rounds: bool,
    acquires: AtomicUsize,
    renewals: AtomicUsize,
}

impl Odd {
    fn new() -> Self {
        Self::on(MemoryStore::new(Clock::boot()))
    }

    fn on(store: Arc<MemoryStore>) -> Self {
        Self {
            guarantees: store.guarantees().clone(),
            store,
            limits: Limits::new(64, 64),
            slow: Duration::ZERO,
            renew_panics: AtomicBool::new(false),
            renew_lost: AtomicBool::new(false),
            renew_says_nothing: AtomicBool::new(false),
            renew_one_by_one: Duration::ZERO,
            renew_away: AtomicBool::new(false),
            proved_ago: Duration::ZERO,
            release_panics: AtomicBool::new(false),
            hints: tokio::sync::Semaphore::new(0),
            acquire_panics: None,
            rounds: false,
            acquires: AtomicUsize::new(0),
            renewals: AtomicUsize::new(0),
        }
    }
}

impl Backend for Odd {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }
    fn limits(&self) -> Limits {
        self.limits
    }
    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let acquired = self.store.clone().acquire(claims.clone()).await;
            if !self.slow.is_zero() {
                tokio::time::sleep(self.slow).await;
            }
            let bad = |claim: &Claim| {
                self.acquire_panics.is_some_and(|part| claim.name.as_str().contains(part))
            };
            assert!(!claims.iter().any(bad), "a store with a bug");
            acquired
        })
    }
    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        self.store.clone().wait(claim)
    }
    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        self.store.clone().leave(claim)
    }
    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        self.store.clone().settle(claims)
    }
    fn renew(self: Arc<Self>, mut holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        assert!(!self.renew_panics.swap(false, Ordering::SeqCst), "a store with a bug");
        let away = self.renew_away.load(Ordering::SeqCst);
        if self.renew_lost.swap(false, Ordering::SeqCst) || away {
            return Box::pin(std::future::pending());
        }
        if self.renew_says_nothing.swap(false, Ordering::SeqCst) {
            return Box::pin(async { Ok(Vec::new()) });
        }
        if !self.renew_one_by_one.is_zero() {
            return Box::pin(async move {
                if holds.len() > 1 {
                    return Err(Error::new(ErrorKind::Invalid, "one of them is unknown"));
                }
                let verdicts = self.store.clone().renew(holds).await;
                tokio::time::sleep(self.renew_one_by_one).await;
                verdicts
            });
        }
        if self.rounds {
            for hold in &mut holds {
                hold.ttl = Duration::from_millis(hold.ttl.as_millis() as u64);
            }
        }
        Box::pin(async move {
            let mut verdicts = self.store.clone().renew(holds).await?;
            for verdict in &mut verdicts {
                if let Renewal::Renewed(proof) = verdict {
                    proof.at = proof.at - self.proved_ago;
                }
            }
            Ok(verdicts)
        })
    }
    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        assert!(!self.release_panics.swap(false, Ordering::SeqCst), "a store with a bug");
        self.store.clone().release(holds)
    }
    fn inspect(self: Arc<Self>, name: Name) -> Reply<Option<LockInfo>> {
        self.store.clone().inspect(name)
    }
    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        self.store.clone().list(prefix)
    }
    fn force_release(self: Arc<Self>, name: Name, forced: Forced) -> Reply<Option<Token>> {
        self.store.clone().force_release(name, forced)
    }
    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        self.store.clone().examine()
    }
    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(async move {
            self.hints.acquire().await.expect("never closed").forget();
            Ok(Hint::All)
        })
    }
}

const TTL: Duration = Duration::from_millis(300);

/// Sleeps, and tells how many terms that really took, rounded up.
async fn terms_in(ttl: Duration, sleep: Duration) -> usize {
    let began = Instant::now();
    tokio::time::sleep(sleep).await;
    began.elapsed().div_duration_f64(ttl).ceil() as usize
}

/// python-redis-lock: a renewal killed by one exception, unreported, is never tried
/// again, although two thirds of the term are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_panic_of_the_store_does_not_end_renewal() {
    let store = Arc::new(Odd::new());
    let locks = Locks::on(store.clone()).await.unwrap();
    let mut events = locks.events();
    // A busy machine needs seconds to print the panic's backtrace.
    let lease = locks.lock("x").ttl(Duration::from_secs(12)).acquire().await.unwrap();
    store.renew_panics.store(true, Ordering::SeqCst);
    next_event(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    assert!(!store.renew_panics.load(Ordering::SeqCst), "it panicked before");
    assert_eq!(lease.state(), LeaseState::Held);
}

/// A store that panics on one request: those who had collected behind it are nobody's
/// any more, and hang until somebody else happens to come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_panic_of_the_store_does_not_strand_those_behind() {
    let odd = Odd {
        limits: Limits::new(1, 1),
        slow: Duration::from_millis(50),
        acquire_panics: Some("bad"),
        ..Odd::new()
    };
    let locks = Locks::on(Arc::new(odd)).await.unwrap();
    let bad = locks.lock("bad");
    let bad = tokio::spawn(async move { bad.try_acquire().await.map(drop) });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let good = locks.lock("good");
    let good = tokio::spawn(async move { good.try_acquire().await.map(drop) });
    tokio::time::sleep(Duration::from_millis(5)).await;
    bad.abort();
    let good = tokio::time::timeout(Fixture::BOUND, good).await;
    let good = good.expect("stranded behind it").unwrap();
    assert!(good.is_ok(), "it had no part in that: {good:?}");
}

/// A caller that keeps its future and does not poll it (the other branch of a `select!` runs)
/// has a request under way. Whoever comes behind it hangs, if its answer waits to be polled.
#[tokio::test]
async fn a_caller_that_does_not_poll_keeps_nobody_waiting() {
    let slow = Duration::from_millis(20);
    for answered_before in [false, true] {
        let odd = Odd { limits: Limits::new(1, 1), slow, ..Odd::new() };
        let locks = Locks::on(Arc::new(odd)).await.unwrap();
        let (idle, other) = (locks.lock("idle"), locks.lock("other"));
        let mut idle = std::pin::pin!(idle.acquire());
        let began = std::future::poll_fn(|cx| Poll::Ready(idle.as_mut().poll(cx).is_pending()));
        assert!(began.await, "it is under way");
        if answered_before {
            tokio::time::sleep(5 * slow).await;
        }
        let behind = tokio::time::timeout(Fixture::BOUND, other.acquire()).await;
        assert!(behind.expect("hangs behind a caller that does not poll").is_ok());
        assert!(idle.await.is_ok(), "and that one has its lock");
    }
}

/// A store that panics where it is asked in place ends the task that asked: a lease that
/// was dropped is then never released, and its end never told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_panic_of_the_store_does_not_end_a_release() {
    let odd = Arc::new(Odd { acquire_panics: Some("bad"), ..Odd::new() });
    let locks = Locks::on(odd.clone()).await.unwrap();
    let lease = locks.lock("x").acquire().await.unwrap();
    odd.release_panics.store(true, Ordering::SeqCst);
    drop(lease);
    let again = locks.lock("x").wait(Duration::from_secs(5)).acquire().await;
    assert!(again.is_ok(), "{again:?}");
    // It had been granted before the panic, and that was found out.
    assert!(locks.lock("bad").try_acquire().await.unwrap().is_some());
}

/// The runtime that the client was connected on ends while a caller on another one
/// is collected: it hangs for ever instead of hearing of it.
#[test]
fn the_end_of_the_runtime_is_told_to_those_who_collected() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let odd = Odd { limits: Limits::new(1, 1), slow: Duration::from_secs(1), ..Odd::new() };
    let locks = first.block_on(async { Locks::on(Arc::new(odd)).await.unwrap() });
    let under_way = locks.lock("under way");
    first.spawn(async move { under_way.try_acquire().await.map(drop) });
    let second = tokio::runtime::Runtime::new().unwrap();
    let ended = second.block_on(async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let lock = locks.lock("collected");
        let waiting = tokio::spawn(async move { lock.try_acquire().await.map(drop) });
        tokio::time::sleep(Duration::from_millis(50)).await;
        first.shutdown_background();
        tokio::time::timeout(Fixture::BOUND, waiting).await.is_ok()
    });
    assert!(ended, "hangs for ever");
}

/// A client in a `static`, connected on a runtime that has ended (each `#[tokio::test]`
/// has its own): the lock is granted, and then neither renewed nor fired.
#[test]
fn a_lease_that_nobody_keeps_is_refused_or_fired() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let locks = first.block_on(async { leasehold::connect("memory:").await.unwrap() });
    drop(first);
    let second = tokio::runtime::Runtime::new().unwrap();
    let told = second.block_on(async {
        match locks.lock("x").ttl(TTL).acquire().await {
            Err(_) => true,
            Ok(lease) => tokio::time::timeout(Fixture::BOUND, lease.lost()).await.is_ok(),
        }
    });
    assert!(told, "granted, not renewed, and its loss is never told");
}

/// A runtime without I/O: the keeper panics when it makes its timer, and nobody hears.
#[test]
fn a_runtime_without_io_is_refused_or_served() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let kept = runtime.unwrap().block_on(async {
        let Ok(locks) = leasehold::connect("memory:").await else { return true };
        let Ok(lease) = locks.lock("x").ttl(TTL).acquire().await else { return true };
        tokio::time::sleep(TTL * 2).await;
        lease.state() == LeaseState::Held
    });
    assert!(kept, "granted, and never renewed");
}

/// A TTL shorter than the store's answer: `try_acquire` says so after three tries,
/// `acquire` takes and gives back the lock for ever, without a pause and without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_that_always_come_too_late_are_an_error() {
    let odd = Arc::new(Odd { slow: Duration::from_millis(30), ..Odd::new() });
    let locks = Locks::on(odd.clone()).await.unwrap();
    let lock = locks.lock("x").ttl(Duration::from_millis(20));
    let told = tokio::time::timeout(Fixture::BOUND, lock.acquire()).await;
    let error = told.expect("takes it for ever").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(odd.acquires.load(Ordering::SeqCst), 3, "grants that were thrown away");
}

/// A store that keeps whole milliseconds answers a renewal with a little less than the
/// TTL. That is taken for a short pushed grant, to be renewed at once: again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_for_a_little_less_than_the_ttl_is_no_storm() {
    let odd = Arc::new(Odd { rounds: true, ..Odd::new() });
    let locks = Locks::on(odd.clone()).await.unwrap();
    let ttl = Duration::from_micros(300_500);
    let _lease = locks.lock("x").ttl(ttl).acquire().await.unwrap();
    let terms = terms_in(ttl, ttl * 2).await;
    let renewals = odd.renewals.load(Ordering::SeqCst);
    assert!(renewals < 10 * terms, "{renewals} renewals in {terms} terms");
}

/// `memory:name` runs on the machine's clock: a client with another one is refused, or
/// its leases would be measured by two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_store_and_its_client_have_one_clock() {
    let clock = Clock::manual(Arc::new(ManualClock::new()));
    let refused = leasehold::connect("memory:one-clock").clock(clock).await.unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Invalid);
    leasehold::connect("memory:one-clock").await.unwrap();
}

/// A waker that looks at the lease (an executor that polls inside `wake`) deadlocks:
/// losses are announced and tokens cancelled under the lease's own mutex.
#[test]
fn a_loss_is_told_outside_the_lock() {
    use std::task::{Context, Poll, Wake, Waker};
    struct Looks(std::sync::Mutex<Option<Arc<leasehold::Lease>>>);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            let lease = self.0.lock().unwrap().clone();
            if let Some(lease) = lease {
                let _ = lease.remaining();
            }
        }
    }
    let (done, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let hand = Arc::new(ManualClock::new());
            let clock = Clock::manual(hand.clone());
            let store = MemoryStore::new(clock.clone());
            let locks = Locks::on(store).clock(clock).await.unwrap();
            let lease = Arc::new(locks.lock("x").no_renewal().acquire().await.unwrap());
            let waker = Arc::new(Looks(std::sync::Mutex::new(Some(lease.clone()))));
            let cancelled = lease.cancellation_token();
            let mut watching = std::pin::pin!(cancelled.cancelled());
            let waker = Waker::from(waker);
            let pending = watching.as_mut().poll(&mut Context::from_waker(&waker));
            assert_eq!(pending, Poll::Pending);
            hand.advance(Duration::from_secs(60));
            let _ = lease.state();
            let _ = done.send(());
        });
    });
    assert!(told.recv_timeout(Fixture::BOUND).is_ok(), "deadlocked");
}

/// One bad lease in a batch: the others are renewed one after the other, each after the
/// answer to the last, although the store takes many requests at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_refused_batch_are_renewed_in_time() {
    let odd = Odd { renew_one_by_one: Duration::from_millis(20), ..Odd::new() };
    let locks = Locks::on(Arc::new(odd)).await.unwrap();
    let mut events = locks.events();
    let mut leases = Vec::new();
    for index in 0..400 {
        let lock = locks.lock(format!("x{index}")).ttl(Duration::from_secs(6));
        leases.push(lock.acquire().await.unwrap());
    }
    for _ in 0..400 {
        next_event(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    }
    let lost = leases.iter().filter(|lease| lease.state() != LeaseState::Held).count();
    assert_eq!(lost, 0, "of 400, with 20 ms each (8 s in all) and a TTL of 6 s");
}

/// A pushed grant lasts three seconds less 1 % of the TTL, but its first renewal may
/// take min(2 s, TTL / 6): one lost packet, and there is no time for a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lost_packet_does_not_cost_a_pushed_grant() {
    let odd = Arc::new(Odd::new());
    let first = Locks::on(odd.clone()).await.unwrap();
    let second = Locks::on(odd.clone()).await.unwrap();
    let lease = first.lock("x").acquire().await.unwrap();
    let waiting = second.lock("x").ttl(Duration::from_secs(120));
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    while first.inspect("x").await.unwrap().waiters == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut events = second.events();
    odd.renew_lost.store(true, Ordering::SeqCst);
    lease.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    next_event(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    assert_eq!(odd.renewals.load(Ordering::SeqCst), 2, "one was lost");
    assert_eq!(lease.state(), LeaseState::Held);
}

/// Outside a tokio runtime the calls panic; connecting there is an error that says so.
#[test]
fn a_call_outside_a_runtime_does_not_panic() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let locks = runtime.block_on(async { leasehold::connect("memory:").await.unwrap() });
    let calling = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(locks.inspect("x")).as_mut().poll(&mut context).is_ready()
    }));
    assert!(calling.is_ok());
}

/// On a session store the proof is the session's last keep-alive. When that is more than
/// a third of the term ago, the next renewal was due at once: again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_proved_by_an_old_keep_alive_are_no_storm() {
    let ttl = Duration::from_secs(2);
    let odd = Arc::new(Odd { proved_ago: ttl * 2 / 5, ..Odd::new() });
    let locks = Locks::on(odd.clone()).await.unwrap();
    let lease = locks.lock("x").ttl(ttl).acquire().await.unwrap();
    let terms = terms_in(ttl, ttl).await;
    let renewals = odd.renewals.load(Ordering::SeqCst);
    assert!(renewals < 30 * terms, "{renewals} renewals in {terms} terms");
    assert_eq!(lease.state(), LeaseState::Held);
}

/// Questions that were under way together and got no answer are one failure: counted
/// each, a few hints use up all attempts in an outage of a sixth of the TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_the_same_moment_are_one_attempt() {
    let odd = Arc::new(Odd::new());
    let locks = Locks::on(odd.clone()).await.unwrap();
    let lease = locks.lock("x").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    odd.renew_away.store(true, Ordering::SeqCst);
    odd.hints.add_permits(12);
    eventually("doubt", async || lease.state() != LeaseState::Held).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    odd.renew_away.store(false, Ordering::SeqCst);
    assert_eq!(lease.state(), LeaseState::Doubtful);
    eventually("the next proof", async || lease.state() == LeaseState::Held).await;
}

/// The runtime that the client was connected on ends while a caller on another one waits
/// in line: its timers panic when they are polled again.
#[test]
fn the_end_of_the_runtime_is_told_to_those_who_wait() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let second = tokio::runtime::Runtime::new().unwrap();
    let store = MemoryStore::new(Clock::boot());
    let locks = first.block_on(async { Locks::on(store.clone()).await.unwrap() });
    second.block_on(async {
        let holder = Locks::on(store).await.unwrap();
        let _lease = holder.lock("x").acquire().await.unwrap();
        let lock = locks.lock("x").wait(Duration::from_secs(60));
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        while holder.inspect("x").await.unwrap().waiters == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.shutdown_background();
        let told = tokio::time::timeout(Fixture::BOUND, waiting).await;
        let error = told.expect("hangs").expect("panicked").unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NoRuntime, "{error}");
    });
}

/// A lease in the hands of another runtime when its client's own ends: nobody renews it,
/// and nobody fired its loss, so that work under `run` went on past its deadline.
#[test]
fn the_end_of_the_runtime_is_the_loss_of_its_leases() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let second = tokio::runtime::Runtime::new().unwrap();
    let locks = first.block_on(async { leasehold::connect("memory:").await.unwrap() });
    let lease = first.block_on(locks.lock("x").ttl(TTL).acquire()).unwrap();
    let lost = second.block_on(async {
        first.shutdown_background();
        tokio::time::timeout(Fixture::BOUND, lease.lost()).await
    });
    assert!(lost.is_ok(), "never told");
}

/// A hint about all leases is about those that last: renewed once more, one that `max_hold`
/// has ended would stay at the store for another TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_does_not_renew_what_is_over() {
    let hand = Arc::new(ManualClock::new());
    let clock = Clock::manual(hand.clone());
    let odd = Arc::new(Odd::on(MemoryStore::new(clock.clone())));
    let locks = Locks::on(odd.clone()).clock(clock).await.unwrap();
    let mut events = locks.events();
    let capped = locks.lock("x").max_hold(Duration::from_secs(1)).acquire().await.unwrap();
    let _other = locks.lock("y").acquire().await.unwrap();
    hand.advance(Duration::from_secs(2));
    next_event(&mut events, |kind| matches!(kind, EventKind::Lost(_))).await;
    odd.hints.add_permits(1);
    next_event(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    let lease = locks.inspect("x").await.unwrap().lease.unwrap();
    assert!(lease.remaining < Some(capped.ttl()), "extended by a hint");
}

/// The term of a lease that is not renewed stays what it was, whatever makes the client ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_does_not_extend_a_lease_without_renewal() {
    let hand = Arc::new(ManualClock::new());
    let clock = Clock::manual(hand.clone());
    let odd = Arc::new(Odd::on(MemoryStore::new(clock.clone())));
    let locks = Locks::on(odd.clone()).clock(clock).await.unwrap();
    let fixed = locks.lock("x").no_renewal().acquire().await.unwrap();
    let _other = locks.lock("y").acquire().await.unwrap();
    let mut events = locks.events();
    hand.advance(Duration::from_secs(1));
    let before = fixed.remaining();
    odd.hints.add_permits(1);
    let renewed = next_event(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    assert_eq!(renewed.name.as_str(), "y");
    assert_eq!(fixed.remaining(), before);
}

/// A store whose clock is coarse (ZooKeeper counts in ticks) keeps a lease for longer than its
/// holder believes in it, never the other way round.
#[tokio::test]
async fn what_a_store_adds_to_the_drift_is_taken_off_the_deadline() {
    let clock = Clock::manual(Arc::new(ManualClock::new()));
    let mut odd = Odd::on(MemoryStore::new(clock.clone()));
    odd.guarantees.extra_drift = Duration::from_secs(1);
    let locks = Locks::on(Arc::new(odd)).clock(clock).await.unwrap();
    let lease = locks.lock("x").ttl(Duration::from_secs(10)).acquire().await.unwrap();
    assert_eq!(lease.remaining(), Duration::from_millis(10_000 - 100 - 2 - 1_000));
}

#[tokio::test]
async fn what_a_store_finds_about_its_set_up_is_told() {
    let odd = Arc::new(Odd::new());
    let locks = Locks::on(odd.clone()).await.unwrap();
    let findings = locks.examine().await.unwrap();
    assert!(!findings.is_empty());
    assert_eq!(findings, odd.examine().await.unwrap());
}

/// The keeper's tasks end with their client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_dropped_lets_go_of_its_store() {
    let odd = Arc::new(Odd::new());
    let locks = Locks::on(odd.clone()).await.unwrap();
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    drop(locks);
    eventually("the store is nobody's", async || Arc::strong_count(&odd) == 1).await;
}

#[tokio::test]
async fn a_renewal_without_a_verdict_proves_nothing() {
    let odd = Arc::new(Odd::new());
    let locks = Locks::on(odd.clone()).await.unwrap();
    let lease = locks.lock("x").acquire().await.unwrap();
    odd.renew_says_nothing.store(true, Ordering::SeqCst);
    let error = lease.renew().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Internal, "{error}");
    assert_eq!(lease.state(), LeaseState::Doubtful);
    lease.renew().await.unwrap();
    assert_eq!(lease.state(), LeaseState::Held);
}
