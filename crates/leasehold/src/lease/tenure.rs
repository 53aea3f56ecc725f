//! The life of one lease on the holder's side: the state machine of the contract.
//! It compares clocks and remembers verdicts; it asks nobody. The guard, the keeper
//! and `run` share it.

use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backend::{Grant, Hold, Proof};
use crate::client::Context;
use crate::clock::Moment;
use crate::error::Error;
use crate::event::EventKind;
use crate::failpoint::Point;
use crate::loss::{Loss, LossReason};
use crate::name::Name;
use crate::owner::Owner;
use crate::terms::{OnDoubt, Terms};
use crate::token::Token;

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
pub(crate) struct Tenure {
    name: Name,
    owner: Owner,
    token: Token,
    ttl: Duration,
    granted_at: Moment,
    /// When `max_hold` ends it.
    ends_at: Moment,
    renewed: bool,
    on_doubt: OnDoubt,
    life: Mutex<Life>,
    changed: Notify,
    /// Made when first asked for: most leases are never watched this way.
    cancellation: OnceLock<CancellationToken>,
}

#[derive(Debug)]
struct Life {
    phase: Phase,
    deadline: Moment,
    attempts_left: u32,
}

#[derive(Debug)]
enum Phase {
    Held,
    Doubtful,
    Lost(Box<Loss>),
    Released,
}

/// What the keeper does next with a lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: it is over.
    Over,
    /// Renew it now; whatever comes of that, look again at the deadline.
    Renew { deadline: Moment },
    /// Look again then.
    At(Moment),
}

impl Tenure {
    /// A lease from its grant.
    pub(crate) fn new(context: &Context, hold: Hold, grant: &Grant, terms: &Terms) -> Self {
        let deadline = deadline(context, terms.ttl, grant.proof);
        let now = context.clock.now();
        Self {
            name: hold.name,
            owner: hold.owner,
            token: grant.token,
            ttl: terms.ttl,
            granted_at: now,
            ends_at: terms.max_hold.map_or(Moment::NEVER, |cap| now + cap),
            renewed: terms.renewed,
            on_doubt: terms.on_doubt,
            life: Mutex::new(Life { phase: Phase::Held, deadline, attempts_left: 0 }),
            changed: Notify::new(),
            cancellation: OnceLock::new(),
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
        self.ttl
    }

    /// Whether the keeper renews it.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    pub(crate) fn granted_at(&self) -> Moment {
        self.granted_at
    }

    pub(crate) fn hold(&self) -> Hold {
        Hold { name: self.name.clone(), owner: self.owner, token: self.token, ttl: self.ttl }
    }

    /// The last moment the holder may act.
    pub(crate) fn deadline(&self) -> Moment {
        self.life.lock().deadline.min(self.ends_at)
    }

    /// Where it stands now. Looks at the clock, so that a process that slept past its
    /// deadline learns of it before any timer fires.
    pub(crate) fn state(&self, context: &Context) -> LeaseState {
        let mut life = self.life.lock();
        if !context.failpoints.skips(Point::CompareOnCall) {
            self.compare(&mut life, context, context.clock.now());
        }
        match &life.phase {
            Phase::Held => LeaseState::Held,
            Phase::Doubtful => LeaseState::Doubtful,
            Phase::Lost(loss) => LeaseState::Lost((**loss).clone()),
            Phase::Released => LeaseState::Released,
        }
    }

