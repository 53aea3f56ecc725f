//! Taking a lock, leaving the line, and finding out how an acquire ended.

use std::sync::Arc;

use tokio_postgres::types::ToSql;

use super::super::session::key::Key;
use super::super::wire::odd_answer;
use super::{LeaseStore, micros, nanos, verbs};
use crate::backend::{Claim, Grant, Verdict};
use crate::clock::Moment;
use crate::error::{Error, Outcome, Result};
use crate::holder::{HeldBy, Holder};

impl LeaseStore {
    pub(super) async fn claim(self: Arc<Self>, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
        claims.iter().try_for_each(|claim| Key::refuse(&claim.name))?;
        let session = self.claims.session().await?;
        let mut verdicts = vec![None; claims.len()];
        // As a rule all claims of a request are of one holder.
        let mut left: Vec<usize> = (0..claims.len()).collect();
        while let Some(&first) = left.first() {
            let holder = claims[first].holder.clone();
            let (mut ours, others): (Vec<_>, Vec<_>) =
                left.iter().partition(|&&at| claims[at].holder == holder);
            left = others;
            // The server locks its rows in this order.
            ours.sort_unstable_by(|&a, &b| claims[a].name.cmp(&claims[b].name));
            let asked = self.claim_batch(&session, &claims, ours, &holder, &mut verdicts).await;
            if let Err(error) = asked {
                let given_back = Box::pin(self.give_back(&session, &claims, &verdicts, &error));
                return Err(if given_back.await { error } else { error.outcome_unknown() });
            }
        }
        Ok(verdicts.into_iter().flatten().collect())
    }

    /// Asks for these claims of one holder, in the order of their names.
    async fn claim_batch(
        &self,
        session: &super::Session,
        claims: &[Claim],
        ours: Vec<usize>,
        holder: &Holder,
        verdicts: &mut [Option<Verdict>],
    ) -> Result<()> {
        let mut ours = ours;
        if self.shortcut.is_open() {
            let batch: Vec<&Claim> = ours.iter().map(|&at| &claims[at]).collect();
            let granted = self.take(session, &batch, holder).await?;
            for (&at, grant) in ours.iter().zip(&granted) {
                verdicts[at] = grant.map(Verdict::Granted);
            }
            // One that asked again may have a seat of before.
            let sat = ours.iter().filter(|&&at| claims[at].queue && verdicts[at].is_some());
            self.seats.leave_all(sat.map(|&at| claims[at].owner));
            ours.retain(|&at| verdicts[at].is_none());
            if ours.is_empty() {
                return Ok(());
            }
            self.shortcut.leads_nowhere();
        }
        let batch: Vec<&Claim> = ours.iter().map(|&at| &claims[at]).collect();
        let answers = Box::pin(self.ask_for(session, &batch, holder)).await?;
        for (at, answer) in ours.into_iter().zip(answers) {
            verdicts[at] = Some(answer);
        }
        Ok(())
    }

    /// The rest of a request failed: what it was granted before is given back. Whether nothing
    /// is left of it; otherwise everybody has to find out.
    async fn give_back(
        &self,
        session: &super::Session,
        claims: &[Claim],
        verdicts: &[Option<Verdict>],
        failed: &Error,
    ) -> bool {
        let mut granted: Vec<(&Claim, i64)> = Vec::new();
        for (claim, verdict) in claims.iter().zip(verdicts) {
            if let Some(Verdict::Granted(grant)) = verdict {
                granted.push((claim, grant.token.get() as i64));
            }
        }
        if granted.is_empty() || failed.outcome() != Outcome::NotApplied {
            return granted.is_empty();
        }
        granted.sort_unstable_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        let (granted, tokens): (Vec<&Claim>, Vec<i64>) = granted.into_iter().unzip();
        let Columns { names, owners, .. } = Columns::of(&granted);
        let owners: Vec<&[u8]> = owners.iter().map(|owner| &owner[..]).collect();
        session.row(&verbs::RELEASE, &[&names, &owners, &tokens]).await.is_ok()
    }

