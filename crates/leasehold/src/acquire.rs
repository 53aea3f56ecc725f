//! One acquisition, from the wish to the grant: asking, waiting in the queue, settling what got no
//! answer. Dropped at any point, it undoes what it may have done.
//!
//! An [`Acquirer`] makes an [`Attempt`] of each wish. The attempt passes the turnstile, so that only
//! one task per client and lock asks the store, and sends its claim through the batcher. A grant
//! that it believes is [`Granted`], of which [`Lease::new`](crate::lease::Lease) makes a lease.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Claim, Grant, Renewal, Turn, Verdict};
use crate::clock::Moment;
use crate::context::{Context, Subject, backoff};
use crate::error::{Error, ErrorKind, Operation, Outcome, Result};
use crate::event::{EventKind, Refusal};
use crate::failpoint::{Point, Step};
use crate::holder::HeldBy;
use crate::loss::LossReason;
use crate::name::Name;
use crate::observe::ClassId;
use crate::owner::Owner;
use crate::terms::{Patience, Terms};

use batcher::Batcher;
use turnstile::{Pass, Turnstile};
use undo::{Trace, settle, undo, undo_once};

pub(crate) mod batcher;
mod give_up;
mod turnstile;
pub(crate) mod undo;

/// How many fresh owners an acquisition may use up when answers are lost or late.
const ROUNDS: u32 = 3;
/// How often an unanswered question is repeated before the caller is told.
const QUESTIONS: u32 = 3;
/// How long to believe a store that says nothing to a waiter.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Acquires the locks of one client.
#[derive(Debug)]
pub(crate) struct Acquirer {
    context: Arc<Context>,
    claims: Batcher<Claim>,
    turnstile: Arc<Turnstile>,
}

/// A lock that was granted, and is not kept by anybody yet.
#[derive(Debug)]
#[must_use = "the lock is held, and nobody renews or releases it"]
pub(crate) struct Granted {
    pub(crate) claim: Claim,
    pub(crate) class: ClassId,
    pub(crate) grant: Grant,
    /// When the grant was found to be good.
    pub(crate) at: Moment,
    /// Another claim of its owner may still be on its way to the store.
    pub(crate) stray_claim: bool,
}

/// A lock that another holds: who, where the store says, and how long we waited for it.
#[derive(Debug)]
pub(crate) struct Unavailable {
    pub(crate) by: Option<HeldBy>,
    pub(crate) waited: Duration,
}

impl Acquirer {
    pub(crate) fn new(context: Arc<Context>, claims: Batcher<Claim>) -> Self {
        Self { context, claims, turnstile: Arc::default() }
    }

    /// Whether no claim is under way or collected.
    #[cfg(all(test, shuttle))]
    pub(crate) fn is_idle(&self) -> bool {
        self.claims.is_idle()
    }

    /// Takes the lock under these terms; not when another holds it and there is no (more)
    /// patience.
    pub(crate) async fn acquire(
        &self,
        name: Name,
        terms: &Terms,
    ) -> Result<std::result::Result<Granted, Unavailable>> {
        let mut attempt = Attempt::new(self, name, terms);
        attempt.announce(attempt.asked, EventKind::Asked);
        let taken = match terms.patience {
            Patience::None | Patience::Forever => attempt.take().await,
            Patience::For(_) => {
                let (context, until) = (&self.context, attempt.until);
                // Waiting ends with patience. A request that is under way gets a little longer: its
                // answer says more than that there is none yet. (Patience may be shorter than one
                // round trip.)
                let last_call = async {
                    context.clock.sleep_until(until).await;
                    tokio::time::sleep(context.last_look()).await;
                };
                tokio::select! {
                    biased;
                    taken = attempt.take() => taken,
                    () = last_call => Ok(Taken::NoAnswer),
                }
            }
        };
        let error = match taken {
            Ok(Taken::Granted(grant, now)) => return Ok(Ok(attempt.succeed(grant, now))),
            Ok(Taken::Held(by)) => return Ok(Err(attempt.unavailable(by))),
            Ok(Taken::OutOfPatience) => match attempt.give_up().await {
                Ok(by) => return Ok(Err(attempt.unavailable(by))),
                Err(error) => error,
            },
            Ok(Taken::NoAnswer) => attempt.silence(),
            Err(error) => error,
        };
        Err(attempt.fail(error))
    }
}

