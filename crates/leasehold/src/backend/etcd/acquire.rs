//! Taking locks. One transaction puts all claims that travel together in their queues. Mostly
//! all of their locks are free, which is cheap to ask for; only if one is not, each has a nested
//! transaction of its own. What is answered to each claim is decided here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use futures_util::future::join_all;

use super::error::{broken_reply, is_lease_gone};
use super::ledger::Entry;
use super::queue::{NEAR, View, ahead_of, revision};
use super::session::Session;
use super::{EtcdStore, keys};
use crate::backend::{Claim, Grant, Verdict};
use crate::error::{Error, ErrorKind, Outcome, Result};
use crate::owner::Owner;

/// How often a claim is sent again that met a stranger or a dead session.
const ATTEMPTS: usize = 5;
/// How much of a queue a claim reads: enough to follow it from there, when few are ahead.
const READ: i64 = NEAR as i64 + 2;
/// After a claim that met others in the queue, how many requests expect that again.
const CROWDED_FOR: u32 = 32;

/// A claim and where it goes.
struct Placed {
    index: usize,
    claim: Claim,
    entry: Entry,
    /// Whether nothing was known of its owner before. A key of that owner is then one that
    /// was given up: its removal may be under way.
    fresh: bool,
    /// Whether it takes a place in the queue although it does not wait: where nested names come
    /// and go, that nobody has the lock can only be seen from there.
    joins: bool,
}

/// What the store said to a claim.
#[derive(Default)]
struct Answer {
    /// Whether this claim put its key.
    put: bool,
    /// The create revision of our own key, whoever's owner it names.
    own: Option<(i64, Option<Owner>)>,
    /// The claims on the lock, first come first, as far as they were read: all of them,
    /// unless there are more.
    queue: Vec<KeyValue>,
    more: bool,
    crowd: i64,
    revision: i64,
}

enum Decision {
    Verdict(Verdict),
    /// Ask again, alone; after this key of ours, that nobody wants, is gone.
    Stranger(i64),
    /// Ask again, alone: nobody has it, but other keys are below its name.
    Free,
}

pub(super) async fn acquire(store: Arc<EtcdStore>, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
    for claim in &claims {
        store.layout.check(&claim.name)?;
    }
    let mut placed: Vec<Placed> = Vec::new();
    let mut verdicts = vec![Verdict::Held(None); claims.len()];
    for (index, claim) in claims.into_iter().enumerate() {
        // An owner with a tombstone is refused.
        if store.ledger.lock().has_tombstone(claim.owner, store.clock.now()) {
            continue;
        }
        match store.place(&claim).await {
            Ok((entry, fresh)) => placed.push(Placed { index, claim, entry, fresh, joins: false }),
            Err(error) => {
                not_applied(&store, &placed);
                return Err(error);
            }
        }
    }
    let mut again = Vec::new();
    match send(&store, &placed).await {
        Ok(answers) => {
            for (placed, answer) in placed.into_iter().zip(answers) {
                match decide(&store, &placed, answer).await.map_err(Error::outcome_unknown)? {
                    Decision::Verdict(verdict) => verdicts[placed.index] = verdict,
                    decision => again.push((placed, Some(decision))),
                }
            }
        }
        // One unknown lease fails them all: find out which.
        Err(error) if is_lease_gone(&error) => {
            again.extend(placed.into_iter().map(|placed| (placed, None)));
        }
        Err(error) => return Err(error),
    }
    for (placed, decision) in again {
        let index = placed.index;
        verdicts[index] = acquire_alone(&store, placed, decision).await?;
    }
    Ok(verdicts)
}

