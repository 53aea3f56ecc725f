//! What the in-memory store knows, and every step it can take. All of it runs
//! under one mutex, so a step is atomic.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

use super::lock::{Lease, Lock, Meets, Place, Step, Tokens};
use super::records::Records;
use super::table::Table;
use crate::backend::kit::tombstone::Tombstones;
use crate::backend::{
    Claim, Force, ForceRelease, ForcedInfo, Grant, Hold, LockId, LockInfo, LockKind, Record,
    Release, Renewal, Verdict, Version, Written,
};
use crate::clock::{Clock, Moment};
use crate::loss::LossReason;
use crate::owner::Owner;
use crate::token::Token;

/// How many force-releases are remembered: enough for a store that dies with its process.
const FORCED: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct State {
    locks: [Table<Lock>; 3],
    tokens: Tokens,
    bells: Vec<Arc<Notify>>,
    tombstones: Tombstones,
    /// Force-releases, by the lease they ended.
    forced: HashMap<(LockId, Token), ForcedInfo>,
    pub(super) records: Records,
    swept_at: usize,
}

/// The locks of this kind, and what else a step needs.
macro_rules! step {
    ($state:ident, $kind:expr, $now:expr, $clock:expr) => {{
        let State { locks, tokens, bells, .. } = $state;
        (&mut locks[$kind as usize], Step { now: $now, clock: $clock, tokens, bells })
    }};
}

impl State {
    /// The bells that were not rung yet.
    pub(super) fn take_bells(&mut self) -> Vec<Arc<Notify>> {
        std::mem::take(&mut self.bells)
    }

    pub(super) fn acquire(&mut self, claim: Claim, now: Moment, clock: &Clock) -> Verdict {
        self.sweep(now);
        if self.tombstones.has(claim.owner, now) {
            return Verdict::Held(None);
        }
        let (locks, mut step) = step!(self, claim.mode.kind(), now, clock);
        let lock = locks.get_or_default(&claim.name);
        match lock.meets(&claim, &mut step) {
            Meets::Ours(grant) => Verdict::Granted(grant),
            Meets::Free => {
                let granted = lock.grant(&claim, claim.ttl, &mut step);
                granted.map_or(Verdict::Held(None), Verdict::Granted)
            }
            Meets::OtherCapacity(present) => Verdict::OtherCapacity(present),
            Meets::Busy(by) if !claim.queue => Verdict::Held(by),
            Meets::Busy(by) => {
                lock.enqueue(claim, now);
                Verdict::Queued(by)
            }
        }
    }

    /// All of them or none.
    pub(super) fn acquire_all(
        &mut self,
        claims: Vec<Claim>,
        now: Moment,
        clock: &Clock,
    ) -> Vec<Verdict> {
        let met = claims.iter().map(|claim| {
            if self.tombstones.has(claim.owner, now) {
                return Meets::Busy(None);
            }
            let (locks, mut step) = step!(self, claim.mode.kind(), now, clock);
            locks.get_or_default(&claim.name).meets(claim, &mut step)
        });
        let met: Vec<_> = met.collect();
        if met.iter().all(|met| matches!(met, Meets::Ours(_) | Meets::Free)) {
            return claims.into_iter().map(|claim| self.acquire(claim, now, clock)).collect();
        }
        let verdicts = met.into_iter().map(|met| match met {
            Meets::Ours(grant) => Verdict::Granted(grant),
            Meets::Free => Verdict::Withheld,
            Meets::Busy(by) => Verdict::Held(by),
            Meets::OtherCapacity(present) => Verdict::OtherCapacity(present),
        });
        verdicts.collect()
    }

    /// Where the claim stands; shows that it still waits.
    pub(super) fn look(&mut self, claim: &Claim, now: Moment, clock: &Clock) -> Place {
        let (locks, mut step) = step!(self, claim.mode.kind(), now, clock);
        let lock = locks.get_mut(&claim.name);
        lock.map_or(Place::Gone, |lock| lock.place(claim, &mut step))
    }

    pub(super) fn leave(&mut self, claim: &Claim, now: Moment, clock: &Clock) {
        let (locks, mut step) = step!(self, claim.mode.kind(), now, clock);
        locks.change(claim.name.clone(), Lock::is_idle, |lock| {
            lock.dequeue(claim.owner);
            lock.take(|lease| lease.owner == claim.owner);
            lock.serve(&mut step);
        });
    }

    pub(super) fn settle(&mut self, claim: &Claim, now: Moment, clock: &Clock) -> Option<Grant> {
        let (locks, mut step) = step!(self, claim.mode.kind(), now, clock);
        if let Some(lock) = locks.get_mut(&claim.name) {
            if let Some(lease) = lock.lease_of(claim.owner).filter(|lease| lease.expires > now) {
                return Some(lease.grant());
            }
            lock.dequeue(claim.owner);
            lock.serve(&mut step);
        }
        self.tombstones.add(claim.owner, claim.ttl, now);
        None
    }

    /// The lease of a hold that is live, or why there is none.
    pub(super) fn live(&mut self, hold: &Hold, now: Moment) -> Result<&mut Lease, LossReason> {
        let mut lock = self.locks[hold.mode.kind() as usize].get_mut(&hold.name);
        let others = |lock: &mut &mut Lock| lock.leases().any(|lease| lease.owner != hold.owner);
        let is_taken = hold.mode.is_alone() && lock.as_mut().is_some_and(others);
        match lock.and_then(|lock| lock.lease_of(hold.owner)) {
            Some(lease) if lease.expires > now => Ok(lease),
            _ => Err(match self.forced.get(&(hold.lock(), hold.token)) {
                Some(record) => LossReason::Forced(record.forced.clone()),
                None if is_taken => LossReason::Taken,
                None => LossReason::Expired,
            }),
        }
    }

