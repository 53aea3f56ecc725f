//! Wrong stores: a right one behind a wrapper that breaks one promise.

use std::collections::HashMap;
use std::sync::Arc;

use leasehold::backend::{
    Backend, Changes, Claim, Finding, Force, ForceRelease, Grant, Hint, Hold, Limits, LockId,
    LockInfo, Mode, Proof, Record, Release, Renewal, Reply, State, Turn, Verdict, Version, Watched,
    Written,
};
use leasehold::clock::Clock;
use leasehold::{Guarantees, HeldBy, Holder, LossReason, Name, Token};
use parking_lot::Mutex;

macro_rules! wrong_stores {
    ($($(#[$doc:meta])* $wrong:ident: $case:ident,)*) => {
        /// The promise that a store breaks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum WrongStore { $($(#[$doc])* $wrong,)* }

        impl WrongStore {
            /// All of them.
            pub const ALL: &[WrongStore] = &[$(WrongStore::$wrong,)*];

            /// The case that must reject it.
            pub fn rejected_by(self) -> &'static str {
                match self { $(WrongStore::$wrong => stringify!($case),)* }
            }
        }
    };
}

wrong_stores! {
    /// Renewal by upsert: takes a lock that had lapsed.
    RenewRetakes: renewal_never_takes_a_lost_lock_again,
    /// Renewal says yes to everybody.
    RenewAlwaysYes: a_forced_holder_is_told_and_why,
    /// Release deletes whatever is there.
    ReleaseIgnoresOwner: nobody_else_can_release_or_renew,
    /// Release says yes to everybody.
    ReleaseAlwaysYes: nobody_else_can_release_or_renew,
    /// The counter goes with the record.
    TokenResetsOnRelease: rise_over_release_expiry_and_force,
    /// More digits than JavaScript can count.
    TokenNotPortable: stay_portable,
    /// The deadline counts from the response.
    ProofAtResponse: the_deadline_counts_from_before_the_request,
    /// A late request of a settled owner still takes the lock.
    SettleLeavesNoTombstone: a_late_request_of_a_settled_owner_takes_nothing,
    /// Its own key is "held by another".
    RefusesItsOwnOwner: the_same_owner_gets_the_same_grant_again,
    /// A place in the queue that nobody can leave.
    LeaveDoesNothing: a_cancelled_waiter_leaves_the_queue,
    /// Waiting until somebody looks: no wake-up on release.
    NeverWakes: a_waiter_gets_the_lock_on_release,
    /// A pushed grant is believed for longer than the store keeps it.
    PushedGrantTooLong: a_pushed_grant_without_renewal_is_whole,
    /// Force-release looks like theft.
    ForgetsWhoForced: a_forced_holder_is_told_and_why,
    /// Force-release leaves no record.
    ForceUnrecorded: a_force_release_is_recorded,
    /// Nobody knows who holds it.
    HidesHolder: patience_ends_with_who_holds_it,
    /// A prefix is taken as a pattern.
    ListsTooMuch: list_takes_its_prefix_literally,
    /// More permits than there are.
    OverCapacity: weights_never_exceed_the_capacity,
    /// Some of those that belong together.
    TogetherPartly: locks_that_belong_together_are_taken_all_or_none,
    /// Force-release of whoever holds it, not of the one that the operator saw.
    ForceIgnoresExpected: a_force_release_of_another_token_ends_nobody,
    /// A record is written by a lease that is gone.
    WriteIgnoresLease: a_record_is_written_only_under_a_live_lease,
    /// A record is written over a newer one.
    WriteIgnoresVersion: a_write_of_an_old_version_is_refused,
}

impl WrongStore {
    pub(super) fn spoil(self, store: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Spoiled { store, wrong: self, counters: Mutex::default() })
    }
}

#[derive(Debug)]
struct Spoiled {
    store: Arc<dyn Backend>,
    wrong: WrongStore,
    counters: Mutex<HashMap<Name, u64>>,
}

impl Spoiled {
    fn is(&self, wrong: WrongStore) -> bool {
        self.wrong == wrong
    }

