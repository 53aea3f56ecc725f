//! The transaction that puts claims in line, and what etcd says to it: one for all that
//! travel together, un-nested when there is only one.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};

use super::claim::broken_reply;
use super::seat::{Seated, Unanswered};
use super::session::Session;
use super::table::Entry;
use super::{EtcdStore, NEAR, value};
use crate::error::{Outcome, Result};
use crate::name::Name;
use crate::owner::Owner;

/// How much of a line a claim reads: enough to follow it from there, when few are ahead.
const READ: i64 = NEAR as i64 + 2;

/// What the store said to a claim.
#[derive(Debug)]
pub(super) struct Answer {
    /// Whether this claim put its key.
    pub(super) put: bool,
    /// The create revision of our own key, whoever's owner it names.
    pub(super) own: Option<(i64, Option<Owner>)>,
    /// The claims on the lock, first come first, as far as they were read.
    pub(super) line: Vec<KeyValue>,
    pub(super) more: bool,
    pub(super) crowd: i64,
    pub(super) revision: i64,
}

impl EtcdStore {
    pub(super) async fn send_claims(self: &Arc<Self>, seated: Vec<&Seated>) -> Result<Vec<Answer>> {
        if seated.is_empty() {
            return Ok(Vec::new());
        }
        let unanswered = Unanswered { store: self, seated: &seated };
        let mut each: Vec<Txn> = seated.iter().map(|seated| self.transaction(seated)).collect();
        let alone = each.len() == 1;
        let txn = match each.pop() {
            Some(txn) if alone => txn,
            last => {
                let all = each.into_iter().chain(last).map(TxnOp::txn);
                Txn::new().and_then(all.collect::<Vec<_>>())
            }
        };
        // A proof that is getting old is renewed beside it.
        let now = self.clock.now();
        let mut old: Vec<&Arc<Session>> = Vec::new();
        for Seated { entry: Entry { session, .. }, .. } in &seated {
            let age = session.proved_at().until(now);
            if age > session.ttl / 4 && !old.iter().any(|known| known.id == session.id) {
                old.push(session);
            }
        }
        let proving = futures_util::future::join_all(old.into_iter().map(|old| old.prove()));
        let sending = self.endpoints.txn(txn);
        let (answer, _) = tokio::join!(sending, proving);
        let response = match answer {
            Ok(response) => response,
            Err(error) => {
                if error.outcome() == Outcome::NotApplied {
                    unanswered.not_applied();
                }
                return Err(error);
            }
        };
        std::mem::forget(unanswered);
        let revision = response.header().map_or(0, |header| header.revision());
        if alone {
            return Ok(vec![self.read(seated[0], &response, revision)?]);
        }
        let responses = response.op_responses();
        if responses.len() != seated.len() {
            return Err(broken_reply());
        }
        let nested = seated.iter().zip(responses).map(|(seated, response)| match response {
            TxnOpResponse::Txn(response) => self.read(seated, &response, revision),
            _ => Err(broken_reply()),
        });
        nested.collect()
    }

    /// Where there is no line, a claim puts its key and needs to see nothing. Otherwise one
    /// that queues puts it behind the others and looks at the line.
    fn transaction(&self, seated: &Seated) -> Txn {
        let Seated { claim, entry, free_at, .. } = seated;
        let key = self.layout.lock(&claim.name, entry.session.id);
        let line = self.layout.line(&claim.name);
        let put = TxnOp::put(
            key.clone(),
            value::of_claim(claim, &self.clock),
            Some(PutOptions::new().with_lease(entry.session.id)),
        );
        let look = || self.look(&claim.name);
        let absent = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let free = match free_at {
            None => Compare::create_revision(line.start, CompareOp::Equal, 0),
            // There were other keys, but no claim: and nothing has come since.
            Some(revision) => Compare::create_revision(line.start, CompareOp::Less, revision + 1),
        };
        let free = free.with_range(line.end);
        if claim.queue {
            let behind = Txn::new()
                .when([absent])
                .and_then([put.clone(), look()])
                .or_else([TxnOp::get(key, None), look()]);
            return Txn::new().when([free]).and_then([put]).or_else([TxnOp::txn(behind)]);
        }
        Txn::new().when([absent, free]).and_then([put]).or_else([TxnOp::get(key, None), look()])
    }

    fn look(&self, name: &Name) -> TxnOp {
        let line = self.layout.line(name);
        let options = GetOptions::new()
            .with_range(line.end)
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(READ);
        TxnOp::get(line.start, Some(options))
    }

    fn read(&self, seated: &Seated, response: &TxnResponse, revision: i64) -> Result<Answer> {
        let mut answer =
            Answer { put: false, own: None, line: Vec::new(), more: false, crowd: 0, revision };
        let mut looks = Vec::new();
        for part in response.op_responses() {
            match part {
                TxnOpResponse::Put(_) => {
                    answer.put = true;
                    answer.own = Some((revision, Some(seated.claim.owner)));
                }
                TxnOpResponse::Get(get) => looks.push(get),
                TxnOpResponse::Txn(behind) => return self.read(seated, &behind, revision),
                TxnOpResponse::Delete(_) => return Err(broken_reply()),
            }
        }
        if !response.succeeded() {
            let own = looks.first().ok_or_else(broken_reply)?;
            let own = own.kvs().first();
            answer.own = own.map(|kv| (kv.create_revision(), value::owner(kv.value())));
        }
        if let Some(mut look) = looks.pop() {
            answer.more = look.more();
            answer.crowd = look.count();
            answer.line = self.claims_among(&seated.claim.name, look.take_kvs());
        }
        Ok(answer)
    }

    /// The claims on this lock among these keys.
    pub(super) fn claims_among(&self, name: &Name, mut keys: Vec<KeyValue>) -> Vec<KeyValue> {
        keys.retain(|kv| self.layout.is_claim(name, kv.key(), kv.lease()));
        keys
    }
}
