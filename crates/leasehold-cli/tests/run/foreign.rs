//! Locks of foreign clients.

use std::process::Command;

use leasehold_faults::servers::Redis;

use crate::scene::{Running, Scene, ended};

/// A `SET key value` without an expiry looked like a lock of which nothing is known: those who
/// waited for it waited for ever.
#[test]
fn a_lock_that_never_expires_is_said_to_be_one() {
    let (scene, server) = (Scene::new(), Redis::start(&[]).expect("a server starts"));
    let on = |mut command: Command| {
        command.env("LEASEHOLD_STORE", server.url());
        command
    };
    server.cli(&["set", "lock:demo", "somebody"]).expect("it is set");
    let said = "never expires; release --force";
    let shown = ended(on(scene.leasehold(["show", "demo"])));
    assert!(shown.stdout.contains(said), "{shown:?}");
    let listed = ended(on(scene.leasehold(["ls"])));
    assert!(listed.stdout.contains(" never "), "{listed:?}");
    let refused = ended(on(scene.run("--wait 50ms", "true")));
    assert_eq!(refused.code, Some(201), "{refused:?}");
    assert!(refused.stderr.contains(said), "{refused:?}");
    let waiter = Running::start(on(scene.run("", "true")));
    waiter.tells(said);
    let release = ["release", "demo", "--force", "--reason", "abandoned"];
    assert_eq!(ended(on(scene.leasehold(release))).code, Some(0));
    assert_eq!(waiter.end().code, Some(0));
}
