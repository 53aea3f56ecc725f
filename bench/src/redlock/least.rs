//! The yardstick: the least that a quorum can be on this driver.

use std::sync::Arc;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Script;
use redis::aio::MultiplexedConnection;

use super::{MAJORITY, TTL};
use crate::redis::raw::connection;

/// The least: the lock on all nodes at once, and on as soon as a majority answered; no token,
/// nothing undone.
#[derive(Clone)]
pub(super) struct Loop {
    pub(super) nodes: Vec<MultiplexedConnection>,
    give_back: Arc<Script>,
}

impl Loop {
    pub(super) async fn open(urls: &[String]) -> Result<Self> {
        let mut nodes = Vec::new();
        for url in urls {
            nodes.push(connection(url).await?);
        }
        let give_back = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                         return redis.call('DEL', KEYS[1]) end return 0";
        Ok(Self { nodes, give_back: Arc::new(Script::new(give_back)) })
    }

    pub(super) async fn take(&self, key: &str, owner: &str) -> Result<()> {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(owner).arg("NX").arg("PX").arg(TTL.as_millis() as u64);
        let asking = self.nodes.iter().map(|node| {
            let (mut node, set) = (node.clone(), &set);
            async move { set.query_async::<Option<String>>(&mut node).await }
        });
        let mut asking: FuturesUnordered<_> = asking.collect();
        let mut granted = 0;
        while granted < MAJORITY {
            let answer = asking.next().await.context("no majority")??;
            granted += usize::from(answer.is_some());
        }
        Ok(())
    }

    pub(super) async fn give_back(&self, key: &str, owner: &str) -> Result<()> {
        let asking = self.nodes.iter().map(|node| {
            let (mut node, mut call) = (node.clone(), self.give_back.prepare_invoke());
            call.key(key).arg(owner);
            async move { call.invoke_async::<usize>(&mut node).await }
        });
        let mut asking: FuturesUnordered<_> = asking.collect();
        let mut released = 0;
        while released < MAJORITY {
            let answer = asking.next().await.with_context(|| format!("{key} is gone"))??;
            released += answer;
        }
        Ok(())
    }
}
