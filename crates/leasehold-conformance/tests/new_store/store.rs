//! A small store that is complete: locks on a server that can read a value, and write it if
//! nobody else has.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold::backend::{
    Backend, Claim, Finding, Force, ForceRelease, ForcedInfo, Grant, Hold, LeaseInfo, Limits,
    LockId, LockInfo, LockKind, Proof, Release, Renewal, Reply, Turn, Verdict,
};
use leasehold::clock::{Clock, Moment};
use leasehold::{
    Consistency, Error, ErrorKind, Guarantees, HeldBy, Holder, LossReason, Owner, Result, Token,
};

use crate::server::{Read, Server};

/// How often a waiter asks again, whatever happens. Its place stays its own by that.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a place in the queue lasts whose client does not ask.
const SILENT_AFTER: Duration = Duration::from_secs(3);
/// How long a settled owner is refused: no request is under way for longer.
const TOMBSTONE: Duration = Duration::from_secs(60);

/// What the server keeps of a lock. It outlives the leases, and so its token never falls.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    last_token: u64,
    lease: Option<Lease>,
    queue: Vec<(Owner, Moment)>,
    tombstones: Vec<(Owner, Moment)>,
    forced: Option<ForcedInfo>,
}

#[derive(Debug, Clone, PartialEq)]
struct Lease {
    owner: Owner,
    token: Token,
    expires: Moment,
    since: SystemTime,
    holder: Arc<Holder>,
}

impl Lease {
    fn held_by(&self) -> HeldBy {
        HeldBy::new(Some((*self.holder).clone()), Some(self.since))
    }
}

/// One step of the server's time and ours.
struct Step {
    /// The server's clock when it was asked. What expires is compared with this.
    now: Moment,
    /// Our clock just before we asked. Proofs are dated with this.
    sent: Moment,
    wall: SystemTime,
}

impl Step {
    fn proof(&self, lease: &Lease) -> Proof {
        Proof { at: self.sent, valid_for: self.now.until(lease.expires) }
    }

    fn grant(&self, lease: &Lease) -> Grant {
        Grant { token: lease.token, proof: self.proof(lease) }
    }
}

/// Locks on a [`Server`].
#[derive(Debug)]
pub struct SmallStore {
    server: Arc<Server>,
    clock: Clock,
    guarantees: Guarantees,
}

impl SmallStore {
    pub fn new(server: Arc<Server>, clock: Clock) -> Arc<Self> {
        let mut guarantees = Guarantees::of("small");
        guarantees.consistency = Consistency::Linearizable;
        guarantees.tokens = "a counter in the lock's record, lifted to the wall clock in µs";
        guarantees.fair = true;
        guarantees.survives_restart = true;
        Arc::new(Self { server, clock, guarantees })
    }

    /// Changes a record in one step, again if somebody else wrote in between.
    async fn change<T>(
        &self,
        lock: &LockId,
        change: impl Fn(&mut Record, &Step) -> Result<T>,
    ) -> Result<T> {
        if lock.kind != LockKind::Exclusive {
            return Err(Error::new(ErrorKind::Refused, "this store has exclusive locks only"));
        }
        loop {
            let (sent, wall) = (self.clock.now(), self.clock.wall());
            let Read { version, record, now } = self.server.get(&lock.name).await?;
            let mut changed = record.clone();
            changed.expire(now);
            let answer = change(&mut changed, &Step { now, sent, wall })?;
            if changed == record || self.server.put_if(&lock.name, version, changed).await? {
                return Ok(answer);
            }
        }
    }
}

impl Record {
    /// Drops what is over.
    fn expire(&mut self, now: Moment) {
        self.lease.take_if(|lease| lease.expires <= now);
        self.queue.retain(|(_, until)| *until > now);
        self.tombstones.retain(|(_, until)| *until > now);
    }

    fn lease_of(&mut self, owner: Owner) -> Option<&mut Lease> {
        self.lease.as_mut().filter(|lease| lease.owner == owner)
    }

    fn acquire(&mut self, claim: &Claim, step: &Step) -> Result<Verdict> {
        if self.tombstones.iter().any(|(owner, _)| *owner == claim.owner) {
            return Ok(Verdict::Held(None));
        }
        // Asked before, and the answer was lost: the same lease, with the same token.
        if let Some(lease) = self.lease_of(claim.owner) {
            return Ok(Verdict::Granted(step.grant(lease)));
        }
        let is_first = self.queue.first().is_none_or(|(first, _)| *first == claim.owner);
        if self.lease.is_none() && is_first {
            self.queue.retain(|(owner, _)| *owner != claim.owner);
            return self.take(claim, step).map(Verdict::Granted);
        }
        let held_by = self.lease.as_ref().map(Lease::held_by);
        if !claim.queue {
            return Ok(Verdict::Held(held_by));
        }
        let until = step.now + SILENT_AFTER;
        match self.queue.iter_mut().find(|(owner, _)| *owner == claim.owner) {
            None => self.queue.push((claim.owner, until)),
            // Not at every question: each write wakes all who wait.
            Some(place) if place.1 < step.now + SILENT_AFTER - LOOK_AGAIN / 2 => place.1 = until,
            Some(_) => {}
        }
        Ok(Verdict::Queued(held_by))
    }

