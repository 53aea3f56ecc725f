//! What the in-memory store knows, and every step it can take. All of it runs
//! under one mutex, so a step is atomic.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tokio::sync::Notify;

use super::PATIENCE_WITH_WAITERS;
use crate::backend::{
    Claim, ForcedInfo, Grant, Hold, LeaseInfo, LockInfo, Proof, Release, Renewal, Verdict,
};
use crate::clock::{Clock, Moment};
use crate::holder::{HeldBy, Holder};
use crate::loss::{Forced, LossReason};
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

#[derive(Debug, Default)]
pub(super) struct State {
    locks: HashMap<Name, Record>,
    /// At least every token of a lock without a record, so that records need not be kept.
    floor: u64,
    /// Owners whose late requests must not take effect, and until when.
    barred: HashMap<Owner, Moment>,
    /// Force-releases, by the lease they ended.
    forced: HashMap<(Name, Token), ForcedInfo>,
    swept_at: usize,
}

#[derive(Debug, Default)]
struct Record {
    lease: Option<Lease>,
    /// Boxed by need: few of a million locks have waiters.
    #[expect(clippy::box_collection, reason = "it is the size that counts")]
    queue: Option<Box<VecDeque<Waiter>>>,
}

#[derive(Debug)]
struct Lease {
    owner: Owner,
    token: Token,
    proved: Moment,
    expires: Moment,
    /// Microseconds since 1970.
    since: u64,
    holder: Arc<Holder>,
}

#[derive(Debug)]
struct Waiter {
    claim: Claim,
    bell: Arc<Notify>,
    keeps_place_until: Moment,
}

/// Where a queued claim stands.
pub(super) enum Place {
    Granted(Grant),
    Waiting { bell: Arc<Notify>, free_at: Moment },
    Gone,
}

impl Lease {
    fn proof(&self) -> Proof {
        Proof { at: self.proved, valid_for: self.proved.until(self.expires) }
    }

    fn grant(&self) -> Grant {
        Grant { token: self.token, proof: self.proof() }
    }

    fn held_by(&self) -> HeldBy {
        let since = UNIX_EPOCH + Duration::from_micros(self.since);
        HeldBy::new(Some((*self.holder).clone()), Some(since))
    }
}

impl Record {
    fn queue(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.iter().flat_map(|queue| queue.iter())
    }

    /// Those who keep their place.
    fn waiters(&self, now: Moment) -> impl Iterator<Item = &Waiter> {
        self.queue().filter(move |waiter| waiter.keeps_place_until > now)
    }

    fn dequeue(&mut self, owner: Owner) {
        if let Some(queue) = &mut self.queue {
            queue.retain(|waiter| waiter.claim.owner != owner);
        }
    }
}

impl State {
    pub(super) fn acquire(&mut self, claim: Claim, now: Moment, clock: &Clock) -> Verdict {
        self.sweep(now);
        if self.barred.get(&claim.owner).is_some_and(|until| *until > now) {
            return Verdict::Held(None);
        }
        self.expire(&claim.name, now);
        self.serve(&claim.name, now, clock);
        let record = self.locks.entry(claim.name.clone()).or_default();
        if record.lease.as_ref().is_some_and(|lease| lease.owner == claim.owner) {
            let grant = record.lease.as_ref().map(Lease::grant);
            return grant.map_or(Verdict::Held(None), Verdict::Granted);
        }
        if let Some(lease) = &record.lease {
            let held_by = Some(lease.held_by());
            if !claim.queue {
                return Verdict::Held(held_by);
            }
            let queued = record.queue().any(|waiter| waiter.claim.owner == claim.owner);
            if !queued {
                let keeps_place_until = now + PATIENCE_WITH_WAITERS;
                let bell = Arc::new(Notify::new());
                let queue = record.queue.get_or_insert_default();
                queue.push_back(Waiter { claim, bell, keeps_place_until });
            }
            return Verdict::Queued(held_by);
        }
        match self.grant(&claim, claim.ttl, now, clock) {
            Some(grant) => Verdict::Granted(grant),
            None => Verdict::Held(None),
        }
    }

