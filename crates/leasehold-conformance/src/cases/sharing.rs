//! Locks that several leases share, and requests that are about several locks.
//!
//! A store without a kind of lock must refuse it with the reason.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{
    Backend, Claim, Force, ForceRelease, Grant, LockId, LockKind, Mode, Renewal, Turn, Verdict,
};
use leasehold::{ErrorKind, Forced, Holder, LossReason, Name, Token};

use crate::fixture::{Client, Fixture};

/// A claim that queues.
fn claim(fixture: &Fixture, name: &str, mode: Mode) -> Claim {
    let holder = Arc::new(Holder::new("host", 1, "case"));
    let mut claim = Claim::new(Name::new(name).unwrap(), fixture.ttl(), holder);
    (claim.mode, claim.queue) = (mode, true);
    claim
}

async fn ask(store: &Arc<dyn Backend>, claim: &Claim) -> Verdict {
    store.clone().acquire(vec![claim.clone()]).await.unwrap().remove(0)
}

async fn granted(store: &Arc<dyn Backend>, claim: &Claim) -> Grant {
    match ask(store, claim).await {
        Verdict::Granted(grant) => grant,
        other => panic!("not granted but {other:?}"),
    }
}

async fn give_back(store: &Arc<dyn Backend>, claim: &Claim, token: Token) {
    store.clone().release(vec![claim.hold(token)]).await.unwrap();
}

/// Waits until the claim has its lock.
async fn turn(store: &Arc<dyn Backend>, claim: &Claim) -> Grant {
    let waiting = async {
        loop {
            match store.clone().wait(claim.clone()).await.unwrap() {
                Turn::Granted(grant) => return grant,
                Turn::TryAgain => {
                    if let Verdict::Granted(grant) = ask(store, claim).await {
                        return grant;
                    }
                }
            }
        }
    };
    crate::fixture::within_bound("a turn", waiting).await
}

/// A client, if the store has locks of this kind. Otherwise it refuses them, and says so.
async fn with_kind(fixture: &Fixture, mode: Mode) -> Option<Client> {
    let client = fixture.client().await;
    if client.store.guarantees().kinds.contains(&mode.kind()) {
        return Some(client);
    }
    let name = fixture.name();
    let asked = client.store.clone().acquire(vec![claim(fixture, &name, mode)]).await;
    let refused = asked.unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Refused, "{refused}");
    assert!(client.locks.inspect(&name).await.unwrap().lease().is_none(), "it took something");
    None
}

const TWO_OF_THREE: Mode = Mode::Permits { weight: 2, of: 3 };
const ONE_OF_THREE: Mode = Mode::Permits { weight: 1, of: 3 };

/// A semaphore is worth its number. Trap: more grants than permits (kazoo#213).
pub async fn weights_never_exceed_the_capacity(fixture: &Fixture) {
    let Some(client) = with_kind(fixture, ONE_OF_THREE).await else { return };
    let (store, name) = (&client.store, fixture.name());
    let (heavy, light) = (claim(fixture, &name, TWO_OF_THREE), claim(fixture, &name, ONE_OF_THREE));
    let next = claim(fixture, &name, ONE_OF_THREE);
    let first = granted(store, &heavy).await;
    let second = granted(store, &light).await;
    assert!(second.token > first.token, "tokens rise in the order of grants");
    assert!(matches!(ask(store, &next).await, Verdict::Queued(Some(_))), "four of three");

    let info = store.clone().inspect(heavy.lock()).await.unwrap().expect("it is there");
    let seen: Vec<_> = info.leases.iter().map(|lease| (lease.owner, lease.weight)).collect();
    assert_eq!(seen, [(Some(heavy.owner), 2), (Some(light.owner), 1)]);
    assert_eq!((info.kind, info.capacity, info.waiters), (LockKind::Semaphore, Some(3), 1));

    give_back(store, &light, second.token).await;
    let third = turn(store, &next).await;
    give_back(store, &next, third.token).await;
    give_back(store, &heavy, first.token).await;
}

/// Any number of readers, or one writer.
pub async fn readers_share_and_a_writer_is_alone(fixture: &Fixture) {
    let Some(client) = with_kind(fixture, Mode::Read).await else { return };
    let (store, name) = (&client.store, fixture.name());
    let readers: Vec<_> = (0..3).map(|_| claim(fixture, &name, Mode::Read)).collect();
    let writer = claim(fixture, &name, Mode::Write);
    let late = claim(fixture, &name, Mode::Read);
    let mut tokens = Vec::new();
    for reader in &readers {
        tokens.push(granted(store, reader).await.token);
    }
    assert!(matches!(ask(store, &writer).await, Verdict::Queued(_)), "it writes beside readers");
    assert!(matches!(ask(store, &late).await, Verdict::Queued(_)), "it overtakes the writer");
    for (reader, token) in readers.iter().zip(&tokens) {
        give_back(store, reader, *token).await;
    }
    let written = turn(store, &writer).await;
    assert!(tokens.iter().all(|token| *token < written.token), "a writer's token is above theirs");
    give_back(store, &writer, written.token).await;
    let read = turn(store, &late).await;
    give_back(store, &late, read.token).await;
}

