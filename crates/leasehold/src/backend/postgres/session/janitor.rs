//! What nobody asks for, but somebody must do: say that the session is there, give back what
//! its holder did not renew, end waits that nobody waits for, and tell others who holds what.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::super::key::{Key, shown};
use super::lifeline::Lifeline;
use super::table::{Held, Waiting};
use super::{SessionStore, hold, verbs};
use crate::backend::Claim;
use crate::backend::kit::owner_map::OwnerMap;
use crate::clock::Moment;
use crate::error::Result;
use crate::owner::Owner;

const TICK: Duration = Duration::from_millis(50);
/// A place in line is kept for so long when nobody waits on it.
const UNATTENDED: Duration = Duration::from_secs(3);
/// What is held for less than this is nobody's business: it is over before it is told.
const PUBLISHED_AFTER: Duration = Duration::from_millis(40);
/// How many leases are told of in one statement.
const AT_ONCE: usize = 512;
const ENDED_FOR: Duration = Duration::from_secs(600);
const TICKS_BETWEEN_SWEEPS: u32 = 1_200;

pub(super) async fn look_after(store: Weak<SessionStore>, closing: CancellationToken) {
    let mut ticks = fastrand::u32(..TICKS_BETWEEN_SWEEPS);
    loop {
        tokio::select! {
            () = tokio::time::sleep(TICK) => {}
            () = closing.cancelled() => return,
        }
        let Some(store) = store.upgrade() else { return };
        let idle = store.tidy().await;
        ticks = ticks.wrapping_add(1);
        if ticks % TICKS_BETWEEN_SWEEPS == 0
            && let Some(session) = store.aside.present()
            && let Err(error) = session.rows(&verbs::SWEEP, &[]).await
        {
            tracing::debug!(%error, "sweeping is put off");
        }
        if idle {
            // Something to look after comes with a ring; a session wants its sign of life.
            let work = store.work.notified();
            tokio::select! {
                () = work => {}
                () = tokio::time::sleep(TICK * 5) => {}
                () = closing.cancelled() => return,
            }
        }
    }
}

impl SessionStore {
    /// One round; whether there is nothing to look after.
    async fn tidy(self: &Arc<Self>) -> bool {
        let now = self.clock.now();
        let (lines, lapsed, left, fresh, retract, idle) = {
            let mut table = self.table.lock();
            table.barred.retain(|_, until| *until > now);
            table.crowded.retain(|_, until| *until > now);
            table.ended.retain(|_, at| *at + ENDED_FOR > now);
            let mut lines: Vec<Arc<Lifeline>> = table.spare.clone();
            for held in table.held.values().filter(|held| !held.shared) {
                lines.push(held.line.clone());
            }
            let lapsed: Vec<Owner> = table
                .held
                .iter()
                .filter(|(_, held)| held.kept_until() <= now)
                .map(|(owner, _)| *owner)
                .collect();
            let lapsed: Vec<Held> =
                lapsed.into_iter().filter_map(|owner| table.remove(owner)).collect();
            let left: Vec<Owner> = table
                .waiting
                .iter()
                .filter(|(_, waiting)| waiting.is_left(now, UNATTENDED))
                .map(|(owner, _)| *owner)
                .collect();
            let fresh = unpublished(&mut table.held, now);
            let retract = std::mem::take(&mut table.retract);
            let idle = table.held.is_empty() && table.waiting.is_empty();
            (lines, lapsed, left, fresh, retract, idle)
        };
        let shared = self.shared.lock().clone();
        for line in lines.into_iter().chain(shared).filter(|line| line.is_open()) {
            if line.is_due(now) {
                tokio::spawn(async move { line.ping().await });
            }
        }
        if !lapsed.is_empty() {
            let _ = hold::give_back(self, lapsed).await;
        }
        for owner in left {
            self.abandon(owner);
        }
        if let Err(error) = self.tell(&fresh, &retract).await {
            tracing::debug!(%error, "nobody is told who holds what");
        }
        idle
    }

