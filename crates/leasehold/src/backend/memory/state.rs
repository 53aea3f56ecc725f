//! What the in-memory store knows, and every step it can take. All of it runs
//! under one mutex, so a step is atomic.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tokio::sync::Notify;

use super::PATIENCE_WITH_WAITERS;
use super::table::Table;
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
    locks: Table<Record>,
    tokens: Tokens,
    bells: Bells,
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

/// Those to be rung for once the mutex is free: a waker may look at the store.
pub(super) type Bells = Vec<Arc<Notify>>;

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

    fn waiter(&mut self, owner: Owner) -> Option<&mut Waiter> {
        self.queue.as_mut()?.iter_mut().find(|waiter| waiter.claim.owner == owner)
    }

    fn lease_of(&self, owner: Owner) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.owner == owner)
    }

    /// Ends the lease if its time is over.
    fn expire(&mut self, now: Moment) {
        self.lease.take_if(|lease| lease.expires <= now);
    }

    /// Grants a free lock to its first live waiter.
    fn serve(&mut self, tokens: &mut Tokens, bells: &mut Bells, now: Moment, clock: &Clock) {
        while self.lease.is_none()
            && let Some(waiter) = self.queue.as_mut().and_then(|queue| queue.pop_front())
        {
            if waiter.keeps_place_until > now {
                let term = waiter.claim.ttl.min(PATIENCE_WITH_WAITERS);
                self.grant(&waiter.claim, term, tokens, now, clock);
            }
            // Those who lost their place are told as well: they ask again.
            bells.push(waiter.bell);
        }
    }

    fn grant(
        &mut self,
        claim: &Claim,
        term: Duration,
        tokens: &mut Tokens,
        now: Moment,
        clock: &Clock,
    ) -> Option<Grant> {
        let since = clock.wall_micros();
        let token = tokens.next(since)?;
        let (owner, holder) = (claim.owner, claim.holder.clone());
        let lease = Lease { owner, token, proved: now, expires: now + term, since, holder };
        Some(self.lease.insert(lease).grant())
    }

    /// Whether it says nothing that a missing record would not.
    fn is_idle(&self) -> bool {
        self.lease.is_none() && self.queue().next().is_none()
    }
}

/// Every token of the store, of whatever lock, is above the last: so the records of
/// locks that nobody holds need not be kept.
#[derive(Debug, Default)]
struct Tokens {
    last: u64,
}

impl Tokens {
    fn next(&mut self, wall_micros: u64) -> Option<Token> {
        let token = Token::after(Token::new(self.last), wall_micros)?;
        self.last = token.get();
        Some(token)
    }
}

impl State {
    /// The bells that were not rung yet.
    pub(super) fn take_bells(&mut self) -> Bells {
        std::mem::take(&mut self.bells)
    }

    pub(super) fn acquire(&mut self, claim: Claim, now: Moment, clock: &Clock) -> Verdict {
        self.sweep(now);
        if self.barred.get(&claim.owner).is_some_and(|until| *until > now) {
            return Verdict::Held(None);
        }
        let record = self.locks.get_or_default(&claim.name);
        record.expire(now);
        record.serve(&mut self.tokens, &mut self.bells, now, clock);
        let Some(lease) = &record.lease else {
            let granted = record.grant(&claim, claim.ttl, &mut self.tokens, now, clock);
            return granted.map_or(Verdict::Held(None), Verdict::Granted);
        };
        if lease.owner == claim.owner {
            return Verdict::Granted(lease.grant());
        }
        let held_by = Some(lease.held_by());
        if !claim.queue {
            return Verdict::Held(held_by);
        }
        if record.waiter(claim.owner).is_none() {
            let keeps_place_until = now + PATIENCE_WITH_WAITERS;
            let bell = Arc::new(Notify::new());
            let queue = record.queue.get_or_insert_default();
            queue.push_back(Waiter { claim, bell, keeps_place_until });
        }
        Verdict::Queued(held_by)
    }

    /// Where the claim stands; shows that it still waits.
    pub(super) fn look(&mut self, claim: &Claim, now: Moment, clock: &Clock) -> Place {
        let Some(record) = self.locks.get_mut(&claim.name) else { return Place::Gone };
        // Before others are judged by it: we are here.
        if let Some(waiter) = record.waiter(claim.owner) {
            waiter.keeps_place_until = now + PATIENCE_WITH_WAITERS;
        }
        record.expire(now);
        record.serve(&mut self.tokens, &mut self.bells, now, clock);
        if let Some(lease) = record.lease_of(claim.owner) {
            return Place::Granted(lease.grant());
        }
        let free_at = record.lease.as_ref().map_or(now, |lease| lease.expires);
        match record.waiter(claim.owner) {
            Some(waiter) => Place::Waiting { bell: waiter.bell.clone(), free_at },
            None => Place::Gone,
        }
    }

    pub(super) fn leave(&mut self, claim: &Claim, now: Moment, clock: &Clock) {
        let Some(record) = self.locks.get_mut(&claim.name) else { return };
        record.dequeue(claim.owner);
        if let Some(token) = record.lease_of(claim.owner).map(|lease| lease.token) {
            self.release(claim.hold(token), now, clock);
        }
    }

    pub(super) fn settle(&mut self, claim: &Claim, now: Moment) -> Option<Grant> {
        if let Some(record) = self.locks.get_mut(&claim.name) {
            record.expire(now);
            if let Some(lease) = record.lease_of(claim.owner) {
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

    pub(super) fn release(&mut self, hold: Hold, now: Moment, clock: &Clock) -> Release {
        let (tokens, bells) = (&mut self.tokens, &mut self.bells);
        let released = self.locks.change(hold.name, Record::is_idle, |record| {
            let lease = record.lease.take_if(|lease| lease.owner == hold.owner)?;
            record.serve(tokens, bells, now, clock);
            Some(lease.expires > now)
        });
        match released.flatten() {
            Some(true) => Release::Released,
            Some(false) | None => Release::NotHeld,
        }
    }

    pub(super) fn force_release(
        &mut self,
        name: &Name,
        forced: Forced,
        now: Moment,
        clock: &Clock,
    ) -> Option<(Owner, Token)> {
        let record = self.locks.get_mut(name)?;
        record.expire(now);
        let lease = record.lease.take()?;
        record.serve(&mut self.tokens, &mut self.bells, now, clock);
        let ended = ForcedInfo::new(forced, clock.wall(), lease.token);
        self.forced.insert((name.clone(), lease.token), ended);
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
            self.locks.names().filter(|name| name.as_str().starts_with(prefix)).collect();
        names.sort();
        let infos = names.into_iter().filter_map(|name| self.inspect(name, now));
        infos.filter(|info| info.lease.is_some() || info.waiters > 0).collect()
    }

    /// Forgets what has lapsed, whenever the table has doubled: the cost per claim stays constant.
    fn sweep(&mut self, now: Moment) {
        let size = self.locks.len() + self.barred.len() + self.forced.len();
        if size < 2 * self.swept_at + 1024 {
            return;
        }
        self.barred.retain(|_, until| *until > now);
        self.locks.retain(|record| {
            let held = record.lease.as_ref().is_some_and(|lease| lease.expires > now);
            held || record.waiters(now).next().is_some()
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
