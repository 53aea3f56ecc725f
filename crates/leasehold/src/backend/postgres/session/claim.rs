//! Taking a lock that is free, on the session that many share.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::insist::insist;
use super::key::Key;
use super::lifeline::Lifeline;
use super::table::Held;
use super::{SessionStore, verbs};
use crate::backend::{Claim, Grant, Proof, Verdict};
use crate::clock::Moment;
use crate::error::{Outcome, Result};
use crate::token::Token;

/// How long a key counts as contended after it was found held.
const CROWDED_FOR: Duration = Duration::from_secs(1);
/// A bar outlives any request that may still be under way.
const SHORTEST_BAR: Duration = Duration::from_secs(60);

/// How often an unlock is sent, when it fails in a session that goes on.
const UNLOCKS: usize = 3;

/// What to do about a claim.
enum Plan {
    Answer(Verdict),
    Try(Key),
    Wait(Key),
}

impl SessionStore {
    pub(super) async fn claim(self: &Arc<Self>, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
        let line = self.shared().await?;
        let longest = claims.iter().map(|claim| claim.ttl).max().unwrap_or_default();
        line.carry(longest).await?;
        let (over, asking) = watch::channel(());
        let plans: Vec<Plan> = {
            let mut table = self.table.lock();
            let now = self.clock.now();
            claims.iter().map(|claim| plan(&mut table, claim, &asking, now)).collect()
        };
        let tried: Vec<(Key, Claim)> = plans
            .iter()
            .zip(&claims)
            .filter_map(|(plan, claim)| match plan {
                Plan::Try(key) => Some((*key, claim.clone())),
                _ => None,
            })
            .collect();
        // Whatever the server answers is written down, also when the caller is gone.
        let mut answers = if tried.is_empty() {
            Vec::new()
        } else {
            let store = self.clone();
            let trying = async move {
                let answers = store.try_all(&line, tried).await;
                drop(over);
                answers
            };
            insist(trying).await?
        }
        .into_iter();
        let mut verdicts = Vec::new();
        for (plan, claim) in plans.into_iter().zip(claims) {
            verdicts.push(match plan {
                Plan::Answer(verdict) => verdict,
                Plan::Wait(key) => self.line_up(claim, key),
                Plan::Try(key) => match answers.next().flatten() {
                    Some(grant) => Verdict::Granted(grant),
                    None if claim.queue => {
                        self.line_up(claim, key);
                        Verdict::Queued(self.held_by(key).await)
                    }
                    None => Verdict::Held(self.held_by(key).await),
                },
            });
        }
        Ok(verdicts)
    }

    async fn try_all(
        self: &Arc<Self>,
        line: &Arc<Lifeline>,
        tried: Vec<(Key, Claim)>,
    ) -> Result<Vec<Option<Grant>>> {
        let keys: Vec<Key> = tried.iter().map(|(key, _)| *key).collect();
        let at = self.clock.now();
        let asked = try_keys(line, &keys).await;
        if let Err(error) = &asked
            && error.outcome() == Outcome::NotApplied
            && line.is_open()
        {
            // Advisory locks survive a statement that failed after it got them.
            let _ = unlock_surely(line, &keys).await;
        }
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
        let mut grants = Vec::new();
        for ((key, claim), token) in tried.into_iter().zip(tokens) {
            table.asking.remove(&claim.owner);
            grants.push(match token {
                Some(token) => {
                    table.crowded.remove(&key);
                    let held = self.held(claim, key, token, at, line, true);
                    let grant = held.grant();
                    table.held.insert(held.claim.owner, held);
                    Some(grant)
                }
                None => {
                    table.free(key, claim.owner);
                    table.crowded.insert(key, at + CROWDED_FOR);
                    None
                }
            });
        }
        drop(table);
        self.work.notify_one();
        Ok(grants)
    }

    pub(super) fn held(
        &self,
        claim: Claim,
        key: Key,
        token: i64,
        at: Moment,
        line: &Arc<Lifeline>,
        shared: bool,
    ) -> Held {
        Held {
            proof: Proof { at, valid_for: claim.ttl },
            claim,
            key,
            token: Token::new(token as u64),
            line: line.clone(),
            shared,
            since: self.clock.wall(),
            granted: self.clock.now(),
            published: false,
        }
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
            if let Some(mut asking) = asking {
                let _ = asking.changed().await;
            }
            self.stop_waiting(claim).await;
            let mut table = self.table.lock();
            grants.push(match table.held.get(&claim.owner) {
                Some(held) => Some(held.grant()),
                None => {
                    let until = self.clock.now() + claim.ttl.max(SHORTEST_BAR);
                    table.barred.insert(claim.owner, until);
                    None
                }
            });
        }
        Ok(grants)
    }
}

