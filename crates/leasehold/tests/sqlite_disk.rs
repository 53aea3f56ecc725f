//! The embedded store on a disk that is full. Needs root, for a small disk of its own.
#![cfg(feature = "sqlite")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::sqlite::SqliteStore;
use leasehold::backend::{Backend, Claim, Verdict};
use leasehold::clock::Clock;
use leasehold::{Error, ErrorKind, Holder, Name};

const FOLDER: &str = "LEASEHOLD_TEST_DISK";
/// Of which the log alone would take all, before it is called long.
const DISK: &str = "size=4m";
const FILLER: usize = 1 << 20;

/// Not a test by itself: what the other test runs with a small disk in the folder's place.
#[tokio::test]
async fn on_a_small_disk() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    run(Command::new("mount").args(["-t", "tmpfs", "-o", DISK, "small"]).arg(folder));
    let open = || SqliteStore::open(&folder.join("locks.db"), Clock::boot()).unwrap();
    let (one, two) = (open(), open());
    fs::write(folder.join("filler"), vec![0; FILLER]).unwrap();

    // What has its place in the database goes on: the log begins anew in its own space.
    for i in 0..2_000 {
        for store in [&one, &two] {
            pass(store, &format!("{}", i % 8)).await.unwrap();
        }
    }
    // What needs more room is refused, and has it once there is some.
    let mut full = None;
    for i in 0..10_000 {
        if let Err(error) = pass(&one, &format!("{i:0200}")).await {
            full = Some(error);
            break;
        }
    }
    let full = full.expect("a disk of this size is full by now");
    assert_eq!(*full.kind(), ErrorKind::Unavailable);
    assert!(full.to_string().contains("the disk is full"), "{full}");
    fs::remove_file(folder.join("filler")).unwrap();
    for i in 0..1_000 {
        pass(&one, &format!("more {i}")).await.unwrap();
        pass(&two, "0").await.unwrap();
    }
}

/// Acquires and releases a lock.
async fn pass(store: &Arc<SqliteStore>, lock: &str) -> Result<(), Error> {
    let holder = Arc::new(Holder::this_process());
    let claim = Claim::new(Name::new(lock).unwrap(), Duration::from_secs(30), holder);
    match store.clone().acquire(vec![claim.clone()]).await?.remove(0) {
        Verdict::Granted(grant) => {
            store.clone().release(vec![claim.hold(grant.token)]).await.map(drop)
        }
        other => panic!("{lock} is free, but {other:?}"),
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} (as root?): {out}{err}");
}

/// The log took the last of the disk, and left nothing for the database to grow by. So it could
/// not be moved there, and the disk stayed full when others made room: the log took that as well.
#[test]
fn a_disk_that_was_full_does_not_stay_full() {
    let folder = tempfile::tempdir().unwrap();
    let mut inside = Command::new("unshare");
    inside.arg("--mount").arg(std::env::current_exe().unwrap());
    inside.args(["--exact", "on_a_small_disk", "--nocapture"]).env(FOLDER, folder.path());
    run(&mut inside);
}