    /// Where the claim stands; shows that it still waits.
    pub(super) fn look(&mut self, claim: &Claim, now: Moment, clock: &Clock) -> Place {
        // Before others are judged by it: we are here.
        if let Some(waiter) = self.waiter(claim) {
            waiter.keeps_place_until = now + PATIENCE_WITH_WAITERS;
        }
        self.expire(&claim.name, now);
        self.serve(&claim.name, now, clock);
        let lease = self.locks.get(&claim.name).and_then(|record| record.lease.as_ref());
        let free_at = lease.map_or(now, |lease| lease.expires);
        if let Some(lease) = lease.filter(|lease| lease.owner == claim.owner) {
            return Place::Granted(lease.grant());
        }
        match self.waiter(claim) {
            Some(waiter) => Place::Waiting { bell: waiter.bell.clone(), free_at },
            None => Place::Gone,
        }
    }

    pub(super) fn leave(&mut self, claim: &Claim, now: Moment, clock: &Clock) {
        if let Some(record) = self.locks.get_mut(&claim.name) {
            record.dequeue(claim.owner);
        }
        if let Some(token) = self.token_of(&claim.name, claim.owner) {
            self.release(&claim.hold(token), now, clock);
        }
    }

    pub(super) fn settle(&mut self, claim: &Claim, now: Moment) -> Option<Grant> {
        self.expire(&claim.name, now);
        if let Some(record) = self.locks.get_mut(&claim.name) {
            if let Some(lease) = record.lease.as_ref().filter(|l| l.owner == claim.owner) {
                return Some(lease.grant());
            }
            record.dequeue(claim.owner);
        }
        self.barred.insert(claim.owner, now + claim.ttl.max(Duration::from_secs(60)));
        None
    }

    pub(super) fn renew(&mut self, hold: &Hold, now: Moment) -> Renewal {
        let lease = self.locks.get_mut(&hold.name).and_then(|record| record.lease.as_mut());
        match lease {
            Some(lease) if lease.owner == hold.owner && lease.expires > now => {
                lease.proved = now;
                lease.expires = now + hold.ttl;
                Renewal::Renewed(lease.proof())
            }
            other => {
                let taken = other.is_some_and(|lease| lease.owner != hold.owner);
                let forced = self.forced.get(&(hold.name.clone(), hold.token));
                Renewal::NotYours(match forced {
                    Some(record) => LossReason::Forced(record.forced.clone()),
                    None if taken => LossReason::Taken,
                    None => LossReason::Expired,
                })
            }
        }
    }

    pub(super) fn release(&mut self, hold: &Hold, now: Moment, clock: &Clock) -> Release {
        let Some(record) = self.locks.get_mut(&hold.name) else { return Release::NotHeld };
        let Some(lease) = record.lease.take_if(|lease| lease.owner == hold.owner) else {
            return Release::NotHeld;
        };
        let verdict = if lease.expires > now { Release::Released } else { Release::NotHeld };
        self.floor = self.floor.max(lease.token.get());
        self.serve(&hold.name, now, clock);
        verdict
    }

    pub(super) fn force_release(
        &mut self,
        name: &Name,
        forced: Forced,
        now: Moment,
        clock: &Clock,
    ) -> Option<(Owner, Token)> {
        self.expire(name, now);
        let lease = self.locks.get_mut(name)?.lease.take()?;
        self.floor = self.floor.max(lease.token.get());
        let record = ForcedInfo::new(forced, clock.wall(), lease.token);
        self.forced.insert((name.clone(), lease.token), record);
        self.serve(name, now, clock);
        Some((lease.owner, lease.token))
    }

    pub(super) fn inspect(&self, name: &Name, now: Moment) -> Option<LockInfo> {
        let forced = self.forced.iter().filter(|((lock, _), _)| lock == name);
        let forced = forced.max_by_key(|((_, token), _)| *token).map(|(_, record)| record.clone());
        let record = self.locks.get(name);
        if record.is_none() && forced.is_none() {
            return None;
        }
        let mut info = LockInfo::free(name.clone());
        info.forced = forced;
        if let Some(record) = record {
            info.waiters = record.waiters(now).count();
            info.lease = record.lease.as_ref().filter(|lease| lease.expires > now).map(|lease| {
                let remaining = now.until(lease.expires);
                LeaseInfo::new(
                    Some(lease.owner),
                    Some(lease.token),
                    lease.held_by(),
                    Some(remaining),
                )
            });
        }
        Some(info)
    }

