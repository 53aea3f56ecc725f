//! Taking locks: one transaction for all claims that travel together, un-nested when there
//! is only one.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};

use super::error::is_lease_gone;
use super::line::View;
use super::session::Session;
use super::table::{Entry, Stage};
use super::{EtcdStore, NEAR, value};
use crate::backend::{Claim, Grant, Proof, Verdict};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Outcome, Result};
use crate::name::Name;
use crate::token::Token;

/// How often a claim is sent again that met a stranger, a dead session or nested names.
const ATTEMPTS: usize = 5;
/// How much of a line a claim reads: enough to follow it from there, when few are ahead.
const READ: i64 = NEAR as i64 + 2;

/// A claim and where it goes.
struct Seated {
    claim: Claim,
    entry: Entry,
    /// Whether nothing was known of its owner before. A key of that owner is then one that
    /// was given up: its removal may be under way.
    fresh: bool,
    /// The revision at which no claim was there, although other keys were.
    free_at: Option<i64>,
}

/// What the store said to a claim.
#[derive(Debug)]
struct Answer {
    /// Whether this claim put its key.
    put: bool,
    /// The create revision of our own key, whoever's owner it names.
    own: Option<(i64, Option<crate::owner::Owner>)>,
    /// The claims on the lock, first come first, as far as they were read.
    line: Vec<KeyValue>,
    more: bool,
    crowd: i64,
    revision: i64,
}

enum Decision {
    Verdict(Verdict),
    /// Ask again, alone; after this key of ours, that nobody wants, is gone.
    Stranger(i64),
    /// Ask again, alone: nobody had it at this revision.
    Free(i64),
}

impl EtcdStore {
    pub(super) async fn claim(self: &Arc<Self>, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
        for claim in &claims {
            self.layout.check(&claim.name)?;
        }
        let mut seated: Vec<(usize, Seated)> = Vec::new();
        let mut verdicts = vec![Verdict::Held(None); claims.len()];
        for (index, claim) in claims.into_iter().enumerate() {
            // A barred owner is refused.
            if !self.table.lock().is_barred(claim.owner, self.clock.now()) {
                match self.seat(&claim).await {
                    Ok((entry, fresh)) => {
                        seated.push((index, Seated { claim, entry, fresh, free_at: None }));
                    }
                    Err(error) => {
                        let all: Vec<_> = seated.iter().map(|(_, seated)| seated).collect();
                        Unanswered { store: self, seated: &all }.not_applied();
                        return Err(error);
                    }
                }
            }
        }
        let mut again = Vec::new();
        match self.send_claims(seated.iter().map(|(_, seated)| seated).collect()).await {
            Ok(answers) => {
                for ((index, seated), answer) in seated.into_iter().zip(answers) {
                    match self.decide(&seated, answer).await.map_err(Error::outcome_unknown)? {
                        Decision::Verdict(verdict) => verdicts[index] = verdict,
                        decision => again.push((index, seated, decision)),
                    }
                }
            }
            Err(error) if is_lease_gone(&error) => {
                // One unknown lease fails them all: find out which.
                for (index, seated) in seated {
                    verdicts[index] = self.claim_alone(seated, None).await?;
                }
            }
            Err(error) => return Err(error),
        }
        for (index, seated, decision) in again {
            verdicts[index] = self.claim_alone(seated, Some(decision)).await?;
        }
        Ok(verdicts)
    }

