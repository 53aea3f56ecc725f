//! Claims: the vote on a lock, in one round trip if the guess is good, and in two if not.

use std::sync::Arc;
use std::time::Duration;

use super::super::redis::keys::Companion::{Line, Record};
use super::super::redis::script::Call;
use super::super::redis::script::encode_holder;
use super::super::redis::script::millis;
use super::RedlockStore;
use super::bids::Admission;
use super::node::Said;
use super::poll::Poll;
use super::script::{CLAIM, STORE};
use super::tally::{Decision, Tally, count};
use super::undo::{Stray, Undecided};
use super::verdict::{NodeVerdict, NodeVerdicts};
use crate::backend::{Claim, Grant, Hold, Proof, Renewal, Verdict};
use crate::clock::Moment;
use crate::error::Result;
use crate::holder::HeldBy;
use crate::token::Token;

/// How often a claim that does not wait is voted on again when nobody got a majority.
const TRIES: u32 = 8;
/// The longest first pause after a split vote; it doubles, and each is cut at random.
const PAUSE: Duration = Duration::from_millis(4);
/// The longest of those pauses.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// How often a waiter looks for itself.
const LONGEST_POLL: Duration = Duration::from_secs(1);
const SHORTEST_POLL: Duration = Duration::from_millis(20);

/// A claim that is being voted on.
pub(super) struct Candidate {
    /// Its place in the request.
    place: usize,
    pub(super) claim: Claim,
    stray: Arc<Stray>,
    guess: u64,
    tally: Tally,
    decision: Decision,
    token: u64,
}

/// How a vote ended.
enum Ended {
    Won(Grant),
    /// Another has it, or will have.
    Held(HeldBy, Option<Duration>),
    /// Nobody got a majority.
    Split,
    /// Nodes were in another epoch, which we know by now.
    Stale,
    /// Too few nodes vote.
    NoMajority(NodeVerdicts),
}

impl RedlockStore {
    pub(super) async fn claim(self: &Arc<Self>, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
        let mut verdicts: Vec<Option<Verdict>> = vec![None; claims.len()];
        let mut next: Vec<(usize, Claim)> = claims.into_iter().enumerate().collect();
        let mut failed = None;
        for round in 0..TRIES {
            let last = round + 1 == TRIES;
            let candidates = self.admit(std::mem::take(&mut next), &mut verdicts).await?;
            if candidates.is_empty() {
                break;
            }
            let mut paused = false;
            for (candidate, ended) in self.vote(candidates).await? {
                let Candidate { place, claim, stray, .. } = candidate;
                let attempt = &stray.attempt;
                let again = match ended {
                    Ended::Won(grant) => {
                        verdicts[place] = Some(Verdict::Granted(grant));
                        continue;
                    }
                    Ended::NoMajority(said) => {
                        self.bids.end(claim.owner, attempt);
                        failed = Some(said);
                        continue;
                    }
                    Ended::Stale if !last => {
                        paused |= round > 0;
                        next.push((place, claim));
                        continue;
                    }
                    Ended::Split if !last && !claim.queue => {
                        paused = true;
                        next.push((place, claim));
                        continue;
                    }
                    Ended::Held(by, left) => Some((Some(by), self.poll_after(&claim, left))),
                    Ended::Split | Ended::Stale => {
                        let pause = jittered(self.bids.splits(claim.owner));
                        Some((None, pause))
                    }
                };
                let Some((by, pause)) = again else { continue };
                verdicts[place] = Some(if claim.queue {
                    self.bids.wait(claim.owner, attempt, self.clock.now() + pause);
                    Verdict::Queued(by)
                } else {
                    self.bids.end(claim.owner, attempt);
                    Verdict::Held(by)
                });
            }
            if next.is_empty() {
                break;
            }
            if paused {
                self.clock.sleep(jittered(round)).await;
            }
        }
        if let Some(said) = failed {
            let error = said.no_majority();
            // Of those that failed nothing is left, and nothing will be; but others of the
            // same request have their locks.
            let mixed = verdicts.iter().any(Option::is_some);
            return Err(if mixed { error.outcome_unknown() } else { error });
        }
        Ok(verdicts.into_iter().map(|verdict| verdict.unwrap_or(Verdict::Held(None))).collect())
    }

    /// The claims that may be voted on; the others are answered at once.
    async fn admit(
        self: &Arc<Self>,
        claims: Vec<(usize, Claim)>,
        verdicts: &mut [Option<Verdict>],
    ) -> Result<Vec<Candidate>> {
        let now = self.clock.now();
        let mut candidates = Vec::with_capacity(claims.len());
        for (place, claim) in claims {
            let mut admission = self.bids.begin(&claim, now);
            if let Admission::Granted(token) = admission {
                if let Some(grant) = self.prove(&claim, token).await? {
                    verdicts[place] = Some(Verdict::Granted(grant));
                    continue;
                }
                self.bids.forget(claim.owner);
                admission = self.bids.begin(&claim, now);
            }
            let Admission::Attempt(attempt) = admission else {
                verdicts[place] = Some(Verdict::Held(None));
                continue;
            };
            let stray = Stray { keys: self.keys(&claim.name), owner: claim.owner, attempt };
            candidates.push(Candidate {
                place,
                claim,
                stray: Arc::new(stray),
                guess: self.guess(),
                tally: Tally::default(),
                decision: Decision::Open,
                token: 0,
            });
        }
        Ok(candidates)
    }

