//! The batchers of a client under random schedules: callers are polled, left alone and dropped, the
//! store answers, refuses and panics, and tasks of the runtime run, all as the dice say. In the
//! end each caller has its own answer and every slot is back, although no timer fires any more.

use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task;

use super::{Batcher, batchers};
use crate::backend::{
    Backend, Claim, Finding, Force, ForceRelease, Grant, Hold, Limits, LockId, LockInfo, Proof,
    Release, Renewal, Reply, Turn, Verdict,
};
use crate::callers::{Callers, seeds};
use crate::clock::{Clock, ManualClock, Moment};
use crate::context::Context;
use crate::error::Error;
use crate::guarantees::Guarantees;
use crate::holder::Holder;
use crate::name::Name;
use crate::token::Token;

const STORE: &str = "scripted";
const CLAIMS: usize = 0;
const RELEASES: usize = 1;

/// A store that answers when the test says so, or at once.
#[derive(Debug)]
struct Scripted {
    clock: Clock,
    guarantees: Guarantees,
    limits: Limits,
    /// Whether it refuses and panics now and then.
    faulty: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    dice: fastrand::Rng,
    /// Requests that wait for their fate.
    open: Vec<oneshot::Sender<Fate>>,
    /// Claims and releases without an answer, now and at most.
    under_way: [usize; 2],
    most: [usize; 2],
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Answered,
    Refused,
    Panicked,
}

/// Counts a request for as long as it is under way.
struct UnderWay(Arc<Scripted>, usize);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.state.lock().under_way[self.1] -= 1;
    }
}

impl Scripted {
    fn ask<T: Send + 'static>(self: Arc<Self>, kind: usize, answers: Vec<T>) -> Reply<Vec<T>> {
        let mut state = self.state.lock();
        match state.dice.u8(..16) {
            0..4 => return Box::pin(ready(Ok(answers))),
            4 if self.faulty => panic!("where it is asked"),
            _ => {}
        }
        let (cue, fate) = oneshot::channel();
        state.open.push(cue);
        state.under_way[kind] += 1;
        state.most[kind] = state.most[kind].max(state.under_way[kind]);
        let wakes_itself = state.dice.bool();
        drop(state);
        let under_way = UnderWay(self, kind);
        Box::pin(async move {
            let fate = fate.await.expect("the store outlives its requests");
            if wakes_itself {
                task::yield_now().await;
            }
            drop(under_way);
            match fate {
                Fate::Answered => Ok(answers),
                Fate::Refused => Err(Error::invalid("one of them is wrong")),
                Fate::Panicked => panic!("where it is awaited"),
            }
        })
    }

    /// Decides about one of the requests; whether there was one.
    fn decide(&self, fate: Fate) -> bool {
        let mut state = self.state.lock();
        let count = state.open.len();
        if count == 0 {
            return false;
        }
        let chosen = state.dice.usize(..count);
        let cue = state.open.swap_remove(chosen);
        // Outside of the lock: a waker may ask the store.
        drop(state);
        let _ = cue.send(fate);
        true
    }

    fn draw(&self) -> Fate {
        match self.state.lock().dice.u8(..8) {
            0 if self.faulty => Fate::Refused,
            1 if self.faulty => Fate::Panicked,
            _ => Fate::Answered,
        }
    }
}

impl Backend for Scripted {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    /// The token tells whose claim it is.
    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        let grant = |claim: &Claim| {
            let proof = Proof { at: Moment::from_nanos(0), valid_for: claim.ttl };
            Verdict::Granted(Grant { token: Token::new(claim.ttl.as_nanos() as u64), proof })
        };
        let answers = claims.iter().map(grant).collect();
        self.ask(CLAIMS, answers)
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        let answers = holds.iter().map(|hold| released(hold.token.get())).collect();
        self.ask(RELEASES, answers)
    }

    fn wait(self: Arc<Self>, _: Claim) -> Reply<Turn> {
        Box::pin(pending())
    }

    fn leave(self: Arc<Self>, _: Claim) -> Reply<()> {
        Box::pin(pending())
    }

    fn settle(self: Arc<Self>, _: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        Box::pin(pending())
    }

    fn renew(self: Arc<Self>, _: Vec<Hold>) -> Reply<Vec<Renewal>> {
        Box::pin(pending())
    }

    fn inspect(self: Arc<Self>, _: LockId) -> Reply<Option<LockInfo>> {
        Box::pin(pending())
    }

    fn list(self: Arc<Self>, _: String) -> Reply<Vec<LockInfo>> {
        Box::pin(pending())
    }

    fn force_release(self: Arc<Self>, _: LockId, _: Force) -> Reply<ForceRelease> {
        Box::pin(pending())
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        Box::pin(pending())
    }
}