async fn acquire_alone(
    store: &Arc<EtcdStore>,
    mut placed: Placed,
    mut decision: Option<Decision>,
) -> Result<Verdict> {
    for _ in 0..ATTEMPTS {
        match decision.take() {
            Some(Decision::Verdict(verdict)) => return Ok(verdict),
            Some(Decision::Stranger(revision)) => {
                let key = store.layout.lock(&placed.claim.name, placed.entry.session.id);
                store.remove(key, revision).await?;
            }
            Some(Decision::Free) => placed.joins = true,
            None => {}
        }
        let (entry, fresh) = store.place(&placed.claim).await?;
        placed.entry = entry;
        placed.fresh |= fresh;
        let answer = match send(store, std::slice::from_ref(&placed)).await {
            Ok(mut answers) => answers.pop().ok_or_else(broken_reply)?,
            Err(error) if is_lease_gone(&error) => {
                placed.entry.session.end();
                continue;
            }
            Err(error) => return Err(error),
        };
        decision = Some(decide(store, &placed, answer).await.map_err(Error::outcome_unknown)?);
    }
    if let Some(Decision::Verdict(verdict)) = decision {
        return Ok(verdict);
    }
    store.ledger.lock().forget(placed.claim.owner, store.clock.now());
    let message = match decision {
        None => "the sessions of this client end as fast as they are opened; try again",
        Some(_) => "keys of this client's earlier claims are still in this queue; try again",
    };
    Err(Error::new(ErrorKind::Unavailable, message).not_applied())
}

async fn decide(store: &EtcdStore, placed: &Placed, mut answer: Answer) -> Result<Decision> {
    let Placed { claim, entry, .. } = placed;
    let own = answer.own.as_ref().map_or(i64::MAX, |(revision, _)| *revision);
    if answer.more && !answer.queue.iter().any(|kv| kv.create_revision() < own) {
        // Nested names fill what was read, or those behind us do.
        (answer.queue, answer.revision) = store.claims(&claim.name).await?;
        answer.more = false;
        if answer.own.is_some() && !answer.queue.iter().any(|kv| kv.create_revision() == own) {
            // Gone between the two looks: nobody is ahead of a key that is not there.
            return Err(given_up());
        }
    }
    let held =
        |by: &KeyValue| Ok(Decision::Verdict(Verdict::Held(Some(keys::held_by(by.value())))));
    let (first, now) = (answer.queue.first(), store.clock.now());
    let revision = match answer.own {
        Some((revision, owner)) if owner == Some(claim.owner) && (answer.put || !placed.fresh) => {
            revision
        }
        Some((revision, _)) => return Ok(Decision::Stranger(revision)),
        None => {
            let Some(first) = first else { return Ok(Decision::Free) };
            store.ledger.lock().forget(claim.owner, now);
            return held(first);
        }
    };
    let key = store.layout.lock(&claim.name, entry.session.id);
    if store.ledger.lock().has_tombstone(claim.owner, now) {
        // Settled while this was on its way: nobody wants it.
        store.ledger.lock().forget(claim.owner, now);
        store.remove(key, revision).await?;
        return Ok(Decision::Verdict(Verdict::Held(None)));
    }
    let Some(first) = first.filter(|first| first.create_revision() < revision) else {
        let grant = store.ledger.lock().grant(claim, &entry.session, revision);
        return grant.map(|grant| Decision::Verdict(Verdict::Granted(grant))).ok_or_else(given_up);
    };
    if !claim.queue {
        // In the queue only to see who is ahead. The tombstone first: if the removal gets no
        // answer, the key may be first in the queue by the time the claim is settled, and must
        // not be adopted while its deletion is under way.
        store.ledger.lock().add_tombstone(claim.owner, claim.ttl, now);
        store.remove(key, revision).await?;
        store.ledger.lock().forget(claim.owner, now);
        return held(first);
    }
    // Of a long queue not the first one was read, but any.
    let held_by = (!answer.more).then(|| keys::held_by(first.value()));
    let view = View {
        complete: !answer.more,
        ahead: ahead_of(&answer.queue, revision),
        as_of: answer.revision,
        crowd: answer.crowd,
    };
    match store.ledger.lock().enqueue(claim.owner, view, revision, now) {
        true => Ok(Decision::Verdict(Verdict::Queued(held_by))),
        false => Err(given_up()),
    }
}

/// The janitor did not wait for the answer, and its key is being removed.
fn given_up() -> Error {
    let message = "the claim took too long and was given up";
    Error::new(ErrorKind::Unavailable, message)
}

pub(super) async fn settle(
    store: Arc<EtcdStore>,
    claims: Vec<Claim>,
) -> Result<Vec<Option<Grant>>> {
    let mut grants = Vec::new();
    for claim in &claims {
        grants.push(settle_one(&store, claim).await?);
    }
    Ok(grants)
}

