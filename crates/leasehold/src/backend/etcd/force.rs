//! Force-release: the holder's key goes and a record comes, in one transaction.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};

use super::{EtcdStore, value};
use crate::error::{Error, ErrorKind, Result};
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

/// How long a record is kept: it hangs on a lease of its own.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How often the lock is looked at again because its holder changed meanwhile.
const ATTEMPTS: usize = 5;

impl EtcdStore {
    pub(super) async fn force(&self, name: &Name, forced: &Forced) -> Result<Option<Token>> {
        self.layout.check(name)?;
        for _ in 0..ATTEMPTS {
            let line = self.whole_line(name).await?;
            let Some(first) = line.claims.first() else { return Ok(None) };
            let revision = first.create_revision();
            let token = Token::new(revision as u64);
            let kept = KEPT.as_secs() as i64;
            let lease = self.endpoints.call(async |mut etcd| etcd.lease_grant(kept, None).await);
            let lease = lease.await?.id();
            let record = TxnOp::put(
                self.layout.forced(name, token),
                value::of_forced(forced, self.clock.wall()),
                Some(PutOptions::new().with_lease(lease)),
            );
            let txn = Txn::new()
                .when([Compare::create_revision(first.key(), CompareOp::Equal, revision)])
                .and_then([TxnOp::delete(first.key(), None), record]);
            let sending = self.endpoints.txn(txn);
            if sending.await?.succeeded() {
                return Ok(Some(token));
            }
        }
        let message = "the lock changes hands too fast to be taken away; try again";
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}