    /// The grant of a claim that has the lock, if it still has it.
    pub(super) async fn prove(
        self: &Arc<Self>,
        claim: &Claim,
        token: Token,
    ) -> Result<Option<Grant>> {
        let hold: Hold = claim.hold(token);
        Ok(match self.renew_holds(vec![hold]).await?.pop() {
            Some(Renewal::Renewed(proof)) => Some(Grant { token, proof }),
            _ => None,
        })
    }

    async fn vote(self: &Arc<Self>, candidates: Vec<Candidate>) -> Result<Vec<(Candidate, Ended)>> {
        let (at, wall) = (self.clock.now(), self.clock.wall_micros());
        let mut vote = Undecided::new(self, candidates);
        let mut said: Vec<Option<NodeVerdict>> = vec![None; self.nodes.len()];
        let mut stale = false;
        let mut poll = Poll::new(&self.nodes, self.claiming(&vote.candidates), vote.limit());
        while vote.candidates.iter().any(|candidate| candidate.decision == Decision::Open) {
            let Some((node, heard)) = poll.next().await else { break };
            match heard {
                Said::Answers(answers) if answers.len() == vote.candidates.len() => {
                    said[node] = Some(NodeVerdict::Granted);
                    for (candidate, answer) in vote.candidates.iter_mut().zip(answers.iter()) {
                        candidate.tally.hear(node, answer, candidate.guess)?;
                    }
                }
                heard => stale |= self.note(node, &heard, &mut said),
            }
            let pending = poll.pending();
            for candidate in &mut vote.candidates {
                if candidate.decision == Decision::Open {
                    candidate.decision = candidate.tally.decide(pending, self.majority);
                }
            }
        }
        self.store_tokens(&mut vote.candidates, &mut said, &mut stale).await?;
        let ended = vote.decided(poll, |candidate| {
            if let Some(clock) = candidate.tally.clock(self.majority) {
                self.learn_clock(clock, wall);
            }
            self.learn_token(candidate.token);
            self.judge(candidate, at, &said, stale)
        });
        Ok(ended)
    }

    /// The second round trip, for claims that have a majority of locks but no token yet.
    async fn store_tokens(
        &self,
        candidates: &mut [Candidate],
        said: &mut [Option<NodeVerdict>],
        stale: &mut bool,
    ) -> Result<()> {
        let mut storing: Vec<&mut Candidate> = candidates
            .iter_mut()
            .filter(|candidate| candidate.decision == Decision::NeedsToken)
            .collect();
        if storing.is_empty() {
            return Ok(());
        }
        for candidate in &mut storing {
            candidate.token = candidate.tally.next_token(candidate.guess);
            candidate.tally.stored = 0;
            candidate.decision = Decision::Open;
        }
        let mut call = Call::new(&STORE, 0, 1 + 2 * storing.len());
        call.arg(&self.marker);
        for candidate in &storing {
            call.keys(&candidate.stray.keys, &[Record]);
        }
        call.arg(self.expected()).arg(self.who(storing.first().map(|one| &**one)));
        for candidate in &storing {
            call.arg(candidate.attempt()).arg(candidate.token).arg(millis(candidate.claim.ttl));
        }
        let limit = limit(storing.iter().map(|candidate| &candidate.claim), self.settings.timeout);
        // All of them: where the claim arrives late, the token comes right behind it.
        let mut poll = Poll::new(&self.nodes, call, limit);
        while storing.iter().any(|candidate| candidate.decision == Decision::Open) {
            let Some((node, heard)) = poll.next().await else { break };
            match heard {
                Said::Answers(answers) if answers.len() == storing.len() => {
                    for (candidate, answer) in storing.iter_mut().zip(answers.iter()) {
                        if *answer == redis::Value::Int(1) {
                            candidate.tally.stored |= 1 << node;
                        }
                    }
                }
                heard => *stale |= self.note(node, &heard, said),
            }
            for candidate in &mut storing {
                let stored = count(candidate.tally.stored);
                if stored >= self.majority {
                    candidate.decision = Decision::Won;
                } else if stored + poll.pending() < self.majority {
                    candidate.decision = Decision::Lost;
                }
            }
        }
        Ok(())
    }

