//! One lease at a time: taking, proving, giving back, taking away.

use std::process::Command;

use super::*;
use crate::backend::{Force, ForceRelease, Hint, Hold, Renewal};
use crate::loss::{Forced, LossReason};

#[tokio::test]
async fn a_held_lock_names_its_holder_to_another_store() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    take(&one, &claim("a")).await;
    let Verdict::Held(Some(by)) = ask(&two, &claim("a")).await else { panic!("not held") };
    assert_eq!(by.holder, Some(Holder::this_process()));
    assert_eq!(by.since, Some(fixture.clock().wall()));
}

/// A re-sent request must find its own key, not "held by another" (redis-py).
#[tokio::test]
async fn acquiring_again_gives_the_same_grant() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let claim = claim("a");
    let grant = take(&store, &claim).await;
    assert_eq!(grant.proof.valid_for, TTL);
    fixture.hand.advance(Duration::from_secs(1));
    assert_eq!(take(&store, &claim).await, grant);
}

#[tokio::test]
async fn a_lease_ends_with_its_ttl_and_not_before() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let first = claim("a");
    let grant = take(&one, &first).await;
    fixture.hand.advance(TTL - Duration::from_nanos(1));
    assert!(matches!(ask(&two, &claim("a")).await, Verdict::Held(_)));
    fixture.hand.advance(Duration::from_nanos(1));
    take(&two, &claim("a")).await;
    assert_eq!(give_back(&one, &first, grant).await, Release::NotHeld);
}

/// Renewal never re-takes (RedLock.net#48), and tells why.
#[tokio::test]
async fn renewal_extends_a_live_lease_only() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let first = claim("a");
    let hold = first.hold(take(&store, &first).await.token);
    fixture.hand.advance(TTL / 2);
    let renewed = store.clone().renew(vec![hold.clone()]).await.unwrap();
    let Renewal::Renewed(proof) = &renewed[0] else { panic!("{renewed:?}") };
    assert_eq!((proof.at, proof.valid_for), (fixture.clock().now(), TTL));
    fixture.hand.advance(TTL - Duration::from_nanos(1));
    assert!(matches!(ask(&store, &claim("a")).await, Verdict::Held(_)), "extended");

    fixture.hand.advance(Duration::from_nanos(1));
    let lapsed = store.clone().renew(vec![hold.clone()]).await.unwrap();
    assert_eq!(lapsed, [Renewal::NotYours(LossReason::Expired)]);
    take(&store, &claim("a")).await;
    let taken = store.clone().renew(vec![hold]).await.unwrap();
    assert_eq!(taken, [Renewal::NotYours(LossReason::Taken)]);
}

/// A renewal that was held up must not take back what a later one proved.
#[tokio::test]
async fn a_shorter_renewal_does_not_shorten_the_lease() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let first = claim("a");
    let hold = first.hold(take(&store, &first).await.token);
    let short = Hold { ttl: TTL / 2, ..hold };
    let renewed = store.clone().renew(vec![short]).await.unwrap();
    assert!(matches!(renewed[0], Renewal::Renewed(proof) if proof.valid_for == TTL / 2));
    fixture.hand.advance(TTL - Duration::from_nanos(1));
    assert!(matches!(ask(&store, &claim("a")).await, Verdict::Held(_)));
}

#[tokio::test]
async fn releasing_a_lapsed_lease_tells_the_truth() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let first = claim("a");
    let grant = take(&store, &first).await;
    fixture.hand.advance(TTL);
    assert_eq!(give_back(&store, &first, grant).await, Release::NotHeld);
    assert_eq!(give_back(&store, &first, grant).await, Release::NotHeld);
}

#[tokio::test]
async fn settling_adopts_a_grant_or_leaves_a_tombstone() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let (got, late) = (claim("a"), claim("b"));
    let grant = take(&store, &got).await;
    let settled = store.clone().settle(vec![got, late.clone()]).await.unwrap();
    assert_eq!(settled, [Some(grant), None]);
    assert_eq!(ask(&store, &late).await, Verdict::Held(None), "still on its way");
    take(&store, &claim("b")).await;

    fixture.hand.advance(Duration::from_secs(3_600));
    fixture.keeper().sweep().unwrap();
    let session = fixture.keeper().session;
    assert!(!session.prepare("select 1 from bars").unwrap().exists(()).unwrap(), "forgotten");
}

