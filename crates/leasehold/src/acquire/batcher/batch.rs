//! One batch: what travels in it, and how the store's answers come back to the callers.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task;

use crate::backend::{Backend, Claim, Hold, Release, Reply, Verdict};
use crate::context::{Context, is_about_one_of_them, wrong_count};
use crate::error::{Error, ErrorKind, Outcome, Result};
use crate::name::Name;

/// A request that can travel with others of its kind.
pub(crate) trait Request: Clone + fmt::Debug + Send + 'static {
    type Answer: fmt::Debug + Send + 'static;
    /// Whether a request that is still queued is dropped with its caller.
    const GOES_WITH_CALLER: bool;

    fn name(&self) -> &Name;
    fn send(backend: Arc<dyn Backend>, batch: Vec<Self>) -> Reply<Vec<Self::Answer>>;

    /// Whether a request that was done before is answered like this by itself, and not because
    /// it was done before.
    fn tells_the_same_again(answer: &Self::Answer) -> bool;
}

impl Request for Claim {
    type Answer = Verdict;
    const GOES_WITH_CALLER: bool = true;

    fn name(&self) -> &Name {
        &self.name
    }

    fn send(backend: Arc<dyn Backend>, batch: Vec<Self>) -> Reply<Vec<Verdict>> {
        backend.acquire(batch)
    }

    /// An owner that has the lock is answered with its grant again.
    fn tells_the_same_again(_: &Verdict) -> bool {
        true
    }
}

/// A hold in a batcher is to be released; renewals go through the keeper.
impl Request for Hold {
    type Answer = Release;
    const GOES_WITH_CALLER: bool = false;

    fn name(&self) -> &Name {
        &self.name
    }

    fn send(backend: Arc<dyn Backend>, batch: Vec<Self>) -> Reply<Vec<Release>> {
        backend.release(batch)
    }

    /// What was given back a moment ago is not held.
    fn tells_the_same_again(answer: &Release) -> bool {
        *answer == Release::Released
    }
}

/// A queued request, and where its answer goes.
#[derive(Debug)]
pub(super) struct Item<R: Request> {
    pub(super) request: R,
    pub(super) reply: oneshot::Sender<Result<R::Answer>>,
}

/// Sends these requests as one, and gives each caller its answer.
pub(super) async fn send_batch<R: Request>(context: &Arc<Context>, batch: Vec<Item<R>>) {
    if batch.is_empty() {
        return; // All their callers gave up.
    }
    let requests = batch.iter().map(|item| item.request.clone()).collect();
    let asked = batch.len();
    let error = match context.ask(R::send(context.backend.clone(), requests)).await {
        Ok(answers) if answers.len() == asked => {
            for (item, answer) in batch.into_iter().zip(answers) {
                let _ = item.reply.send(Ok(answer));
            }
            return;
        }
        Ok(_) => wrong_count(asked),
        Err(error) => error,
    };
    if asked > 1 && is_about_one_of_them(&error) {
        send_one_by_one(context, batch, error).await;
    } else {
        for item in batch {
            let _ = item.reply.send(Err(error.clone()));
        }
    }
}

/// One bad item failed them all. Each alone, and not one after the other: the last
/// would wait for the time-outs of all before it. What may only be news of the first time
/// is answered with the batch's error.
async fn send_one_by_one<R: Request>(context: &Arc<Context>, batch: Vec<Item<R>>, error: Error) {
    let may_be_done = error.outcome() == Outcome::Unknown;
    let mut sending = task::JoinSet::new();
    for Item { request, reply } in batch {
        let (context, error) = (context.clone(), error.clone());
        let alone = R::send(context.backend.clone(), vec![request]);
        sending.spawn(async move {
            let answer = context.ask(alone).await.and_then(only);
            let tells = |answer: &R::Answer| !may_be_done || R::tells_the_same_again(answer);
            let _ = reply.send(answer.and_then(|answer| match tells(&answer) {
                true => Ok(answer),
                false => Err(error),
            }));
        });
    }
    while sending.join_next().await.is_some() {}
}

/// The answer to a request that was sent alone.
pub(super) fn only<T>(mut answers: Vec<T>) -> Result<T> {
    match (answers.pop(), answers.is_empty()) {
        (Some(answer), true) => Ok(answer),
        _ => Err(wrong_count(1)),
    }
}

pub(super) fn nobody_answers() -> Error {
    let message = "the request was dropped: the store's code panicked, or the runtime that this \
                   client was connected on has ended";
    Error::new(ErrorKind::Internal, message)
}
