//! Fencing tokens: strictly increasing per lock, whatever happens.

use std::time::{Duration, SystemTime};

use leasehold::Token;

use crate::world::World;

/// Medallion-MongoDB, dlock, consul lock: counters that start again because the
/// record was deleted.
pub async fn rise_over_release_expiry_and_force(world: &World) {
    let client = world.client().await;
    let name = world.name();
    let mut tokens = Vec::new();
    for round in 0..9 {
        let lease = client.lock(&name).no_renewal().acquire().await.unwrap();
        tokens.push(lease.token());
        match round % 3 {
            0 => lease.release().await.unwrap(),
            1 => world.pass_ttl().await,
            _ => assert!(client.locks.force_release(&name, "case").await.unwrap().is_some()),
        }
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// A clock that is set back must not take tokens back.
pub async fn rise_when_the_clock_goes_back(world: &World) {
    let client = world.client().await;
    let name = world.name();
    let before = client.lock(&name).acquire().await.unwrap();
    let token = before.token();
    before.release().await.unwrap();
    world.set_wall(SystemTime::UNIX_EPOCH + Duration::from_secs(1));
    let after = client.lock(&name).acquire().await.unwrap();
    assert!(after.token() > token);
}

/// Nobody gets a token twice, whoever asks.
pub async fn rise_for_every_client(world: &World) {
    let clients = [world.client().await, world.client().await, world.client().await];
    let name = world.name();
    let mut last = Token::new(0);
    for client in clients.iter().cycle().take(30) {
        let lease = client.lock(&name).acquire().await.unwrap();
        assert!(lease.token() > last, "{} after {last}", lease.token());
        last = lease.token();
        lease.release().await.unwrap();
    }
}

/// All clients go, and with them every connection; new ones come.
pub async fn survive_a_restart_of_the_store(world: &World) {
    if !world.guarantees().await.survives_restart {
        return;
    }
    let name = world.name();
    let first = {
        let client = world.client().await;
        let lease = client.lock(&name).acquire().await.unwrap();
        let token = lease.token();
        lease.release().await.unwrap();
        token
    };
    world.set_wall(SystemTime::UNIX_EPOCH + Duration::from_secs(1));
    let client = world.client().await;
    let second = client.lock(&name).acquire().await.unwrap();
    assert!(second.token() > first);
}

/// JavaScript and Lua carry integers up to 2^53.
pub async fn stay_portable(world: &World) {
    let client = world.client().await;
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(400 * 365 * 24 * 3600);
    world.set_wall(far);
    let lease = client.lock(&world.name()).acquire().await.unwrap();
    assert!(lease.token() <= Token::MAX_PORTABLE);
}