    fn judge(
        &self,
        candidate: &Candidate,
        at: Moment,
        said: &[Option<NodeVerdict>],
        stale: bool,
    ) -> Ended {
        let Candidate { claim, tally, .. } = candidate;
        if candidate.decision == Decision::Won {
            let token = if candidate.token == 0 { candidate.guess } else { candidate.token };
            let token = Token::new(token);
            if self.bids.grant(claim.owner, candidate.attempt(), token) {
                let valid_for = Duration::from_millis(millis(claim.ttl));
                return Ended::Won(Grant { token, proof: Proof { at, valid_for } });
            }
            return Ended::Held(HeldBy::new(None, None), None);
        }
        if tally.answered() < self.majority {
            if stale {
                return Ended::Stale;
            }
            return Ended::NoMajority(self.verdicts(tally, said));
        }
        let silent = self.nodes.len() - tally.answered();
        match tally.holder(silent, self.majority) {
            Some((by, left)) => Ended::Held(by, left),
            None => Ended::Split,
        }
    }

    fn verdicts(&self, tally: &Tally, said: &[Option<NodeVerdict>]) -> NodeVerdicts {
        let taken = |node| tally.taken.iter().any(|taken| taken.node == node);
        let verdicts = self.nodes.iter().zip(said).map(|(node, said)| {
            let verdict = match said {
                _ if taken(node.index) => NodeVerdict::Taken,
                Some(said) => said.clone(),
                None => NodeVerdict::TimedOut,
            };
            (node.name(), verdict)
        });
        NodeVerdicts(verdicts.collect())
    }

    fn claiming(&self, candidates: &[Candidate]) -> Call {
        let mut call = Call::new(&CLAIM, 0, 1 + 3 * candidates.len());
        call.arg(&self.marker);
        for candidate in candidates {
            call.companion(&candidate.stray.keys, Record);
        }
        for candidate in candidates {
            call.arg(&candidate.stray.keys.lock);
        }
        for candidate in candidates {
            call.companion(&candidate.stray.keys, Line);
        }
        call.arg(self.expected()).arg(self.who(candidates.first()));
        // Mostly they have these in common.
        let terms = |candidate: &Candidate| (millis(candidate.claim.ttl), candidate.claim.queue);
        let first = candidates.first().map(terms);
        let common = first.filter(|first| candidates.iter().all(|one| terms(one) == *first));
        match common {
            Some((ttl, queue)) => call.arg(ttl).arg(u8::from(queue)),
            None => call.arg("").arg(""),
        };
        for candidate in candidates {
            call.arg(candidate.attempt()).arg(candidate.guess);
        }
        if common.is_none() {
            for (ttl, queue) in candidates.iter().map(terms) {
                call.arg(ttl).arg(u8::from(queue));
            }
        }
        call
    }

    /// Where messages reach us, and who holds the locks: one client has one holder.
    fn who(&self, first: Option<&Candidate>) -> String {
        let holder = first.map_or_else(String::new, |one| encode_holder(&one.claim.holder));
        format!("{} {holder}", self.channel)
    }

    /// When a waiter looks again by itself: soon after the lock may be free, and often enough
    /// to be seen.
    fn poll_after(&self, claim: &Claim, left: Option<Duration>) -> Duration {
        let regular = (claim.ttl / 3).clamp(SHORTEST_POLL, LONGEST_POLL);
        match left {
            Some(left) => regular.min(left + jittered(0)).max(Duration::from_millis(1)),
            None => regular,
        }
    }
}

impl Candidate {
    /// Under which owner it goes out.
    pub(super) fn attempt(&self) -> &str {
        &self.stray.attempt
    }

    pub(super) fn stray(&self) -> Arc<Stray> {
        self.stray.clone()
    }

    pub(super) fn won(&self) -> bool {
        self.decision == Decision::Won
    }

    /// Whether a node that answered has the lock for it.
    pub(super) fn got_any(&self) -> bool {
        self.tally.granted != 0
    }
}

/// Full jitter: anything between nothing and a bound that doubles.
fn jittered(attempt: u32) -> Duration {
    let bound = PAUSE.saturating_mul(1 << attempt.min(10)).min(LONGEST_PAUSE);
    Duration::from_micros(fastrand::u64(1..=bound.as_micros().max(1) as u64))
}

/// How long a node may take: well below the TTL, and little enough that two round trips end
/// before the caller gives up.
pub(super) fn limit<'a>(claims: impl Iterator<Item = &'a Claim>, most: Duration) -> Duration {
    let shortest = claims.map(|claim| claim.ttl).min().unwrap_or(most);
    patience(shortest, most)
}

/// The same for this TTL.
pub(super) fn patience(ttl: Duration, most: Duration) -> Duration {
    const LEAST: Duration = Duration::from_millis(20);
    const MOST: Duration = Duration::from_millis(800);
    (ttl / 4).max(LEAST).min(MOST).min(most)
}
