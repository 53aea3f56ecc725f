//! The embedded store's file as others mount it. Needs root, for mount namespaces.
#![cfg(feature = "sqlite")]

use std::path::Path;
use std::process::Command;

use leasehold::ErrorKind;
use leasehold::backend::sqlite::SqliteStore;
use leasehold::backend::{Backend, Severity};
use leasehold::clock::Clock;

const FOLDER: &str = "LEASEHOLD_TEST_MOUNTS";

/// Not a test by itself: what the other test runs among mounts of its own.
#[tokio::test]
async fn in_a_mount_namespace() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let path = Path::new(&folder).join("locks.db");
    let open = || SqliteStore::open(&path, Clock::boot());
    let store = open().unwrap();
    for part in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let file = Path::new(&folder).join(part);
        run(Command::new("mount").arg("--bind").args([&file, &file]));
        let said = format!("{part} is mounted by itself");
        let error = open().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains(&said), "{error}");
        let findings = store.clone().examine().await.unwrap();
        let found = findings
            .iter()
            .any(|finding| finding.severity == Severity::Unsafe && finding.what.contains(&said));
        assert!(found, "{findings:?}");
        run(Command::new("umount").arg("--lazy").arg(&file));
    }
    open().unwrap();
    let findings = store.examine().await.unwrap();
    assert!(findings.iter().all(|finding| finding.severity != Severity::Unsafe), "{findings:?}");
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} (as root?): {said}");
}

/// Each side of such a mount had a log of its own: both held one lock, then the file was
/// damaged. A mount that comes when the store is open already is found by `doctor`.
#[test]
fn a_file_or_log_that_is_mounted_by_itself_is_refused_and_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut inside = Command::new("unshare");
    inside.arg("--mount").arg(std::env::current_exe().unwrap());
    inside.args(["--exact", "in_a_mount_namespace", "--nocapture"]).env(FOLDER, folder.path());
    run(&mut inside);
}
