//! Another boot id: the machine was restarted, or it is a container's own.

use std::sync::Barrier;

use super::*;
use crate::backend::Renewal;
use crate::error::ErrorKind;

/// systemd-nspawn and LXC give a container a boot id of its own: opening the file there
/// voided the leases of holders that lived.
#[tokio::test]
async fn another_boot_id_voids_no_lease_while_others_have_the_file_open() {
    let fixture = Fixture::new();
    let holder = fixture.open();
    let held = claim("a");
    let grant = take(&holder, &held).await;
    let open = |boot| SqliteStore::open_in_boot(&fixture.path(), fixture.clock(), boot);
    let error = open("a container's").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("boot id"), "{error}");
    let renewed = holder.clone().renew(vec![held.hold(grant.token)]).await.unwrap();
    assert!(matches!(renewed[0], Renewal::Renewed(_)), "{renewed:?}");
    assert!(matches!(ask(&fixture.open(), &claim("a")).await, Verdict::Held(Some(_))));

    drop(holder);
    let alone = open("a container's").unwrap();
    assert!(take(&alone, &claim("a")).await.token > grant.token);
}

/// Each of them finds the other boot's id, and others that have the file open.
#[test]
fn those_who_start_together_after_a_boot_all_get_in() {
    const STARTERS: usize = 8;
    for _ in 0..10 {
        let fixture = Fixture::new();
        drop(fixture.open());
        let start = Barrier::new(STARTERS);
        std::thread::scope(|scope| {
            let begin = || {
                start.wait();
                fixture.open_after("second boot")
            };
            let starters: Vec<_> = (0..STARTERS).map(|_| scope.spawn(begin)).collect();
            // None is closed before all are in.
            let stores: Vec<_> = starters.into_iter().map(|one| one.join().unwrap()).collect();
            assert_eq!(stores.len(), STARTERS);
        });
    }
}

/// Each boot goes on above the ceiling of the one before, which was a minute ahead of the
/// clock: containers that took turns carried the tokens away by a minute each time.
#[tokio::test]
async fn boots_that_follow_each_other_do_not_carry_tokens_away_from_the_clock() {
    let fixture = Fixture::new();
    let mut last = take(&fixture.open(), &claim("a")).await.token;
    for turn in 0..10 {
        let store = fixture.open_after(&format!("boot {turn}"));
        let token = take(&store, &claim("a")).await.token;
        assert!(token > last);
        last = token;
    }
    let ahead = last.get() - fixture.clock().wall_micros();
    assert!(ahead < 61_000_000, "{ahead} µs ahead of the clock");
}