    pub(super) fn renew(&mut self, hold: &Hold, now: Moment) -> Renewal {
        match self.live(hold, now) {
            Ok(lease) => {
                lease.proved = now;
                lease.expires = now + hold.ttl;
                Renewal::Renewed(lease.proof())
            }
            Err(reason) => Renewal::NotYours(reason),
        }
    }

    /// Writes the record of a lock, if the lease is live and nobody wrote it meanwhile.
    pub(super) fn write(
        &mut self,
        hold: &Hold,
        expected: Option<Version>,
        value: Arc<[u8]>,
        keep: Option<Duration>,
        now: Moment,
        written: SystemTime,
    ) -> Written {
        if let Err(reason) = self.live(hold, now) {
            return Written::NotYours(reason);
        }
        let lock = hold.lock();
        let present = self.records.get(&lock, now);
        if present.map(|record| record.version) != expected {
            return Written::Changed(present.cloned());
        }
        let version = self.records.next_version();
        let record = Record::new(value, version, hold.token, written);
        self.bells.extend(self.records.put(lock, record, keep, now));
        Written::At(version)
    }

    pub(super) fn release(&mut self, hold: Hold, now: Moment, clock: &Clock) -> Release {
        let (locks, mut step) = step!(self, hold.mode.kind(), now, clock);
        let released = locks.change(hold.name, Lock::is_idle, |lock| {
            let lease = lock.take(|lease| lease.owner == hold.owner)?;
            lock.serve(&mut step);
            Some(lease.expires > now)
        });
        match released.flatten() {
            Some(true) => Release::Released,
            Some(false) | None => Release::NotHeld,
        }
    }

    /// Ends leases, and tells whose they were.
    pub(super) fn force_release(
        &mut self,
        id: &LockId,
        force: Force,
        now: Moment,
        clock: &Clock,
    ) -> (ForceRelease, Vec<Owner>) {
        let (locks, mut step) = step!(self, id.kind, now, clock);
        let Some(lock) = locks.get_mut(&id.name) else {
            return (ForceRelease::NobodyHeld, Vec::new());
        };
        lock.serve(&mut step);
        let is_meant = |lease: &Lease| force.is_about(lease.owner, lease.token);
        let ended: Vec<_> = std::iter::from_fn(|| lock.take(is_meant)).collect();
        if ended.is_empty() {
            let others: Vec<_> = lock.infos(now).collect();
            let nobody = others.is_empty();
            let left = if nobody { ForceRelease::NobodyHeld } else { ForceRelease::Others(others) };
            return (left, Vec::new());
        }
        lock.serve(&mut step);
        for lease in &ended {
            let record = ForcedInfo::new(force.forced.clone(), clock.wall(), lease.token);
            self.forced.insert((id.clone(), lease.token), record);
        }
        let owners = ended.iter().map(|lease| lease.owner).collect();
        (ForceRelease::Ended(ended.into_iter().map(|lease| lease.token).collect()), owners)
    }

    pub(super) fn inspect(&self, id: &LockId, now: Moment) -> Option<LockInfo> {
        let forced = self.forced.iter().filter(|((lock, _), _)| lock == id);
        let forced = forced.max_by_key(|((_, token), _)| *token).map(|(_, record)| record.clone());
        let lock = self.locks[id.kind as usize].get(&id.name);
        if lock.is_none() && forced.is_none() {
            return None;
        }
        let mut info = LockInfo { forced, ..LockInfo::free(id.clone()) };
        if let Some(lock) = lock {
            info.waiters = lock.waiters(now);
            info.leases = lock.infos(now).collect();
            info.capacity = (id.kind != LockKind::Exclusive).then(|| lock.capacity());
        }
        Some(info)
    }

    pub(super) fn list(&self, prefix: &str, now: Moment) -> Vec<LockInfo> {
        let kinds = [LockKind::Exclusive, LockKind::ReadWrite, LockKind::Semaphore];
        let locks = kinds.into_iter().flat_map(|kind| {
            let names = self.locks[kind as usize].names();
            let names = names.filter(|name| name.as_str().starts_with(prefix));
            names.map(move |name| LockId::new(kind, name.clone()))
        });
        let infos = locks.filter_map(|lock| self.inspect(&lock, now));
        let in_use = |info: &LockInfo| !info.leases.is_empty() || info.waiters > 0;
        let mut infos: Vec<_> = infos.filter(in_use).collect();
        infos.sort_by(|one, other| (&one.name, one.kind).cmp(&(&other.name, other.kind)));
        infos
    }

    fn size(&self) -> usize {
        let locks: usize = self.locks.iter().map(Table::len).sum();
        locks + self.tombstones.len() + self.forced.len() + self.records.len()
    }

    /// Forgets what has lapsed, whenever the table has doubled: the cost per claim stays constant.
    fn sweep(&mut self, now: Moment) {
        if self.size() < 2 * self.swept_at + 1024 {
            return;
        }
        self.tombstones.sweep(now);
        self.records.sweep(now);
        for locks in &mut self.locks {
            locks.retain(|lock| !lock.is_over(now));
        }
        if self.forced.len() > FORCED {
            let mut tokens: Vec<_> = self.forced.keys().map(|(_, token)| *token).collect();
            tokens.sort_unstable();
            let oldest = tokens[tokens.len() - FORCED];
            self.forced.retain(|(_, token), _| *token >= oldest);
        }
        self.swept_at = self.size();
    }
}
