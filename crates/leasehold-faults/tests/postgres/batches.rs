//! Locks that are known, new, held and settled, in one request of lease mode: each gets its
//! own verdict, however the server was asked.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Claim, Verdict, postgres};
use leasehold::clock::Clock;
use leasehold::{Holder, Name};
use leasehold_faults::servers::Postgres;

fn claims(names: &[&str]) -> Vec<Claim> {
    let holder = Arc::new(Holder::this_process());
    let claim = |name: &&str| {
        Claim::new(Name::new(*name).unwrap(), Duration::from_secs(30), holder.clone())
    };
    names.iter().map(claim).collect()
}

/// Takes these and gives them back: from then on the server knows them.
async fn make_known(store: &Arc<dyn Backend>, names: &[&str]) {
    let claims = claims(names);
    let verdicts = store.clone().acquire(claims.clone()).await.unwrap();
    let granted = claims.iter().zip(verdicts).map(|(claim, verdict)| match verdict {
        Verdict::Granted(grant) => claim.hold(grant.token),
        other => panic!("{}: {other:?}", claim.name),
    });
    store.clone().release(granted.collect()).await.unwrap();
}

#[tokio::test]
async fn each_lock_of_a_mixed_batch_gets_its_own_verdict() {
    let server = Postgres::start(&[]).unwrap();
    let other = postgres::open(&server.url(), Clock::boot()).await.unwrap();
    make_known(&other, &["b", "d", "f", "h"]).await;
    other.clone().acquire(claims(&["d"])).await.unwrap();

    // A client of its own, so that nothing has led it to the long way yet.
    let store = postgres::open(&server.url(), Clock::boot()).await.unwrap();
    let asked = claims(&["h", "a", "f", "d", "c", "b"]);
    store.clone().settle(vec![asked[2].clone()]).await.unwrap();
    let verdicts = store.clone().acquire(asked.clone()).await.unwrap();
    for (claim, verdict) in asked.iter().zip(&verdicts) {
        let name = claim.name.as_str();
        let info = store.clone().inspect(claim.lock()).await.unwrap();
        let lease = info.and_then(|info| info.leases.into_iter().next());
        match (name, verdict) {
            ("d", Verdict::Held(Some(_))) | ("f", Verdict::Held(_)) => {
                assert_ne!(lease.and_then(|lease| lease.owner), Some(claim.owner), "{name}");
            }
            ("a" | "b" | "c" | "h", Verdict::Granted(grant)) => {
                let lease = lease.unwrap();
                assert_eq!(lease.owner, Some(claim.owner), "{name}");
                assert_eq!(lease.token, Some(grant.token), "{name}");
            }
            _ => panic!("{name}: {verdict:?}"),
        }
    }
}

/// The verdict of a request is one for all: what was taken is given back when the rest fails,
/// and those who wait in the queue are not told that their place is in doubt.
#[tokio::test]
async fn what_was_taken_is_given_back_when_the_rest_of_its_request_fails() {
    let server = Postgres::start(&[]).unwrap();
    let store = postgres::open(&server.url(), Clock::boot()).await.unwrap();
    make_known(&store, &["known"]).await;
    let store = postgres::open(&server.url(), Clock::boot()).await.unwrap();
    server.psql("alter function leasehold.acquire rename to acquired").unwrap();
    let error = store.clone().acquire(claims(&["known", "new"])).await.unwrap_err();
    assert_eq!(error.outcome(), leasehold::Outcome::NotApplied, "{error}");
    let known = store.clone().inspect(Name::new("known").unwrap().into()).await.unwrap();
    assert!(known.is_none_or(|info| info.lease().is_none()));
    server.psql("alter function leasehold.acquired rename to acquire").unwrap();
    make_known(&store, &["known", "new"]).await;
}
