//! Taking a lock that is free, on the session that many share.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use super::super::connection::odd_answer;
use super::super::key::Key;
use super::asking::UnderWay;
use super::insist::insist;
use super::lifeline::Lifeline;
use super::table::{Held, Table};
use super::{SessionStore, verbs};
use crate::backend::{Claim, Grant, Verdict};
use crate::clock::Moment;
use crate::error::{Error, Outcome, Result};

/// How long a key counts as contended after it was found held.
pub(super) const CROWDED_FOR: Duration = Duration::from_secs(1);
/// A bar outlives any request that may still be under way.
const SHORTEST_BAR: Duration = Duration::from_secs(60);

/// How often an unlock is sent, when it fails in a session that goes on.
const UNLOCKS: usize = 3;

/// What to do about a claim.
enum Plan {
    Answer(Verdict),
    Try,
    Wait(Key, Claim),
}

/// What became of a claim that was tried: if it was not granted, here it is again.
type Tried = std::result::Result<Grant, (Key, Claim)>;

impl SessionStore {
    pub(super) async fn claim(self: Arc<Self>, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
        let longest = claims.iter().map(|claim| claim.ttl).max().unwrap_or_default();
        let keyed = |claim: Claim| Key::of(&claim.name).map(|key| (key, claim));
        let claims = claims.into_iter().map(keyed).collect::<Result<Vec<(Key, Claim)>>>()?;
        let line = self.shared(longest).await?;
        let mut under_way = None;
        let mut tried = Vec::with_capacity(claims.len());
        let plans: Vec<Plan> = {
            let mut table = self.table.lock();
            let now = self.clock.now();
            let plan = |keyed| plan(&mut table, keyed, &mut under_way, now, &mut tried);
            claims.into_iter().map(plan).collect()
        };
        let mut answers = Vec::new().into_iter();
        if !tried.is_empty() {
            let store = self.clone();
            // Whatever the server answers is written down, also when the caller is gone.
            let trying = async move {
                let answers = store.try_all(&line, tried).await;
                drop(under_way);
                answers
            };
            answers = insist(trying).await?.into_iter();
        }
        let mut verdicts = Vec::with_capacity(plans.len());
        for plan in plans {
            verdicts.push(match plan {
                Plan::Answer(verdict) => verdict,
                Plan::Wait(key, claim) => self.line_up(claim, key),
                Plan::Try => match answers.next() {
                    Some(Ok(grant)) => Verdict::Granted(grant),
                    Some(Err((key, claim))) => Box::pin(self.not_free(key, claim)).await,
                    None => return Err(odd_answer()),
                },
            });
        }
        Ok(verdicts)
    }

    /// Somebody else has it: into the line, where that was asked for.
    async fn not_free(self: &Arc<Self>, key: Key, claim: Claim) -> Verdict {
        if claim.queue {
            self.line_up(claim, key);
            Verdict::Queued(self.held_by(key).await)
        } else {
            Verdict::Held(self.held_by(key).await)
        }
    }

    async fn try_all(&self, line: &Arc<Lifeline>, tried: Vec<(Key, Claim)>) -> Result<Vec<Tried>> {
        let at = self.clock.now();
        let asked = try_keys(line, &tried).await;
        if let Err(error) = &asked
            && error.outcome() == Outcome::NotApplied
            && line.is_open()
        {
            // Advisory locks survive a statement that failed after it got them.
            let keys: Vec<Key> = tried.iter().map(|(key, _)| *key).collect();
            let _ = Box::pin(unlock_surely(line, &keys)).await;
        }
        let since = self.since();
        let mut table = self.table.lock();
        // It ended with the answer, and whoever tells of that looked before: nothing is held.
        let asked = asked.and_then(|tokens| match line.is_open() {
            true => Ok(tokens),
            false => Err(line.has_ended()),
        });
        let tokens = match asked {
            Ok(tokens) => tokens,
            Err(error) => {
                for (key, claim) in &tried {
                    table.asking.remove(&claim.owner);
                    table.free(*key, claim.owner);
                }
                return Err(error);
            }
        };
        let mut answers = Vec::with_capacity(tried.len());
        for ((key, claim), token) in tried.into_iter().zip(tokens) {
            table.asking.remove(&claim.owner);
            answers.push(match token {
                Some(token) => {
                    table.crowded.remove(&key);
                    let held = Held::new((key, claim), token, at, line, true, since);
                    let grant = held.grant();
                    table.held.insert(held.claim.owner, held);
                    Ok(grant)
                }
                None => {
                    table.free(key, claim.owner);
                    table.crowded.insert(key, at + CROWDED_FOR);
                    Err((key, claim))
                }
            });
        }
        drop(table);
        self.work.notify_one();
        Ok(answers)
    }

    /// Is it mine? If not, it never will be.
    pub(super) async fn settle_claims(
        self: &Arc<Self>,
        claims: &[Claim],
    ) -> Result<Vec<Option<Grant>>> {
        let mut grants = Vec::new();
        for claim in claims {
            // What is under way is awaited: the session answers, or ends.
            let asking = self.table.lock().asking.get(&claim.owner).cloned();
            if let Some(asking) = asking {
                asking.over().await;
            }
            self.stop_waiting(claim).await;
            let mut table = self.table.lock();
            let grant = table.tell(claim.owner);
            if grant.is_none() {
                let until = self.clock.now() + claim.ttl.max(SHORTEST_BAR);
                table.barred.insert(claim.owner, until);
            }
            grants.push(grant);
        }
        Ok(grants)
    }
}

