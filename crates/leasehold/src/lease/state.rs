//! The life of one lease on the holder's side: the state machine of the contract.
//!
//! It compares clocks and remembers verdicts; it asks nobody. The [guard](super::Lease) and the
//! keeper share it: the keeper brings what the store says, and everybody else looks.

use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::acquire::Granted;
use crate::backend::{Hold, Mode, Proof};
use crate::clock::Moment;
use crate::context::{Context, Subject};
use crate::error::Error;
use crate::event::EventKind;
use crate::failpoint::Point;
use crate::loss::{Loss, LossReason};
use crate::name::Name;
use crate::observe::ClassId;
use crate::owner::Owner;
use crate::terms::{OnDoubt, Terms};
use crate::token::Token;

#[cfg(all(test, not(shuttle)))]
mod tests;

/// Where a lease stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// It covers the lock, and that is proved.
    Held,
    /// A renewal got no answer; ownership is being proved again. Pause side effects.
    Doubtful,
    /// It is over, and the holder did not ask for it. Final.
    Lost(Loss),
    /// It was given back. Final.
    Released,
}

#[derive(Debug)]
pub(crate) struct LeaseCore {
    name: Name,
    owner: Owner,
    token: Token,
    /// In nanoseconds: half the size of a `Duration`, and there may be a million of these.
    ttl: u64,
    granted_at: Moment,
    /// When `max_hold` ends it.
    ends_at: Moment,
    renewed: bool,
    class: ClassId,
    /// How often it may be proved again before doubt is loss.
    proofs: u32,
    life: Mutex<Life>,
    /// Made for the first who waits: most leases are never watched.
    watch: OnceLock<Box<Watch>>,
}

/// How those who wait learn of a change.
#[derive(Debug, Default)]
struct Watch {
    changed: Notify,
    /// Cancelled when the lease ends.
    cancellation: CancellationToken,
}

#[derive(Debug)]
struct Life {
    phase: Phase,
    deadline: Moment,
    attempts_left: u32,
    /// How many questions were decided, each of which arranged what comes next: a failure
    /// that was asked for before the last of them says nothing new.
    decided: u32,
}

#[derive(Debug)]
enum Phase {
    Held,
    Doubtful,
    Lost(Box<Loss>),
    Released,
}

/// What the keeper does next with a lease.
#[derive(Debug)]
pub(crate) enum Next {
    /// Nothing: it is over. A loss that was found just now must be told.
    Over(Option<Loss>),
    /// Renew it now, by this question.
    Renew(Question),
    /// Look again then.
    At(Moment),
}

/// A question to the store, as far as the lease is concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    /// What had been decided before it was asked.
    decided: u32,
    /// How long the answer may take: early enough to ask again.
    pub(crate) limit: Duration,
    /// When it is over without an answer.
    pub(crate) deadline: Moment,
}