    pub(super) fn list(&self, prefix: &str, now: Moment) -> Vec<LockInfo> {
        let mut names: Vec<_> =
            self.locks.keys().filter(|name| name.as_str().starts_with(prefix)).collect();
        names.sort();
        let infos = names.into_iter().filter_map(|name| self.inspect(name, now));
        infos.filter(|info| info.lease.is_some() || info.waiters > 0).collect()
    }

    fn waiter(&mut self, claim: &Claim) -> Option<&mut Waiter> {
        let queue = self.locks.get_mut(&claim.name)?.queue.as_mut()?;
        queue.iter_mut().find(|waiter| waiter.claim.owner == claim.owner)
    }

    fn token_of(&self, name: &Name, owner: Owner) -> Option<Token> {
        let lease = self.locks.get(name)?.lease.as_ref()?;
        (lease.owner == owner).then_some(lease.token)
    }

    /// Ends the lease of this lock if its time is over.
    fn expire(&mut self, name: &Name, now: Moment) {
        if let Some(record) = self.locks.get_mut(name)
            && let Some(lease) = record.lease.take_if(|lease| lease.expires <= now)
        {
            self.floor = self.floor.max(lease.token.get());
        }
    }

    /// Grants a free lock to its first live waiter, or forgets it if there is none.
    fn serve(&mut self, name: &Name, now: Moment, clock: &Clock) {
        while let Some(record) = self.locks.get_mut(name) {
            if record.lease.is_some() {
                return;
            }
            let first = record.queue.as_mut().and_then(|queue| queue.pop_front());
            let Some(waiter) = first else {
                self.locks.remove(name);
                return;
            };
            if waiter.keeps_place_until > now {
                let term = waiter.claim.ttl.min(PATIENCE_WITH_WAITERS);
                self.grant(&waiter.claim, term, now, clock);
            }
            // Those who lost their place are told as well: they ask again.
            waiter.bell.notify_one();
        }
    }

    fn grant(
        &mut self,
        claim: &Claim,
        term: Duration,
        now: Moment,
        clock: &Clock,
    ) -> Option<Grant> {
        let since = clock.wall_micros();
        let token = Token::after(Token::new(self.floor), since)?;
        self.floor = token.get();
        let lease = Lease {
            owner: claim.owner,
            token,
            proved: now,
            expires: now + term,
            since,
            holder: claim.holder.clone(),
        };
        let grant = lease.grant();
        self.locks.entry(claim.name.clone()).or_default().lease = Some(lease);
        Some(grant)
    }

    /// Forgets what has lapsed, whenever the table has doubled: the cost per claim stays constant.
    fn sweep(&mut self, now: Moment) {
        let size = self.locks.len() + self.barred.len() + self.forced.len();
        if size < 2 * self.swept_at + 1024 {
            return;
        }
        self.barred.retain(|_, until| *until > now);
        let floor = &mut self.floor;
        self.locks.retain(|_, record| {
            let lapsed = record.lease.as_ref().is_none_or(|lease| lease.expires <= now);
            if let Some(lease) = record.lease.as_ref().filter(|_| lapsed) {
                *floor = (*floor).max(lease.token.get());
            }
            !(lapsed && record.waiters(now).next().is_none())
        });
        // Audit: the newest thousand are enough for a store that dies with its process.
        if self.forced.len() > 1024 {
            let mut tokens: Vec<_> = self.forced.keys().map(|(_, token)| *token).collect();
            tokens.sort_unstable();
            let oldest = tokens[tokens.len() - 1024];
            self.forced.retain(|(_, token), _| *token >= oldest);
        }
        self.swept_at = self.locks.len() + self.barred.len() + self.forced.len();
    }
}