    /// Takes what is free and was held before; that is most, as a rule, and costs least.
    async fn take(
        &self,
        session: &super::Session,
        claims: &[&Claim],
        holder: &Holder,
    ) -> Result<Vec<Option<Grant>>> {
        let Columns { names, owners, ttls } = Columns::of(claims);
        let owners: Vec<&[u8]> = owners.iter().map(|owner| &owner[..]).collect();
        let sent = self.clock.now();
        let (sent_at, pid) = (nanos(sent), holder.pid as i32);
        let parameters: [&(dyn ToSql + Sync); 8] =
            [&names, &owners, &ttls, &sent_at, &self.client, &holder.host, &pid, &holder.label];
        let mut grants = vec![None; claims.len()];
        let row = match session.row(&verbs::TAKE, &parameters).await {
            Ok(row) => row,
            // Somebody has a row for long: he is waited for where the rest is done.
            Err(error) if error.outcome() == Outcome::NotApplied && session.is_open() => {
                tracing::debug!(%error, "nothing was taken at once");
                return Ok(grants);
            }
            Err(error) => return Err(error),
        };
        let places: Option<Vec<i64>> = row.get(0);
        let tokens: Option<Vec<i64>> = row.get(1);
        let taken = places.unwrap_or_default().into_iter().zip(tokens.unwrap_or_default());
        for (place, token) in taken {
            let at = usize::try_from(place - 1).map_err(|_| odd_answer())?;
            let (claim, grant) = (claims.get(at), grants.get_mut(at));
            let (Some(claim), Some(grant)) = (claim, grant) else { return Err(odd_answer()) };
            *grant = Some(Self::grant(token, sent_at, micros(claim.ttl)));
        }
        Ok(grants)
    }

    /// Asks for each of these, and for a place in line where that is wanted.
    async fn ask_for(
        &self,
        session: &super::Session,
        claims: &[&Claim],
        holder: &Holder,
    ) -> Result<Vec<Verdict>> {
        let Columns { names, owners, ttls } = Columns::of(claims);
        let owners: Vec<&[u8]> = owners.iter().map(|owner| &owner[..]).collect();
        let queues: Vec<bool> = claims.iter().map(|claim| claim.queue).collect();
        let sent = self.clock.now();
        // A seat first: the grant may be told before the answer is read (redisson#1763).
        let queues_up = claims.iter().filter(|claim| claim.queue);
        self.seats.take_all(queues_up.map(|claim| claim.owner), sent);
        let (sent_at, pid) = (nanos(sent), holder.pid as i32);
        let who: [&(dyn ToSql + Sync); 4] = [&self.client, &holder.host, &pid, &holder.label];
        let parameters: [&(dyn ToSql + Sync); 9] =
            [&names, &owners, &ttls, &queues, &sent_at, who[0], who[1], who[2], who[3]];
        let row = match session.row(&verbs::ACQUIRE, &parameters).await {
            Ok(row) => row,
            Err(error) => {
                if error.outcome() == Outcome::NotApplied {
                    claims.iter().for_each(|claim| self.seats.give_up_new(claim.owner));
                }
                return Err(error);
            }
        };
        let answer = Answer {
            tokens: row.get(0),
            states: row.get(1),
            proofs: row.get(2),
            terms: row.get(3),
            hosts: row.get(4),
            pids: row.get(5),
            labels: row.get(6),
            sinces: row.get(7),
            lefts: row.get(8),
        };
        let verdict = |(at, claim): (usize, &&Claim)| self.verdict(claim, &answer, at, sent);
        let verdicts: Vec<Verdict> = claims.iter().enumerate().map(verdict).collect();
        let answered = claims.iter().zip(&verdicts);
        let done = answered
            .filter(|(claim, verdict)| claim.queue && !matches!(verdict, Verdict::Queued(_)));
        self.seats.leave_all(done.map(|(claim, _)| claim.owner));
        Ok(verdicts)
    }

