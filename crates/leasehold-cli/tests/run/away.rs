//! The store goes away while `run` waits for a lock.

use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_faults::servers::Redis;

use crate::scene::{Running, Scene};

/// A scene on a server, and a holder of the lock there.
fn held() -> (Scene, Redis, Running) {
    let (scene, server) = (Scene::new(), Redis::start(&[]).expect("a server starts"));
    let script = "echo > ready; exec sleep 600";
    let holder = Running::start(on(&server, scene.run("--ttl 1m", script)));
    scene.line("ready");
    (scene, server, holder)
}

fn on(server: &Redis, mut run: Command) -> Command {
    run.env("LEASEHOLD_STORE", server.url());
    run
}

/// It said nothing, and in the end that the lock was held by another (201).
#[test]
fn a_store_that_goes_away_during_the_wait_is_203_with_since_when() {
    let (scene, mut server, holder) = held();
    let waiter = Running::start(on(&server, scene.run("--wait 4s", "echo ran")));
    waiter.tells("waiting for \"demo\", held by leasehold run sh");
    server.kill();
    waiter.tells("still waiting for \"demo\": ");
    let waiter = waiter.end();
    assert_eq!((waiter.code, waiter.stdout.as_str()), (Some(203), ""), "{waiter:?}");
    let since = format!(" s; before that leasehold run sh (pid {} on ", holder.pid());
    assert!(waiter.stderr.contains("the store has failed for "), "{waiter:?}");
    assert!(waiter.stderr.contains(&since), "{waiter:?}");
}

/// With a stopped server it took two more time-outs: `--wait 4s` took 8 s.
#[test]
fn a_store_that_stops_answering_does_not_stretch_the_wait() {
    let (scene, server, _holder) = held();
    let waiter = Running::start(on(&server, scene.run("--wait 2s", "echo ran")));
    waiter.tells("waiting for \"demo\", held by leasehold run sh");
    server.process().pause();
    let silent = Instant::now();
    let waiter = waiter.end();
    let took = silent.elapsed();
    assert_eq!((waiter.code, waiter.stdout.as_str()), (Some(203), ""), "{waiter:?}");
    assert!(took < Duration::from_millis(4_500), "{took:?}: {waiter:?}");
}
