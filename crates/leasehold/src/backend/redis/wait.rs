//! Waiting for a lock, and giving up.
//!
//! The heartbeats of all waiters of a client are one task, many in one call.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::RedisStore;
use super::acquire::grant;
use super::connection::Value;
use super::error::{Failure, unexpected};
use super::hold::replicate;
use super::keys::Companion::{Queue, Record};
use super::script::{BEAT, Call, LEAVE, items, left, millis, number, text};
use super::topology::Located;
use super::waiters::{Waiter, Waiters};
use crate::backend::{Claim, Turn};
use crate::clock::{Clock, Moment};
use crate::error::Result;

/// The most heartbeats of one call.
const AT_ONCE: usize = 256;

pub(super) async fn wait(store: Arc<RedisStore>, claim: Claim) -> Result<Turn> {
    // A place that was given up, or never taken, has no waiter.
    let Some(waiter) = store.waiters.get(claim.owner) else { return Ok(Turn::TryAgain) };
    let mut turn = waiter.turn(&store.waiters).await;
    // A claim that asks again is still in the queue, as far as we know.
    if let Turn::Granted(grant) = &mut turn {
        store.waiters.forget(claim.owner);
        if store.settings.wait_replicas > 0 {
            let claim = (store.keys(&claim.name), claim);
            Box::pin(replicate(&store, vec![(&claim, grant)])).await?;
        }
    }
    Ok(turn)
}

pub(super) async fn leave(store: Arc<RedisStore>, claim: Claim) -> Result<()> {
    let said = store.waiters.said(claim.owner);
    store.waiters.forget(claim.owner);
    let keys = store.keys(&claim.name);
    let mut call = Call::new(&LEAVE, keys.slot, 3);
    call.keys(&keys, &[Record, Queue]);
    call.arg(store.who(keys.slot, &claim.holder));
    call.arg(claim.owner).arg(millis(claim.ttl)).arg(said);
    store.topology.call(&call).await.map(drop)
}

/// Sends heartbeats for as long as the store lives.
pub(super) async fn heartbeats(store: Weak<RedisStore>, waiters: Arc<Waiters>, clock: Clock) {
    // A hanging node of a cluster delays only the heartbeats of its own slots.
    let mut under_way = FuturesUnordered::new();
    loop {
        let (due, next) = waiters.due(clock.now());
        if due.is_empty() {
            tokio::select! {
                () = waiters.until_due(next) => {}
                Some(()) = under_way.next() => {}
            }
            continue;
        }
        let Some(store) = store.upgrade() else { return };
        for some in together(&store, due) {
            under_way.push(show(store.clone(), some));
        }
    }
}

/// Groups waiters by call: those of one holder, and in a cluster of one slot. (Clients that share
/// the store have holders of their own, and a call names one.)
fn together(store: &RedisStore, waiters: Vec<Arc<Waiter>>) -> Vec<Vec<Located<Arc<Waiter>>>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for one in store.locate(waiters, |waiter| &waiter.claim.name) {
        let slot = if store.topology.slots_matter() { one.0.slot } else { 0 };
        let holder = Arc::as_ptr(&one.1.claim.holder);
        groups.entry((slot, holder)).or_default().push(one);
    }
    groups.into_values().collect()
}

/// Sends the heartbeats of these. A waiter without an answer claims again. A claim can be
/// refused, so that its caller learns when the store is away for long.
async fn show(store: Arc<RedisStore>, waiters: Vec<Located<Arc<Waiter>>>) {
    for some in waiters.chunks(AT_ONCE) {
        let shown = show_in_slot(&store, some).await;
        for (_, waiter) in some {
            waiter.heartbeat_over();
            if shown.is_err() {
                waiter.ask_again();
            }
        }
    }
}

async fn show_in_slot(store: &RedisStore, waiters: &[Located<Arc<Waiter>>]) -> Result<()> {
    let (keys, first) = &waiters[0];
    let limit = store.settings.timeout;
    let late = |_| Failure::silent();
    timeout(limit, store.topology.listen(keys.slot)).await.map_err(late)??;
    let mut call = Call::new(&BEAT, keys.slot, 3 * waiters.len());
    for (keys, _) in waiters {
        call.keys(keys, &[Record, Queue]);
    }
    call.arg(store.who(keys.slot, &first.claim.holder));
    let sent = store.waiters.next_number();
    let at = store.clock.now();
    for (_, waiter) in waiters {
        let claim = &waiter.claim;
        call.arg(claim.owner).arg(millis(claim.ttl)).arg(sent).arg(waiter.said());
        waiter.sending(sent, at);
    }
    let answer = timeout(limit, store.topology.call(&call)).await.map_err(late)??;
    for ((_, waiter), answer) in waiters.iter().zip(items(answer, waiters.len())?) {
        hear(waiter, &answer, sent, at, store.clock.now())?;
    }
    Ok(())
}

/// The answer to a heartbeat.
fn hear(waiter: &Waiter, answer: &Value, sent: u64, at: Moment, now: Moment) -> Result<()> {
    match answer {
        Value::Int(granted) => waiter.granted(grant(*granted, at, &waiter.claim)?, sent),
        Value::Array(parts) => match &parts[..] {
            [_, left_for, first, seen] => {
                let first = number(first)? == 1;
                let free_in = left(number(left_for)?).filter(|_| first);
                waiter.seen(text(seen)?, sent, now, free_in);
            }
            // The queue was lost, or forgot us.
            _ => waiter.ask_again(),
        },
        _ => return Err(unexpected()),
    }
    Ok(())
}