    fn verdict(&self, claim: &Claim, answer: &Answer, at: usize, sent: Moment) -> Verdict {
        let token = element(&answer.tokens, at);
        let state = match &answer.states {
            None => Some(0),
            states => element(states, at),
        };
        match (state, token) {
            (Some(0), Some(token)) => {
                let proved = element(&answer.proofs, at).unwrap_or(nanos(sent));
                let term = element(&answer.terms, at).unwrap_or(micros(claim.ttl));
                Verdict::Granted(Self::grant(token, proved, term))
            }
            (Some(2), _) => {
                let left = element(&answer.lefts, at).unwrap_or(0);
                self.seats.queued(claim.owner, sent, left);
                Verdict::Queued(answer.held_by(at))
            }
            _ => Verdict::Held(answer.held_by(at)),
        }
    }

    /// Gives up the place in line, or the grant that just came.
    pub(super) async fn leave_line(&self, claim: &Claim) -> Result<()> {
        self.seats.leave(claim.owner);
        let session = self.rest.session().await?;
        let owner = claim.owner.to_bytes();
        session.rows(&verbs::LEAVE, &[&claim.name.as_str(), &&owner[..]]).await.map(drop)
    }

    /// Is it mine? If not, it never will be.
    pub(super) async fn settle_claims(&self, claims: Vec<Claim>) -> Result<Vec<Option<Grant>>> {
        claims.iter().for_each(|claim| self.seats.leave(claim.owner));
        let session = self.rest.session().await?;
        let mut order: Vec<usize> = (0..claims.len()).collect();
        order.sort_unstable_by(|&a, &b| claims[a].name.cmp(&claims[b].name));
        let names: Vec<&str> = order.iter().map(|&at| claims[at].name.as_str()).collect();
        let owners: Vec<[u8; 16]> = order.iter().map(|&at| claims[at].owner.to_bytes()).collect();
        let owners: Vec<&[u8]> = owners.iter().map(|owner| &owner[..]).collect();
        let ttls: Vec<i64> = order.iter().map(|&at| micros(claims[at].ttl)).collect();
        let row = session.row(&verbs::SETTLE, &[&names, &owners, &ttls]).await?;
        let (tokens, proofs, terms): (Numbers, Numbers, Numbers) =
            (row.get(0), row.get(1), row.get(2));
        let mut grants = vec![None; claims.len()];
        for (place, at) in order.into_iter().enumerate() {
            let found = (element(&tokens, place), element(&proofs, place), element(&terms, place));
            if let (Some(token), Some(proved), Some(term)) = found {
                grants[at] = Some(Self::grant(token, proved, term));
            }
        }
        Ok(grants)
    }
}

/// Claims as the server takes them: an element of each array for each.
struct Columns<'a> {
    names: Vec<&'a str>,
    owners: Vec<[u8; 16]>,
    ttls: Vec<i64>,
}

impl<'a> Columns<'a> {
    fn of(claims: &[&'a Claim]) -> Self {
        Self {
            names: claims.iter().map(|claim| claim.name.as_str()).collect(),
            owners: claims.iter().map(|claim| claim.owner.to_bytes()).collect(),
            ttls: claims.iter().map(|claim| micros(claim.ttl)).collect(),
        }
    }
}

/// An array of numbers, as the server sends it.
pub(super) type Numbers = Option<Vec<Option<i64>>>;

/// One element of such an array; what is not there is not known.
pub(super) fn element<T: Clone>(array: &Option<Vec<Option<T>>>, at: usize) -> Option<T> {
    array.as_ref()?.get(at)?.clone()
}

/// The server's answer to a request of claims: an element for each.
struct Answer {
    tokens: Numbers,
    states: Option<Vec<Option<i16>>>,
    proofs: Numbers,
    terms: Numbers,
    hosts: Option<Vec<Option<String>>>,
    pids: Option<Vec<Option<i32>>>,
    labels: Option<Vec<Option<String>>>,
    sinces: Numbers,
    lefts: Numbers,
}

impl Answer {
    fn held_by(&self, at: usize) -> Option<HeldBy> {
        let host = element(&self.hosts, at)?;
        let (pid, label) = (element(&self.pids, at)?, element(&self.labels, at)?);
        let since = element(&self.sinces, at).map(super::inspect::wall);
        Some(HeldBy::new(Some(Holder::new(host, pid as u32, label)), since))
    }
}
