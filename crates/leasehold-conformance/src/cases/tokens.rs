//! Fencing tokens: strictly increasing per lock, whatever happens.

use std::time::{Duration, SystemTime};

use leasehold::Token;

use crate::fixture::Fixture;

/// Medallion-MongoDB, dlock, consul lock: counters that start again because the
/// record was deleted.
pub async fn rise_over_release_expiry_and_force(fixture: &Fixture) {
    let client = fixture.client().await;
    let name = fixture.name();
    let mut tokens = Vec::new();
    for round in 0..9 {
        let lease = client.lock(&name).no_renewal().acquire().await.unwrap();
        tokens.push(lease.token());
        match round % 3 {
            0 => lease.release().await.unwrap(),
            1 => fixture.pass_ttl().await,
            _ => assert!(client.locks.force_release(&name, "case").await.unwrap().is_some()),
        }
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// A clock that is set back must not take tokens back.
pub async fn rise_when_the_clock_goes_back(fixture: &Fixture) {
    let client = fixture.client().await;
    let name = fixture.name();
    let before = client.lock(&name).acquire().await.unwrap();
    let token = before.token();
    before.release().await.unwrap();
    fixture.set_wall(SystemTime::UNIX_EPOCH + Duration::from_secs(1));
    let after = client.lock(&name).acquire().await.unwrap();
    assert!(after.token() > token);
}

/// Nobody gets a token twice, whoever asks.
pub async fn rise_for_every_client(fixture: &Fixture) {
    let clients = [fixture.client().await, fixture.client().await, fixture.client().await];
    let name = fixture.name();
    let mut last = Token::new(0);
    for client in clients.iter().cycle().take(30) {
        let lease = client.lock(&name).acquire().await.unwrap();
        assert!(lease.token() > last, "{} after {last}", lease.token());
        last = lease.token();
        lease.release().await.unwrap();
    }
}

/// All clients go, and with them every connection; new ones come.
pub async fn survive_a_restart_of_the_store(fixture: &Fixture) {
    if !fixture.guarantees().await.survives_restart {
        return;
    }
    let name = fixture.name();
    let first = {
        let client = fixture.client().await;
        let lease = client.lock(&name).acquire().await.unwrap();
        let token = lease.token();
        lease.release().await.unwrap();
        token
    };
    fixture.set_wall(SystemTime::UNIX_EPOCH + Duration::from_secs(1));
    let client = fixture.client().await;
    let second = client.lock(&name).acquire().await.unwrap();
    assert!(second.token() > first);
}

/// JavaScript and Lua carry integers up to 2^53.
pub async fn stay_portable(fixture: &Fixture) {
    let client = fixture.client().await;
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(400 * 365 * 24 * 3600);
    fixture.set_wall(far);
    let lease = client.lock(&fixture.name()).acquire().await.unwrap();
    assert!(lease.token() <= Token::MAX_PORTABLE);
}
