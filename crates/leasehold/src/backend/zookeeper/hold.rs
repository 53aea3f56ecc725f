//! Renewing and giving back what is held, many in one transaction.
//!
//! A renewal writes the node again. Only a write goes through the leader and a majority:
//! it proves the session, and that the node is still there.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use zookeeper_client::{Error as Zk, MultiWriteError};

use super::ZookeeperStore;
use super::card;
use super::error::of_request;
use super::session::Session;
use super::table::{Entry, Stand};
use crate::backend::{Hold, Proof, Release, Renewal};
use crate::error::Result;
use crate::loss::LossReason;

/// How long a release waits for a connection that just broke. (A renewal does not: that is
/// doubt, at once.)
const A_MOMENT: Duration = Duration::from_millis(500);

/// Holds of one session, by their place in the request.
type Group = (Arc<Session>, Vec<(usize, Entry, String)>);

impl ZookeeperStore {
    pub(super) async fn renew_all(&self, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
        let mut verdicts: Vec<Option<Renewal>> = vec![None; holds.len()];
        let (groups, others) = self.by_session(&holds);
        for at in others {
            verdicts[at] = Some(Renewal::NotYours(self.why_gone(&holds[at]).await?));
        }
        for (session, group) in groups {
            session.check_connected()?;
            let sent = self.books.clock.now();
            let found = write_again(&session, &group).await?;
            let proof = session.proved(sent);
            for ((at, ..), found) in group.into_iter().zip(found) {
                let hold = &holds[at];
                let proof = Proof { valid_for: hold.ttl, ..proof };
                let now = self.books.clock.now();
                verdicts[at] = Some(if !found {
                    let reason = self.why_gone(hold).await?;
                    self.books.table.remove(hold.owner);
                    Renewal::NotYours(reason)
                } else if self.books.table.renewed(hold.owner, proof, now) {
                    Renewal::Renewed(proof)
                } else {
                    Renewal::NotYours(LossReason::Expired)
                });
            }
        }
        let lost = || Renewal::NotYours(LossReason::Expired);
        Ok(verdicts.into_iter().map(|verdict| verdict.unwrap_or_else(lost)).collect())
    }

    pub(super) async fn release_all(&self, holds: Vec<Hold>) -> Result<Vec<Release>> {
        let mut verdicts = vec![Release::NotHeld; holds.len()];
        let (groups, others) = self.by_session(&holds);
        for at in others {
            self.books.table.remove(holds[at].owner);
        }
        for (session, group) in groups {
            session.wait_connected(A_MOMENT).await?;
            let sent = self.books.clock.now();
            let found = delete(&session, &group).await?;
            session.proved(sent);
            for ((at, ..), found) in group.into_iter().zip(found) {
                self.books.table.remove(holds[at].owner);
                if found {
                    verdicts[at] = Release::Released;
                }
            }
        }
        Ok(verdicts)
    }

    /// What is held, by session; and what is not.
    fn by_session(&self, holds: &[Hold]) -> (Vec<Group>, Vec<usize>) {
        let now = self.books.clock.now();
        let (mut groups, mut others): (Vec<Group>, Vec<usize>) = Default::default();
        for (at, hold) in holds.iter().enumerate() {
            let entry = self.books.table.get(hold.owner).filter(|entry| {
                let held = matches!(&entry.stand, Stand::Held { node, until, .. }
                    if node.token == hold.token && *until > now);
                held && !entry.session.is_over()
            });
            let Some((entry, path)) = entry.and_then(|entry| {
                let path = entry.path()?;
                Some((entry, path))
            }) else {
                others.push(at);
                continue;
            };
            match groups.iter_mut().find(|(session, _)| Arc::ptr_eq(session, &entry.session)) {
                Some((_, group)) => group.push((at, entry, path)),
                None => groups.push((entry.session.clone(), vec![(at, entry, path)])),
            }
        }
        (groups, others)
    }

    /// Why a lease is not there any more.
    async fn why_gone(&self, hold: &Hold) -> Result<LossReason> {
        let entry = self
            .books
            .table
            .get(hold.owner)
            .filter(|entry| entry.node().is_some_and(|node| node.token == hold.token));
        if entry.as_ref().is_some_and(|entry| entry.session.is_over()) {
            return Ok(LossReason::SessionEnded);
        }
        let session = self.sessions.reader().await?;
        let record = self.paths.record(&hold.name);
        let lock = self.paths.lock(&hold.name);
        // What another session wrote: this one's server may not know it yet.
        let (syncing, reading) = (session.client.sync(&lock), session.client.get_data(&record));
        let listing = session.client.list_children(&lock);
        syncing.await.map_err(of_request)?;
        match reading.await {
            Ok((data, _)) => {
                let forced = card::read_record(&data).map(|(_, forced)| forced);
                if let Some(forced) = forced.filter(|forced| forced.token == hold.token) {
                    return Ok(LossReason::Forced(forced.forced));
                }
            }
            Err(Zk::NoNode) => {}
            Err(error) => return Err(of_request(error)),
        }
        let layout = self.target.layout;
        let taken = match listing.await {
            Ok(children) => layout
                .line(children)
                .first()
                .is_some_and(|first| layout.owner(&first.child) != Some(hold.owner)),
            Err(_) => false,
        };
        Ok(if taken { LossReason::Taken } else { LossReason::Expired })
    }
}

/// Writes each node again; whether it was there. One transaction, or, if one of them is
/// missing and fails it, each on its own.
async fn write_again(session: &Session, group: &[(usize, Entry, String)]) -> Result<Vec<bool>> {
    let client = &session.client;
    if group.len() > 1 {
        let mut writer = client.new_multi_writer();
        for (_, entry, path) in group {
            writer.add_set_data(path, &entry.card.to_bytes(), None).map_err(of_request)?;
        }
        match writer.commit().await {
            Ok(_) => return Ok(vec![true; group.len()]),
            Err(MultiWriteError::OperationFailed { .. }) => {}
            Err(error) => return Err(of_request(error.into())),
        }
    }
    let writing = group.iter().map(|(_, entry, path)| {
        let writing = client.set_data(path, &entry.card.to_bytes(), None);
        async move { found(writing.await.map(drop)) }
    });
    join_all(writing.collect::<Vec<_>>()).await.into_iter().collect()
}

/// Deletes each node; whether it was there.
async fn delete(session: &Session, group: &[(usize, Entry, String)]) -> Result<Vec<bool>> {
    let client = &session.client;
    if group.len() > 1 {
        let mut writer = client.new_multi_writer();
        for (_, _, path) in group {
            writer.add_delete(path, None).map_err(of_request)?;
        }
        match writer.commit().await {
            Ok(_) => return Ok(vec![true; group.len()]),
            Err(MultiWriteError::OperationFailed { .. }) => {}
            Err(error) => return Err(of_request(error.into())),
        }
    }
    let deleting = group.iter().map(|(_, _, path)| {
        let deleting = client.delete(path, None);
        async move { found(deleting.await) }
    });
    join_all(deleting.collect::<Vec<_>>()).await.into_iter().collect()
}

fn found(answer: Result<(), Zk>) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(Zk::NoNode) => Ok(false),
        Err(error) => Err(of_request(error)),
    }
}
