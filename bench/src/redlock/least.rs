//! The yardsticks: the least that a quorum can be on this driver, without a token and with one.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Script;
use redis::aio::MultiplexedConnection;

use super::{MAJORITY, TTL};
use crate::redis::raw::connection;

/// Takes the lock and stores a guess as its token, if that is new: the least that can be a
/// token's vote, as two keys have to change together or not at all.
const TAKE_WITH_TOKEN: &str = "if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) \
     then return 0 end local last = redis.call('GET', KEYS[2]) \
     if last and last >= ARGV[3] then return 0 end \
     redis.call('SET', KEYS[2], ARGV[3], 'PX', '3600000') return 1";

/// The least: the lock on all nodes at once, and on as soon as a majority answered; nothing
/// undone.
#[derive(Clone)]
pub(super) struct Loop {
    pub(super) nodes: Vec<MultiplexedConnection>,
    take_with_token: Arc<Script>,
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
        let take_with_token = Arc::new(Script::new(TAKE_WITH_TOKEN));
        Ok(Self { nodes, take_with_token, give_back: Arc::new(Script::new(give_back)) })
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

    /// The same with a token: the clock in µs, as a guess.
    pub(super) async fn take_with_token(&self, key: &str, owner: &str) -> Result<()> {
        let token = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64;
        let asking = self.nodes.iter().map(|node| {
            let (mut node, mut call) = (node.clone(), self.take_with_token.prepare_invoke());
            call.key(key).key(format!("{key}:token"));
            call.arg(owner).arg(TTL.as_millis() as u64).arg(token);
            async move { call.invoke_async::<usize>(&mut node).await }
        });
        let mut asking: FuturesUnordered<_> = asking.collect();
        let mut granted = 0;
        while granted < MAJORITY {
            granted += asking.next().await.with_context(|| format!("{key}: no majority"))??;
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
