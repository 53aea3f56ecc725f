//! Keeping locks; and finding out what became of a claim.

use std::collections::HashMap;
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp, TxnOpResponse};

use super::claim::{grant, proof};
use super::error::broken_reply;
use super::session::{Session, Standing};
use super::table::{Entry, Stage};
use super::{EtcdStore, value};
use crate::backend::{Claim, Grant, Hold, Proof, Renewal};
use crate::error::Result;
use crate::loss::LossReason;
use crate::name::Name;
use crate::owner::Owner;

impl EtcdStore {
    /// Proves the sessions, and that the keys are still there: an operator's `del` leaves
    /// the lease alive.
    pub(super) async fn prove(self: &Arc<Self>, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
        let entries: Vec<Option<Entry>> = {
            let (table, now) = (self.table.lock(), self.clock.now());
            let ours = |hold: &Hold| ours(table.get(hold.owner), hold);
            // What is about to be given up is not renewed any more.
            holds.iter().map(|hold| ours(hold).filter(|entry| entry.until > now)).collect()
        };
        let mut sessions: HashMap<i64, &Arc<Session>> = HashMap::new();
        for entry in entries.iter().flatten() {
            sessions.insert(entry.session.id, &entry.session);
        }
        let proving = sessions.into_iter().map(async |(id, session)| (id, session.prove().await));
        let proving = futures_util::future::join_all(proving);
        let (proved, there) = tokio::join!(proving, self.are_there(&holds, &entries));
        let standings: HashMap<i64, Result<Standing>> = proved.into_iter().collect();
        let mut renewals = Vec::new();
        for ((hold, entry), there) in holds.iter().zip(&entries).zip(there?) {
            let standing = entry.as_ref().and_then(|entry| standings.get(&entry.session.id));
            let renewal = match standing {
                Some(Err(error)) => return Err(error.clone()),
                Some(Ok(Standing::Ended)) => Renewal::NotYours(LossReason::SessionEnded),
                Some(Ok(Standing::Proved(at))) if there => {
                    let proof = Proof { at: *at, valid_for: hold.ttl };
                    // The janitor may have been faster.
                    match self.table.lock().keep(hold.owner, *at + hold.ttl) {
                        true => Renewal::Renewed(proof),
                        false => Renewal::NotYours(LossReason::Expired),
                    }
                }
                _ => Renewal::NotYours(self.why_lost(hold).await?),
            };
            if matches!(renewal, Renewal::NotYours(_)) {
                self.table.lock().forget(hold.owner, self.clock.now());
            }
            renewals.push(renewal);
        }
        Ok(renewals)
    }

    /// Whether the key of each is there, as it was granted.
    async fn are_there(&self, holds: &[Hold], entries: &[Option<Entry>]) -> Result<Vec<bool>> {
        let key = |hold: &Hold, entry: &Entry| self.layout.lock(&hold.name, entry.session.id);
        let look = |key| TxnOp::get(key, Some(GetOptions::new().with_keys_only()));
        let pairs = holds.iter().zip(entries);
        let looks: Vec<TxnOp> =
            pairs.filter_map(|(hold, entry)| Some(look(key(hold, entry.as_ref()?)))).collect();
        if looks.is_empty() {
            return Ok(vec![false; holds.len()]);
        }
        let txn = Txn::new().and_then(looks);
        let response = self.endpoints.txn(txn).await?;
        let mut seen = response.op_responses().into_iter();
        let mut there = Vec::new();
        for (hold, entry) in holds.iter().zip(entries) {
            there.push(match entry {
                None => false,
                Some(_) => match seen.next() {
                    Some(TxnOpResponse::Get(get)) => {
                        let created = get.kvs().first().map(|kv| kv.create_revision() as u64);
                        created == Some(hold.token.get())
                    }
                    _ => return Err(broken_reply()),
                },
            });
        }
        Ok(there)
    }

