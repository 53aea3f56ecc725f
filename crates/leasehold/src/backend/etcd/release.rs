//! Giving locks back.

use std::sync::Arc;

use etcd_client::{Txn, TxnOp, TxnOpResponse};

use super::EtcdStore;
use super::error::broken_reply;
use super::hold::{deletion, is_that_of, ours};
use super::session::Session;
use super::table::Entry;
use crate::backend::{Hold, Release};
use crate::error::{Outcome, Result};
use crate::name::Name;

impl EtcdStore {
    /// Deletes the keys, each only if it is still the one that was granted (etcd#22082: a
    /// retried unlock deleted a newer lock of the same session): by a compare, or because
    /// nothing else can be there (ADR 8).
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
    ///
    /// Without a compare, which etcd pays dearly for, where no other key can be in its
    /// place: none of the session's requests is late, and nobody gets the place before the
    /// answer is there; without an answer, nobody ever does.
    async fn delete_one(&self, hold: &Hold, session: &Session) -> Result<bool> {
        let key = self.layout.lock(&hold.name, session.id);
        let Some(clearing) = Clearing::begin(self, session, hold) else {
            let txn = deletion(key, hold.token.get() as i64);
            return Ok(self.endpoints.txn(txn).await?.succeeded());
        };
        let deleting = self.endpoints.on_keys(async |mut kv| kv.delete(key, None).await);
        match deleting.await {
            Ok(answer) => {
                clearing.answered();
                Ok(answer.deleted() > 0)
            }
            Err(error) => {
                if error.outcome() == Outcome::NotApplied {
                    clearing.answered();
                }
                Err(error)
            }
        }
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

/// A place whose key is being deleted, whatever it is.
struct Clearing<'a> {
    store: &'a EtcdStore,
    session: &'a Session,
    name: &'a Name,
}

impl<'a> Clearing<'a> {
    /// Unless something else than the key that is known may be there, or come.
    fn begin(store: &'a EtcdStore, session: &'a Session, hold: &'a Hold) -> Option<Self> {
        let clean = !session.is_retired() && !session.is_suspect(store.clock.now());
        let begun = clean && store.table.lock().clear(session.id, hold);
        begun.then_some(Self { store, session, name: &hold.name })
    }

    /// It is over: what comes to this place now is not deleted.
    fn answered(self) {
        self.end();
        std::mem::forget(self);
    }

    fn end(&self) {
        self.store.table.lock().cleared(self.session.id, self.name);
    }
}

impl Drop for Clearing<'_> {
    /// Given up: the deletion may still arrive.
    fn drop(&mut self) {
        self.session.retire();
        self.end();
    }
}