enum Taken {
    /// With when it was found to be good.
    Granted(Grant, Moment),
    Held(Option<HeldBy>),
    /// Nothing is under way.
    OutOfPatience,
    /// Out of patience, and what is under way got no answer.
    NoAnswer,
}

/// How a wait in the queue ended.
enum Waited {
    Granted(Grant),
    AskAgain,
    OutOfPatience,
}

struct Attempt<'a> {
    acquirer: &'a Acquirer,
    context: &'a Arc<Context>,
    terms: &'a Terms,
    claim: Claim,
    class: ClassId,
    asked: Moment,
    /// When patience ends.
    until: Moment,
    trace: Trace,
    /// Whom we were told to wait for; `None` while no store has told us to wait.
    waits_for: Option<Option<HeldBy>>,
    /// When the store last told us to wait.
    heard: Moment,
    /// Since when our place in the queue has been answered with errors; `None` while it is not.
    /// (That nothing is heard while waiting says nothing: there may be nothing to say.)
    troubled: Option<Moment>,
    /// A claim of the present owner that got no answer may still be on its way.
    stray_claim: bool,
    over: bool,
}

impl<'a> Attempt<'a> {
    fn new(acquirer: &'a Acquirer, name: Name, terms: &'a Terms) -> Self {
        let context = &acquirer.context;
        let mut claim = Claim::new(name, terms.ttl, context.holder.clone());
        claim.queue = terms.patience != Patience::None;
        let class = context.meter.class_of(&claim.name);
        let asked = context.now();
        let until = match terms.patience {
            Patience::For(patience) => asked + patience,
            Patience::None | Patience::Forever => Moment::NEVER,
        };
        Self {
            acquirer,
            context,
            terms,
            claim,
            class,
            asked,
            until,
            heard: asked,
            trace: Trace::None,
            waits_for: None,
            troubled: None,
            stray_claim: false,
            over: false,
        }
    }

    async fn take(&mut self) -> Result<Taken> {
        let _pass: Option<Pass> = match self.claim.queue {
            true => tokio::select! {
                biased;
                pass = self.acquirer.turnstile.enter(&self.claim.name) => Some(pass),
                () = self.out_of_patience() => return Ok(Taken::OutOfPatience),
            },
            false => None,
        };
        let mut late = 0;
        loop {
            let asked = self.ask().await.map_err(|error| self.since_when(error))?;
            let Some(verdict) = asked else { return Ok(Taken::OutOfPatience) };
            self.context.failpoints.reach(Step::Answered);
            let grant = match verdict {
                Verdict::Granted(grant) => grant,
                Verdict::Held(by) => {
                    self.trace = Trace::None;
                    return Ok(Taken::Held(by));
                }
                Verdict::Queued(by) => match self.wait(by).await {
                    Waited::Granted(grant) => grant,
                    Waited::AskAgain => continue,
                    Waited::OutOfPatience => return Ok(Taken::OutOfPatience),
                },
                Verdict::OtherCapacity(present) => {
                    self.trace = Trace::None;
                    let message = format!("others use this lock with a capacity of {present}");
                    return Err(Error::new(ErrorKind::Refused, message));
                }
                Verdict::Withheld => {
                    let message = "the store withholds a lock that was claimed alone";
                    return Err(Error::new(ErrorKind::Unavailable, message));
                }
            };
            if let Some((grant, now)) = self.believe(grant).await? {
                self.context.failpoints.reach(Step::Believed);
                return Ok(Taken::Granted(grant, now));
            }
            // Traps: acquire returned a lock that had already expired
            // (node-redlock#296), or after its session had (etcd#11456).
            late += 1;
            if late == ROUNDS || self.is_out_of_patience() {
                let message = "grants keep coming after their own deadline: this store (or this \
                               process) is too slow for the TTL; use a longer one";
                return Err(Error::new(ErrorKind::Unavailable, message).not_applied());
            }
            self.start_over().await?;
            self.context.clock.sleep(backoff(late)).await;
        }
    }

