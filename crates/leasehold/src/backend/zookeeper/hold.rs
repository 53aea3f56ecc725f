//! Renewing and giving back what is held, many in one transaction.
//!
//! A renewal writes the node again. Only a write goes through the leader and a majority:
//! it proves the session, and that the node is still there.

use std::sync::Arc;

use futures_util::TryFutureExt;
use futures_util::future::{Either, join_all};
use zookeeper_client::MultiWriteError;

use super::error::{found, of_request};
use super::ledger::{Entry, Stage};
use super::session::{A_MOMENT, Session, by_session};
use super::{ZookeeperStore, payload};
use crate::backend::{Hint, Hold, Proof, Release, Renewal};
use crate::error::Result;
use crate::loss::LossReason;

/// A hold's place in the request, the path of its node, and its entry.
type Held = (usize, String, Entry);
type Group = (Arc<Session>, Vec<Held>);

#[derive(Clone, Copy)]
enum Change {
    Write,
    Delete,
}

pub(super) async fn renew(store: Arc<ZookeeperStore>, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
    let mut verdicts = vec![Renewal::NotYours(LossReason::Expired); holds.len()];
    let (groups, others) = held(&store, &holds);
    for at in others {
        verdicts[at] = Renewal::NotYours(why_gone(&store, &holds[at]).await?);
    }
    for (session, group) in groups {
        session.check_connected()?;
        let sent = store.shared.clock.now();
        let found = apply(Change::Write, &session, &group).await?;
        let proof = session.proved(sent);
        for ((at, ..), found) in group.into_iter().zip(found) {
            let hold = &holds[at];
            let proof = Proof { valid_for: hold.ttl, ..proof };
            if !found {
                verdicts[at] = Renewal::NotYours(why_gone(&store, hold).await?);
                store.shared.remove(hold.owner);
            } else if store.shared.renewed(hold.owner, proof) {
                verdicts[at] = Renewal::Renewed(proof);
            }
        }
    }
    Ok(verdicts)
}

pub(super) async fn release(store: Arc<ZookeeperStore>, holds: Vec<Hold>) -> Result<Vec<Release>> {
    let mut verdicts = vec![Release::NotHeld; holds.len()];
    let (groups, others) = held(&store, &holds);
    for at in others {
        store.shared.remove(holds[at].owner);
    }
    for (session, group) in groups {
        // A renewal does not wait: that is doubt, at once.
        session.wait_connected(A_MOMENT).await?;
        let sent = store.shared.clock.now();
        let found = apply(Change::Delete, &session, &group).await?;
        session.proved(sent);
        for ((at, ..), found) in group.into_iter().zip(found) {
            store.shared.remove(holds[at].owner);
            if found {
                verdicts[at] = Release::Released;
            }
        }
    }
    Ok(verdicts)
}

pub(super) async fn hint(store: Arc<ZookeeperStore>) -> Result<Hint> {
    Ok(store.shared.hints.next().await)
}

/// What is held, by session; and what is not.
fn held(store: &ZookeeperStore, holds: &[Hold]) -> (Vec<Group>, Vec<usize>) {
    let (now, ledger) = (store.shared.clock.now(), store.shared.ledger.lock());
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for (at, hold) in holds.iter().enumerate() {
        let entry = ledger.find(hold).filter(|entry| {
            let held = matches!(entry.stage, Stage::Held { .. }) && entry.until > now;
            held && !entry.session.is_over()
        });
        match entry.and_then(|entry| Some((entry.path()?, entry))) {
            Some((path, entry)) => ours.push((entry.session.clone(), (at, path, entry.clone()))),
            None => others.push(at),
        }
    }
    (by_session(ours), others)
}

/// Changes each node; whether it was there. One transaction, or, if one of them is missing and
/// fails it, each on its own.
async fn apply(change: Change, session: &Session, group: &[Held]) -> Result<Vec<bool>> {
    let client = &session.client;
    let data = |entry: &Entry| payload::of(&entry.claim, entry.since);
    if group.len() > 1 {
        let mut writer = client.new_multi_writer();
        for (_, path, entry) in group {
            match change {
                Change::Write => writer.add_set_data(path, &data(entry), None),
                Change::Delete => writer.add_delete(path, None),
            }
            .map_err(of_request)?;
        }
        match writer.commit().await {
            Ok(_) => return Ok(vec![true; group.len()]),
            Err(MultiWriteError::OperationFailed { .. }) => {}
            Err(error) => return Err(of_request(error.into())),
        }
    }
    let changing = group.iter().map(|(_, path, entry)| match change {
        Change::Write => Either::Left(client.set_data(path, &data(entry), None).map_ok(drop)),
        Change::Delete => Either::Right(client.delete(path, None)),
    });
    let changed = join_all(changing.collect::<Vec<_>>()).await;
    changed.into_iter().map(|answer| Ok(found(answer)?.is_some())).collect()
}

/// Why a lease is not there any more.
async fn why_gone(store: &ZookeeperStore, hold: &Hold) -> Result<LossReason> {
    let ledger = &store.shared.ledger;
    let ended = ledger.lock().find(hold).is_some_and(|entry| entry.session.is_over());
    if ended {
        return Ok(LossReason::SessionEnded);
    }
    let session = store.sessions.reader().await?;
    let children = session.children(&store.paths.lock(&hold.name)).await?;
    // Read last: a force-release is recorded in the transaction that deletes the node.
    let record = found(session.client.get_data(&store.paths.record(&hold.name)).await)?;
    let record = record.and_then(|(data, _)| payload::read_record(&data));
    if let Some((_, forced)) = record.filter(|(_, forced)| forced.token == hold.token) {
        return Ok(LossReason::Forced(forced.forced));
    }
    let layout = store.target.layout;
    let queue = layout.read(children.unwrap_or_default()).queue;
    let taken = queue.first().is_some_and(|first| layout.owner(&first.child) != Some(hold.owner));
    Ok(if taken { LossReason::Taken } else { LossReason::Expired })
}
