//! One call to all nodes at once, whose answers are taken as they come.

use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll as Progress, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::Call;
use super::node::{Node, Said};

/// How long answers that nobody waits for any more may take. A request that is dropped
/// unanswered makes its connection suspect.
const LATEST: Duration = Duration::from_secs(30);

/// The answers that are still to come. Dropped, it does not take its requests back: nobody
/// hears their answers, and a node that gives none is found out later.
pub(super) struct Poll {
    /// Those that came at once.
    early: Vec<(usize, Said)>,
    requests: FuturesUnordered<BoxFuture<'static, (usize, Said)>>,
    until: Instant,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Poll {
    /// Calls all of these nodes; answers that take longer than this do not count.
    pub(super) fn new(nodes: &[Arc<Node>], call: Call, limit: Duration) -> Self {
        let call = Arc::new(call);
        let ask = |node: &Arc<Node>| {
            let (node, call) = (node.clone(), call.clone());
            async move { (node.index, node.ask(&call).await) }.boxed()
        };
        let mut requests: FuturesUnordered<_> = nodes.iter().map(ask).collect();
        // Sent now: what is sent to these nodes later comes behind it.
        let mut early = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        while let Progress::Ready(Some(said)) = pin!(unconstrained(requests.next())).poll(&mut cx) {
            early.push(said);
        }
        Self { early, requests, until: Instant::now() + limit, alarm: None }
    }

    /// How many may still answer.
    pub(super) fn pending(&self) -> usize {
        self.early.len() + self.requests.len()
    }

    /// The next answer: which node, and what it said. `None` when there is none any more, or
    /// time is up.
    pub(super) async fn next(&mut self) -> Option<(usize, Said)> {
        if let Some(said) = self.early.pop() {
            return Some(said);
        }
        poll_fn(|cx| {
            if let Progress::Ready(said) = self.requests.poll_next_unpin(cx) {
                return Progress::Ready(said);
            }
            let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(self.until)));
            alarm.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// From now on answers go there.
    pub(super) fn hand_over(mut self, mut late: impl FnMut(usize, Said) + Send + 'static) {
        mem::take(&mut self.early).into_iter().for_each(|(node, said)| late(node, said));
        self.go_on(late);
    }

    fn go_on(&mut self, mut late: impl FnMut(usize, Said) + Send + 'static) {
        let mut requests = mem::take(&mut self.requests);
        // Without a runtime there is nobody to wait for them.
        let Ok(runtime) = Handle::try_current() else { return };
        if !requests.is_empty() {
            runtime.spawn(timeout(LATEST, async move {
                while let Some((node, said)) = requests.next().await {
                    late(node, said);
                }
            }));
        }
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        self.go_on(|_, _| {});
    }
}
