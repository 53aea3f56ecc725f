//! Taking a lock, and finding out how that ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio_postgres::types::ToSql;

use super::super::connection::{Session, odd_answer};
use super::super::key::PREFIX;
use super::statements::{self, Column, answers, element, grant, grants, in_order, nanos};
use super::{LeaseStore, hold};
use crate::backend::kit::time::{self, micros};
use crate::backend::{Claim, Grant, Hold, Verdict};
use crate::error::{Error, Outcome, Result};
use crate::holder::{HeldBy, Holder};
use crate::name::Name;

/// How many requests go the long way after one for which the shortcut was not enough: where
/// names are new or contended, the next ones will be, too.
const DETOURS: u32 = 16;

/// Asking for free locks first, before all that may be the matter with the others. It is closed
/// for a while when it leads nowhere.
#[derive(Debug, Default)]
pub(super) struct Shortcut(AtomicU32);

/// A claim, and where it stands in the request.
type Placed<'a> = (usize, &'a Claim);

pub(super) async fn acquire(store: Arc<LeaseStore>, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
    claims.iter().try_for_each(|claim| refuse_key(&claim.name))?;
    let session = store.claims.session().await?;
    let mut verdicts = vec![None; claims.len()];
    // As a rule all claims of a request are of one holder.
    let mut left = in_order(&claims, |claim| &claim.name);
    while let Some((_, first)) = left.first().copied() {
        let (ours, others) = left.into_iter().partition(|(_, claim)| claim.holder == first.holder);
        left = others;
        if let Err(error) = acquire_for_one(&store, &session, ours, &mut verdicts).await {
            let given_back = Box::pin(give_back(&session, &claims, &verdicts, &error));
            return Err(if given_back.await { error } else { error.outcome_unknown() });
        }
    }
    Ok(verdicts.into_iter().flatten().collect())
}

/// Refuses a name that stands for an advisory lock: here a lock is something else.
fn refuse_key(name: &Name) -> Result<()> {
    if !name.as_str().starts_with(PREFIX) {
        return Ok(());
    }
    let message = "names that begin with pg: are advisory locks, and in mode=lease a lock is a \
                   row that pg_advisory_lock knows nothing of; connect with mode=session, or \
                   choose another name";
    Err(Error::invalid(message))
}

/// Asks for these claims of one holder, in the order of their names.
async fn acquire_for_one(
    store: &LeaseStore,
    session: &Session,
    mut claims: Vec<Placed<'_>>,
    verdicts: &mut [Option<Verdict>],
) -> Result<()> {
    if store.shortcut.is_open() {
        take(store, session, &claims, verdicts).await?;
        // One that asked again may be a waiter from before.
        let granted = claims.iter().filter(|(at, claim)| claim.queue && verdicts[*at].is_some());
        store.waiters.forget(granted.map(|(_, claim)| claim.owner));
        claims.retain(|(at, _)| verdicts[*at].is_none());
        if claims.is_empty() {
            return Ok(());
        }
        store.shortcut.leads_nowhere();
    }
    Box::pin(take_or_queue(store, session, &claims, verdicts)).await
}