    /// A wait that nobody waits for: out of the line, and out of what it got meanwhile.
    fn abandon(self: &Arc<Self>, owner: Owner) {
        let waiting = {
            let (mut table, now) = (self.table.lock(), self.clock.now());
            // Somebody may have come back meanwhile.
            let left = |waiting: &mut Waiting| waiting.is_left(now, UNATTENDED);
            table.waiting.get_mut(&owner).is_some_and(left).then(|| table.waiting.remove(&owner))
        };
        let Some(waiting) = waiting.flatten() else { return };
        waiting.cancel.cancel();
        let store = self.clone();
        tokio::spawn(async move {
            waiting.over().await;
            let held = {
                let mut table = store.table.lock();
                let untold = table.held.get(&owner).is_some_and(|held| !held.told);
                untold.then(|| table.remove(owner)).flatten()
            };
            if let Some(held) = held {
                let _ = hold::give_back(&store, vec![held]).await;
            }
        });
    }

    /// Tells others who holds what.
    async fn tell(&self, fresh: &[Held], retract: &[(Key, i32, i64)]) -> Result<()> {
        if fresh.is_empty() && retract.is_empty() {
            return Ok(());
        }
        let session = self.aside.session().await?;
        if !retract.is_empty() {
            let (high, low, form) = shown(retract.iter().map(|gone| gone.0));
            let backends: Vec<i32> = retract.iter().map(|gone| gone.1).collect();
            let tokens: Vec<i64> = retract.iter().map(|gone| gone.2).collect();
            session.rows(&verbs::RETRACT, &[&high, &low, &form, &backends, &tokens]).await?;
        }
        let mut rest = fresh;
        while let Some(first) = rest.first() {
            // As a rule all are of one holder.
            let alike = rest.iter().take(AT_ONCE).take_while(|held| same_holder(held, first));
            let count = alike.count();
            let (some, others) = rest.split_at(count);
            self.publish(&session, some, &first.claim).await?;
            rest = others;
        }
        Ok(())
    }

    async fn publish(&self, session: &super::Session, held: &[Held], claim: &Claim) -> Result<()> {
        let now = self.clock.now();
        let (high, low, form) = shown(held.iter().map(|held| held.key));
        let names: Vec<&str> = held.iter().map(|held| held.claim.name.as_str()).collect();
        let tokens: Vec<i64> = held.iter().map(|held| held.token.get() as i64).collect();
        let owners: Vec<[u8; 16]> = held.iter().map(|held| held.claim.owner.to_bytes()).collect();
        let owners: Vec<&[u8]> = owners.iter().map(|owner| &owner[..]).collect();
        let backends: Vec<i32> = held.iter().map(|held| held.line.backend()).collect();
        let since: Vec<i64> = held.iter().map(|held| wall_micros(held.since)).collect();
        let left: Vec<i64> = held
            .iter()
            .map(|held| i64::try_from(now.until(held.kept_until()).as_micros()).unwrap_or(i64::MAX))
            .collect();
        let holder = &claim.holder;
        let pid = holder.pid as i32;
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 12] = [
            &high,
            &low,
            &form,
            &names,
            &tokens,
            &owners,
            &backends,
            &since,
            &left,
            &holder.host,
            &pid,
            &holder.label,
        ];
        session.rows(&verbs::PUBLISH, &parameters).await.map(drop)
    }
}

fn same_holder(one: &Held, other: &Held) -> bool {
    one.claim.holder == other.claim.holder
}

fn wall_micros(time: std::time::SystemTime) -> i64 {
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// What is held long enough to be told, and not yet.
fn unpublished(held: &mut OwnerMap<Held>, now: Moment) -> Vec<Held> {
    let fresh = held
        .values_mut()
        .filter(|held| !held.published && held.granted + PUBLISHED_AFTER <= now)
        .map(|held| {
            held.published = true;
            held.clone()
        });
    fresh.collect()
}