    /// Completes when patience ends.
    async fn out_of_patience(&self) {
        match self.until {
            Moment::NEVER => std::future::pending().await,
            until => self.context.clock.sleep_until(until).await,
        }
    }

    fn is_out_of_patience(&self) -> bool {
        self.until != Moment::NEVER && self.context.now() >= self.until
    }

    /// Asks the store for the lock, and finds out what became of it if there is no answer.
    /// `None` if patience ended in the queue.
    async fn ask(&mut self) -> Result<Option<Verdict>> {
        // Owners that were used up, and errors in the queue that were waited out.
        let (mut rounds, mut waited_out) = (0, 0);
        loop {
            let again = self.trace == Trace::Place;
            if again && self.is_out_of_patience() {
                return Ok(None);
            }
            self.trace = Trace::Unknown;
            self.context.failpoints.reach(Step::Asking);
            let error = match self.acquirer.claims.send(self.claim.clone()).await {
                Ok(verdict) => return Ok(Some(verdict)),
                Err(error) => error,
            };
            if again {
                self.note_trouble(&error);
            }
            if error.outcome() == Outcome::NotApplied {
                if !again {
                    self.trace = Trace::None;
                    return Err(error);
                }
                // In the queue already: a store that is away for a moment does not end the wait.
                self.trace = Trace::Place;
                self.wait_out(error, waited_out).await?;
                waited_out += 1;
                continue;
            }
            if self.context.failpoints.skips(Point::SettleUnknown) {
                self.trace = Trace::None;
                return Err(error);
            }
            // "Timed out" may hide a success: ask whether our owner is there. If not,
            // the question leaves it a tombstone, and a fresh one tries again.
            self.stray_claim = again;
            if let Some(grant) = self.settle(&error).await? {
                return Ok(Some(Verdict::Granted(grant)));
            }
            rounds += 1;
            if rounds == ROUNDS {
                return Err(error);
            }
            self.start_over().await?;
        }
    }

    /// In the queue, and the store answers with an error or not at all: the first time, everybody
    /// hears of it.
    fn note_trouble(&mut self, error: &Error) {
        if self.troubled.is_none() {
            let now = self.context.now();
            self.troubled = Some(now);
            self.announce(now, EventKind::Troubled(error.clone()));
        }
    }

    /// Waits a moment after an error in the queue, for as long as a TTL since the first of them;
    /// then the error is the caller's.
    async fn wait_out(&mut self, error: Error, attempt: u32) -> Result<()> {
        let now = self.context.now();
        if error.says_gone() {
            return Err(error);
        }
        if self.troubled.is_some_and(|since| since.until(now) >= self.claim.ttl) {
            return Err(error);
        }
        let again_at = now + backoff(attempt + 3);
        self.context.clock.sleep_until(again_at.min(self.until)).await;
        Ok(())
    }

    async fn settle(&mut self, unanswered: &Error) -> Result<Option<Grant>> {
        for question in 0..QUESTIONS {
            match settle(self.context, &self.claim).await {
                Ok(None) => {
                    self.trace = Trace::None;
                    return Ok(None);
                }
                Ok(grant) => return Ok(grant),
                Err(_) => self.context.clock.sleep(backoff(question)).await,
            }
        }
        // The trace stays unknown: dropping the attempt goes on undoing it.
        Err(unanswered.clone())
    }

    /// Waits in the queue.
    async fn wait(&mut self, by: Option<HeldBy>) -> Waited {
        self.trace = Trace::Place;
        self.troubled = None;
        self.heard = self.context.now();
        let over = self.heard >= self.until;
        if self.waits_for.is_none() && !over {
            self.announce(self.heard, EventKind::Waiting(by.clone()));
        }
        self.waits_for = Some(by);
        if over {
            return Waited::OutOfPatience;
        }
        let context = self.context;
        context.failpoints.reach(Step::Queued);
        let waiting = context.backend.clone().wait(self.claim.clone());
        // An answer may be lost here as anywhere: asking again keeps the place in the queue.
        let turn = tokio::select! {
            biased;
            turn = waiting => turn,
            () = self.out_of_patience() => return Waited::OutOfPatience,
            () = context.clock.sleep(LONGEST_WAIT) => Ok(Turn::TryAgain),
        };
        context.failpoints.reach(Step::Called);
        match turn {
            Ok(Turn::Granted(grant)) => {
                self.trace = Trace::Unknown;
                Waited::Granted(grant)
            }
            // Not at once: a store that says so for ever must not be asked without end.
            Ok(Turn::TryAgain) | Err(_) => {
                context.clock.sleep(backoff(0)).await;
                Waited::AskAgain
            }
        }
    }

