//! One acquisition, from the wish to the lease: asking, waiting in line, settling
//! what got no answer. Dropped at any point, it undoes what it may have done.

use std::sync::Arc;
use std::time::Duration;

use super::turnstile::Pass;
use super::undo::{Trace, settle, undo, undo_once};
use super::{Client, backoff};
use crate::backend::{Claim, Grant, Renewal, Turn, Verdict};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Operation, Outcome, Result};
use crate::event::{EventKind, Refusal};
use crate::failpoint::Point;
use crate::holder::HeldBy;
use crate::lease::{Lease, Tenure, deadline};
use crate::name::Name;
use crate::owner::Owner;
use crate::terms::{Patience, Terms};

/// How many fresh owners an acquisition may use up when answers are lost or late.
const ROUNDS: u32 = 3;
/// How often an unanswered question is repeated before the caller is told.
const QUESTIONS: u32 = 3;

/// Takes the lock under these terms: a lease, or `None` when another holds it and
/// there is no (more) patience; then who holds it, where the store says.
pub(crate) async fn acquire(
    client: &Arc<Client>,
    name: Name,
    terms: &Terms,
) -> Result<std::result::Result<Lease, Option<HeldBy>>> {
    let mut attempt = Attempt::new(client, name, terms);
    attempt.announce(EventKind::Asked);
    let taken = match terms.patience {
        Patience::None | Patience::Forever => attempt.take().await.map(Some),
        Patience::For(patience) => {
            let until = attempt.asked + patience;
            tokio::select! {
                biased;
                taken = attempt.take() => taken.map(Some),
                () = client.context.clock.sleep_until(until) => Ok(None),
            }
        }
    };
    match taken {
        Ok(Some(Taken::Lease(grant))) => Ok(Ok(attempt.succeed(grant))),
        Ok(Some(Taken::Held(by))) => {
            attempt.refuse(Refusal::Held(by.clone()));
            Ok(Err(by))
        }
        Ok(None) => {
            let by = attempt.give_up().await;
            attempt.refuse(Refusal::Held(by.clone()));
            Ok(Err(by))
        }
        Err(error) => {
            let error = error.during(Operation::Acquire, Some(&attempt.claim.name));
            attempt.refuse(Refusal::Failed(error.clone()));
            Err(error)
        }
    }
}

enum Taken {
    Lease(Grant),
    Held(Option<HeldBy>),
}

struct Attempt<'a> {
    client: &'a Arc<Client>,
    terms: &'a Terms,
    claim: Claim,
    asked: Moment,
    trace: Trace,
    waiting: bool,
    over: bool,
}

impl<'a> Attempt<'a> {
    fn new(client: &'a Arc<Client>, name: Name, terms: &'a Terms) -> Self {
        let mut claim = Claim::new(name, terms.ttl, client.holder.clone());
        claim.queue = terms.patience != Patience::None;
        let asked = client.now();
        Self { client, terms, claim, asked, trace: Trace::None, waiting: false, over: false }
    }

    async fn take(&mut self) -> Result<Taken> {
        let _pass: Option<Pass> = match self.claim.queue {
            true => Some(self.client.turnstile.enter(&self.claim.name).await),
            false => None,
        };
        let mut late = 0;
        loop {
            let grant = match self.ask().await? {
                Verdict::Granted(grant) => grant,
                Verdict::Held(by) => {
                    self.trace = Trace::None;
                    return Ok(Taken::Held(by));
                }
                Verdict::Queued(by) => match self.wait(by).await {
                    Some(grant) => grant,
                    None => continue,
                },
            };
            if let Some(grant) = self.whole(grant).await? {
                return Ok(Taken::Lease(grant));
            }
            // Traps: acquire returned a lock that had already expired
            // (node-redlock#296), or after its session had (etcd#11456).
            late += 1;
            if late == ROUNDS && self.claim.queue {
                late = 0;
            } else if late == ROUNDS {
                let message = "the grant came after its own deadline; use a longer TTL";
                return Err(Error::new(ErrorKind::Unreachable, message));
            }
            self.start_over().await;
        }
    }

    /// Asks the store for the lock, and finds out what became of it if there is no answer.
    async fn ask(&mut self) -> Result<Verdict> {
        let mut rounds = 0;
        loop {
            let already_queued = self.trace == Trace::Place;
            self.trace = Trace::Unknown;
            let error = match self.client.claims.send(self.claim.clone()).await {
                Ok(verdict) => return Ok(verdict),
                Err(error) => error,
            };
            if error.outcome() == Outcome::NotApplied && !already_queued {
                self.trace = Trace::None;
                return Err(error);
            }
            // "Timed out" may hide a success: ask whether our owner is there. If not,
            // it is barred by the question, and a fresh one tries again.
            if self.client.context.failpoints.skips(Point::SettleUnknown) {
                self.trace = Trace::None;
                return Err(error);
            }
            if let Some(grant) = self.settle(&error).await? {
                return Ok(Verdict::Granted(grant));
            }
            rounds += 1;
            if rounds == ROUNDS {
                return Err(error);
            }
            self.start_over().await;
        }
    }