/// A writer that others passed because it seemed dead must not come back to its old place: it
/// would write beside the readers that were let past it.
pub async fn a_writer_that_was_passed_over_queues_again(fixture: &Fixture) {
    let Some(client) = with_kind(fixture, Mode::Read).await else { return };
    let (store, name) = (&client.store, fixture.name());
    let (first, second) = (claim(fixture, &name, Mode::Read), claim(fixture, &name, Mode::Read));
    let writer = claim(fixture, &name, Mode::Write);
    let one = granted(store, &first).await;
    assert!(matches!(ask(store, &writer).await, Verdict::Queued(_)));

    // Silent for long, while the reader renews.
    let mut left = Duration::from_secs(8);
    while !left.is_zero() {
        let step = left.min(fixture.ttl() / 2);
        fixture.pass(step).await;
        let proved = store.clone().renew(vec![first.hold(one.token)]).await.unwrap();
        assert!(matches!(proved[..], [Renewal::Renewed(_)]), "{proved:?}");
        left -= step;
    }
    let two = granted(store, &second).await;
    assert!(matches!(ask(store, &writer).await, Verdict::Queued(_)), "beside two readers");
    give_back(store, &first, one.token).await;
    assert!(matches!(ask(store, &writer).await, Verdict::Queued(_)), "beside one reader");
    give_back(store, &second, two.token).await;
    let written = turn(store, &writer).await;
    give_back(store, &writer, written.token).await;
}

/// Light claims do not pass a heavy one that waits.
pub async fn a_heavy_claim_is_not_starved(fixture: &Fixture) {
    let Some(client) = with_kind(fixture, ONE_OF_THREE).await else { return };
    let (store, name) = (&client.store, fixture.name());
    let (first, second) =
        (claim(fixture, &name, TWO_OF_THREE), claim(fixture, &name, TWO_OF_THREE));
    let light = claim(fixture, &name, ONE_OF_THREE);
    let one = granted(store, &first).await;
    assert!(matches!(ask(store, &second).await, Verdict::Queued(_)));
    assert!(matches!(ask(store, &light).await, Verdict::Queued(_)), "it would fit, but came later");
    give_back(store, &first, one.token).await;
    // Both fit now.
    let two = turn(store, &second).await;
    let three = turn(store, &light).await;
    assert!(two.token < three.token);
    give_back(store, &second, two.token).await;
    give_back(store, &light, three.token).await;
}

/// A lease that nobody renews ends, and makes room. Trap: permits leaked by crashes
/// (curator#982).
pub async fn a_reader_that_is_gone_lets_the_writer_in(fixture: &Fixture) {
    let Some(client) = with_kind(fixture, Mode::Read).await else { return };
    let (store, name) = (&client.store, fixture.name());
    let (reader, writer) = (claim(fixture, &name, Mode::Read), claim(fixture, &name, Mode::Write));
    let read = granted(store, &reader).await;
    fixture.pass_ttl().await;
    let written = turn(store, &writer).await;
    let proved = store.clone().renew(vec![reader.hold(read.token)]).await.unwrap();
    assert!(matches!(proved[..], [Renewal::NotYours(_)]), "{proved:?}");
    give_back(store, &writer, written.token).await;
}

/// Three of three and one of five at once would be four of nobody knows what.
pub async fn another_capacity_is_refused(fixture: &Fixture) {
    let Some(client) = with_kind(fixture, ONE_OF_THREE).await else { return };
    let (store, name) = (&client.store, fixture.name());
    let one = claim(fixture, &name, ONE_OF_THREE);
    let other = claim(fixture, &name, Mode::Permits { weight: 1, of: 5 });
    let grant = granted(store, &one).await;
    assert_eq!(ask(store, &other).await, Verdict::OtherCapacity(3));
    give_back(store, &one, grant.token).await;
    let grant = granted(store, &other).await;
    give_back(store, &other, grant.token).await;
    for impossible in [Mode::Permits { weight: 4, of: 3 }, Mode::Permits { weight: 0, of: 3 }] {
        let asked = store.clone().acquire(vec![claim(fixture, &name, impossible)]).await;
        assert_eq!(*asked.unwrap_err().kind(), ErrorKind::Invalid, "{impossible:?}");
    }
}

/// A lock is its kind and its name.
pub async fn kinds_of_one_name_do_not_exclude_each_other(fixture: &Fixture) {
    let Some(client) = with_kind(fixture, Mode::Write).await else { return };
    let (store, name) = (&client.store, fixture.name());
    let (alone, write) =
        (claim(fixture, &name, Mode::Exclusive), claim(fixture, &name, Mode::Write));
    let (one, two) = (granted(store, &alone).await, granted(store, &write).await);
    let listed = store.clone().list(name.clone()).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|info| info.kind).collect();
    assert_eq!(listed, [LockKind::Exclusive, LockKind::ReadWrite]);
    give_back(store, &alone, one.token).await;
    give_back(store, &write, two.token).await;
}