    /// The grant, if it can still be used, and when that was found; confirmed to its whole
    /// TTL if nobody will renew it later.
    async fn believe(&mut self, grant: Grant) -> Result<Option<(Grant, Moment)>> {
        let mut grant = grant;
        if !self.terms.renewed && grant.proof.valid_for < self.claim.ttl {
            match self.confirm(&grant).await? {
                Renewal::Renewed(proof) => grant.proof = proof,
                Renewal::NotYours(_) => return Ok(None),
            }
        }
        let context = self.context;
        let now = context.clock.now();
        let fresh = now < context.deadline(grant.proof);
        Ok((fresh || context.failpoints.skips(Point::CheckGrantIsFresh)).then_some((grant, now)))
    }

    async fn confirm(&self, grant: &Grant) -> Result<Renewal> {
        let context = self.context;
        let mut question = 0;
        loop {
            let confirming = context.backend.clone().renew(vec![self.claim.hold(grant.token)]);
            question += 1;
            match context.ask(confirming).await {
                Ok(mut verdicts) => {
                    let lost = Renewal::NotYours(LossReason::Expired);
                    return Ok(verdicts.pop().unwrap_or(lost));
                }
                Err(error) if question == QUESTIONS => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Undoes this claim and goes on with a fresh owner. Not in the background: the next
    /// claim would find its predecessor's lock and call it another's.
    async fn start_over(&mut self) -> Result<()> {
        for question in 0..QUESTIONS {
            let undone = undo_once(self.context, &self.claim, self.trace).await;
            match undone {
                Ok(()) => break,
                // The trace stays: dropping the attempt goes on undoing it.
                Err(error) if question + 1 == QUESTIONS => return Err(error),
                Err(_) => self.context.clock.sleep(backoff(question)).await,
            }
        }
        self.claim.owner = Owner::random();
        self.trace = Trace::None;
        self.stray_claim = false;
        Ok(())
    }

    fn succeed(mut self, grant: Grant, at: Moment) -> Granted {
        self.over = true;
        self.trace = Trace::None;
        let waited = self.asked.until(at);
        self.announce(at, EventKind::Granted { token: grant.token, waited });
        let (claim, class, stray_claim) = (self.claim.clone(), self.class, self.stray_claim);
        Granted { claim, class, grant, at, stray_claim }
    }

    fn fail(&mut self, error: Error) -> Error {
        let store = self.context.backend.guarantees().store;
        let error = error.on_store(store).during(Operation::Acquire, Some(&self.claim.name));
        self.refuse(Refusal::Failed(error.clone()));
        error
    }

    fn unavailable(&mut self, by: Option<HeldBy>) -> Unavailable {
        let waited = self.refuse(Refusal::Held(by.clone()));
        Unavailable { by, waited }
    }

    /// Tells how it ended; after how long.
    fn refuse(&mut self, why: Refusal) -> Duration {
        self.over = true;
        let now = self.context.now();
        let waited = self.asked.until(now);
        self.announce(now, EventKind::Refused { why, waited });
        waited
    }

    fn subject(&self) -> Subject<'_> {
        let Claim { name, owner, .. } = &self.claim;
        Subject { name, owner: Some(*owner), class: self.class }
    }

    fn announce(&self, at: Moment, kind: EventKind) {
        self.context.announce(self.subject(), at, kind);
    }

    fn undo_in_background(&self) {
        if self.trace != Trace::None && !self.context.failpoints.skips(Point::UndoCancelled) {
            let undoing = undo(self.context.clone(), self.claim.clone(), self.trace);
            self.context.runtime.spawn(undoing);
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.undo_in_background();
        if !self.over {
            self.refuse(Refusal::Cancelled);
        }
    }
}