/// Takes what is free and was held before; that is most, as a rule, and costs least.
async fn take(
    store: &LeaseStore,
    session: &Session,
    claims: &[Placed<'_>],
    verdicts: &mut [Option<Verdict>],
) -> Result<()> {
    let (names, owners, ttls) = columns(claims);
    let (sent, holder) = (nanos(store.clock.now()), &claims[0].1.holder);
    let pid = holder.pid as i32;
    let parameters: [&(dyn ToSql + Sync); 8] =
        [&names, &owners, &ttls, &sent, &store.client, &holder.host, &pid, &holder.label];
    let row = match session.row(&statements::TAKE, &parameters).await {
        Ok(row) => row,
        // Somebody has had a row for long: what asks for the rest waits for it.
        Err(error) if error.outcome() == Outcome::NotApplied && session.is_open() => {
            tracing::debug!(%error, "nothing was taken at once");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let (places, tokens): (Option<Vec<i64>>, Option<Vec<i64>>) = (row.get(0), row.get(1));
    for (place, token) in places.unwrap_or_default().into_iter().zip(tokens.unwrap_or_default()) {
        let taken = usize::try_from(place - 1).ok().and_then(|place| claims.get(place));
        let (at, claim) = taken.ok_or_else(odd_answer)?;
        verdicts[*at] = Some(Verdict::Granted(grant(token, sent, micros(claim.ttl))));
    }
    Ok(())
}

/// Asks for each of these, and for a place in the queue where that is wanted.
async fn take_or_queue(
    store: &LeaseStore,
    session: &Session,
    claims: &[Placed<'_>],
    verdicts: &mut [Option<Verdict>],
) -> Result<()> {
    let (names, owners, ttls) = columns(claims);
    let queues: Vec<bool> = claims.iter().map(|(_, claim)| claim.queue).collect();
    let (sent, holder) = (store.clock.now(), &claims[0].1.holder);
    // Registered first: the grant may be announced before the answer is read (redisson#1763).
    let queuing = claims.iter().filter(|(_, claim)| claim.queue);
    store.waiters.register(queuing.map(|(_, claim)| claim.owner), sent);
    let (sent_at, pid) = (nanos(sent), holder.pid as i32);
    let who: [&(dyn ToSql + Sync); 4] = [&store.client, &holder.host, &pid, &holder.label];
    let parameters: [&(dyn ToSql + Sync); 9] =
        [&names, &owners, &ttls, &queues, &sent_at, who[0], who[1], who[2], who[3]];
    let asked = session.row(&statements::ACQUIRE, &parameters).await;
    let row = asked.inspect_err(|error| {
        if error.outcome() == Outcome::NotApplied {
            store.waiters.forget_new(claims.iter().map(|(_, claim)| claim.owner));
        }
    })?;
    let (tokens, states): (Column<i64>, Column<i16>) = (row.get(0), row.get(1));
    let (proofs, terms): (Column<i64>, Column<i64>) = (row.get(2), row.get(3));
    let (hosts, labels): (Column<&str>, Column<&str>) = (row.get(4), row.get(6));
    let (pids, sinces): (Column<i32>, Column<i64>) = (row.get(5), row.get(7));
    let lefts: Column<i64> = row.get(8);
    let held_by = |place| {
        let (host, pid) = (element(&hosts, place)?, element(&pids, place)?);
        let holder = Holder::new(host, pid as u32, element(&labels, place)?);
        Some(HeldBy::new(Some(holder), element(&sinces, place).map(time::at)))
    };
    for (place, &(at, claim)) in claims.iter().enumerate() {
        let state = if states.is_none() { Some(0) } else { element(&states, place) };
        verdicts[at] = Some(match (state, element(&tokens, place)) {
            (Some(0), Some(token)) => {
                let proved = element(&proofs, place).unwrap_or(sent_at);
                let term = element(&terms, place).unwrap_or(micros(claim.ttl));
                Verdict::Granted(grant(token, proved, term))
            }
            (Some(2), _) => {
                let left = time::from_micros(element(&lefts, place).unwrap_or(0));
                store.waiters.queued(claim.owner, sent, left);
                Verdict::Queued(held_by(place))
            }
            _ => Verdict::Held(held_by(place)),
        });
    }
    let done = claims
        .iter()
        .filter(|(at, claim)| claim.queue && !matches!(verdicts[*at], Some(Verdict::Queued(_))));
    store.waiters.forget(done.map(|(_, claim)| claim.owner));
    Ok(())
}

/// The rest of a request failed: gives back what it was granted before. Whether nothing is left
/// of it; otherwise everybody has to find out.
async fn give_back(
    session: &Session,
    claims: &[Claim],
    verdicts: &[Option<Verdict>],
    failed: &Error,
) -> bool {
    let granted = claims.iter().zip(verdicts).filter_map(|(claim, verdict)| match verdict {
        Some(Verdict::Granted(grant)) => Some(claim.hold(grant.token)),
        _ => None,
    });
    let granted: Vec<Hold> = granted.collect();
    if granted.is_empty() || failed.outcome() != Outcome::NotApplied {
        return granted.is_empty();
    }
    hold::give_back(session, &granted).await.is_ok()
}

/// Is it theirs? If not, it never will be.
pub(super) async fn settle(
    store: Arc<LeaseStore>,
    claims: Vec<Claim>,
) -> Result<Vec<Option<Grant>>> {
    store.waiters.forget(claims.iter().map(|claim| claim.owner));
    let session = store.rest.session().await?;
    let order = in_order(&claims, |claim| &claim.name);
    let (names, owners, ttls) = columns(&order);
    let row = session.row(&statements::SETTLE, &[&names, &owners, &ttls]).await?;
    let grant = grants(&row, 0);
    Ok(answers(&order, |place, _| grant(place)))
}

/// Their names, owners and times to live.
fn columns<'a>(claims: &[Placed<'a>]) -> (Vec<&'a str>, Vec<Vec<u8>>, Vec<i64>) {
    let column = |(_, claim): &Placed<'a>| {
        (claim.name.as_str(), claim.owner.to_bytes().to_vec(), micros(claim.ttl))
    };
    claims.iter().map(column).collect()
}

impl Shortcut {
    /// Whether this request takes it.
    fn is_open(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err()
    }

    /// It was not enough this time.
    fn leads_nowhere(&self) {
        self.0.store(DETOURS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_again_after_some_detours() {
        let shortcut = Shortcut::default();
        assert!(shortcut.is_open() && shortcut.is_open());
        shortcut.leads_nowhere();
        assert!((0..DETOURS).all(|_| !shortcut.is_open()));
        assert!(shortcut.is_open());
    }
}
