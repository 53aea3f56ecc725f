//! Keeping locks, and giving them back.

use std::collections::HashMap;
use std::sync::Arc;

use etcd_client::{GetOptions, Txn, TxnOp, TxnOpResponse};
use futures_util::future::join_all;

use super::error::broken_reply;
use super::ledger::Entry;
use super::queue::{created, deletion, is_that_of, key_alone};
use super::session::{Session, SessionState};
use super::{EtcdStore, keys};
use crate::backend::{Hint, Hold, Proof, Release, Renewal};
use crate::error::{Outcome, Result};
use crate::loss::LossReason;
use crate::name::Name;

/// Proves the sessions, and that the keys are still there: an operator's `del` leaves
/// the lease alive.
pub(super) async fn renew(store: Arc<EtcdStore>, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
    let now = store.clock.now();
    // What is about to be given up is not renewed any more.
    let sessions = sessions(&store, &holds, |entry| entry.until > now);
    let mut distinct: Vec<&Arc<Session>> = sessions.iter().flatten().collect();
    distinct.sort_unstable_by_key(|session| session.id);
    distinct.dedup_by_key(|session| session.id);
    let proving = distinct.into_iter().map(async |session| (session.id, session.prove().await));
    let (proved, there) = tokio::join!(join_all(proving), are_there(&store, &holds, &sessions));
    let states: HashMap<i64, Result<SessionState>> = proved.into_iter().collect();
    let mut renewals = Vec::new();
    for ((hold, session), there) in holds.iter().zip(&sessions).zip(there?) {
        let renewal = match session.as_ref().and_then(|session| states.get(&session.id)) {
            Some(Err(error)) => return Err(error.clone()),
            Some(Ok(SessionState::Ended)) => Renewal::NotYours(LossReason::SessionEnded),
            Some(Ok(SessionState::Proved(at))) if there => {
                // The janitor may have been faster.
                match store.ledger.lock().keep(hold.owner, *at + hold.ttl) {
                    true => Renewal::Renewed(Proof { at: *at, valid_for: hold.ttl }),
                    false => Renewal::NotYours(LossReason::Expired),
                }
            }
            _ => Renewal::NotYours(why_lost(&store, hold).await?),
        };
        if matches!(renewal, Renewal::NotYours(_)) {
            store.ledger.lock().forget(hold.owner, store.clock.now());
        }
        renewals.push(renewal);
    }
    Ok(renewals)
}

/// The session of each hold that the ledger knows, if this is true of its entry.
fn sessions(
    store: &EtcdStore,
    holds: &[Hold],
    wanted: impl Fn(&Entry) -> bool,
) -> Vec<Option<Arc<Session>>> {
    let ledger = store.ledger.lock();
    let entry = |hold| ledger.claims.find(hold).filter(|entry| wanted(entry));
    holds.iter().map(|hold| Some(entry(hold)?.session.clone())).collect()
}

/// Whether the key of each is there, as it was granted.
async fn are_there(
    store: &EtcdStore,
    holds: &[Hold],
    sessions: &[Option<Arc<Session>>],
) -> Result<Vec<bool>> {
    let pairs = || holds.iter().zip(sessions);
    let look = |(hold, session): (&Hold, &Option<Arc<Session>>)| {
        Some(key_alone(store.layout.lock(&hold.name, session.as_ref()?.id)))
    };
    let looks: Vec<TxnOp> = pairs().filter_map(look).collect();
    if looks.is_empty() {
        return Ok(vec![false; holds.len()]);
    }
    let response = store.endpoints.txn(Txn::new().and_then(looks)).await?;
    let mut seen = response.op_responses().into_iter();
    let there = pairs().map(|(hold, session)| match session.as_ref().map(|_| seen.next()) {
        None => Ok(false),
        Some(Some(TxnOpResponse::Get(get))) => Ok(created(&get) == Some(hold.token.get() as i64)),
        Some(_) => Err(broken_reply()),
    });
    there.collect()
}

/// Why a key of ours is not there any more.
async fn why_lost(store: &EtcdStore, hold: &Hold) -> Result<LossReason> {
    let queue = store.layout.queue(&hold.name);
    let looks = [
        TxnOp::get(store.layout.forced(&hold.name, hold.token), None),
        TxnOp::get(queue.start, Some(GetOptions::new().with_range(queue.end))),
    ];
    let ([record, mut queue], _) = store.look(looks).await?;
    if let Some(kv) = record.kvs().first()
        && let Some(record) = keys::forced(kv.value(), hold.token)
    {
        return Ok(LossReason::Forced(record.forced));
    }
    let claims = store.claims_among(&hold.name, queue.take_kvs());
    let taken = claims.iter().any(|kv| keys::owner(kv.value()) != Some(hold.owner));
    Ok(if taken { LossReason::Taken } else { LossReason::Expired })
}