impl LeaseCore {
    /// A lease from its grant.
    pub(crate) fn new(context: &Context, granted: Granted, terms: &Terms) -> Self {
        let Granted { claim, class, grant, at, .. } = granted;
        let deadline = context.deadline(grant.proof);
        Self {
            name: claim.name,
            owner: claim.owner,
            token: grant.token,
            ttl: u64::try_from(terms.ttl.as_nanos()).unwrap_or(u64::MAX),
            granted_at: at,
            ends_at: terms.max_hold.map_or(Moment::NEVER, |cap| at + cap),
            renewed: terms.renewed,
            class,
            proofs: match terms.on_doubt {
                OnDoubt::Stop => 0,
                OnDoubt::Prove { attempts } => attempts,
            },
            life: Mutex::new(Life { phase: Phase::Held, deadline, attempts_left: 0, decided: 0 }),
            watch: OnceLock::new(),
        }
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl)
    }

    /// Whether the keeper renews it.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    pub(crate) fn hold(&self) -> Hold {
        let (name, owner, token, ttl) = (self.name.clone(), self.owner, self.token, self.ttl());
        // `Lock` makes no other claims.
        Hold { name, owner, token, ttl, mode: Mode::Exclusive }
    }

    /// The last moment the holder may act.
    pub(crate) fn deadline(&self) -> Moment {
        self.life.lock().deadline.min(self.ends_at)
    }

    /// Whether it has ended, or is about to: its time is up.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        let life = self.life.lock();
        let ended = matches!(life.phase, Phase::Lost(_) | Phase::Released);
        ended || now >= life.deadline.min(self.ends_at)
    }

    /// Where it stands now. Looks at the clock, so that a process that slept past its
    /// deadline learns of it before any timer fires.
    pub(crate) fn state(&self, context: &Context) -> LeaseState {
        let heedless = context.failpoints.skips(Point::CompareOnCall);
        let (state, loss) = {
            let mut life = self.life.lock();
            let now = context.clock.now();
            let loss = if heedless { None } else { self.compare(&mut life, now) };
            (life.state(), loss)
        };
        self.announce(context, loss);
        state
    }

    /// Waits until `wanted` says something about the state.
    pub(crate) async fn until<T>(
        &self,
        context: &Context,
        wanted: impl Fn(LeaseState) -> Option<T>,
    ) -> T {
        // Most who ask need not wait.
        if let Some(found) = wanted(self.state(context)) {
            return found;
        }
        let watch = self.watch();
        loop {
            let mut changed = std::pin::pin!(watch.changed.notified());
            // Listen first, then look: no change falls in between.
            changed.as_mut().enable();
            if let Some(found) = wanted(self.state(context)) {
                return found;
            }
            changed.await;
        }
    }

    /// A token that is cancelled when the lease ends, lost or released.
    pub(crate) fn cancellation_token(&self, context: &Context) -> CancellationToken {
        let token = self.watch().cancellation.clone();
        if matches!(self.state(context), LeaseState::Lost(_) | LeaseState::Released) {
            token.cancel();
        }
        token
    }

    /// What the keeper does with it at `now`. Announces nothing: the keeper does, once it
    /// has let go of its own lock.
    pub(crate) fn due(&self, context: &Context, now: Moment, renew_at: Moment) -> Next {
        // The schedule counts in milliseconds, and early is safe.
        let soon = now + Duration::from_millis(1);
        let mut life = self.life.lock();
        let deadline = life.deadline.min(self.ends_at);
        let mut loss = None;
        if !context.failpoints.skips(Point::FireLoss) {
            loss = self.compare_by(&mut life, soon, now);
        } else if soon >= deadline {
            return Next::Over(None);
        }
        let heedless = context.failpoints.skips(Point::StopRenewing);
        let renew = soon >= renew_at;
        match life.phase {
            Phase::Lost(_) => Next::Over(loss),
            Phase::Released if !(heedless && renew) => Next::Over(loss),
            _ if renew => Next::Renew(self.question_of(&life, context, now)),
            _ => Next::At(deadline.min(renew_at)),
        }
    }

    /// When the next renewal is due after this proof; a fraction early, so that the
    /// leases of many clients do not come at once.
    pub(crate) fn renewal_after(&self, proof: Proof) -> Moment {
        if !self.renewed {
            return Moment::NEVER;
        }
        let third = proof.valid_for.min(self.ttl()) / 3;
        let early = Duration::from_nanos(fastrand::u64(..=third.as_nanos() as u64 / 10));
        proof.at + (third - early)
    }

    /// A question that is about to be sent.
    pub(crate) fn question(&self, context: &Context, now: Moment) -> Question {
        self.question_of(&self.life.lock(), context, now)
    }

    fn question_of(&self, life: &Life, context: &Context, now: Moment) -> Question {
        const SHORTEST: Duration = Duration::from_millis(1);
        let left = now.until(life.deadline);
        let limit = context.request_timeout.min(self.ttl() / 6).min(left / 3).max(SHORTEST);
        let deadline = life.deadline.min(self.ends_at);
        Question { decided: life.decided, limit, deadline }
    }

    /// The store proved it. The last word unless it is already over: a loss is final.
    /// Without `extends` the term stays what it was, and only doubt is lifted. The deadline
    /// from now on.
    pub(crate) fn proved(
        &self,
        context: &Context,
        proof: Proof,
        extends: bool,
        now: Moment,
    ) -> Moment {
        let mut life = self.life.lock();
        let loss = self.compare(&mut life, now);
        let proved_again = matches!(life.phase, Phase::Doubtful);
        let alive = proved_again || matches!(life.phase, Phase::Held);
        if alive {
            life.phase = Phase::Held;
            life.attempts_left = 0;
            life.decided = life.decided.wrapping_add(1);
            if extends {
                // Answers may overtake each other: an older proof takes nothing back.
                life.deadline = life.deadline.max(context.deadline(proof));
            }
        }
        let deadline = life.deadline.min(self.ends_at);
        drop(life);
        self.announce(context, loss);
        if alive && extends {
            context.announce(self.subject(), now, EventKind::Renewed);
        }
        if proved_again {
            self.wake_watchers();
        }
        deadline
    }

    /// The store has it. That lifts doubt, but it decides no renewal that is under way:
    /// it says nothing about how long the lease stays, and arranges no other.
    pub(crate) fn seen(&self, context: &Context) {
        let mut life = self.life.lock();
        let loss = self.compare(&mut life, context.clock.now());
        let doubtful = matches!(life.phase, Phase::Doubtful);
        if doubtful {
            life.phase = Phase::Held;
            life.attempts_left = 0;
        }
        drop(life);
        self.announce(context, loss);
        if doubtful {
            self.wake_watchers();
        }
    }

    /// A renewal got no answer. When to try again, if at all.
    pub(crate) fn doubted(
        &self,
        context: &Context,
        question: Question,
        error: Error,
    ) -> Option<Moment> {
        let mut life = self.life.lock();
        let now = context.clock.now();
        if let Some(loss) = self.compare(&mut life, now) {
            drop(life);
            self.announce(context, Some(loss));
            return None;
        }
        let first = match life.phase {
            Phase::Held => true,
            Phase::Doubtful => false,
            Phase::Lost(_) | Phase::Released => return None,
        };
        if life.decided != question.decided {
            // Of another question that was under way as well: whether that proved it or
            // failed, it has arranged the next renewal, and is one attempt with this.
            return None;
        }
        life.decided = life.decided.wrapping_add(1);
        life.attempts_left = if first { self.proofs } else { life.attempts_left - 1 };
        let attempts_left = life.attempts_left;
        let mut loss = None;
        if attempts_left == 0 {
            loss = Some(self.end(&mut life, LossReason::Unreachable, now));
        } else {
            life.phase = Phase::Doubtful;
        }
        let left = now.until(life.deadline.min(self.ends_at));
        drop(life);
        context.announce(self.subject(), now, EventKind::Doubtful(error));
        if loss.is_some() {
            self.announce(context, loss);
            return None;
        }
        if first {
            self.wake_watchers();
        }
        // Spread over what is left, but neither idle for long nor a storm.
        let shortest = (self.ttl() / 100).max(Duration::from_millis(5));
        let pause = (left / attempts_left.saturating_add(1)).min(self.ttl() / 12).max(shortest);
        Some(now + pause.mul_f64(0.5 + 0.5 * fastrand::f64()))
    }

    /// It is over, and the holder did not ask for it.
    pub(crate) fn lose(&self, context: &Context, reason: LossReason) {
        let mut life = self.life.lock();
        let alive = matches!(life.phase, Phase::Held | Phase::Doubtful);
        let loss = alive.then(|| self.end(&mut life, reason, context.clock.now()));
        drop(life);
        self.announce(context, loss);
    }

    /// A release begins: from now on the holder may not act. The deadline until which it may
    /// be sent, or the state that makes it impossible.
    pub(crate) fn begin_release(&self, context: &Context) -> Result<Moment, LeaseState> {
        let mut life = self.life.lock();
        if let Phase::Released = life.phase {
            return Err(LeaseState::Released);
        }
        let loss = self.compare(&mut life, context.clock.now());
        let given = match life.phase {
            Phase::Lost(_) | Phase::Released => Err(life.state()),
            Phase::Held | Phase::Doubtful => {
                life.phase = Phase::Released;
                Ok(life.deadline)
            }
        };
        drop(life);
        self.announce(context, loss);
        if given.is_ok() {
            self.signal_end();
        }
        given
    }

    /// The store answered the release: it was given back.
    pub(crate) fn released(&self, context: &Context) {
        let now = context.clock.now();
        let held = self.granted_at.until(now);
        context.announce(self.subject(), now, EventKind::Released { held });
    }

    /// The store answered the release: it had gone before.
    pub(crate) fn found_gone(&self, context: &Context, reason: LossReason) {
        let mut life = self.life.lock();
        let loss = self.end(&mut life, reason, context.clock.now());
        drop(life);
        self.announce(context, Some(loss));
    }

    /// A loss by the clock, if it is time. The caller announces it outside of the lock: wakers
    /// and readers of events may look at the lease.
    #[must_use]
    fn compare(&self, life: &mut Life, now: Moment) -> Option<Loss> {
        self.compare_by(life, now, now)
    }

    /// The same, as of another moment than now.
    #[must_use]
    fn compare_by(&self, life: &mut Life, by: Moment, now: Moment) -> Option<Loss> {
        let doubtful = match life.phase {
            Phase::Held => false,
            Phase::Doubtful => true,
            Phase::Lost(_) | Phase::Released => return None,
        };
        if by >= life.deadline {
            let expired = if doubtful { LossReason::Unreachable } else { LossReason::Expired };
            return Some(self.end(life, expired, now));
        }
        (by >= self.ends_at).then(|| self.end(life, LossReason::MaxHold, now))
    }

    fn end(&self, life: &mut Life, reason: LossReason, at: Moment) -> Loss {
        let loss = Loss { reason, at, held: self.granted_at.until(at) };
        life.phase = Phase::Lost(Box::new(loss.clone()));
        loss
    }

    /// Tells everybody of a loss, if one was found.
    pub(crate) fn announce(&self, context: &Context, loss: Option<Loss>) {
        if let Some(loss) = loss {
            context.announce(self.subject(), loss.at, EventKind::Lost(loss));
            self.signal_end();
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject { name: &self.name, owner: Some(self.owner), class: self.class }
    }

    fn signal_end(&self) {
        self.wake_watchers();
        if let Some(watch) = self.watch.get() {
            watch.cancellation.cancel();
        }
    }

    /// A watcher first makes the watch and then looks at the state, so one whose watch is not
    /// there yet will see the change.
    fn wake_watchers(&self) {
        if let Some(watch) = self.watch.get() {
            watch.changed.notify_waiters();
        }
    }

    fn watch(&self) -> &Watch {
        self.watch.get_or_init(Box::default)
    }
}

impl Life {
    fn state(&self) -> LeaseState {
        match &self.phase {
            Phase::Held => LeaseState::Held,
            Phase::Doubtful => LeaseState::Doubtful,
            Phase::Lost(loss) => LeaseState::Lost((**loss).clone()),
            Phase::Released => LeaseState::Released,
        }
    }
}
