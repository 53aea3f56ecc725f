//! Records beside locks. A store without them says so in its guarantees.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Change, Claim, Hold, LockId, State, Verdict, Version, Watched, Written};
use leasehold::{Holder, Name};

use crate::fixture::{Client, Fixture, within_bound};

/// A client, if its store keeps records.
async fn with_state(fixture: &Fixture) -> Option<(Client, Arc<dyn State>)> {
    let client = fixture.client().await;
    let state = client.store.clone().state();
    assert_eq!(state.is_some(), client.store.guarantees().state, "its guarantees say otherwise");
    state.map(|state| (client, state))
}

async fn hold(fixture: &Fixture, client: &Client, name: &str) -> Hold {
    let holder = Arc::new(Holder::new("host", 1, "case"));
    let claim = Claim::new(Name::new(name).unwrap(), fixture.ttl(), holder);
    let verdicts = client.store.clone().acquire(vec![claim.clone()]).await.unwrap();
    let [Verdict::Granted(grant)] = verdicts[..] else { panic!("{verdicts:?}") };
    claim.hold(grant.token)
}

async fn write(
    state: &Arc<dyn State>,
    hold: &Hold,
    expected: Option<Version>,
    value: &str,
) -> Written {
    let value = value.as_bytes().into();
    state.clone().write(hold.clone(), expected, value, None).await.unwrap()
}

async fn read(state: &Arc<dyn State>, lock: &LockId) -> Option<(String, Version)> {
    let record = state.clone().read(lock.clone()).await.unwrap()?;
    Some((String::from_utf8(record.value.to_vec()).unwrap(), record.version))
}

fn version(written: Written) -> Version {
    match written {
        Written::At(version) => version,
        other => panic!("not written: {other:?}"),
    }
}

/// The store checks the lease in the step that writes: nothing gets between.
pub async fn a_record_is_written_only_under_a_live_lease(fixture: &Fixture) {
    let Some((client, state)) = with_state(fixture).await else { return };
    let name = fixture.name();
    let first = hold(fixture, &client, &name).await;
    let written = version(write(&state, &first, None, "first").await);
    let record = state.clone().read(first.lock()).await.unwrap().unwrap();
    assert_eq!((&record.value[..], record.token), (&b"first"[..], first.token));
    fixture.pass_ttl().await;
    let late = write(&state, &first, Some(written), "late").await;
    assert!(matches!(late, Written::NotYours(_)), "{late:?}");

    let second = hold(fixture, &client, &name).await;
    let late = write(&state, &first, Some(written), "late").await;
    assert!(matches!(late, Written::NotYours(_)), "{late:?}");
    assert_eq!(read(&state, &first.lock()).await, Some(("first".into(), written)));
    let newer = version(write(&state, &second, Some(written), "second").await);
    assert!(newer > written);
    client.store.clone().release(vec![second]).await.unwrap();
}

/// A request of the same lease that was on its way for long overwrites nothing newer.
pub async fn a_write_of_an_old_version_is_refused(fixture: &Fixture) {
    let Some((client, state)) = with_state(fixture).await else { return };
    let lease = hold(fixture, &client, &fixture.name()).await;
    let one = version(write(&state, &lease, None, "one").await);
    let two = version(write(&state, &lease, Some(one), "two").await);
    for old in [None, Some(one)] {
        let Written::Changed(Some(present)) = write(&state, &lease, old, "late").await else {
            panic!("a write of {old:?} over {two:?}")
        };
        assert_eq!((&present.value[..], present.version), (&b"two"[..], two));
    }
    assert_eq!(read(&state, &lease.lock()).await, Some(("two".into(), two)));
    client.store.clone().release(vec![lease]).await.unwrap();
}

/// The next leader reads what the last one wrote.
pub async fn a_record_outlives_its_lease_but_not_its_term(fixture: &Fixture) {
    let Some((client, state)) = with_state(fixture).await else { return };
    let lease = hold(fixture, &client, &fixture.name()).await;
    let (lock, keep) = (lease.lock(), Some(fixture.ttl() * 3));
    let written = state.clone().write(lease.clone(), None, b"brief".as_slice().into(), keep);
    version(written.await.unwrap());
    client.store.clone().release(vec![lease]).await.unwrap();
    fixture.pass_ttl().await;
    assert!(read(&state, &lock).await.is_some(), "it went with its lease");
    fixture.pass(fixture.ttl() * 2 + Duration::from_secs(1)).await;
    assert_eq!(read(&state, &lock).await, None, "it outlived its term");
}

/// Whoever watches from the start has seen all of it, or is told of a gap.
pub async fn a_watcher_sees_every_write_in_order(fixture: &Fixture) {
    let Some((client, state)) = with_state(fixture).await else { return };
    let base = fixture.name();
    let names = [format!("{base}/a"), format!("{base}/b"), fixture.name()];
    let mut leases = Vec::new();
    for name in &names {
        leases.push(hold(fixture, &client, name).await);
    }
    let mut below = state.clone().watch(Watched::Prefix(format!("{base}/")));
    let mut first = state.clone().watch(Watched::One(leases[0].lock()));
    let mut versions = Vec::new();
    for lease in leases.iter().chain([&leases[1], &leases[0]]) {
        let present = read(&state, &lease.lock()).await.map(|(_, version)| version);
        versions.push(version(write(&state, lease, present, "x").await));
    }
    let of = async |changes: &mut Box<dyn leasehold::backend::Changes>, count: usize| {
        let (mut seen, mut sampled) = (Vec::new(), false);
        while seen.len() < count {
            match within_bound("a change", changes.next()).await.unwrap() {
                Change::Written { record, sampled: last, .. } => {
                    sampled |= last;
                    seen.push(record.version);
                    // Of what is sampled, the last write is sure to come.
                    if last && Some(&record.version) == versions.last() {
                        break;
                    }
                }
                Change::Gap => panic!("a gap among five writes"),
                other => panic!("{other:?}"),
            }
        }
        (seen, sampled)
    };
    let (seen, sampled) = of(&mut below, 4).await;
    assert!(seen.is_sorted());
    assert!(sampled || seen == [versions[0], versions[1], versions[3], versions[4]], "{seen:?}");
    let (seen, sampled) = of(&mut first, 2).await;
    assert!(sampled || seen == [versions[0], versions[4]], "{seen:?}");
    for lease in leases {
        client.store.clone().release(vec![lease]).await.unwrap();
    }
}