    fn take(&mut self, claim: &Claim, step: &Step) -> Result<Grant> {
        let since_epoch = step.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since_epoch.as_micros()).unwrap_or(0);
        let token = Token::after(Token::new(self.last_token), micros)
            .ok_or_else(|| Error::new(ErrorKind::Refused, "the lock has no token left"))?;
        self.last_token = token.get();
        let (owner, holder) = (claim.owner, claim.holder.clone());
        let (expires, since) = (step.now + claim.ttl, step.wall);
        let lease = self.lease.insert(Lease { owner, token, expires, since, holder });
        Ok(step.grant(lease))
    }

    fn leave(&mut self, owner: Owner) {
        self.queue.retain(|(waiting, _)| *waiting != owner);
        self.lease.take_if(|lease| lease.owner == owner);
    }

    fn settle(&mut self, claim: &Claim, step: &Step) -> Option<Grant> {
        if let Some(lease) = self.lease_of(claim.owner) {
            return Some(step.grant(lease));
        }
        self.leave(claim.owner);
        self.tombstones.push((claim.owner, step.now + claim.ttl.max(TOMBSTONE)));
        None
    }

    fn renew(&mut self, hold: &Hold, step: &Step) -> Renewal {
        if let Some(lease) = self.lease_of(hold.owner) {
            lease.expires = step.now + hold.ttl;
            return Renewal::Renewed(step.proof(lease));
        }
        Renewal::NotYours(match &self.forced {
            Some(record) if record.token == hold.token => LossReason::Forced(record.forced.clone()),
            _ if self.lease.is_some() => LossReason::Taken,
            _ => LossReason::Expired,
        })
    }

    fn release(&mut self, hold: &Hold) -> Release {
        match self.lease.take_if(|lease| lease.owner == hold.owner) {
            Some(_) => Release::Released,
            None => Release::NotHeld,
        }
    }

    fn force_release(&mut self, force: &Force, step: &Step) -> ForceRelease {
        let Some(lease) = &self.lease else { return ForceRelease::NobodyHeld };
        if !force.is_about(lease.owner, lease.token) {
            return ForceRelease::Others(vec![info(lease, step.now)]);
        }
        let token = lease.token;
        self.lease = None;
        self.forced = Some(ForcedInfo::new(force.forced.clone(), step.wall, token));
        ForceRelease::Ended(vec![token])
    }
}

fn info(lease: &Lease, now: Moment) -> LeaseInfo {
    let remaining = Some(now.until(lease.expires));
    LeaseInfo::new(Some(lease.owner), Some(lease.token), lease.held_by(), remaining)
}

impl Backend for SmallStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn limits(&self) -> Limits {
        Limits::new(16, 16)
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        Box::pin(async move {
            let mut verdicts = Vec::new();
            for claim in &claims {
                let acquire = |record: &mut Record, step: &Step| record.acquire(claim, step);
                verdicts.push(self.change(&claim.lock(), acquire).await?);
            }
            Ok(verdicts)
        })
    }

    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        Box::pin(async move {
            loop {
                // Before the look: what is written after it is heard.
                let written = self.server.written();
                let acquire = |record: &mut Record, step: &Step| record.acquire(&claim, step);
                match self.change(&claim.lock(), acquire).await? {
                    Verdict::Granted(grant) => return Ok(Turn::Granted(grant)),
                    Verdict::Queued(_) => {}
                    _ => return Ok(Turn::TryAgain),
                }
                tokio::select! {
                    () = written => {}
                    () = self.clock.sleep(LOOK_AGAIN) => {}
                }
            }
        })
    }

    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        Box::pin(async move {
            let leave = |record: &mut Record, _: &Step| {
                record.leave(claim.owner);
                Ok(())
            };
            self.change(&claim.lock(), leave).await
        })
    }

    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        Box::pin(async move {
            let mut grants = Vec::new();
            for claim in &claims {
                let settle = |record: &mut Record, step: &Step| Ok(record.settle(claim, step));
                grants.push(self.change(&claim.lock(), settle).await?);
            }
            Ok(grants)
        })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        Box::pin(async move {
            let mut renewals = Vec::new();
            for hold in &holds {
                let renew = |record: &mut Record, step: &Step| Ok(record.renew(hold, step));
                renewals.push(self.change(&hold.lock(), renew).await?);
            }
            Ok(renewals)
        })
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        Box::pin(async move {
            let mut releases = Vec::new();
            for hold in &holds {
                let release = |record: &mut Record, _: &Step| Ok(record.release(hold));
                releases.push(self.change(&hold.lock(), release).await?);
            }
            Ok(releases)
        })
    }

    fn inspect(self: Arc<Self>, lock: LockId) -> Reply<Option<LockInfo>> {
        Box::pin(async move {
            let Read { mut record, now, version } = self.server.get(&lock.name).await?;
            record.expire(now);
            let mut seen = LockInfo::free(lock).held(record.lease.map(|lease| info(&lease, now)));
            (seen.waiters, seen.forced) = (record.queue.len(), record.forced);
            Ok((version > 0).then_some(seen))
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        Box::pin(async move {
            let mut list = Vec::new();
            for name in self.server.names(&prefix).await? {
                list.extend(self.clone().inspect(name.into()).await?);
            }
            list.retain(|info| info.lease().is_some() || info.waiters > 0);
            Ok(list)
        })
    }

    fn force_release(self: Arc<Self>, lock: LockId, force: Force) -> Reply<ForceRelease> {
        Box::pin(async move {
            let release = |record: &mut Record, step: &Step| Ok(record.force_release(&force, step));
            self.change(&lock, release).await
        })
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        Box::pin(async { Ok(vec![Finding::fine("the server answers")]) })
    }
}