    fn grant(&self, name: &Name, mut grant: Grant) -> Grant {
        match self.wrong {
            WrongStore::ProofAtResponse => grant.proof.at = self.clock().now(),
            WrongStore::TokenNotPortable => grant.token = Token::new(grant.token.get() | 1 << 60),
            WrongStore::TokenResetsOnRelease => {
                let mut counters = self.counters.lock();
                let counter = counters.entry(name.clone()).or_default();
                *counter += 1;
                grant.token = Token::new(*counter);
            }
            _ => {}
        }
        grant
    }

    fn held(&self, by: Option<HeldBy>) -> Option<HeldBy> {
        by.filter(|_| !self.is(WrongStore::HidesHolder))
    }

    async fn owner_of(&self, name: &Name) -> Option<leasehold::Owner> {
        let info = self.store.clone().inspect(name.clone().into()).await.ok()??;
        info.lease()?.owner
    }

    async fn claim(&self, mut claim: Claim) -> leasehold::Result<Verdict> {
        if self.is(WrongStore::OverCapacity)
            && let Mode::Permits { of, .. } = &mut claim.mode
        {
            *of *= 2;
        }
        if self.is(WrongStore::RefusesItsOwnOwner)
            && self.owner_of(&claim.name).await == Some(claim.owner)
        {
            return Ok(Verdict::Held(None));
        }
        let name = claim.name.clone();
        let verdict = self.store.clone().acquire(vec![claim]).await?.remove(0);
        Ok(match verdict {
            Verdict::Granted(grant) => Verdict::Granted(self.grant(&name, grant)),
            Verdict::Held(by) => Verdict::Held(self.held(by)),
            Verdict::Queued(by) => Verdict::Queued(self.held(by)),
            other => other,
        })
    }

    async fn renew_one(&self, hold: Hold) -> leasehold::Result<Renewal> {
        let proof = Proof { at: self.clock().now(), valid_for: hold.ttl };
        let verdict = self.store.clone().renew(vec![hold.clone()]).await?.remove(0);
        Ok(match (self.wrong, verdict) {
            (WrongStore::RenewAlwaysYes, Renewal::NotYours(_)) => Renewal::Renewed(proof),
            (WrongStore::RenewRetakes, Renewal::NotYours(LossReason::Expired)) => {
                let holder = Arc::new(Holder::this_process());
                let mut claim = Claim::new(hold.name, hold.ttl, holder);
                claim.owner = hold.owner;
                self.store.clone().acquire(vec![claim]).await?;
                Renewal::Renewed(proof)
            }
            (WrongStore::ForgetsWhoForced, Renewal::NotYours(_)) => {
                Renewal::NotYours(LossReason::Taken)
            }
            (_, verdict) => verdict,
        })
    }

    async fn release_one(&self, mut hold: Hold) -> leasehold::Result<Release> {
        if self.is(WrongStore::ReleaseIgnoresOwner)
            && let Some(owner) = self.owner_of(&hold.name).await
        {
            hold.owner = owner;
        }
        self.counters.lock().remove(&hold.name);
        let verdict = self.store.clone().release(vec![hold]).await?.remove(0);
        Ok(if self.is(WrongStore::ReleaseAlwaysYes) { Release::Released } else { verdict })
    }
}

impl Backend for Spoiled {
    fn guarantees(&self) -> &Guarantees {
        self.store.guarantees()
    }

    fn clock(&self) -> &Clock {
        self.store.clock()
    }

    fn limits(&self) -> Limits {
        self.store.limits()
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        Box::pin(async move {
            let mut verdicts = Vec::new();
            for claim in claims {
                verdicts.push(self.claim(claim).await?);
            }
            Ok(verdicts)
        })
    }