    async fn settle(&mut self, unanswered: &Error) -> Result<Option<Grant>> {
        for question in 0..QUESTIONS {
            match settle(self.client, &self.claim).await {
                Ok(None) => {
                    self.trace = Trace::None;
                    return Ok(None);
                }
                Ok(grant) => return Ok(grant),
                Err(_) => self.client.context.clock.sleep(backoff(question)).await,
            }
        }
        // The trace stays unknown: dropping the attempt goes on undoing it.
        Err(unanswered.clone())
    }

    /// Waits in line; `None` when the store says to ask again.
    async fn wait(&mut self, by: Option<HeldBy>) -> Option<Grant> {
        self.trace = Trace::Place;
        if !std::mem::replace(&mut self.waiting, true) {
            self.announce(EventKind::Waiting(by));
        }
        match self.client.context.backend.clone().wait(self.claim.clone()).await {
            Ok(Turn::Granted(grant)) => {
                self.trace = Trace::Unknown;
                Some(grant)
            }
            Ok(Turn::TryAgain) => None,
            Err(_) => {
                // Ask again; if that fails as well, the caller is told.
                self.client.context.clock.sleep(backoff(0)).await;
                None
            }
        }
    }

    /// The grant, if it can still be used; confirmed to its whole TTL if nobody will
    /// renew it later.
    async fn whole(&mut self, grant: Grant) -> Result<Option<Grant>> {
        let context = &self.client.context;
        let mut grant = grant;
        if !self.terms.renewed && grant.proof.valid_for < self.claim.ttl {
            let hold = self.claim.hold(grant.token);
            let confirming = context.backend.clone().renew(vec![hold]);
            match context.ask(confirming).await?.pop() {
                Some(Renewal::Renewed(proof)) => grant.proof = proof,
                _ => return Ok(None),
            }
        }
        let fresh = context.clock.now() < deadline(context, self.claim.ttl, grant.proof);
        Ok((fresh || context.failpoints.skips(Point::CheckGrantIsFresh)).then_some(grant))
    }

    /// Undoes this claim and goes on with a fresh owner. Not in the background, if it
    /// can be helped: the next claim would find its predecessor's lock and call it
    /// another's.
    async fn start_over(&mut self) {
        if undo_once(self.client, &self.claim, self.trace).await.is_err() {
            self.undo_in_background();
        }
        self.claim.owner = Owner::random();
        self.trace = Trace::None;
    }

    /// Patience is over: leaves the line, and asks who holds the lock.
    async fn give_up(&mut self) -> Option<HeldBy> {
        if undo_once(self.client, &self.claim, self.trace).await.is_ok() {
            self.trace = Trace::None;
        }
        let asking = self.client.context.backend.clone().inspect(self.claim.name.clone());
        let info = self.client.context.ask(asking).await.ok().flatten()?;
        Some(info.lease?.held_by)
    }

    fn succeed(mut self, grant: Grant) -> Lease {
        self.over = true;
        self.trace = Trace::None;
        self.announce(EventKind::Granted { token: grant.token, waited: self.waited() });
        let hold = self.claim.hold(grant.token);
        let tenure = Arc::new(Tenure::new(&self.client.context, hold, &grant, self.terms));
        let place = self.client.keeper.keep(tenure.clone(), grant.proof);
        Lease::new(self.client.clone(), tenure, place)
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.over = true;
        self.announce(EventKind::Refused { why: refusal, waited: self.waited() });
    }

    fn waited(&self) -> Duration {
        self.asked.until(self.client.now())
    }

    fn announce(&self, kind: EventKind) {
        let claim = &self.claim;
        self.client.context.announce(&claim.name, Some(claim.owner), kind);
    }

    fn undo_in_background(&self) {
        if self.trace != Trace::None && !self.client.context.failpoints.skips(Point::UndoCancelled)
        {
            let undoing = undo(self.client.clone(), self.claim.clone(), self.trace);
            self.client.context.runtime.spawn(undoing);
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.undo_in_background();
        if !self.over {
            let (why, waited) = (Refusal::Cancelled, self.waited());
            self.announce(EventKind::Refused { why, waited });
        }
    }
}