#[tokio::test]
async fn a_batch_is_judged_item_by_item() {
    let fixture = Fixture::new();
    let store = fixture.open();
    take(&store, &claim("lock 7")).await;
    let claims: Vec<_> = (0..200).map(|i| claim(&format!("lock {i}"))).collect();
    let verdicts = store.clone().acquire(claims.clone()).await.unwrap();
    let holds: Vec<_> = (claims.iter().zip(&verdicts))
        .filter_map(|(claim, verdict)| match verdict {
            Verdict::Granted(grant) => Some(claim.hold(grant.token)),
            _ => None,
        })
        .collect();
    assert_eq!(holds.len(), 199);
    assert!(matches!(verdicts[7], Verdict::Held(Some(_))));
    let renewed = store.clone().renew(holds.clone()).await.unwrap();
    assert!(renewed.iter().all(|renewal| matches!(renewal, Renewal::Renewed(_))));
    let released = store.clone().release(holds).await.unwrap();
    assert!(released.iter().all(|release| *release == Release::Released));
}

#[tokio::test]
async fn force_is_recorded_and_told_to_the_old_holder() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let held = claim("a");
    let grant = take(&one, &held).await;
    let hint = tokio::spawn(one.clone().hint());
    tokio::task::yield_now().await;
    let forced = Forced::new("ada", "the report hangs");
    let ended =
        two.clone().force_release(name("a").into(), Force::new(forced.clone())).await.unwrap();
    assert_eq!(ended, ForceRelease::Ended(vec![grant.token]));
    assert_eq!(hint.await.unwrap().unwrap(), Hint::Lease(held.owner));

    let verdict = one.clone().renew(vec![held.hold(grant.token)]).await.unwrap();
    assert_eq!(verdict, [Renewal::NotYours(LossReason::Forced(forced.clone()))]);
    assert_eq!(give_back(&one, &held, grant).await, Release::NotHeld);
    let info = two.clone().inspect(name("a").into()).await.unwrap().unwrap();
    assert_eq!(info.lease(), None);
    let record = info.forced.unwrap();
    assert_eq!((record.forced, record.token), (forced, grant.token));
    assert!(take(&two, &claim("a")).await.token > grant.token);
    let nobody = Forced::new("ada", "again");
    let ended = two.clone().force_release(name("b").into(), Force::new(nobody)).await.unwrap();
    assert_eq!(ended, ForceRelease::NobodyHeld);
}

#[tokio::test]
async fn a_holder_whose_process_is_gone_is_replaced_at_once() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let holder = Arc::new(Holder::new("here", child.id(), "sleep"));
    take(&store, &Claim { holder, ..claim("a") }).await;
    assert!(matches!(ask(&store, &claim("a")).await, Verdict::Held(_)));

    child.kill().unwrap();
    child.wait().unwrap();
    take(&store, &claim("a")).await;
    fixture.keeper().sweep().unwrap();
    let session = fixture.keeper().session;
    let count = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    let clients = session.connection.query_row("select count(*) from clients", (), count).unwrap();
    assert_eq!(clients, 1, "the gone one is forgotten, the live one is not");
}

#[tokio::test]
async fn lists_by_a_literal_prefix_in_order() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let locks = ["jobs%b", "jobs%a", "jobsXa", "jobs_1", "jobs", "job", "zz"];
    for lock in locks {
        take(&store, &claim(lock)).await;
    }
    let free = claim("jobs%free");
    let grant = take(&store, &free).await;
    give_back(&store, &free, grant).await;
    let list = async |prefix: &str| -> Vec<String> {
        let found = store.clone().list(prefix.to_owned()).await.unwrap();
        found.iter().map(|info| info.name.to_string()).collect()
    };
    assert_eq!(list("jobs%").await, ["jobs%a", "jobs%b"]);
    assert_eq!(list("jobs_").await, ["jobs_1"]);
    assert_eq!(list("").await.len(), locks.len());
    assert!(list("nothing").await.is_empty());
}

/// A long list would keep leases from being renewed.
#[tokio::test]
#[expect(clippy::await_holding_lock, reason = "the test is that nobody wants it")]
async fn listing_and_examining_stand_in_no_requests_way() {
    let fixture = Fixture::new();
    let store = fixture.open();
    take(&store, &claim("a")).await;
    let _busy = store.session.lock();
    assert_eq!(store.clone().list(String::new()).await.unwrap().len(), 1);
    store.clone().examine().await.unwrap();
}