    fn acquire_all(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        match self.wrong {
            WrongStore::TogetherPartly => self.acquire(claims),
            _ => self.store.clone().acquire_all(claims),
        }
    }

    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        Box::pin(async move {
            if self.is(WrongStore::NeverWakes) {
                self.clock().sleep(claim.ttl).await;
            }
            let ttl = claim.ttl;
            let name = claim.name.clone();
            Ok(match self.store.clone().wait(claim).await? {
                Turn::Granted(mut grant) => {
                    if self.is(WrongStore::PushedGrantTooLong) {
                        grant.proof.valid_for = ttl;
                    }
                    Turn::Granted(self.grant(&name, grant))
                }
                Turn::TryAgain => Turn::TryAgain,
            })
        })
    }

    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        match self.wrong {
            WrongStore::LeaveDoesNothing => Box::pin(async { Ok(()) }),
            _ => self.store.clone().leave(claim),
        }
    }

    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        Box::pin(async move {
            let mut grants = Vec::new();
            for claim in claims {
                let mine = self.owner_of(&claim.name).await == Some(claim.owner);
                if self.is(WrongStore::SettleLeavesNoTombstone) && !mine {
                    grants.push(None);
                    continue;
                }
                let name = claim.name.clone();
                let grant = self.store.clone().settle(vec![claim]).await?.remove(0);
                grants.push(grant.map(|grant| self.grant(&name, grant)));
            }
            Ok(grants)
        })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        Box::pin(async move {
            let mut verdicts = Vec::new();
            for hold in holds {
                verdicts.push(self.renew_one(hold).await?);
            }
            Ok(verdicts)
        })
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        Box::pin(async move {
            let mut verdicts = Vec::new();
            for hold in holds {
                verdicts.push(self.release_one(hold).await?);
            }
            Ok(verdicts)
        })
    }

    fn inspect(self: Arc<Self>, lock: LockId) -> Reply<Option<LockInfo>> {
        Box::pin(async move {
            let mut info = self.store.clone().inspect(lock).await?;
            if let Some(info) = &mut info {
                match self.wrong {
                    WrongStore::ForceUnrecorded => info.forced = None,
                    WrongStore::HidesHolder => {
                        if let Some(lease) = info.leases.first_mut() {
                            lease.held_by = HeldBy::new(None, None);
                        }
                    }
                    _ => {}
                }
            }
            Ok(info)
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        let prefix = match self.wrong {
            WrongStore::ListsTooMuch => prefix.trim_end_matches(['%', '_']).to_owned(),
            _ => prefix,
        };
        self.store.clone().list(prefix)
    }

    fn force_release(self: Arc<Self>, lock: LockId, mut force: Force) -> Reply<ForceRelease> {
        if self.is(WrongStore::ForceIgnoresExpected) {
            force.expected = None;
        }
        self.store.clone().force_release(lock, force)
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        self.store.clone().examine()
    }

    fn hint(self: Arc<Self>) -> Reply<Hint> {
        self.store.clone().hint()
    }

    fn state(self: Arc<Self>) -> Option<Arc<dyn State>> {
        let state = self.store.clone().state()?;
        Some(Arc::new(SpoiledState { state, spoiled: self }))
    }
}

#[derive(Debug)]
struct SpoiledState {
    state: Arc<dyn State>,
    spoiled: Arc<Spoiled>,
}

impl State for SpoiledState {
    fn read(self: Arc<Self>, lock: LockId) -> Reply<Option<Record>> {
        self.state.clone().read(lock)
    }

    fn write(
        self: Arc<Self>,
        mut hold: Hold,
        mut expected: Option<Version>,
        value: Arc<[u8]>,
        keep: Option<std::time::Duration>,
    ) -> Reply<Written> {
        Box::pin(async move {
            if self.spoiled.is(WrongStore::WriteIgnoresVersion) {
                let present = self.state.clone().read(hold.lock()).await?;
                expected = present.map(|record| record.version);
            }
            if self.spoiled.is(WrongStore::WriteIgnoresLease) {
                // In the name of whoever has the lock now, or of nobody.
                let holder = Arc::new(Holder::this_process());
                let claim = Claim::new(hold.name.clone(), hold.ttl, holder);
                let store = self.spoiled.store.clone();
                if let Verdict::Granted(grant) = store.acquire(vec![claim.clone()]).await?.remove(0)
                {
                    hold = claim.hold(grant.token);
                }
            }
            self.state.clone().write(hold, expected, value, keep).await
        })
    }

    fn now(self: Arc<Self>) -> Reply<Option<std::time::SystemTime>> {
        self.state.clone().now()
    }

    fn watch(self: Arc<Self>, what: Watched) -> Box<dyn Changes> {
        self.state.clone().watch(what)
    }
}
