//! Tokens rise, whatever is forgotten.

use std::time::UNIX_EPOCH;

use super::*;

fn ceiling(fixture: &Fixture) -> u64 {
    let session = fixture.keeper().session;
    let read = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    session.connection.query_row("select ceiling from meta", (), read).unwrap() as u64
}

#[tokio::test]
async fn tokens_rise_across_release_and_expiry_with_a_clock_gone_back() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let first = claim("a");
    let one = take(&store, &first).await;
    assert_eq!(one.token.get(), fixture.clock().wall_micros());
    assert_eq!(give_back(&store, &first, one).await, Release::Released);

    fixture.hand.set_wall(UNIX_EPOCH);
    let two = take(&store, &claim("a")).await;
    assert!(two.token > one.token);
    fixture.hand.advance(TTL);
    let three = take(&store, &claim("a")).await;
    assert!(three.token > two.token);
}

/// Records that are deleted must not restart the counter (Medallion-MongoDB, consul lock).
#[tokio::test]
async fn tokens_rise_after_the_idle_row_is_forgotten() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let first = claim("a");
    let one = take(&store, &first).await;
    give_back(&store, &first, one).await;

    // Enough for several chunks, with a live one among them.
    let many: Vec<_> = (0..300).map(|i| claim(&format!("lock {i}"))).collect();
    store.clone().acquire(many).await.unwrap();
    fixture.hand.advance(Duration::from_secs(2 * 3_600));
    let live = claim("lock 150");
    let grant = take(&store, &live).await;
    fixture.keeper().sweep().unwrap();
    let rows = "select count(*) from locks";
    let count = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    let left = fixture.keeper().session.connection.query_row(rows, (), count).unwrap();
    assert_eq!(left, 1, "only the live one");
    assert_eq!(take(&store, &live).await, grant);
    assert_eq!(store.clone().inspect(name("a").into()).await.unwrap(), None, "the row is gone");
    fixture.hand.set_wall(UNIX_EPOCH);
    assert!(take(&store, &claim("a")).await.token > one.token);
}

#[tokio::test]
async fn tokens_rise_past_everything_a_power_cut_may_have_taken() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let held = claim("a");
    let one = take(&store, &held).await;
    // Granted just below the ceiling, and lost with the log's end.
    let lost = one.token.get() + 59_000_000;
    drop(store);

    fixture.hand.set_wall(UNIX_EPOCH);
    let store = fixture.open_after("second boot");
    let two = take(&store, &claim("a")).await;
    assert!(two.token.get() > lost, "a lease of an earlier boot is void, its token is not");
    assert!(take(&store, &claim("never seen")).await.token.get() > lost);
    drop(store);
    let store = fixture.open_after("third boot");
    assert!(take(&store, &claim("a")).await.token > two.token);
}

#[tokio::test]
async fn no_token_is_granted_beyond_the_ceiling_on_disk() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let ceiling = || ceiling(&fixture);
    for step in 0..10 {
        fixture.hand.advance(Duration::from_secs(25));
        let claim = claim(&format!("lock {step}"));
        let before = ceiling();
        let grant = take(&store, &claim).await;
        assert!(grant.token.get() <= ceiling());
        let raised_inline = grant.token.get() > before;
        assert_eq!(ceiling() > before, raised_inline, "an fsync only when needed");
    }
}

#[tokio::test]
async fn housekeeping_raises_the_ceiling_before_it_is_reached() {
    let fixture = Fixture::new();
    let store = fixture.open();
    take(&store, &claim("a")).await;
    fixture.hand.advance(Duration::from_secs(45));
    let before = ceiling(&fixture);
    fixture.keeper().raise_ceiling().unwrap();
    let raised = ceiling(&fixture);
    assert!(raised > before);
    // Past what this store knows of, but not past what is on disk.
    fixture.hand.advance(Duration::from_secs(20));
    let grant = take(&store, &claim("b")).await;
    assert!(grant.token.get() > before);
    assert_eq!(ceiling(&fixture), raised, "no fsync in the acquire");
}

#[tokio::test]
async fn two_stores_never_grant_one_token_twice() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let mut last = 0;
    for round in 0..50 {
        let store = if round % 3 == 0 { &one } else { &two };
        let claim = claim("a");
        let grant = take(store, &claim).await;
        assert!(grant.token.get() > last);
        last = grant.token.get();
        give_back(store, &claim, grant).await;
    }
}
