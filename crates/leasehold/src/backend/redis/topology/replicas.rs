//! The replicas of one server: which leases they have.
//!
//! WAIT holds up everything behind it on its connection, so it has one of its own. It waits
//! for what was written *there*, so the leases are renewed there first: that comes after
//! their grant, and so do the replicas' confirmations. Leases that are granted while a WAIT is
//! under way share the next one: confirming takes two of them at most, whatever the load.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::backend::redis::connection::{Request, Value};
use crate::backend::redis::error::{Failure, unexpected};
use crate::backend::redis::script::{Call, millis};
use crate::backend::redis::session::Server;

/// The replicas of one server, asked over a connection that may be kept waiting.
pub(crate) struct Replicas {
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
    pub(super) fn new(server: Arc<Server>) -> Arc<Self> {
        Arc::new(Self { server, questions: Mutex::default(), asking: Default::default() })
    }

    /// Renews leases, and waits until `count` replicas have that, for at most `limit`.
    pub(crate) async fn confirm(
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

    /// Asks all questions of the moment, unless an earlier task took them along.
    async fn ask(&self, count: u32, limit: Duration) {
        let _turn = self.asking.lock().await;
        let questions = std::mem::take(&mut *self.questions.lock());
        if questions.is_empty() {
            return;
        }
        let asking = self.renew_and_wait(&questions, count, limit);
        // The server has as long again to answer.
        let answers = timeout(2 * limit, asking).await.unwrap_or_else(|_| Err(Failure::silent()));
        let mut answers = answers.map(|(renewed, count)| (renewed.into_iter(), count));
        for question in questions {
            let answer = match &mut answers {
                Ok((renewed, count)) => {
                    renewed.next().map(|renewed| (renewed, *count)).ok_or_else(Failure::silent)
                }
                Err(failure) => Err(failure.clone()),
            };
            let _ = question.answer.send(answer);
        }
    }

    async fn renew_and_wait(
        &self,
        questions: &[Question],
        count: u32,
        limit: Duration,
    ) -> Result<(Vec<Value>, u32), Failure> {
        let renewals = questions.iter().map(|question| question.renewal.request.clone());
        let wait = Request::of(&["WAIT", &count.to_string(), &millis(limit).to_string()]);
        let requests: Vec<_> = renewals.chain([wait]).collect();
        let mut answers = self.server.ask_with_script(&questions[0].renewal, &requests).await?;
        let count = answers.pop();
        let renewed = answers.len().checked_sub(questions.len()).map(|at| answers.split_off(at));
        match (renewed, count) {
            (Some(renewed), Some(Value::Int(count))) => {
                Ok((renewed, u32::try_from(count).unwrap_or(0)))
            }
            _ => Err(Failure::Unanswered(unexpected())),
        }
    }
}
