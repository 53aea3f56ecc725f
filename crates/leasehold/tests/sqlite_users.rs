//! The embedded store between several users. Needs root, to become them.
#![cfg(feature = "sqlite")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backend::sqlite::SqliteStore;
use leasehold::backend::{Backend, Claim, Turn, Verdict};
use leasehold::clock::Clock;
use leasehold::{Holder, Name};
use tempfile::TempDir;

const FOLDER: &str = "LEASEHOLD_TEST_USERS";
const ROLE: &str = "LEASEHOLD_TEST_ROLE";
const ADA: u32 = 64_001;
const BOB: u32 = 64_002;
/// Ada and Bob belong to it, but it is not their first group.
const TEAM: u32 = 64_100;
const PATIENCE: Duration = Duration::from_secs(20);

/// Not a test by itself: what another test runs as some user.
#[tokio::test]
async fn as_a_user() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let store = SqliteStore::open(&folder.join("locks.db"), Clock::boot()).unwrap();
    let holder = Arc::new(Holder::this_process());
    let mut claim = Claim::new(Name::new("a").unwrap(), Duration::from_secs(60), holder);
    claim.queue = true;
    let verdict = store.clone().acquire(vec![claim.clone()]).await.unwrap().remove(0);
    let role = std::env::var(ROLE).unwrap();
    let grant = match (role.as_str(), verdict) {
        ("passes" | "holds", Verdict::Granted(grant)) => grant,
        ("waits", Verdict::Queued(_)) => {
            let Turn::Granted(grant) = store.clone().wait(claim.clone()).await.unwrap() else {
                panic!("it lost its place");
            };
            grant
        }
        (role, verdict) => panic!("it {role}, but {verdict:?}"),
    };
    if role == "holds" {
        fs::write(folder.join("held"), "").unwrap();
        // The other user's bell, which we must be able to ring.
        let bells = folder.join("locks.db-bells");
        // It is ours to ring only a moment after it is there.
        until(|| {
            let bell = fs::read_dir(&bells).ok()?.next()?.ok()?;
            UnixDatagram::unbound().unwrap().connect(bell.path()).ok()
        });
    }
    store.clone().release(vec![claim.hold(grant.token)]).await.unwrap();
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let patience = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < patience, "it does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder with these rights, of root and the team.
struct Scene {
    outer: TempDir,
    umask: &'static str,
}

impl Scene {
    fn new(mode: u32, umask: &'static str) -> Self {
        let outer = tempfile::tempdir().unwrap();
        let scene = Self { outer, umask };
        // Where it was built, other users may not look.
        fs::copy(std::env::current_exe().unwrap(), scene.outer.path().join("program")).unwrap();
        fs::create_dir(scene.folder()).unwrap();
        std::os::unix::fs::chown(scene.folder(), None, Some(TEAM)).expect("as root");
        let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        allow(scene.outer.path(), 0o755).unwrap();
        allow(&scene.folder(), mode).unwrap();
        scene
    }

    fn folder(&self) -> PathBuf {
        self.outer.path().join("shared")
    }

    fn start(&self, user: u32, role: &str) -> Child {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}")]);
        command.args([&format!("--groups={TEAM}"), "--", "sh", "-c"]);
        command.arg(format!("umask {}; exec \"$0\" \"$@\"", self.umask));
        command.arg(self.outer.path().join("program")).args(["--exact", "as_a_user"]);
        command.env(FOLDER, self.folder()).env(ROLE, role).current_dir("/").spawn().unwrap()
    }

    fn pass(&self, user: u32) -> bool {
        self.start(user, "passes").wait().unwrap().success()
    }

    /// The rights of the database, and its group.
    fn database(&self) -> (u32, u32) {
        let found = fs::metadata(self.folder().join("locks.db")).unwrap();
        (found.mode() & 0o777, found.gid())
    }
}

/// The file was writable for its first user alone, whatever umask and folder said; and so were
/// the log, its index and the bells.
#[test]
fn a_store_in_a_folder_of_several_users_is_for_all_of_them() {
    for (folder, umask, mode) in
        [(0o770, "022", 0o660 | 0o004), (0o2770, "077", 0o660), (0o777, "022", 0o666)]
    {
        let scene = Scene::new(folder, umask);
        // Each of them creates the log anew, after the other's was removed.
        for user in [ADA, BOB, ADA] {
            assert!(scene.pass(user), "{user} in a folder {folder:o}, umask {umask}");
        }
        assert_eq!(scene.database(), (mode, TEAM));
        let mut holds = scene.start(ADA, "holds");
        until(|| scene.folder().join("held").exists().then_some(()));
        let mut waits = scene.start(BOB, "waits");
        assert!(holds.wait().unwrap().success() && waits.wait().unwrap().success());
    }
}

#[test]
fn a_store_in_a_folder_of_one_user_is_for_nobody_else() {
    for (umask, mode) in [("022", 0o644), ("077", 0o600), ("002", 0o644), ("000", 0o644)] {
        let scene = Scene::new(0o755, umask);
        std::os::unix::fs::chown(scene.folder(), Some(ADA), Some(ADA)).unwrap();
        assert!(scene.pass(ADA));
        assert_eq!(scene.database(), (mode, ADA), "at most what SQLite gives");
        assert!(!scene.pass(BOB));
    }
}

/// A folder of one user that others moved into the store was opened to all of them.
#[test]
fn a_folder_that_the_store_did_not_create_keeps_its_rights() {
    let scene = Scene::new(0o2770, "022");
    assert!(scene.pass(BOB));
    let bells = scene.folder().join("locks.db-bells");
    fs::create_dir(&bells).unwrap();
    std::os::unix::fs::chown(&bells, Some(ADA), Some(ADA)).unwrap();
    fs::set_permissions(&bells, Permissions::from_mode(0o755)).unwrap();
    let mut holds = scene.start(BOB, "holds");
    until(|| scene.folder().join("held").exists().then_some(()));
    let mut waits = scene.start(ADA, "waits");
    assert!(holds.wait().unwrap().success() && waits.wait().unwrap().success());
    let found = fs::metadata(&bells).unwrap();
    assert_eq!((found.mode() & 0o777, found.uid(), found.gid()), (0o755, ADA, ADA));
}

/// In a sticky folder everybody keeps to his own, as in `/tmp`.
#[test]
fn a_store_in_a_sticky_folder_is_as_the_umask_says() {
    let scene = Scene::new(0o1777, "022");
    assert!(scene.pass(ADA));
    assert_eq!(scene.database(), (0o644, ADA));
    assert!(!scene.pass(BOB));
}
