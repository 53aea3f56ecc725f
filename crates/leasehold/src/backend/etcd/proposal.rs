//! The transaction that puts claims in line, and what etcd says to it: one for all that
//! travel together. Mostly all of their locks are free, which is cheap to ask for; only if
//! one is not, each has a nested transaction of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};

use super::error::broken_reply;
use super::seat::{Seated, Unanswered};
use super::session::Session;
use super::table::Entry;
use super::{EtcdStore, NEAR, value};
use crate::backend::Claim;
use crate::error::{Outcome, Result};
use crate::name::Name;
use crate::owner::Owner;

/// How much of a line a claim reads: enough to follow it from there, when few are ahead.
const READ: i64 = NEAR as i64 + 2;

/// After a claim that met others in line, how many requests expect that again.
const CROWDED_FOR: u32 = 32;

/// What the store said to a claim.
#[derive(Debug)]
pub(super) struct Answer {
    /// Whether this claim put its key.
    pub(super) put: bool,
    /// The create revision of our own key, whoever's owner it names.
    pub(super) own: Option<(i64, Option<Owner>)>,
    /// The claims on the lock, first come first, as far as they were read: all of them,
    /// unless there are more.
    pub(super) line: Vec<KeyValue>,
    pub(super) more: bool,
    pub(super) crowd: i64,
    pub(super) revision: i64,
}

impl Answer {
    /// It put its key where no other was.
    fn first(seated: &Seated, revision: i64) -> Self {
        let own = Some((revision, Some(seated.claim.owner)));
        Self { put: true, own, line: Vec::new(), more: false, crowd: 0, revision }
    }
}

impl EtcdStore {
    pub(super) async fn send_claims(self: &Arc<Self>, seated: Vec<&Seated>) -> Result<Vec<Answer>> {
        if seated.is_empty() {
            return Ok(Vec::new());
        }
        let unanswered = Unanswered { store: self, seated: &seated };
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
        let (answer, _) = tokio::join!(self.propose(&seated), proving);
        match &answer {
            Err(error) if error.outcome() != Outcome::NotApplied => {}
            Err(_) => unanswered.not_applied(),
            Ok(_) => std::mem::forget(unanswered),
        }
        answer
    }

    /// Asks for the locks as free ones first, where that is likely to do: the request is
    /// small then (a bigger one leaves in several packets), and etcd has less to check.
    async fn propose(&self, seated: &[&Seated]) -> Result<Vec<Answer>> {
        // Who asks again may be in line already, or has seen that there are other keys.
        let anew = seated.iter().all(|seated| seated.fresh && !seated.joins);
        if anew && self.crowded.load(Ordering::Relaxed) == 0 {
            let response = self.endpoints.txn(self.if_all_are_free(seated)).await?;
            if response.succeeded() {
                let revision = revision_of(&response);
                return Ok(seated.iter().map(|seated| Answer::first(seated, revision)).collect());
            }
        }
        let answers = self.get_in_line(seated).await?;
        let crowded = match answers.iter().any(|answer| !answer.line.is_empty()) {
            true => CROWDED_FOR,
            false => self.crowded.load(Ordering::Relaxed).saturating_sub(1),
        };
        self.crowded.store(crowded, Ordering::Relaxed);
        Ok(answers)
    }

    async fn get_in_line(&self, seated: &[&Seated]) -> Result<Vec<Answer>> {
        if let [alone] = seated {
            let response = self.endpoints.txn(self.transaction(alone)).await?;
            return Ok(vec![self.read(alone, &response, revision_of(&response))?]);
        }
        let each = seated.iter().map(|seated| TxnOp::txn(self.transaction(seated)));
        let response = self.endpoints.txn(Txn::new().and_then(each.collect::<Vec<_>>())).await?;
        let (revision, responses) = (revision_of(&response), response.op_responses());
        if responses.len() != seated.len() {
            return Err(broken_reply());
        }
        let nested = seated.iter().zip(responses).map(|(seated, response)| match response {
            TxnOpResponse::Txn(response) => self.read(seated, &response, revision),
            _ => Err(broken_reply()),
        });
        nested.collect()
    }

    /// Puts all keys if there is no line at any of the locks; otherwise none.
    fn if_all_are_free(&self, seated: &[&Seated]) -> Txn {
        let free = seated.iter().map(|seated| self.free(seated)).collect::<Vec<_>>();
        let puts = seated.iter().map(|seated| self.put(seated)).collect::<Vec<_>>();
        Txn::new().when(free).and_then(puts)
    }

    fn put(&self, Seated { claim, entry, .. }: &Seated) -> TxnOp {
        TxnOp::put(
            self.layout.lock(&claim.name, entry.session.id),
            value::of_claim(claim, &self.clock),
            Some(PutOptions::new().with_lease(entry.session.id)),
        )
    }

    fn free(&self, Seated { claim, .. }: &Seated) -> Compare {
        let line = self.layout.line(&claim.name);
        Compare::create_revision(line.start, CompareOp::Equal, 0).with_range(line.end)
    }

    /// Where there is no line, a claim puts its key and needs to see nothing. Otherwise one
    /// that queues or joins puts it behind the others and looks at the line.
    fn transaction(&self, seated: &Seated) -> Txn {
        let Seated { claim, entry, joins, .. } = seated;
        let key = self.layout.lock(&claim.name, entry.session.id);
        let (free, put) = (self.free(seated), self.put(seated));
        let look = || self.look(claim);
        let absent = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        if claim.queue || *joins {
            let behind = Txn::new()
                .when([absent])
                .and_then([put.clone(), look()])
                .or_else([TxnOp::get(key, None), look()]);
            return Txn::new().when([free]).and_then([put]).or_else([TxnOp::txn(behind)]);
        }
        Txn::new().when([absent, free]).and_then([put]).or_else([TxnOp::get(key, None), look()])
    }

    /// A part of the line. Who does not queue wants to know who is first: for that etcd reads
    /// all of it. Who queues needs that only of a short line, which it gets whole; in a long
    /// one a thousand newcomers would keep everybody else waiting.
    fn look(&self, claim: &Claim) -> TxnOp {
        let line = self.layout.line(&claim.name);
        let mut options = GetOptions::new().with_range(line.end).with_limit(READ);
        if !claim.queue {
            options = options.with_sort(SortTarget::Create, SortOrder::Ascend);
        }
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
            answer.line.sort_unstable_by_key(KeyValue::create_revision);
        }
        Ok(answer)
    }

    /// The claims on this lock among these keys.
    pub(super) fn claims_among(&self, name: &Name, mut keys: Vec<KeyValue>) -> Vec<KeyValue> {
        keys.retain(|kv| self.layout.is_claim(name, kv.key(), kv.lease()));
        keys
    }
}

fn revision_of(response: &TxnResponse) -> i64 {
    response.header().map_or(0, |header| header.revision())
}
