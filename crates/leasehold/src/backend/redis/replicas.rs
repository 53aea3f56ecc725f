//! `wait-replicas`: a lease counts only when enough replicas have it, however it came about:
//! by a claim, by a turn in the queue, or found by settling.
//!
//! WAIT holds up everything behind it on its connection, so it has one of its own. It waits
//! for what was written *there*, so the leases are renewed there first: that comes after
//! their grant, and so do the replicas' confirmations. Leases that are granted while a WAIT is
//! under way share the next one: confirming takes two of them at most, whatever the load.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::Value;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::RedisStore;
use super::answer::{items, number};
use super::batch::Located;
use super::claim::millis;
use super::error::{Failure, unexpected};
use super::hold::renewal;
use super::script::Call;
use super::server::{Server, loading};
use crate::backend::{Claim, Grant, Hold};
use crate::error::{Error, ErrorKind, Result};

/// How long a WAIT waits at most. Two of them have to fit into the time that a request has.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// The replicas of one server, asked over a connection that may be kept waiting.
pub(in crate::backend) struct Replicas {
    server: Arc<Server>,
    questions: Mutex<Vec<Question>>,
    asking: tokio::sync::Mutex<()>,
}

/// Leases to renew before the next WAIT.
struct Question {
    renewal: Call,
    answer: oneshot::Sender<Result<Confirmed, Failure>>,
}

/// What the server said to the renewal, and how many replicas have it.
type Confirmed = (Value, u32);

impl Replicas {
    pub(in crate::backend) fn new(server: Arc<Server>) -> Arc<Self> {
        Arc::new(Self {
            server,
            questions: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        })
    }

    /// Renews leases, and waits until `count` replicas have that, for at most `limit`.
    async fn confirm(
        self: &Arc<Self>,
        renewal: Call,
        count: u32,
        limit: Duration,
    ) -> Result<Confirmed, Failure> {
        let (answer, answered) = oneshot::channel();
        self.questions.lock().push(Question { renewal, answer });
        let replicas = self.clone();
        // In a task: a caller that is cancelled must not take the others' answers with it.
        tokio::spawn(async move { replicas.ask(count, limit).await });
        answered.await.unwrap_or_else(|_| Err(Failure::silent()))
    }

    /// Asks all that is to be asked by now, unless an earlier task took it along.
    async fn ask(&self, count: u32, limit: Duration) {
        let _turn = self.asking.lock().await;
        let questions = std::mem::take(&mut *self.questions.lock());
        if questions.is_empty() {
            return;
        }
        let asking = self.renew_and_wait(&questions, count, limit);
        // The server has as long again to answer; what comes later is not waited for.
        let answers = timeout(2 * limit, asking).await.unwrap_or_else(|_| Err(Failure::silent()));
        let (renewed, count) = match answers {
            Ok(answers) => answers,
            Err(failure) => {
                for question in questions {
                    let _ = question.answer.send(Err(failure.clone()));
                }
                return;
            }
        };
        for (question, renewed) in questions.into_iter().zip(renewed) {
            let _ = question.answer.send(Ok((renewed, count)));
        }
    }

    async fn renew_and_wait(
        &self,
        questions: &[Question],
        count: u32,
        limit: Duration,
    ) -> Result<(Vec<Value>, u32), Failure> {
        let commands = |mut commands: redis::Pipeline| {
            for question in questions {
                commands.add_command(question.renewal.request.command());
            }
            commands.cmd("WAIT").arg(count).arg(millis(limit));
            commands
        };
        let mut asked = self.server.ask_all(&commands(redis::pipe())).await;
        if asked.as_ref().is_err_and(|failure| failure.code() == Some("NOSCRIPT")) {
            asked = self.server.ask_all(&commands(loading(&questions[0].renewal))).await;
        }
        let mut answers = asked?;
        let count = answers.pop();
        // The answer to SCRIPT LOAD may come before them.
        let renewed = answers.len().checked_sub(questions.len()).map(|at| answers.split_off(at));
        match (renewed, count) {
            (Some(renewed), Some(Value::Int(count))) => {
                Ok((renewed, u32::try_from(count).unwrap_or(0)))
            }
            _ => Err(Failure::Unanswered(unexpected())),
        }
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").field("server", &self.server).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Waits until enough replicas have what was granted. Otherwise all of it is given back, and
    /// the error says that the outcome is unknown: the caller settles, which finds what is left.
    ///
    /// All claims are in one slot, where slots matter.
    pub(in crate::backend) async fn replicate(
        &self,
        granted: Vec<(&Located<Claim>, &mut Grant)>,
    ) -> Result<()> {
        let Some(((keys, _), _)) = granted.first() else { return Ok(()) };
        let slot = keys.slot;
        let hold = |((_, claim), grant): &(&Located<Claim>, &mut Grant)| claim.hold(grant.token);
        let holds: Vec<Hold> = granted.iter().map(hold).collect();
        let at = self.clock.now();
        let error = match self.confirmed(slot, &holds).await {
            Ok(true) => {
                for ((_, claim), grant) in granted {
                    grant.proof.at = at;
                    grant.proof.valid_for = Duration::from_millis(millis(claim.ttl));
                }
                return Ok(());
            }
            Ok(false) => {
                Error::new(ErrorKind::Unavailable, "the lease ended before replicas had it")
            }
            Err(error) => error,
        };
        // If this fails as well, the caller's settling comes back to it.
        let _ = self.release_holds(holds).await;
        Err(error.outcome_unknown())
    }

    /// Whether all of these are still held. An error if too few replicas have them.
    async fn confirmed(&self, slot: u16, holds: &[Hold]) -> Result<bool> {
        let wanted = self.settings.wait_replicas;
        let limit = (self.settings.timeout / 4).min(LONGEST_WAIT);
        let not_asked = |error: Error| {
            let message = "the replicas could not be asked whether they have the lease: it was \
                           given back; wait-replicas needs a second connection to the master";
            Error::new(error.kind().clone(), message).caused_by(error)
        };
        let replicas = self.route.replicas(slot).await.map_err(not_asked)?;
        let renewal = renewal(&self.settings.prefix, holds);
        let confirmed = replicas.confirm(renewal, wanted, limit).await;
        let (renewed, count) = confirmed.map_err(|failure| not_asked(failure.into()))?;
        for answer in items(renewed, holds.len())? {
            if number(&answer)? == 0 {
                return Ok(false);
            }
        }
        if count < wanted {
            let message = format!(
                "only {count} of {wanted} replicas had the lease in time: it was given back; \
                 see to the replicas, or lower wait-replicas"
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(true)
    }
}