/// The answer to a release: it differs between neighbours, so that a mix-up is noticed.
fn released(number: u64) -> Release {
    if number.is_multiple_of(3) { Release::NotHeld } else { Release::Released }
}

/// The two batchers of a client on such a store.
struct Batchers {
    store: Arc<Scripted>,
    claims: Batcher<Claim>,
    releases: Batcher<Hold>,
}

impl Batchers {
    fn new(seed: u64, hand: &Arc<ManualClock>) -> Self {
        let limits = [
            Limits::new(1, 1),
            Limits::new(4, 1),
            Limits::new(4, 2),
            Limits::new(64, 1).in_step(),
            Limits::new(64, 2).in_halves(),
            Limits::new(4, 8),
        ];
        let store = Arc::new(Scripted {
            clock: Clock::manual(hand.clone()),
            guarantees: Guarantees::of(STORE),
            limits: limits[seed as usize % limits.len()],
            faulty: seed / 6 % 2 == 1,
            state: Mutex::new(State {
                dice: fastrand::Rng::with_seed(!seed),
                open: Vec::new(),
                under_way: [0; 2],
                most: [0; 2],
            }),
        });
        let context = Arc::new(Context::of_a_part(store.clone()));
        let (claims, releases) = batchers(&context);
        Self { store, claims, releases }
    }

    /// One caller, who checks that the answer is its own.
    async fn send(&self, number: u64) {
        let name = Name::new(format!("lock:{}", number % 7)).expect("a name");
        let holder = Arc::new(Holder::this_process());
        let claim = Claim::new(name, Duration::from_nanos(number), holder);
        let answered = if number.is_multiple_of(2) {
            self.claims.send(claim).await.map(|verdict| {
                let Verdict::Granted(grant) = verdict else { panic!("{verdict:?}") };
                assert_eq!(grant.token.get(), number, "the answer of another");
            })
        } else {
            self.releases.send(claim.hold(Token::new(number))).await.map(|answer| {
                assert_eq!(answer, released(number), "the answer of another");
            })
        };
        assert!(answered.is_ok() || self.store.faulty, "{answered:?}");
    }

    fn are_idle(&self) -> bool {
        self.claims.is_idle() && self.releases.is_idle()
    }
}

async fn play(seed: u64) {
    let hand = Arc::new(ManualClock::new());
    let batchers = Batchers::new(seed, &hand);
    let mut callers = Callers::new(seed);
    let mut number = 0;
    for _ in 0..200 {
        match callers.dice.u8(..16) {
            0..4 => {
                number += 1;
                callers.add(batchers.send(number));
            }
            4 => callers.drop_one(),
            5..8 => {
                batchers.store.decide(batchers.store.draw());
            }
            8 => {
                hand.advance(Duration::from_millis(1));
                tokio::time::advance(Duration::from_millis(60)).await;
            }
            9..12 => task::yield_now().await,
            _ => {
                callers.poll_one();
            }
        }
    }
    // From here on everything is answered, and all who are woken are polled; time stands still.
    for _ in 0..1_000 {
        while batchers.store.decide(Fate::Answered) {}
        while callers.poll_one() {}
        task::yield_now().await;
        if callers.len() == 0 && batchers.are_idle() {
            break;
        }
    }
    assert_eq!(callers.len(), 0, "seed {seed}: callers wait, and nobody wakes them");
    assert!(batchers.are_idle(), "seed {seed}: a slot was not given back: {:?}", batchers.claims);
    let state = batchers.store.state.lock();
    // Those of a batch that was refused go alone, all at once.
    let most = if batchers.store.faulty { usize::MAX } else { batchers.store.limits.in_flight };
    assert!(state.most.iter().all(|count| *count <= most), "seed {seed}: {:?}", state.most);
}

#[test]
fn no_schedule_strands_a_caller_or_loses_a_slot() {
    for seed in seeds() {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(play(seed));
    }
}
