//! A claim's place: which session it goes on, and what becomes of it without an answer.

use std::sync::Arc;

use super::EtcdStore;
use super::session::Session;
use super::table::{Entry, Stage};
use crate::backend::Claim;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};

/// A claim and where it goes.
pub(super) struct Seated {
    pub(super) claim: Claim,
    pub(super) entry: Entry,
    /// Whether nothing was known of its owner before. A key of that owner is then one that
    /// was given up: its removal may be under way.
    pub(super) fresh: bool,
    /// Whether it takes a place in line although it does not wait: where nested names come and go,
    /// that nobody has the lock can only be seen from there.
    pub(super) joins: bool,
}

impl EtcdStore {
    /// A session for this claim, in which no other claim of ours is on the same lock.
    pub(super) async fn seat(self: &Arc<Self>, claim: &Claim) -> Result<(Entry, bool)> {
        let seconds = claim.ttl.as_secs() + u64::from(claim.ttl.subsec_nanos() > 0);
        if let Some(seat) = self.table.lock().seat(claim, seconds, self.clock.now()) {
            return Ok(seat);
        }
        let _one_at_a_time = self.opening.lock().await;
        if let Some(seat) = self.table.lock().seat(claim, seconds, self.clock.now()) {
            return Ok(seat);
        }
        let opening =
            Session::open(self.endpoints.clone(), self.clock.clone(), &self.layout, seconds);
        // Nothing of the claim itself was sent: without a session it was not applied.
        let session = opening.await.map_err(not_applied)?;
        self.follow_session(&session);
        let mut table = self.table.lock();
        table.add_session(seconds, session);
        let seated = table.seat(claim, seconds, self.clock.now());
        seated.ok_or_else(|| {
            let message = "etcd took longer to open a session than the TTL lasts; use a longer one";
            Error::new(ErrorKind::Unavailable, message)
        })
    }
}

fn not_applied(error: Error) -> Error {
    let plain = Error::new(error.kind().clone(), error.to_string());
    plain.caused_by(error)
}

/// Claims that are under way. Dropped without an answer, they may have left keys.
pub(super) struct Unanswered<'a> {
    pub(super) store: &'a EtcdStore,
    pub(super) seated: &'a [&'a Seated],
}

impl Unanswered<'_> {
    /// The store certainly did nothing: who was not in line before is not now.
    pub(super) fn not_applied(self) {
        let now: Moment = self.store.clock.now();
        let mut table = self.store.table.lock();
        for Seated { claim, .. } in self.seated {
            if table.get(claim.owner).is_some_and(|entry| matches!(entry.stage, Stage::Asked)) {
                table.forget(claim.owner, now);
            }
        }
        drop(table);
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let now = self.store.clock.now();
        for Seated { entry, .. } in self.seated {
            entry.session.suspect(now);
        }
    }
}
