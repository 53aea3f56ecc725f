//! Claims: taking locks and places in their queues, and asking what became of them.

use std::sync::Arc;
use std::time::Duration;

use super::RedisStore;
use super::connection::Value;
use super::error::unexpected;
use super::hold::{proof, replicate};
use super::keys::Companion::{Queue, Record as RecordKey};
use super::keys::Keys;
use super::script::{
    ACQUIRE, Call, Record, SETTLE, Script, bytes, items, left, millis, number, text, token,
};
use super::topology::Located;
use crate::backend::kit::tombstone;
use crate::backend::{Claim, Grant, Verdict};
use crate::clock::Moment;
use crate::error::Result;
use crate::holder::HeldBy;

/// Stands for the number of a claim that does not queue.
const NOT_QUEUED: u64 = 0;
/// Stands for the remaining time of a key that never expires.
const NEVER_EXPIRES: i64 = -3;

pub(super) async fn acquire(store: Arc<RedisStore>, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
    let claims = store.locate(claims, |claim| &claim.name);
    for (keys, _) in &claims {
        keys.check()?;
    }
    store.topology.by_slot(claims, |some| acquire_in_slot(&store, some)).await
}

async fn acquire_in_slot(store: &RedisStore, claims: Vec<Located<Claim>>) -> Result<Vec<Verdict>> {
    let mut call = about(store, &ACQUIRE, &claims);
    let number = store.waiters.next_number();
    for (_, claim) in &claims {
        let number = if claim.queue { number } else { NOT_QUEUED };
        call.arg(claim.owner).arg(millis(claim.ttl)).arg(number);
        // Before registering: a claim that is new to the queue is not looked for there.
        call.arg(store.waiters.said(claim.owner));
    }
    let at = store.clock.now();
    let asked = claims.iter().map(|(_, claim)| claim);
    let mut registered = store.waiters.register(asked, number, at);
    let answers = items(store.topology.call(&call).await?, claims.len())?;
    registered.answered();
    let mut verdicts = Vec::with_capacity(claims.len());
    for ((keys, claim), answer) in claims.iter().zip(&answers) {
        verdicts.push(match answer {
            Value::Int(granted) => Verdict::Granted(grant(*granted, at, claim)?),
            Value::Array(parts) => match &parts[..] {
                [Value::Int(1), left_for, holds, record, seen] => {
                    registered.keep(claim.owner);
                    let free_in = left(self::number(left_for)?);
                    has_place(store, (keys.slot, claim), text(seen)?, number, free_in);
                    Verdict::Queued(held_by(left_for, holds, record)?)
                }
                [Value::Int(0), left_for, holds, record] => {
                    Verdict::Held(held_by(left_for, holds, record)?)
                }
                _ => return Err(unexpected()),
            },
            _ => return Err(unexpected()),
        });
    }
    drop(registered);
    if store.settings.wait_replicas > 0 {
        let granted = claims.iter().zip(&mut verdicts).filter_map(|(claim, verdict)| {
            let Verdict::Granted(grant) = verdict else { return None };
            Some((claim, grant))
        });
        Box::pin(replicate(store, granted.collect())).await?;
    }
    Ok(verdicts)
}

fn has_place(
    store: &RedisStore,
    (slot, claim): (u16, &Claim),
    seen: &str,
    number: u64,
    free_in: Option<Duration>,
) {
    let Some(waiter) = store.waiters.get(claim.owner) else { return };
    let now = store.clock.now();
    waiter.seen(seen, number, now, free_in);
    if !store.topology.listens(slot) {
        // The message of a grant would not be heard: listen first, then ask again.
        waiter.heartbeat_now(now);
    }
}

pub(super) async fn settle(
    store: Arc<RedisStore>,
    claims: Vec<Claim>,
) -> Result<Vec<Option<Grant>>> {
    let claims = store.locate(claims, |claim| &claim.name);
    store.topology.by_slot(claims, |some| settle_in_slot(&store, some)).await
}

async fn settle_in_slot(
    store: &RedisStore,
    claims: Vec<Located<Claim>>,
) -> Result<Vec<Option<Grant>>> {
    let mut call = about(store, &SETTLE, &claims);
    for (_, claim) in &claims {
        call.arg(claim.owner).arg(millis(claim.ttl)).arg(millis(tombstone::term(claim.ttl)));
        call.arg(store.waiters.said(claim.owner));
        store.waiters.forget(claim.owner);
    }
    let at = store.clock.now();
    let answers = items(store.topology.call(&call).await?, claims.len())?;
    let settled = claims.iter().zip(&answers).map(|((_, claim), answer)| match number(answer)? {
        0 => Ok(None),
        granted => grant(granted, at, claim).map(Some),
    });
    let mut settled = settled.collect::<Result<Vec<_>>>()?;
    if store.settings.wait_replicas > 0 {
        let granted = claims.iter().zip(&mut settled);
        let granted = granted.filter_map(|(claim, grant)| Some((claim, grant.as_mut()?)));
        Box::pin(replicate(store, granted.collect())).await?;
    }
    Ok(settled)
}

/// A call about claims in one slot: their keys, and who asks.
fn about(store: &RedisStore, script: &'static Script, claims: &[Located<Claim>]) -> Call {
    // A batch is of one client, which has one holder.
    let (Keys { slot, .. }, first) = &claims[0];
    let mut call = Call::new(script, *slot, 4 * claims.len());
    for (keys, claim) in claims {
        call.keys(keys, &[RecordKey, Queue]);
        call.tombstone(keys, claim.owner);
    }
    call.arg(store.who(*slot, &first.holder));
    call
}

/// A grant of its whole TTL, asked for at this moment.
pub(super) fn grant(granted: i64, at: Moment, claim: &Claim) -> Result<Grant> {
    Ok(Grant { token: token(granted)?, proof: proof(at, claim.ttl) })
}

fn held_by(left_for: &Value, holds: &Value, record: &Value) -> Result<Option<HeldBy>> {
    let known = Record::of(record, bytes(holds)?, |owner| owner.parse().ok());
    let by = known.map_or_else(|| HeldBy::new(None, None), |known| known.held_by);
    Ok(Some(if number(left_for)? == NEVER_EXPIRES { by.without_end() } else { by }))
}