/// Deletes the keys, each only if it is still the one that was granted (etcd#22082: a
/// retried unlock deleted a newer lock of the same session): by a compare, or because
/// nothing else can be there (ADR 8).
pub(super) async fn release(store: Arc<EtcdStore>, holds: Vec<Hold>) -> Result<Vec<Release>> {
    let sessions = sessions(&store, &holds, |_| true);
    let pairs = || holds.iter().zip(&sessions);
    let known = pairs().filter_map(|(hold, session)| Some((hold, &**session.as_ref()?)));
    let known: Vec<(&Hold, &Session)> = known.collect();
    let deleted = match known[..] {
        [] => Vec::new(),
        [(hold, session)] => vec![delete_one(&store, hold, session).await?],
        _ => delete_all(&store, &known).await?,
    };
    let mut deleted = deleted.into_iter();
    let released = pairs().map(|(hold, session)| {
        if session.is_none() {
            return Ok(Release::NotHeld);
        }
        // Deleted now, or gone before: in either case it is not ours any more.
        store.ledger.lock().forget(hold.owner, store.clock.now());
        let deleted = deleted.next().ok_or_else(broken_reply)?;
        Ok(if deleted { Release::Released } else { Release::NotHeld })
    });
    released.collect()
}

/// Whether its key was still there.
///
/// Without a compare, which etcd pays dearly for, where no other key can be in its
/// place: none of the session's requests is late, and nobody gets the place before the
/// answer is there; without an answer, nobody ever does.
async fn delete_one(store: &EtcdStore, hold: &Hold, session: &Session) -> Result<bool> {
    let key = store.layout.lock(&hold.name, session.id);
    // Unless something else than the key that is known may be there, or come.
    let clean = !session.is_retired() && !session.is_suspect(store.clock.now());
    if !(clean && store.ledger.lock().clear(session.id, hold)) {
        let txn = deletion(key, hold.token.get() as i64);
        return Ok(store.endpoints.txn(txn).await?.succeeded());
    }
    let mut clearing = Clearing { store, session, name: &hold.name, answered: false };
    let deleting = store.endpoints.on_keys(async |mut kv| kv.delete(key, None).await);
    let deleted = deleting.await;
    let outcome = deleted.as_ref().err().map(crate::Error::outcome);
    clearing.answered = outcome.is_none_or(|outcome| outcome == Outcome::NotApplied);
    Ok(deleted?.deleted() > 0)
}

/// Whether the key of each was still there. Mostly all are: that is cheaper to say than
/// a transaction for each.
async fn delete_all(store: &EtcdStore, known: &[(&Hold, &Session)]) -> Result<Vec<bool>> {
    let keys = || {
        let of = |(hold, session): &(&Hold, &Session)| {
            (store.layout.lock(&hold.name, session.id), hold.token.get() as i64)
        };
        known.iter().map(of)
    };
    let granted: Vec<_> = keys().map(|(key, revision)| is_that_of(key, revision)).collect();
    let deletions: Vec<_> = keys().map(|(key, _)| TxnOp::delete(key, None)).collect();
    let together = Txn::new().when(granted).and_then(deletions);
    if store.endpoints.txn(together).await?.succeeded() {
        return Ok(vec![true; known.len()]);
    }
    let each: Vec<_> = keys().map(|(key, revision)| TxnOp::txn(deletion(key, revision))).collect();
    let response = store.endpoints.txn(Txn::new().and_then(each)).await?;
    let answered = |part| match part {
        TxnOpResponse::Txn(nested) => Ok(nested.succeeded()),
        _ => Err(broken_reply()),
    };
    response.op_responses().into_iter().map(answered).collect()
}

/// A place whose key is being deleted, whatever it is.
struct Clearing<'a> {
    store: &'a EtcdStore,
    session: &'a Session,
    name: &'a Name,
    /// It is over: what comes to this place now is not deleted.
    answered: bool,
}

impl Drop for Clearing<'_> {
    fn drop(&mut self) {
        if !self.answered {
            // Given up: the deletion may still arrive.
            self.session.retire();
        }
        self.store.ledger.lock().cleared(self.session.id, self.name);
    }
}

pub(super) async fn hint(store: Arc<EtcdStore>) -> Result<Hint> {
    Ok(store.hints.next().await)
}
