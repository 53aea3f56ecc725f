//! Giving locks back.

use std::sync::Arc;

use etcd_client::{Txn, TxnOp, TxnOpResponse};

use super::EtcdStore;
use super::claim::broken_reply;
use super::hold::{deletion, is_that_of, ours};
use super::session::Session;
use super::table::Entry;
use crate::backend::{Hold, Release};
use crate::error::Result;

impl EtcdStore {
    /// Deletes the keys, each only if it is still the one that was granted (etcd#22082: a
    /// retried unlock deleted a newer lock of the same session).
    pub(super) async fn give_back(self: &Arc<Self>, holds: Vec<Hold>) -> Result<Vec<Release>> {
        let entries: Vec<Option<Entry>> = {
            let table = self.table.lock();
            holds.iter().map(|hold| ours(table.get(hold.owner), hold)).collect()
        };
        let pairs = holds.iter().zip(&entries);
        let known: Vec<_> =
            pairs.filter_map(|(hold, entry)| Some((hold, &entry.as_ref()?.session))).collect();
        let mut deleted = match known[..] {
            [] => Vec::new(),
            [(hold, session)] => vec![self.delete_one(hold, session).await?],
            _ => self.delete_all(&known).await?,
        }
        .into_iter();
        let mut releases = Vec::new();
        for (hold, entry) in holds.iter().zip(entries) {
            let released = match entry {
                None => false,
                Some(_) => {
                    // Deleted now, or gone before: in either case it is not ours any more.
                    self.table.lock().forget(hold.owner, self.clock.now());
                    deleted.next().ok_or_else(broken_reply)?
                }
            };
            releases.push(if released { Release::Released } else { Release::NotHeld });
        }
        Ok(releases)
    }

    /// Whether its key was still there.
    async fn delete_one(&self, hold: &Hold, session: &Session) -> Result<bool> {
        let key = self.layout.lock(&hold.name, session.id);
        let txn = deletion(key, hold.token.get() as i64);
        Ok(self.endpoints.txn(txn).await?.succeeded())
    }

    /// Whether the key of each was still there. Mostly all are: that is cheaper to say than
    /// a transaction for each.
    async fn delete_all(&self, known: &[(&Hold, &Arc<Session>)]) -> Result<Vec<bool>> {
        let key = |hold: &Hold, session: &Session| self.layout.lock(&hold.name, session.id);
        let (mut granted, mut deletions) = (Vec::new(), Vec::new());
        for (hold, session) in known {
            let key = key(hold, session);
            granted.push(is_that_of(&key, hold.token.get() as i64));
            deletions.push(TxnOp::delete(key, None));
        }
        let together = Txn::new().when(granted).and_then(deletions);
        if self.endpoints.txn(together).await?.succeeded() {
            return Ok(vec![true; known.len()]);
        }
        let each = known.iter().map(|(hold, session)| {
            TxnOp::txn(deletion(key(hold, session), hold.token.get() as i64))
        });
        let response = self.endpoints.txn(Txn::new().and_then(each.collect::<Vec<_>>())).await?;
        let answered = |part| match part {
            TxnOpResponse::Txn(nested) => Ok(nested.succeeded()),
            _ => Err(broken_reply()),
        };
        response.op_responses().into_iter().map(answered).collect()
    }
}
