//! Taking locks: what is answered to a claim, and when it is sent again.

use std::sync::Arc;

use etcd_client::KeyValue;

use super::error::{broken_reply, is_lease_gone};
use super::line::View;
use super::proposal::Answer;
use super::seat::{Seated, Unanswered};
use super::session::Session;
use super::table::Stage;
use super::{EtcdStore, value};
use crate::backend::{Claim, Grant, Proof, Verdict};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::token::Token;

/// How often a claim is sent again that met a stranger or a dead session.
const ATTEMPTS: usize = 5;

enum Decision {
    Verdict(Verdict),
    /// Ask again, alone; after this key of ours, that nobody wants, is gone.
    Stranger(i64),
    /// Ask again, alone: nobody has it, but other keys are below its name.
    Free,
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
                        seated.push((index, Seated { claim, entry, fresh, joins: false }));
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
                Some(Decision::Free) => seated.joins = true,
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
        let message = match decision {
            None => "the sessions of this client end as fast as they are opened; try again",
            Some(_) => "keys of this client's earlier claims are still in this line; try again",
        };
        Err(Error::new(ErrorKind::Unavailable, message))
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
        let own = answer.own.as_ref().map_or(i64::MAX, |(revision, _)| *revision);
        if answer.more && !answer.line.iter().any(|kv| kv.create_revision() < own) {
            // Nested names fill what was read, or those behind us do.
            let all = self.whole_line(&claim.name).await?;
            if answer.own.is_some() && !all.claims.iter().any(|kv| kv.create_revision() == own) {
                // Gone between the two looks: nobody is ahead of a key that is not there.
                return Err(given_up());
            }
            (answer.revision, answer.line, answer.more) = (all.as_of, all.claims, false);
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
                    None => Decision::Free,
                    Some(first) => {
                        self.table.lock().forget(claim.owner, self.clock.now());
                        let held_by = value::held_by(first.value());
                        Decision::Verdict(Verdict::Held(Some(held_by)))
                    }
                });
            }
        };
        let key = self.layout.lock(&claim.name, entry.session.id);
        let behind = first.filter(|first| first.create_revision() < revision);
        let now = self.clock.now();
        if self.take_back_barred(claim, now) {
            // Settled while this was on its way: nobody wants it.
            self.remove(key, revision).await?;
            return Ok(Decision::Verdict(Verdict::Held(None)));
        }
        if let Some(first) = behind.filter(|_| !claim.queue) {
            // In line only to see who is ahead.
            let held_by = value::held_by(first.value());
            // First: if the removal gets no answer, the key may be first in line by the time the
            // claim is settled, and must not be adopted while its deletion is under way.
            self.table.lock().bar(claim.owner, claim.ttl, now);
            self.remove(key, revision).await?;
            self.table.lock().forget(claim.owner, now);
            return Ok(Decision::Verdict(Verdict::Held(Some(held_by))));
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
        // Of a long line not the first one was read, but any.
        let held_by = (!answer.more).then(|| value::held_by(first.value()));
        let view = View {
            complete: !answer.more,
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

/// The janitor did not wait for the answer, and its key is being removed.
fn given_up() -> Error {
    let message = "the claim took too long and was given up";
    Error::new(ErrorKind::Unavailable, message).outcome_unknown()
}
