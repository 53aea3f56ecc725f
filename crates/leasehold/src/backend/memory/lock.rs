//! One lock in memory: who holds it, who waits for it, and who is next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tokio::sync::Notify;

use super::PATIENCE_WITH_WAITERS;
use crate::backend::{Claim, Grant, LeaseInfo, Mode, Proof};
use crate::clock::{Clock, Moment};
use crate::holder::{HeldBy, Holder};
use crate::owner::Owner;
use crate::token::Token;

/// The most waiters of a shared lock that are let in at once. The rest come in when these look.
const AT_ONCE: usize = 128;

/// One lock. Of a million, few are shared or waited for: `more` is boxed, and made by need.
#[derive(Debug, Default)]
pub(super) struct Lock {
    /// The lease of an exclusive lock.
    lease: Option<Lease>,
    more: Option<Box<More>>,
}

#[derive(Debug)]
struct More {
    queue: VecDeque<Waiter>,
    /// The leases of a shared lock, with their weights, and what these may add up to.
    leases: Vec<(Lease, u32)>,
    capacity: u32,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) owner: Owner,
    pub(super) token: Token,
    pub(super) proved: Moment,
    pub(super) expires: Moment,
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

/// What every step needs, and what it leaves to be done.
pub(super) struct Step<'a> {
    pub(super) now: Moment,
    pub(super) clock: &'a Clock,
    pub(super) tokens: &'a mut Tokens,
    /// Those to be rung for once the mutex is free: a waker may look at the store.
    pub(super) bells: &'a mut Vec<Arc<Notify>>,
}

/// Every token of the store, of whatever lock, is above the last: so the records of
/// locks that nobody holds need not be kept.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    last: u64,
}

/// What a claim meets.
pub(super) enum Meets {
    Ours(Grant),
    Free,
    Busy(Option<HeldBy>),
    OtherCapacity(u32),
}

/// Where a queued claim stands.
pub(super) enum Place {
    Granted(Grant),
    Waiting { bell: Arc<Notify>, free_at: Moment },
    Gone,
}

impl Tokens {
    fn next(&mut self, wall_micros: u64) -> Option<Token> {
        let token = Token::after(Token::new(self.last), wall_micros)?;
        self.last = token.get();
        Some(token)
    }
}

impl Default for More {
    fn default() -> Self {
        Self { queue: VecDeque::new(), leases: Vec::new(), capacity: 1 }
    }
}

impl Lease {
    pub(super) fn proof(&self) -> Proof {
        Proof { at: self.proved, valid_for: self.proved.until(self.expires) }
    }

    pub(super) fn grant(&self) -> Grant {
        Grant { token: self.token, proof: self.proof() }
    }

    fn held_by(&self) -> HeldBy {
        let since = UNIX_EPOCH + Duration::from_micros(self.since);
        HeldBy::new(Some((*self.holder).clone()), Some(since))
    }
}

impl Lock {
    fn weighed(&self) -> impl Iterator<Item = (&Lease, u32)> {
        let shared = self.more.iter().flat_map(|more| more.leases.iter());
        let alone = self.lease.iter().map(|lease| (lease, 1));
        alone.chain(shared.map(|(lease, weight)| (lease, *weight)))
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.weighed().map(|(lease, _)| lease)
    }

    pub(super) fn lease_of(&mut self, owner: Owner) -> Option<&mut Lease> {
        let shared = self.more.iter_mut().flat_map(|more| more.leases.iter_mut());
        let mut leases = self.lease.iter_mut().chain(shared.map(|(lease, _)| lease));
        leases.find(|lease| lease.owner == owner)
    }

    /// Takes the first lease out that is `wanted`.
    pub(super) fn take(&mut self, wanted: impl Fn(&Lease) -> bool) -> Option<Lease> {
        if let Some(lease) = self.lease.take_if(|lease| wanted(lease)) {
            return Some(lease);
        }
        let leases = &mut self.more.as_mut()?.leases;
        let place = leases.iter().position(|(lease, _)| wanted(lease))?;
        Some(leases.remove(place).0)
    }

    fn queue(&self) -> impl Iterator<Item = &Waiter> {
        self.more.iter().flat_map(|more| more.queue.iter())
    }

    fn waiter(&mut self, owner: Owner) -> Option<&mut Waiter> {
        self.more.as_mut()?.queue.iter_mut().find(|waiter| waiter.claim.owner == owner)
    }

    pub(super) fn dequeue(&mut self, owner: Owner) {
        if let Some(more) = &mut self.more {
            more.queue.retain(|waiter| waiter.claim.owner != owner);
        }
    }

    /// How many keep their place.
    pub(super) fn waiters(&self, now: Moment) -> usize {
        self.queue().filter(|waiter| waiter.keeps_place_until > now).count()
    }

    /// Whether it says nothing that a missing record would not.
    pub(super) fn is_idle(&self) -> bool {
        self.leases().next().is_none() && self.queue().next().is_none()
    }

