//! What a claim gets that has its node in line.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::ZookeeperStore;
use super::card;
use super::error::mixed;
use super::layout::{Contender, Listing};
use super::line::{Line, Place};
use super::nodes::Known;
use super::place::{Placed, Seen};
use super::session::Session;
use super::table::Node;
use crate::backend::{Claim, Grant, Verdict};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::holder::HeldBy;
use crate::owner::Owner;

/// How long an event may stay behind the answer that it came with.
const EVENTS_COME_WITHIN: Duration = Duration::from_millis(50);
/// After so long a waiter is told again who holds the lock, which costs a request.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(2);

impl ZookeeperStore {
    /// What a claim with a node in line gets. An error if nodes of the other layout are there,
    /// too: its own is gone then.
    pub(super) async fn judge(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        lock: &Arc<str>,
        placed: Placed,
    ) -> Result<Verdict> {
        let Placed { node, seen } = placed;
        let listing = match seen {
            Seen::Listed(listing) => listing,
            Seen::Followed(line) => {
                return self.judge_followed(session, claim, lock, node, line).await;
            }
        };
        let now = self.books.clock.now();
        let ahead = listing.ahead_of(&node.child);
        let Listing { line, foreign } = listing;
        if let Some(foreign) = foreign.first() {
            return Err(self.refuse(claim.owner, lock, node, foreign).await);
        }
        let known = Known { contested: ahead != Some(0), tried: now };
        let before = self.nodes.remember(lock, known);
        Ok(match ahead {
            Some(0) => {
                // Not followed for the next time: two events for each turn cost more than the
                // look that goes along with its creation.
                match self.grant(session, claim.owner, node, now) {
                    Some(grant) => Verdict::Granted(grant),
                    None => Verdict::Held(None),
                }
            }
            Some(ahead) if claim.queue => {
                self.books.table.queued(claim.owner, node, ahead, now);
                match line.first().filter(|_| !is_told(before, now)) {
                    Some(first) => Verdict::Queued(self.held_by(session, lock, first).await),
                    None => Verdict::Queued(None),
                }
            }
            // Gone already (by force), or not to wait: then out of the line again.
            _ => {
                self.books.table.queued(claim.owner, node, 0, now);
                self.books.table.leaving(claim.owner);
                let leaving = self.take_out(claim.owner);
                match line.first() {
                    Some(first) => {
                        let (by, _) = tokio::join!(self.held_by(session, lock, first), leaving);
                        Verdict::Held(by)
                    }
                    None => {
                        let _ = leaving.await;
                        Verdict::Held(None)
                    }
                }
            }
        })
    }

    /// The same where the line is followed: nothing has to be read.
    async fn judge_followed(
        &self,
        session: &Session,
        claim: &Claim,
        lock: &Arc<str>,
        node: Node,
        line: Arc<Line>,
    ) -> Result<Verdict> {
        let standing = line.stand_in(&node.child);
        // The server tells of a node before it answers its creation.
        let seen = timeout(EVENTS_COME_WITHIN, standing.seen()).await;
        let now = self.books.clock.now();
        line.used(now);
        let known = Known { contested: seen != Ok(Place::First), tried: now };
        let before = self.nodes.remember(lock, known);
        let ahead = match seen {
            Ok(Place::First) => match self.grant(session, claim.owner, node, now) {
                Some(grant) => return Ok(Verdict::Granted(grant)),
                None => return Ok(Verdict::Held(None)),
            },
            Ok(Place::Mixed(foreign)) => {
                return Err(self.refuse(claim.owner, lock, node, &foreign).await);
            }
            Ok(Place::Behind(ahead)) => ahead,
            // Whoever waits finds out.
            _ => 0,
        };
        self.books.table.queued(claim.owner, node, ahead, now);
        Ok(match line.first().filter(|_| !is_told(before, now)) {
            Some(first) => Verdict::Queued(self.held_by(session, lock, &first).await),
            None => Verdict::Queued(None),
        })
    }

    /// A node of the other layout is there, too: ours goes again.
    async fn refuse(&self, owner: Owner, lock: &str, node: Node, foreign: &str) -> Error {
        self.books.table.queued(owner, node, 0, self.books.clock.now());
        self.books.table.leaving(owner);
        let refused = mixed(lock, foreign, self.target.layout);
        match self.take_out(owner).await {
            Ok(()) => refused,
            Err(_) => refused.outcome_unknown(),
        }
    }

    /// The lock is this owner's, as far as the session is proved.
    pub(super) fn grant(
        &self,
        session: &Session,
        owner: Owner,
        node: Node,
        now: Moment,
    ) -> Option<Grant> {
        let wall = self.books.clock.wall_micros() / 1_000;
        self.books.table.granted(owner, node, session.proof(), now, wall)
    }

    /// Who stands behind a node, if that is still there.
    pub(super) async fn held_by(
        &self,
        session: &Session,
        lock: &str,
        first: &Contender,
    ) -> Option<HeldBy> {
        let path = format!("{lock}/{}", first.child);
        let (data, stat) = session.client.get_data(&path).await.ok()?;
        let owner = self.target.layout.owner(&first.child);
        Some(card::read(owner, &data, &stat, self.books.clock.wall()).held_by)
    }
}

/// Whoever waits here again and again need not be told each time for whom.
fn is_told(before: Option<Known>, now: Moment) -> bool {
    before.is_some_and(|before| before.contested && before.tried.until(now) < TOLD_AGAIN_AFTER)
}