fn plan(
    table: &mut super::table::Table,
    claim: &Claim,
    asking: &watch::Receiver<()>,
    now: Moment,
) -> Plan {
    if let Some(held) = table.held.get(&claim.owner) {
        return Plan::Answer(Verdict::Granted(held.grant()));
    }
    if table.barred.contains_key(&claim.owner) || table.asking.contains_key(&claim.owner) {
        return Plan::Answer(Verdict::Held(None));
    }
    if table.waiting.contains_key(&claim.owner) {
        return Plan::Answer(Verdict::Queued(None));
    }
    let key = Key::of(&claim.name);
    // The session would get it a second time: locks of one session do not exclude each other.
    if table.keys.contains_key(&key) {
        let by = table.on_key(key).map(|held| held.info(now).held_by);
        return if claim.queue { Plan::Wait(key) } else { Plan::Answer(Verdict::Held(by)) };
    }
    if claim.queue && table.crowded.get(&key).is_some_and(|until| *until > now) {
        return Plan::Wait(key);
    }
    table.keys.insert(key, claim.owner);
    table.asking.insert(claim.owner, asking.clone());
    Plan::Try(key)
}

/// Tries these keys; a token for each that was got.
async fn try_keys(line: &Lifeline, keys: &[Key]) -> Result<Vec<Option<i64>>> {
    if let [Key::One(key)] = keys {
        return Ok(vec![line.session.row(&verbs::TRY_ONE, &[key]).await?.get(0)]);
    }
    let ones: Vec<i64> = ones(keys).collect();
    let mut tokens = if ones.is_empty() {
        Vec::new()
    } else {
        line.session.row(&verbs::TRY, &[&ones]).await?.get::<_, Vec<Option<i64>>>(0)
    }
    .into_iter();
    let mut all = Vec::new();
    for key in keys {
        all.push(match key {
            Key::One(_) => tokens.next().flatten(),
            Key::Two(first, second) => {
                let row = line.session.row(&verbs::TRY_TWO, &[first, second]).await?;
                row.get::<_, Vec<Option<i64>>>(0).into_iter().next().flatten()
            }
        });
    }
    Ok(all)
}

fn ones(keys: &[Key]) -> impl Iterator<Item = i64> {
    keys.iter().filter_map(|key| match key {
        Key::One(key) => Some(*key),
        Key::Two(..) => None,
    })
}

/// Gives these keys back; whether the session had each. A session that has locks which it
/// cannot give back is ended: they would be in everybody's way for as long as it lives.
pub(super) async fn unlock_surely(line: &Lifeline, keys: &[Key]) -> Result<Vec<bool>> {
    let mut attempt = 1;
    loop {
        match unlock(line, keys).await {
            Ok(done) if attempt == 1 => return Ok(done),
            // What it has not any more, the statement before had given back when it failed.
            Ok(done) => return Ok(vec![true; done.len()]),
            Err(error) if attempt == UNLOCKS || !line.is_open() => {
                line.session.close();
                return Err(error);
            }
            Err(error) => tracing::debug!(%error, "an unlock failed, and is sent again"),
        }
        attempt += 1;
    }
}

/// Gives these keys back; whether the session had each.
pub(super) async fn unlock(line: &Lifeline, keys: &[Key]) -> Result<Vec<bool>> {
    if let [Key::One(key)] = keys {
        return Ok(vec![line.session.row(&verbs::UNLOCK_ONE, &[key]).await?.get(0)]);
    }
    let ones: Vec<i64> = ones(keys).collect();
    let mut done = if ones.is_empty() {
        Vec::new()
    } else {
        line.session.row(&verbs::UNLOCK, &[&ones]).await?.get::<_, Vec<bool>>(0)
    }
    .into_iter();
    let mut all = Vec::new();
    for key in keys {
        all.push(match key {
            Key::One(_) => done.next().unwrap_or(false),
            Key::Two(first, second) => {
                let row = line.session.row(&verbs::UNLOCK_TWO, &[first, second]).await?;
                row.get::<_, Vec<bool>>(0).first().copied().unwrap_or(false)
            }
        });
    }
    Ok(all)
}
