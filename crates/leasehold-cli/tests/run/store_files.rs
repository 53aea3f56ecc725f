//! What happens to the embedded store's file: mounted, opened from a container, removed.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::scene::{Ended, Running, Scene, ended};

/// `leasehold` with these words in a mount namespace of its own, after this line of shell
/// has mounted something there. Needs root.
fn after_mounting(scene: &Scene, mounts: &str, store: &str, words: &[&str]) -> Ended {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{mounts} && exec \"$@\""), "sh"]);
    command.arg(env!("CARGO_BIN_EXE_leasehold")).args(words);
    let mut command = scene.set(command);
    command.env("LEASEHOLD_STORE", format!("sqlite:{}", scene.path(store).display()));
    ended(command)
}

/// As `docker -v /host/locks.db:/container/locks.db` does. Each side had a log of its own:
/// both held the lock, both ended with 0, and then the file was damaged.
#[test]
fn a_file_that_a_container_mounts_by_itself_is_refused_there() {
    let scene = Scene::new();
    let holder = scene.hold("demo");
    fs::create_dir(scene.path("container")).expect("a folder");
    scene.touch("container/locks.db");
    let bind = "mount --bind locks.db container/locks.db";
    for words in [&["run", "demo", "--no-wait", "--", "echo", "ran"][..], &["doctor"]] {
        let refused = after_mounting(&scene, bind, "container/locks.db", words);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(204), ""), "{refused:?}");
        assert!(refused.stderr.contains("mounted by itself"), "{refused:?}");
    }
    assert!(!scene.path("container/locks.db-wal").exists(), "refused before it was touched");
    let bind = "mount --bind . container";
    let held = after_mounting(
        &scene,
        bind,
        "container/locks.db",
        &["run", "demo", "--no-wait", "--", "echo", "ran"],
    );
    assert_eq!((held.code, held.stdout.as_str()), (Some(201), ""), "its folder may be: {held:?}");
    scene.touch("go");
    assert_eq!(holder.end().code, Some(0));
}

/// As systemd-nspawn and LXC do. The lease of a holder that lived was void, and its command
/// ran beside that of the container.
#[test]
fn a_container_with_a_boot_id_of_its_own_does_not_void_the_locks_of_others() {
    let scene = Scene::new();
    let holder = scene.hold("demo");
    fs::write(scene.path("boot_id"), "11111111-2222-3333-4444-555555555555\n").expect("a file");
    let boot = "mount --bind boot_id /proc/sys/kernel/random/boot_id";
    let contend = ["run", "demo", "--no-wait", "--", "echo", "ran"];
    let refused = after_mounting(&scene, boot, "locks.db", &contend);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(204), ""), "{refused:?}");
    assert!(refused.stderr.contains("boot id"), "{refused:?}");
    scene.touch("go");
    assert_eq!(holder.end().code, Some(0));
    let alone = after_mounting(&scene, boot, "locks.db", &contend);
    assert_eq!((alone.code, alone.stdout.as_str()), (Some(0), "ran\n"), "{alone:?}");
}

/// It was taken for a store that does not answer: the next runner started at once, on a new
/// file, and the first one went on for 24 s of its TTL of 30.
#[test]
fn the_command_ends_at_once_when_its_store_is_removed() {
    let scene = Scene::new();
    let holder = Running::start(scene.run("--ttl 30s", "echo > ready; exec sleep 600"));
    scene.line("ready");
    let removed = Instant::now();
    for part in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        fs::remove_file(scene.path(part)).expect("a file of the store");
    }
    let next = ended(scene.run("--no-wait", "echo ran"));
    assert_eq!((next.code, next.stdout.as_str()), (Some(0), "ran\n"), "{next:?}");
    let holder = holder.end();
    let took = removed.elapsed();
    assert_eq!(holder.code, Some(202), "{holder:?}");
    assert!(holder.stderr.contains("removed or replaced"), "{holder:?}");
    assert!(took < Duration::from_secs(6), "{took:?}");
}