/// Is it mine? If not, it shall not be: a request that is still on its way is refused
/// here or, when it is further on, its key removed by the janitor.
async fn settle_one(store: &EtcdStore, claim: &Claim) -> Result<Option<Grant>> {
    let now = store.clock.now();
    let (entry, settled) = {
        let mut ledger = store.ledger.lock();
        let entry = ledger.claims.get(claim.owner).cloned();
        let settled = ledger.has_tombstone(claim.owner, now);
        if entry.is_none() {
            ledger.add_tombstone(claim.owner, claim.ttl, now);
        }
        (entry, settled)
    };
    let Some(entry) = entry else { return Ok(None) };
    // With a tombstone its removal may be under way, although the key is still there.
    if entry.until > now && !settled {
        let (claims, _) = store.claims(&claim.name).await?;
        let ours = |first: &&KeyValue| {
            first.lease() == entry.session.id && keys::owner(first.value()) == Some(claim.owner)
        };
        if let Some(first) = claims.first().filter(ours)
            && let revision = first.create_revision()
            && let Some(grant) = store.ledger.lock().grant(claim, &entry.session, revision)
        {
            return Ok(Some(grant));
        }
    }
    entry.session.suspect(now);
    store.ledger.lock().add_tombstone(claim.owner, claim.ttl, now);
    store.withdraw(&entry, claim.owner).await?;
    store.ledger.lock().forget(claim.owner, store.clock.now());
    Ok(None)
}

/// Sends the claims. A proof that is getting old is renewed beside it.
async fn send(store: &EtcdStore, placed: &[Placed]) -> Result<Vec<Answer>> {
    if placed.is_empty() {
        return Ok(Vec::new());
    }
    let unanswered = Unanswered { store, placed };
    let now = store.clock.now();
    let mut old: Vec<&Arc<Session>> = Vec::new();
    for Placed { entry: Entry { session, .. }, .. } in placed {
        let age = session.proved_at().until(now);
        if age > session.ttl / 4 && !old.iter().any(|known| known.id == session.id) {
            old.push(session);
        }
    }
    let proving = join_all(old.into_iter().map(|old| old.prove()));
    let (answers, _) = tokio::join!(propose(store, placed), proving);
    match &answers {
        Err(error) if error.outcome() != Outcome::NotApplied => return answers,
        Err(_) => not_applied(store, placed),
        Ok(_) => {}
    }
    std::mem::forget(unanswered);
    answers
}

/// The store certainly did nothing: a claim that was not in the queue before is not now.
fn not_applied(store: &EtcdStore, placed: &[Placed]) {
    let (mut ledger, now) = (store.ledger.lock(), store.clock.now());
    for Placed { claim, .. } in placed {
        if ledger.claims.get(claim.owner).is_some_and(|entry| entry.revision.is_none()) {
            ledger.forget(claim.owner, now);
        }
    }
}

/// Claims that are under way. Dropped without an answer, they may have left keys.
struct Unanswered<'a> {
    store: &'a EtcdStore,
    placed: &'a [Placed],
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let now = self.store.clock.now();
        for Placed { entry, .. } in self.placed {
            entry.session.suspect(now);
        }
    }
}

/// Asks for the locks as free ones first, where that is likely to do: the request is
/// small then (a bigger one leaves in several packets), and etcd has less to check.
async fn propose(store: &EtcdStore, placed: &[Placed]) -> Result<Vec<Answer>> {
    // A claim that asks again may be in the queue already, or has seen that there are other keys.
    let anew = placed.iter().all(|placed| placed.fresh && !placed.joins);
    if anew && store.crowded.load(Ordering::Relaxed) == 0 {
        // Puts all keys if there is no queue at any of the locks; otherwise none.
        let free: Vec<_> = placed.iter().map(|placed| is_free(store, placed)).collect();
        let puts: Vec<_> = placed.iter().map(|placed| put(store, placed)).collect();
        let response = store.endpoints.txn(Txn::new().when(free).and_then(puts)).await?;
        if response.succeeded() {
            let revision = revision(response.header());
            return Ok(placed.iter().map(|placed| Answer::put(placed, revision)).collect());
        }
    }
    let answers = get_in_queue(store, placed).await?;
    let crowded = match answers.iter().any(|answer| !answer.queue.is_empty()) {
        true => CROWDED_FOR,
        false => store.crowded.load(Ordering::Relaxed).saturating_sub(1),
    };
    store.crowded.store(crowded, Ordering::Relaxed);
    Ok(answers)
}

