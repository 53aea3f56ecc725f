//! Regressions of the keeper, the state and the guard of a lease: what an adversary found.

use std::sync::Arc;

use leasehold::backend::{Claim, Release};
use leasehold::{Holder, Lease};
use leasehold_conformance::fixture::{Client, Fixture};
use leasehold_conformance::stores;

mod proofs;
mod releases;
mod renewals;
mod stalls;

fn fixture() -> Fixture {
    Fixture::new(stores::memory(), None)
}

/// Ends a lease behind its client's back, as a store does that lost its data.
async fn forget(client: &Client, lease: &Lease) {
    let holder = Arc::new(Holder::this_process());
    let claim = Claim::new(lease.name().clone(), lease.ttl(), holder);
    let mut hold = claim.hold(lease.token());
    hold.owner = lease.owner();
    let released = client.store.clone().release(vec![hold]).await.unwrap();
    assert_eq!(released, [Release::Released]);
}