    async fn claim_alone(
        self: &Arc<Self>,
        mut seated: Seated,
        mut decision: Option<Decision>,
    ) -> Result<Verdict> {
        for _ in 0..ATTEMPTS {
            match decision.take() {
                Some(Decision::Verdict(verdict)) => return Ok(verdict),
                Some(Decision::Stranger(revision)) => {
                    let key = self.layout.lock(&seated.claim.name, seated.entry.session.id);
                    self.remove(key, revision).await?;
                }
                Some(Decision::Free(revision)) => seated.free_at = Some(revision),
                None => {}
            }
            let (entry, fresh) = self.seat(&seated.claim).await?;
            seated.entry = entry;
            seated.fresh |= fresh;
            let answer = match self.send_claims(vec![&seated]).await {
                Ok(mut answers) => answers.pop().ok_or_else(broken_reply)?,
                Err(error) if is_lease_gone(&error) => {
                    seated.entry.session.end();
                    continue;
                }
                Err(error) => return Err(error),
            };
            decision = Some(self.decide(&seated, answer).await.map_err(Error::outcome_unknown)?);
        }
        if let Some(Decision::Verdict(verdict)) = decision {
            return Ok(verdict);
        }
        self.table.lock().forget(seated.claim.owner, self.clock.now());
        let message = "too much is written below this lock's name; try again";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// A session for this claim, in which no other claim of ours is on the same lock.
    async fn seat(self: &Arc<Self>, claim: &Claim) -> Result<(Entry, bool)> {
        let seconds = claim.ttl.as_secs() + u64::from(claim.ttl.subsec_nanos() > 0);
        if let Some(seat) = self.table.lock().seat(claim, seconds, self.clock.now()) {
            return Ok(seat);
        }
        let _one_at_a_time = self.opening.lock().await;
        if let Some(seat) = self.table.lock().seat(claim, seconds, self.clock.now()) {
            return Ok(seat);
        }
        let opening =
            Session::open(self.endpoints.clone(), self.clock.clone(), &self.layout, seconds);
        // Nothing of the claim itself was sent: without a session it was not applied.
        let session = opening.await.map_err(not_applied)?;
        self.follow_session(&session);
        let mut table = self.table.lock();
        table.add_session(seconds, session);
        let seated = table.seat(claim, seconds, self.clock.now());
        seated.ok_or_else(|| Error::new(ErrorKind::Internal, "a fresh session has no room"))
    }

    async fn send_claims(self: &Arc<Self>, seated: Vec<&Seated>) -> Result<Vec<Answer>> {
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
        let sending = self.endpoints.call(async |etcd| etcd.kv_client().txn(txn).await);
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

    /// A claim that queues puts its key behind the others and looks at the line; one that
    /// does not puts it only where there is no line.
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
        if claim.queue {
            return Txn::new()
                .when([absent])
                .and_then([put, look()])
                .or_else([TxnOp::get(key, None), look()]);
        }
        let free = match free_at {
            None => Compare::create_revision(line.start, CompareOp::Equal, 0),
            // There were other keys, but no claim: and nothing has come since.
            Some(revision) => Compare::create_revision(line.start, CompareOp::Less, revision + 1),
        };
        Txn::new()
            .when([absent, free.with_range(line.end)])
            .and_then([put])
            .or_else([TxnOp::get(key, None), look()])
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
                _ => return Err(broken_reply()),
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

    fn take_back_barred(&self, claim: &Claim, now: Moment) -> bool {
        let mut table = self.table.lock();
        let barred = table.is_barred(claim.owner, now);
        if barred {
            table.forget(claim.owner, now);
        }
        barred
    }

    async fn decide(&self, seated: &Seated, mut answer: Answer) -> Result<Decision> {
        let Seated { claim, entry, .. } = seated;
        if answer.line.is_empty() && answer.more {
            // Nested names fill what was read.
            let all = self.whole_line(&claim.name).await?;
            answer.revision = all.as_of;
            answer.line = all.claims;
        }
        let first = answer.line.first();
        let revision = match answer.own {
            Some((revision, Some(owner)))
                if owner == claim.owner && (answer.put || !seated.fresh) =>
            {
                revision
            }
            Some((revision, _)) => return Ok(Decision::Stranger(revision)),
            None => {
                return Ok(match first {
                    None => Decision::Free(answer.revision),
                    Some(first) => {
                        self.table.lock().forget(claim.owner, self.clock.now());
                        let held_by = value::held_by(first.value());
                        Decision::Verdict(Verdict::Held(Some(held_by)))
                    }
                });
            }
        };
        let key = self.layout.lock(&claim.name, entry.session.id).into_bytes();
        let behind = first.filter(|first| first.create_revision() < revision);
        let now = self.clock.now();
        if self.take_back_barred(claim, now) {
            // Settled while this was on its way: nobody wants it.
            self.remove(String::from_utf8_lossy(&key).into_owned(), revision).await?;
            return Ok(Decision::Verdict(Verdict::Held(None)));
        }
        let mut table = self.table.lock();
        let Some(first) = behind else {
            let proof = proof(&entry.session, claim);
            let until = proof.at + claim.ttl;
            if !table.advance(claim.owner, Stage::Held, revision, until) {
                return Err(given_up());
            }
            return Ok(Decision::Verdict(Verdict::Granted(grant(revision, proof))));
        };
        let held_by = Some(value::held_by(first.value()));
        let view = View {
            complete: answer.line.iter().any(|kv| kv.key() == key) || !answer.more,
            ahead: ahead_of(&answer.line, revision),
            as_of: answer.revision,
            crowd: answer.crowd,
        };
        let until = now + super::KEEPS_PLACE;
        if !table.advance(claim.owner, Stage::Waiting(view), revision, until) {
            return Err(given_up());
        }
        Ok(Decision::Verdict(Verdict::Queued(held_by)))
    }
}

/// The claims that came before this revision.
pub(super) fn ahead_of(line: &[KeyValue], revision: i64) -> Vec<(i64, Vec<u8>)> {
    let before = line.iter().filter(|kv| kv.create_revision() < revision);
    before.map(|kv| (kv.create_revision(), kv.key().to_vec())).collect()
}

/// What a lease on this session counts from.
pub(super) fn proof(session: &Session, claim: &Claim) -> Proof {
    Proof { at: session.proved_at(), valid_for: claim.ttl }
}

pub(super) fn grant(revision: i64, proof: Proof) -> Grant {
    Grant { token: Token::new(revision as u64), proof }
}

pub(super) fn broken_reply() -> Error {
    let message = "etcd's answer does not fit the request; please report this";
    Error::new(ErrorKind::Internal, message).outcome_unknown()
}

/// The janitor did not wait for the answer, and its key is being removed.
fn given_up() -> Error {
    let message = "the claim took too long and was given up";
    Error::new(ErrorKind::Unavailable, message).outcome_unknown()
}

fn not_applied(error: Error) -> Error {
    let plain = Error::new(error.kind().clone(), error.to_string());
    plain.caused_by(error)
}

/// Claims that are under way. Dropped without an answer, they may have left keys.
struct Unanswered<'a> {
    store: &'a EtcdStore,
    seated: &'a [&'a Seated],
}

impl Unanswered<'_> {
    /// The store certainly did nothing: who was not in line before is not now.
    fn not_applied(self) {
        let now: Moment = self.store.clock.now();
        let mut table = self.store.table.lock();
        for Seated { claim, .. } in self.seated {
            if table.get(claim.owner).is_some_and(|entry| matches!(entry.stage, Stage::Asked)) {
                table.forget(claim.owner, now);
            }
        }
        drop(table);
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let now = self.store.clock.now();
        for Seated { entry, .. } in self.seated {
            entry.session.suspect(now);
        }
    }
}