async fn get_in_queue(store: &EtcdStore, placed: &[Placed]) -> Result<Vec<Answer>> {
    if let [alone] = placed {
        let response = store.endpoints.txn(transaction(store, alone)).await?;
        return Ok(vec![Answer::read(store, alone, &response, revision(response.header()))?]);
    }
    let each: Vec<_> = placed.iter().map(|placed| TxnOp::txn(transaction(store, placed))).collect();
    let response = store.endpoints.txn(Txn::new().and_then(each)).await?;
    let (revision, responses) = (revision(response.header()), response.op_responses());
    if responses.len() != placed.len() {
        return Err(broken_reply());
    }
    let nested = placed.iter().zip(responses).map(|(placed, response)| match response {
        TxnOpResponse::Txn(response) => Answer::read(store, placed, &response, revision),
        _ => Err(broken_reply()),
    });
    nested.collect()
}

fn put(store: &EtcdStore, Placed { claim, entry, .. }: &Placed) -> TxnOp {
    let options = PutOptions::new().with_lease(entry.session.id);
    let key = store.layout.lock(&claim.name, entry.session.id);
    TxnOp::put(key, keys::of_claim(claim, &store.clock), Some(options))
}

fn is_free(store: &EtcdStore, Placed { claim, .. }: &Placed) -> Compare {
    let queue = store.layout.queue(&claim.name);
    Compare::create_revision(queue.start, CompareOp::Equal, 0).with_range(queue.end)
}

/// Where there is no queue, a claim puts its key and needs to see nothing. Otherwise one
/// that queues or joins puts it behind the others and looks at the queue.
fn transaction(store: &EtcdStore, placed: &Placed) -> Txn {
    let Placed { claim, entry, joins, .. } = placed;
    let key = store.layout.lock(&claim.name, entry.session.id);
    let (free, put) = (is_free(store, placed), put(store, placed));
    let absent = Compare::create_revision(&*key, CompareOp::Equal, 0);
    // Part of the queue. A claim that does not queue wants to know who is first: for that etcd
    // reads all of it. One that queues needs that only of a short queue, which it gets whole; in
    // a long one a thousand newcomers would keep everybody else waiting.
    let queue = store.layout.queue(&claim.name);
    let mut options = GetOptions::new().with_range(queue.end).with_limit(READ);
    if !claim.queue {
        options = options.with_sort(SortTarget::Create, SortOrder::Ascend);
    }
    let look = TxnOp::get(queue.start, Some(options));
    let there = [TxnOp::get(key, None), look.clone()];
    if claim.queue || *joins {
        let behind = Txn::new().when([absent]).and_then([put.clone(), look]).or_else(there);
        return Txn::new().when([free]).and_then([put]).or_else([TxnOp::txn(behind)]);
    }
    Txn::new().when([absent, free]).and_then([put]).or_else(there)
}

impl Answer {
    fn put(placed: &Placed, revision: i64) -> Self {
        let own = Some((revision, Some(placed.claim.owner)));
        Self { put: true, own, revision, ..Self::default() }
    }

    fn read(
        store: &EtcdStore,
        placed: &Placed,
        response: &TxnResponse,
        revision: i64,
    ) -> Result<Self> {
        let mut answer = Self { revision, ..Self::default() };
        let mut looks = Vec::new();
        for part in response.op_responses() {
            match part {
                TxnOpResponse::Put(_) => answer = Self::put(placed, revision),
                TxnOpResponse::Get(get) => looks.push(get),
                TxnOpResponse::Txn(behind) => return Self::read(store, placed, &behind, revision),
                TxnOpResponse::Delete(_) => return Err(broken_reply()),
            }
        }
        if !response.succeeded() {
            let own = looks.first().ok_or_else(broken_reply)?.kvs().first();
            answer.own = own.map(|kv| (kv.create_revision(), keys::owner(kv.value())));
        }
        if let Some(mut look) = looks.pop() {
            answer.more = look.more();
            answer.crowd = look.count();
            answer.queue = store.claims_among(&placed.claim.name, look.take_kvs());
            answer.queue.sort_unstable_by_key(KeyValue::create_revision);
        }
        Ok(answer)
    }
}