/// Two who want the same locks, each with one of them, would wait for each other.
pub async fn locks_that_belong_together_are_taken_all_or_none(fixture: &Fixture) {
    let client = fixture.client().await;
    let (store, names) = (&client.store, [fixture.name(), fixture.name()]);
    let claims = names.each_ref().map(|name| claim(fixture, name, Mode::Exclusive));
    if store.limits().together < 2 {
        let asked = store.clone().acquire_all(claims.to_vec()).await;
        assert_eq!(*asked.unwrap_err().kind(), ErrorKind::Refused);
        return;
    }
    let other = claim(fixture, &names[1], Mode::Exclusive);
    let held = granted(store, &other).await;
    let verdicts = store.clone().acquire_all(claims.to_vec()).await.unwrap();
    assert!(matches!(verdicts[..], [Verdict::Withheld, Verdict::Held(Some(_))]), "{verdicts:?}");
    let left = store.clone().inspect(claims[0].lock()).await.unwrap();
    assert!(left.is_none_or(|info| info.leases.is_empty()), "one of them was taken");

    give_back(store, &other, held.token).await;
    let verdicts = store.clone().acquire_all(claims.to_vec()).await.unwrap();
    let again = store.clone().acquire_all(claims.to_vec()).await.unwrap();
    assert_eq!(verdicts, again, "the same owners get the same grants");
    for (claim, verdict) in claims.iter().zip(verdicts) {
        let Verdict::Granted(grant) = verdict else { panic!("{verdict:?}") };
        give_back(store, claim, grant.token).await;
    }
}

fn order(reason: &str) -> Force {
    Force::new(Forced::new("operator", reason))
}

/// Whether the store can end the lease that an order names; otherwise it refuses to.
async fn ends_one(fixture: &Fixture, store: &Arc<dyn Backend>) -> bool {
    let mut force = order("the one that was seen");
    force.expected = Some(Token::new(1));
    let lock = LockId::from(Name::new(fixture.name()).unwrap());
    match store.clone().force_release(lock, force).await {
        Ok(done) => {
            assert_eq!(done, ForceRelease::NobodyHeld);
            true
        }
        Err(refused) => {
            assert_eq!(*refused.kind(), ErrorKind::Refused, "{refused}");
            false
        }
    }
}

/// Between the operator's look and the order, another may have got the lock.
pub async fn a_force_release_of_another_token_ends_nobody(fixture: &Fixture) {
    let client = fixture.client().await;
    let (store, name) = (&client.store, fixture.name());
    if !ends_one(fixture, store).await {
        return;
    }
    let present = claim(fixture, &name, Mode::Exclusive);
    let grant = granted(store, &present).await;
    let mut force = order("stuck");
    force.expected = Some(Token::new(grant.token.get() - 1));
    let done = store.clone().force_release(present.lock(), force.clone()).await.unwrap();
    let ForceRelease::Others(leases) = done else { panic!("{done:?}") };
    assert_eq!(leases[0].token, Some(grant.token));
    let proved = store.clone().renew(vec![present.hold(grant.token)]).await.unwrap();
    assert!(matches!(proved[..], [Renewal::Renewed(_)]), "{proved:?}");

    force.expected = Some(grant.token);
    let done = store.clone().force_release(present.lock(), force.clone()).await.unwrap();
    assert_eq!(done, ForceRelease::Ended(vec![grant.token]));
    let done = store.clone().force_release(present.lock(), force).await.unwrap();
    assert_eq!(done, ForceRelease::NobodyHeld);
}

/// One stuck reader is no reason to end the others.
pub async fn a_force_release_of_one_owner_leaves_the_others(fixture: &Fixture) {
    let Some(client) = with_kind(fixture, Mode::Read).await else { return };
    let (store, name) = (&client.store, fixture.name());
    let (stuck, fine) = (claim(fixture, &name, Mode::Read), claim(fixture, &name, Mode::Read));
    let (one, two) = (granted(store, &stuck).await, granted(store, &fine).await);
    let mut force = order("stuck");
    force.owner = Some(stuck.owner);
    let done = store.clone().force_release(stuck.lock(), force).await.unwrap();
    assert_eq!(done, ForceRelease::Ended(vec![one.token]));
    let holds = vec![stuck.hold(one.token)];
    let proved = store.clone().renew(holds).await.unwrap();
    assert!(matches!(&proved[..], [Renewal::NotYours(LossReason::Forced(_))]), "{proved:?}");
    let proved = store.clone().renew(vec![fine.hold(two.token)]).await.unwrap();
    assert!(matches!(proved[..], [Renewal::Renewed(_)]), "{proved:?}");
    give_back(store, &fine, two.token).await;
}
