//! One call to all nodes at once, whose answers are taken as they come.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use super::super::script::Call;
use super::node::{Node, Said};

/// The answers that are still to come.
pub(super) struct Poll {
    pending: FuturesUnordered<BoxFuture<'static, (usize, Said)>>,
    until: Instant,
}

impl Poll {
    /// Calls all of these nodes; answers that take longer than this do not count.
    pub(super) fn new(nodes: &[Arc<Node>], call: Call, limit: Duration) -> Self {
        let call = Arc::new(call);
        let asking = nodes.iter().map(|node| {
            let (node, call) = (node.clone(), call.clone());
            Box::pin(async move { (node.index, node.ask(&call).await) }) as BoxFuture<'static, _>
        });
        Self { pending: asking.collect(), until: Instant::now() + limit }
    }

    /// How many may still answer.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The next answer: which node, and what it said. `None` when there is none any more, or
    /// time is up.
    pub(super) async fn next(&mut self) -> Option<(usize, Said)> {
        if self.pending.is_empty() {
            return None;
        }
        timeout_at(self.until, self.pending.next()).await.ok().flatten()
    }

    /// The same with more time.
    pub(super) fn extend(&mut self, limit: Duration) {
        self.until = Instant::now() + limit;
    }
}