/// What to do about a claim; one that is to be tried goes to those that are.
fn plan(
    table: &mut Table,
    (key, claim): (Key, Claim),
    under_way: &mut Option<UnderWay>,
    now: Moment,
    tried: &mut Vec<(Key, Claim)>,
) -> Plan {
    if let Some(grant) = table.tell(claim.owner) {
        return Plan::Answer(Verdict::Granted(grant));
    }
    if table.barred.contains_key(&claim.owner) || table.asking.contains_key(&claim.owner) {
        return Plan::Answer(Verdict::Held(None));
    }
    if table.waiting.contains_key(&claim.owner) {
        return Plan::Answer(Verdict::Queued(None));
    }
    if claim.queue && table.crowded.get(&key).is_some_and(|until| *until > now) {
        return Plan::Wait(key, claim);
    }
    match table.keys.entry(key) {
        Entry::Vacant(free) => {
            free.insert(claim.owner);
            let under_way = under_way.get_or_insert_with(UnderWay::new);
            table.asking.insert(claim.owner, under_way.asking());
            tried.push((key, claim));
            Plan::Try
        }
        // The session would get it a second time: locks of one session do not exclude each other.
        Entry::Occupied(_) if claim.queue => Plan::Wait(key, claim),
        Entry::Occupied(_) => {
            let by = table.on_key(key).map(|held| held.info(now).held_by);
            Plan::Answer(Verdict::Held(by))
        }
    }
}

/// Tries these keys; a token for each that was got.
async fn try_keys(line: &Lifeline, tried: &[(Key, Claim)]) -> Result<Vec<Option<i64>>> {
    if let [(Key::One(key), _)] = tried {
        return Ok(vec![line.session.row(&verbs::TRY_ONE, &[key]).await?.get(0)]);
    }
    let ones: Vec<i64> = ones(tried.iter().map(|(key, _)| key)).collect();
    let mut got: Vec<bool> = Vec::new();
    let mut token = None;
    if !ones.is_empty() {
        let row = line.session.row(&verbs::TRY, &[&ones]).await?;
        (got, token) = (row.get(0), row.get(1));
    }
    if ones.len() == tried.len() {
        return Ok(got.into_iter().map(|got| token.filter(|_| got)).collect());
    }
    let mut got = got.into_iter();
    let mut all = Vec::with_capacity(tried.len());
    for (key, _) in tried {
        all.push(match key {
            Key::One(_) => got.next().and_then(|got| token.filter(|_| got)),
            Key::Two(first, second) => {
                let row = Box::pin(line.session.row(&verbs::TRY_TWO, &[first, second])).await?;
                row.get(0)
            }
        });
    }
    Ok(all)
}

fn ones<'a>(keys: impl Iterator<Item = &'a Key>) -> impl Iterator<Item = i64> {
    keys.filter_map(|key| match key {
        Key::One(key) => Some(*key),
        Key::Two(..) => None,
    })
}

/// Gives these keys back; whether the session had each. A session that has locks which it
/// cannot give back is ended: they would be in everybody's way for as long as it lives.
pub(super) async fn unlock_surely(line: &Lifeline, keys: &[Key]) -> Result<Vec<bool>> {
    match unlock(line, keys).await {
        Ok(done) => Ok(done),
        Err(error) => Box::pin(unlock_again(line, keys, error)).await,
    }
}

/// Sends an unlock again that failed with this error.
async fn unlock_again(line: &Lifeline, keys: &[Key], failed: Error) -> Result<Vec<bool>> {
    let mut failed = failed;
    for _ in 1..UNLOCKS {
        if !line.is_open() {
            break;
        }
        tracing::debug!(error = %failed, "an unlock failed, and is sent again");
        match unlock(line, keys).await {
            // What it has not any more, the statement before had given back when it failed.
            Ok(done) => return Ok(vec![true; done.len()]),
            Err(error) => failed = error,
        }
    }
    line.session.close();
    Err(failed)
}

/// Gives these keys back; whether the session had each.
pub(super) async fn unlock(line: &Lifeline, keys: &[Key]) -> Result<Vec<bool>> {
    if let [Key::One(key)] = keys {
        return Ok(vec![line.session.row(&verbs::UNLOCK_ONE, &[key]).await?.get(0)]);
    }
    let ones: Vec<i64> = ones(keys.iter()).collect();
    let mut done: Vec<bool> = Vec::new();
    if !ones.is_empty() {
        done = line.session.row(&verbs::UNLOCK, &[&ones]).await?.get(0);
    }
    if ones.len() == keys.len() {
        return Ok(done);
    }
    let mut done = done.into_iter();
    let mut all = Vec::with_capacity(keys.len());
    for key in keys {
        all.push(match key {
            Key::One(_) => done.next().unwrap_or(false),
            Key::Two(first, second) => {
                Box::pin(line.session.row(&verbs::UNLOCK_TWO, &[first, second])).await?.get(0)
            }
        });
    }
    Ok(all)
}
