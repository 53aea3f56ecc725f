//! What only etcd offers: a compare that makes the user's own transaction fail when the
//! lease is no longer the owner.

use etcd_client::{Compare, CompareOp};

use super::EtcdStore;
use crate::backend::Hold;
use crate::error::{Error, Result};

impl EtcdStore {
    /// The compare for a transaction of your own that may only take effect while this
    /// [lease](crate::Lease::hold) has its lock: etcd itself checks it, at the moment of the write.
    ///
    /// The lease must have been taken through a client of this very store
    /// ([`Locks::on`](crate::Locks::on)).
    ///
    /// ```no_run
    /// # async fn example(mut etcd: etcd_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::backend::etcd::EtcdStore;
    /// use leasehold::{Locks, clock::Clock};
    ///
    /// let store = EtcdStore::open("etcd://127.0.0.1/locks", Clock::boot()).await?;
    /// let locks = Locks::on(store.clone()).await?;
    /// let lease = locks.lock("inventory").acquire().await?;
    /// let guarded = etcd_client::Txn::new()
    ///     .when([store.is_owner(&lease.hold())?])
    ///     .and_then([etcd_client::TxnOp::put("stock", "41", None)]);
    /// assert!(etcd.txn(guarded).await?.succeeded(), "the lock was lost");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotHeld`](crate::ErrorKind::NotHeld) when this store does not know the lease, or
    /// not any more.
    pub fn is_owner(&self, hold: &Hold) -> Result<Compare> {
        let ledger = self.ledger.lock();
        let entry = ledger.claims.get(hold.owner).ok_or_else(Error::not_held)?;
        let revision = i64::try_from(hold.token.get()).map_err(|_| Error::not_held())?;
        let key = self.layout.lock(&hold.name, entry.session.id);
        Ok(Compare::create_revision(key, CompareOp::Equal, revision))
    }
}