    /// Whether a sweep may forget it.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        self.waiters(now) == 0 && self.leases().all(|lease| lease.expires <= now)
    }

    pub(super) fn infos(&self, now: Moment) -> impl Iterator<Item = LeaseInfo> {
        self.weighed().filter(move |(lease, _)| lease.expires > now).map(move |(lease, weight)| {
            let (owner, token) = (Some(lease.owner), Some(lease.token));
            let remaining = Some(now.until(lease.expires));
            LeaseInfo { weight, ..LeaseInfo::new(owner, token, lease.held_by(), remaining) }
        })
    }

    /// What the weights of its leases may add up to.
    pub(super) fn capacity(&self) -> u32 {
        self.more.as_ref().map_or(1, |more| more.capacity)
    }

    /// How much of the capacity is left.
    fn room(&self) -> u32 {
        let taken = self.weighed().map(|(_, weight)| u64::from(weight)).sum();
        let left = u64::from(self.capacity()).saturating_sub(taken);
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    /// Ends the leases whose time is over, and lets in those who are next.
    ///
    /// Waiters that have been silent are out once somebody behind them could be let in, and
    /// queue at the end if they come back. If they kept their place, a writer could come back
    /// beside the readers that were let in meanwhile.
    pub(super) fn serve(&mut self, step: &mut Step<'_>) {
        self.lease.take_if(|lease| lease.expires <= step.now);
        if let Some(more) = &mut self.more {
            more.leases.retain(|(lease, _)| lease.expires > step.now);
        }
        let mut let_in = 0;
        while let_in < AT_ONCE {
            let room = self.room();
            let Some(queue) = self.more.as_mut().map(|more| &mut more.queue) else { return };
            let Some(waiter) = queue.front().filter(|_| room > 0) else { return };
            let is_live = waiter.keeps_place_until > step.now;
            if is_live && waiter.claim.mode.weight() > room {
                return;
            }
            let Some(waiter) = queue.pop_front() else { return };
            if is_live {
                let term = waiter.claim.ttl.min(PATIENCE_WITH_WAITERS);
                self.grant(&waiter.claim, term, step);
                let_in += 1;
            }
            // Those who lost their place are told as well: they ask again.
            step.bells.push(waiter.bell);
        }
    }

    /// Where a claim stands, after [`Self::serve`].
    pub(super) fn meets(&mut self, claim: &Claim, step: &mut Step<'_>) -> Meets {
        self.serve(step);
        if let Some(lease) = self.lease_of(claim.owner) {
            return Meets::Ours(lease.grant());
        }
        let (weight, capacity) = (claim.mode.weight(), claim.mode.capacity());
        if self.is_idle() {
            if claim.mode != Mode::Exclusive {
                self.more.get_or_insert_default().capacity = capacity;
            }
            return Meets::Free;
        }
        match self.capacity() {
            present if present != capacity => Meets::OtherCapacity(present),
            _ if self.queue().next().is_none() && weight <= self.room() => Meets::Free,
            _ => Meets::Busy(self.leases().next().map(Lease::held_by)),
        }
    }

    pub(super) fn grant(
        &mut self,
        claim: &Claim,
        term: Duration,
        step: &mut Step<'_>,
    ) -> Option<Grant> {
        let since = step.clock.wall_micros();
        let (owner, token, proved) = (claim.owner, step.tokens.next(since)?, step.now);
        let (expires, holder) = (proved + term, claim.holder.clone());
        let lease = Lease { owner, token, proved, expires, since, holder };
        let grant = lease.grant();
        match claim.mode {
            Mode::Exclusive => self.lease = Some(lease),
            mode => self.more.get_or_insert_default().leases.push((lease, mode.weight())),
        }
        Some(grant)
    }

    pub(super) fn enqueue(&mut self, claim: Claim, now: Moment) {
        if self.waiter(claim.owner).is_none() {
            let keeps_place_until = now + PATIENCE_WITH_WAITERS;
            let waiter = Waiter { claim, bell: Arc::default(), keeps_place_until };
            self.more.get_or_insert_default().queue.push_back(waiter);
        }
    }

    /// Where the claim stands; shows that it still waits.
    pub(super) fn place(&mut self, claim: &Claim, step: &mut Step<'_>) -> Place {
        // Before others are judged by it: we are here.
        if let Some(waiter) = self.waiter(claim.owner) {
            waiter.keeps_place_until = step.now + PATIENCE_WITH_WAITERS;
        }
        self.serve(step);
        if let Some(lease) = self.lease_of(claim.owner) {
            return Place::Granted(lease.grant());
        }
        let free_at = self.leases().map(|lease| lease.expires).min().unwrap_or(step.now);
        match self.waiter(claim.owner) {
            Some(waiter) => Place::Waiting { bell: waiter.bell.clone(), free_at },
            None => Place::Gone,
        }
    }
}