    /// Waits until `wanted` says something about the state.
    pub(crate) async fn until<T>(
        &self,
        context: &Context,
        wanted: impl Fn(LeaseState) -> Option<T>,
    ) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Listen first, then look: no change falls in between.
            changed.as_mut().enable();
            if let Some(found) = wanted(self.state(context)) {
                return found;
            }
            changed.await;
        }
    }

    /// A token that is cancelled when the lease ends, lost or released.
    pub(crate) fn cancellation(&self, context: &Context) -> CancellationToken {
        let token = self.cancellation.get_or_init(CancellationToken::new).clone();
        if matches!(self.state(context), LeaseState::Lost(_) | LeaseState::Released) {
            token.cancel();
        }
        token
    }

    /// What the keeper does with it at `now`.
    pub(crate) fn due(&self, context: &Context, now: Moment, renew_at: Moment) -> Next {
        // The schedule counts in milliseconds, and early is safe.
        let now = now + Duration::from_millis(1);
        let mut life = self.life.lock();
        let deadline = life.deadline.min(self.ends_at);
        if context.failpoints.skips(Point::FireLoss) {
            if now >= deadline {
                return Next::Over;
            }
        } else {
            self.compare(&mut life, context, now);
        }
        let heedless = context.failpoints.skips(Point::StopRenewing);
        match life.phase {
            Phase::Released if heedless && now >= renew_at => Next::Renew { deadline },
            Phase::Lost(_) | Phase::Released => Next::Over,
            _ if now >= renew_at => Next::Renew { deadline },
            _ => Next::At(deadline.min(renew_at)),
        }
    }

    /// When the next renewal is due after this proof; a fraction early, so that the
    /// leases of many clients do not come at once.
    pub(crate) fn renewal_after(&self, proof: Proof) -> Moment {
        if !self.renewed {
            return Moment::NEVER;
        }
        if proof.valid_for < self.ttl {
            // A grant pushed to a waiter is short until it is renewed.
            return proof.at;
        }
        let third = self.ttl / 3;
        proof.at + third.mul_f64(0.9 + 0.1 * fastrand::f64())
    }

    /// A renewal proved it. The last word unless it is already over: a loss is final.
    pub(crate) fn proved(&self, context: &Context, proof: Proof) {
        let mut life = self.life.lock();
        self.compare(&mut life, context, context.clock.now());
        if matches!(life.phase, Phase::Lost(_) | Phase::Released) {
            return;
        }
        // Answers may overtake each other: an older proof takes nothing back.
        life.deadline = life.deadline.max(deadline(context, self.ttl, proof));
        life.attempts_left = 0;
        let proved_again = matches!(life.phase, Phase::Doubtful);
        life.phase = Phase::Held;
        drop(life);
        context.announce(&self.name, Some(self.owner), EventKind::Renewed);
        if proved_again {
            self.changed.notify_waiters();
        }
    }

    /// A renewal got no answer. When to try again, if at all.
    pub(crate) fn doubted(&self, context: &Context, error: Error) -> Option<Moment> {
        let mut life = self.life.lock();
        let now = context.clock.now();
        self.compare(&mut life, context, now);
        let first = match life.phase {
            Phase::Held => true,
            Phase::Doubtful => false,
            Phase::Lost(_) | Phase::Released => return None,
        };
        life.attempts_left = match self.on_doubt {
            OnDoubt::Stop => 0,
            OnDoubt::Prove { attempts } if first => attempts,
            OnDoubt::Prove { .. } => life.attempts_left - 1,
        };
        context.announce(&self.name, Some(self.owner), EventKind::Doubtful(error));
        if life.attempts_left == 0 {
            self.lose_locked(&mut life, context, LossReason::Unreachable);
            return None;
        }
        life.phase = Phase::Doubtful;
        let left = now.until(life.deadline.min(self.ends_at));
        let pause = (left / life.attempts_left.saturating_add(1)).min(self.ttl / 12);
        drop(life);
        if first {
            self.changed.notify_waiters();
        }
        Some(now + pause.mul_f64(0.5 + 0.5 * fastrand::f64()))
    }

    /// It is over, and the holder did not ask for it.
    pub(crate) fn lose(&self, context: &Context, reason: LossReason) {
        let mut life = self.life.lock();
        if matches!(life.phase, Phase::Held | Phase::Doubtful) {
            self.lose_locked(&mut life, context, reason);
        }
    }

    /// It is being given back: from now on the holder may not act. The deadline until
    /// which a release may be sent, or the state that makes it impossible.
    pub(crate) fn give_back(&self, context: &Context) -> Result<Moment, LeaseState> {
        let mut life = self.life.lock();
        self.compare(&mut life, context, context.clock.now());
        match &life.phase {
            Phase::Lost(loss) => Err(LeaseState::Lost((**loss).clone())),
            Phase::Released => Err(LeaseState::Released),
            Phase::Held | Phase::Doubtful => {
                life.phase = Phase::Released;
                let deadline = life.deadline;
                drop(life);
                self.ended();
                Ok(deadline)
            }
        }
    }

    fn compare(&self, life: &mut Life, context: &Context, now: Moment) {
        let doubtful = match life.phase {
            Phase::Held => false,
            Phase::Doubtful => true,
            Phase::Lost(_) | Phase::Released => return,
        };
        if now >= life.deadline {
            let expired = if doubtful { LossReason::Unreachable } else { LossReason::Expired };
            self.lose_locked(life, context, expired);
        } else if now >= self.ends_at {
            self.lose_locked(life, context, LossReason::MaxHold);
        }
    }

    fn lose_locked(&self, life: &mut Life, context: &Context, reason: LossReason) {
        let at = context.clock.now();
        let loss = Loss { reason, at, held: self.granted_at.until(at) };
        life.phase = Phase::Lost(Box::new(loss.clone()));
        context.announce(&self.name, Some(self.owner), EventKind::Lost(loss));
        self.ended();
    }

    fn ended(&self) {
        self.changed.notify_waiters();
        if let Some(token) = self.cancellation.get() {
            token.cancel();
        }
    }
}

/// The last moment the holder may act on this proof.
pub(crate) fn deadline(context: &Context, ttl: Duration, proof: Proof) -> Moment {
    proof.at + proof.valid_for.saturating_sub(context.drift(ttl))
}