    /// Why a key of ours is not there any more.
    async fn why_lost(&self, hold: &Hold) -> Result<LossReason> {
        let record = self.layout.forced(&hold.name, hold.token);
        let line = self.layout.line(&hold.name);
        let options = GetOptions::new().with_range(line.end);
        let looks = [TxnOp::get(record, None), TxnOp::get(line.start, Some(options))];
        let txn = Txn::new().and_then(looks);
        let response = self.endpoints.txn(txn).await?;
        let mut looks = response.op_responses().into_iter();
        let (Some(TxnOpResponse::Get(record)), Some(TxnOpResponse::Get(mut line))) =
            (looks.next(), looks.next())
        else {
            return Err(broken_reply());
        };
        if let Some(kv) = record.kvs().first()
            && let Some(record) = value::forced(kv.value(), hold.token)
        {
            return Ok(LossReason::Forced(record.forced));
        }
        let others = self.claims_among(&hold.name, line.take_kvs());
        let another = |kv: &etcd_client::KeyValue| value::owner(kv.value()) != Some(hold.owner);
        let taken = others.iter().any(another);
        Ok(if taken { LossReason::Taken } else { LossReason::Expired })
    }

    /// Out of the line, or out of the lock.
    pub(super) async fn go(self: &Arc<Self>, claim: Claim) -> Result<()> {
        let entry = self.table.lock().get(claim.owner).cloned();
        if let Some(entry) = entry {
            self.remove_of(&entry, claim.owner).await?;
            self.table.lock().forget(claim.owner, self.clock.now());
        }
        Ok(())
    }

    /// Is it mine? If not, it shall not be: a request that is still on its way is refused
    /// here or, when it is further on, its key removed by the janitor.
    pub(super) async fn find_out(self: &Arc<Self>, claim: &Claim) -> Result<Option<Grant>> {
        let now = self.clock.now();
        let (entry, barred) = {
            let mut table = self.table.lock();
            let entry = table.get(claim.owner).cloned();
            let barred = table.is_barred(claim.owner, now);
            if entry.is_none() {
                table.bar(claim.owner, claim.ttl, now);
            }
            (entry, barred)
        };
        let Some(entry) = entry else { return Ok(None) };
        // Once it was not: its removal may be under way, although the key is still there.
        if entry.until > now
            && !barred
            && let Some(revision) = self.first_in_line(&claim.name, &entry, claim.owner).await?
        {
            let proof = proof(&entry.session, claim);
            let until = proof.at + claim.ttl;
            if self.table.lock().advance(claim.owner, Stage::Held, revision, until) {
                return Ok(Some(grant(revision, proof)));
            }
        }
        entry.session.suspect(now);
        self.table.lock().bar(claim.owner, claim.ttl, now);
        self.remove_of(&entry, claim.owner).await?;
        self.table.lock().forget(claim.owner, self.clock.now());
        Ok(None)
    }

    /// The create revision of the owner's key, if it is the first in line.
    async fn first_in_line(&self, name: &Name, entry: &Entry, owner: Owner) -> Result<Option<i64>> {
        let line = self.whole_line(name).await?;
        let first = line.claims.first().filter(|first| {
            first.lease() == entry.session.id && value::owner(first.value()) == Some(owner)
        });
        Ok(first.map(|first| first.create_revision()))
    }

    /// Removes the owner's key, wherever it has come.
    pub(super) async fn remove_of(&self, entry: &Entry, owner: Owner) -> Result<()> {
        let key = self.layout.lock(&entry.name, entry.session.id);
        if let Some(revision) = entry.revision {
            return self.remove(key, revision).await;
        }
        let wanted = key.clone();
        let found = self.endpoints.on_keys(async |mut kv| kv.get(wanted, None).await);
        let found = found.await?;
        let mine = |kv: &&etcd_client::KeyValue| value::owner(kv.value()) == Some(owner);
        match found.kvs().first().filter(mine) {
            Some(kv) => self.remove(key, kv.create_revision()).await,
            None => Ok(()),
        }
    }

    /// Deletes this key, if it is the one that was created at this revision.
    pub(super) async fn remove(&self, key: String, revision: i64) -> Result<()> {
        let txn = deletion(key, revision);
        self.endpoints.txn(txn).await.map(drop)
    }
}

/// What we know of a hold, if we know it.
pub(super) fn ours(entry: Option<&Entry>, hold: &Hold) -> Option<Entry> {
    let known = |entry: &&Entry| {
        entry.name == hold.name && entry.revision == i64::try_from(hold.token.get()).ok()
    };
    entry.filter(known).cloned()
}

/// Whether this key is the one that was created at this revision.
pub(super) fn is_that_of(key: &str, revision: i64) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, revision)
}

pub(super) fn deletion(key: String, revision: i64) -> Txn {
    Txn::new().when([is_that_of(&key, revision)]).and_then([TxnOp::delete(key, None)])
}
