//! Files that are not what they should be, and disks that are not either.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rusqlite::Connection;

use super::*;
use crate::backend::{Hint, Severity};
use crate::error::{Error, ErrorKind, Outcome};

fn refusal(fixture: &Fixture) -> Error {
    SqliteStore::open(&fixture.path(), fixture.clock()).unwrap_err()
}

/// The advice was to remove it, also for `sqlite:/etc/passwd`.
#[test]
fn a_file_that_is_no_database_is_named_and_left_alone() {
    let fixture = Fixture::new();
    for garbage in [vec![b'x'; 8_192], b"root:x:0:0:root:/root:/bin/sh\n".to_vec(), vec![0; 100]] {
        fs::write(fixture.path(), &garbage).unwrap();
        let error = refusal(&fixture);
        assert_eq!(*error.kind(), ErrorKind::Unusable);
        let message = error.to_string();
        assert!(message.contains("locks.db is no SQLite database"), "{error}");
        assert!(message.contains("choose another path"), "{error}");
        assert!(!message.contains("remove"), "{error}");
        assert_eq!(fs::read(fixture.path()).unwrap(), garbage);
        assert!(!beside(&fixture.path(), "-wal").exists(), "nothing was put beside it");
    }
}

#[test]
fn a_damaged_database_is_named_and_left_alone() {
    let fixture = Fixture::new();
    drop(fixture.open());
    let mut damaged = fs::read(fixture.path()).unwrap();
    damaged[100..].fill(0xFF);
    let fixture = Fixture::new();
    fs::write(fixture.path(), &damaged).unwrap();
    let error = refusal(&fixture);
    assert_eq!(*error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("locks.db is damaged"), "{error}");
    assert!(!error.to_string().contains("remove"), "{error}");
    assert_eq!(fs::read(fixture.path()).unwrap(), damaged);
}

/// One would see the other's file half: its tables, but not yet the mark that it is ours.
#[test]
fn those_who_create_the_file_at_one_moment_all_get_in() {
    const OPENERS: usize = 4;
    for _ in 0..150 {
        let fixture = Fixture::new();
        let start = std::sync::Barrier::new(OPENERS);
        std::thread::scope(|scope| {
            for _ in 0..OPENERS {
                scope.spawn(|| {
                    start.wait();
                    fixture.open();
                });
            }
        });
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_loses_nothing() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let held = claim("a");
    let grant = take(&store, &held).await;
    drop(store);
    let set = |version| {
        Connection::open(fixture.path()).unwrap().pragma_update(None, "user_version", version)
    };
    set(schema::VERSION + 1).unwrap();
    let error = refusal(&fixture);
    assert_eq!(*error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("newer Leasehold"), "{error}");
    set(schema::VERSION).unwrap();
    assert_eq!(take(&fixture.open(), &held).await, grant, "leases outlive their process' restart");
}

#[test]
fn another_applications_database_is_refused_and_left_alone() {
    let fixture = Fixture::new();
    Connection::open(fixture.path()).unwrap().execute_batch("create table t (x)").unwrap();
    let before = fs::read(fixture.path()).unwrap();
    assert_eq!(*refusal(&fixture).kind(), ErrorKind::Refused);
    assert_eq!(fs::read(fixture.path()).unwrap(), before);
}

#[test]
fn a_directory_that_is_missing_or_read_only_is_explained() {
    let fixture = Fixture::new();
    let missing = fixture.folder.path().join("missing/locks.db");
    let error = SqliteStore::open(&missing, fixture.clock()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unusable);

    // Root may write anywhere; there a directory in the file's place does the same.
    if rustix::process::geteuid().is_root() {
        fs::create_dir(fixture.path()).unwrap();
    } else {
        fs::set_permissions(fixture.folder.path(), fs::Permissions::from_mode(0o500)).unwrap();
    }
    let error = refusal(&fixture);
    assert_eq!(*error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("writable"), "{error}");
    fs::set_permissions(fixture.folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
}

#[tokio::test]
async fn a_link_to_the_file_leads_to_the_same_locks_and_bells() {
    let fixture = Fixture::new();
    let store = fixture.open();
    take(&store, &claim("a")).await;
    let link = fixture.folder.path().join("link.db");
    std::os::unix::fs::symlink(fixture.path(), &link).unwrap();
    let linked = SqliteStore::open_in_boot(&link, fixture.clock(), "first boot").unwrap();
    assert_eq!(linked.path(), store.path());
    assert!(matches!(ask(&linked, &claim("a")).await, Verdict::Held(Some(_))));
}

/// Who creates the file that a link names must meet those who find it there.
#[tokio::test]
async fn a_link_to_a_file_that_is_not_there_yet_leads_to_the_same_bells() {
    let fixture = Fixture::new();
    let elsewhere = fixture.folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let (link, chain) = (fixture.path(), fixture.folder.path().join("chain.db"));
    std::os::unix::fs::symlink("elsewhere/locks.db", &link).unwrap();
    std::os::unix::fs::symlink(&link, &chain).unwrap();
    let first = SqliteStore::open_in_boot(&chain, fixture.clock(), "first boot").unwrap();
    assert_eq!(first.path(), elsewhere.canonicalize().unwrap().join("locks.db"));
    assert_eq!(first.path(), fixture.open().path());

    let circle = fixture.folder.path().join("circle.db");
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    let error = SqliteStore::open(&circle, fixture.clock()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unusable);
}

/// SQLite would go on, and those who come later would meet at another file. All locks of the
/// store are gone then: that is another kind of error than a file that cannot be used.
#[tokio::test]
async fn a_file_that_was_removed_or_replaced_is_noticed() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let held = claim("a");
    let grant = take(&store, &held).await;
    fs::rename(fixture.path(), fixture.folder.path().join("away.db")).unwrap();
    fixture.hand.advance(Duration::from_secs(1));
    let error = store.clone().acquire(vec![claim("b")]).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (&ErrorKind::Gone, Outcome::NotApplied));
    assert!(error.to_string().contains("removed or replaced"), "{error}");

    for file in ["locks.db-wal", "locks.db-shm"] {
        fs::remove_file(fixture.folder.path().join(file)).unwrap();
    }
    let newcomer = fixture.open();
    take(&newcomer, &claim("a")).await;
    let renewed = store.clone().renew(vec![held.hold(grant.token)]).await;
    assert_eq!(*renewed.unwrap_err().kind(), ErrorKind::Gone);
}

/// Who came while it was away met elsewhere, so that its return changes nothing.
#[tokio::test]
async fn a_file_that_comes_back_is_gone_all_the_same() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let hint = tokio::spawn(store.clone().hint());
    tokio::task::yield_now().await;
    let away = fixture.folder.path().join("away.db");
    fs::rename(fixture.path(), &away).unwrap();
    fixture.hand.advance(Duration::from_secs(1));
    // Nobody asked for anything: it was looked for.
    assert_eq!(hint.await.unwrap().unwrap(), Hint::All);
    fs::rename(&away, fixture.path()).unwrap();
    let error = store.clone().acquire(vec![claim("a")]).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Gone);
    take(&fixture.open(), &claim("a")).await;
}

/// Who removes the log alone sends newcomers to another one: two holders of one lock.
#[tokio::test]
async fn a_log_that_was_removed_is_noticed() {
    for part in ["locks.db-wal", "locks.db-shm"] {
        let fixture = Fixture::new();
        let store = fixture.open();
        let held = claim("a");
        let grant = take(&store, &held).await;
        fs::remove_file(fixture.folder.path().join(part)).unwrap();
        fixture.hand.advance(Duration::from_secs(1));
        let error = store.clone().renew(vec![held.hold(grant.token)]).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Gone);
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// SQLite keeps the log beside the name: two names, two logs, one damaged file.
#[tokio::test]
async fn a_file_with_a_second_name_is_refused() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let second = fixture.folder.path().join("second.db");
    fs::hard_link(fixture.path(), &second).unwrap();
    let error = SqliteStore::open(&second, fixture.clock()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("hard link"), "{error}");
    assert!(!beside(&second, "-wal").exists(), "refused before SQLite touched it");
    let findings = store.clone().examine().await.unwrap();
    assert!(findings.iter().any(|finding| finding.severity == Severity::Unsafe), "{findings:?}");
    fs::remove_file(second).unwrap();
    fixture.open();
}

#[tokio::test]
async fn what_a_panic_left_open_swallows_no_grant() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let held = claim("a");
    let grant = take(&one, &held).await;
    give_back(&one, &held, grant).await;
    one.session.lock().connection.execute_batch("begin immediate").unwrap();
    take(&one, &claim("a")).await;
    assert!(matches!(ask(&two, &claim("a")).await, Verdict::Held(Some(_))));
}

#[tokio::test]
async fn a_full_disk_is_said_and_what_is_held_can_be_given_back() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let held = claim("a");
    let grant = take(&store, &held).await;
    store.session.lock().connection.pragma_update(None, "max_page_count", 1).unwrap();
    let mut refused = None;
    for i in 0..10_000 {
        let claim = claim(&format!("{i:0200}"));
        if let Err(error) = store.clone().acquire(vec![claim]).await {
            refused = Some(error);
            break;
        }
    }
    let error = refused.expect("the database cannot grow");
    assert_eq!(*error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.outcome(), Outcome::NotApplied);
    assert!(error.to_string().contains("disk is full"), "{error}");
    assert_eq!(give_back(&store, &held, grant).await, Release::Released);
}

#[tokio::test]
async fn a_process_that_blocks_the_database_is_outlasted() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let blocker = Connection::open(fixture.path()).unwrap();
    blocker.execute_batch("begin immediate").unwrap();
    let claim = claim("a");
    let asked = tokio::spawn(store.clone().acquire(vec![claim.clone()]));
    tokio::task::yield_now().await;
    assert!(!asked.is_finished());
    blocker.execute_batch("rollback").unwrap();
    assert!(matches!(asked.await.unwrap().unwrap()[0], Verdict::Granted(_)));
}

#[tokio::test]
async fn a_process_that_blocks_for_long_is_an_error_that_can_be_retried() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let blocker = Connection::open(fixture.path()).unwrap();
    blocker.execute_batch("begin immediate").unwrap();
    let error = store.clone().acquire(vec![claim("a")]).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (&ErrorKind::Unavailable, Outcome::NotApplied));
    assert!(error.to_string().contains("another process blocks"), "{error}");
    blocker.execute_batch("rollback").unwrap();
    take(&store, &claim("a")).await;
}

/// A thousand waiters whose heartbeats cannot be written must not stop the application.
#[test]
fn requests_that_are_blocked_leave_threads_to_others() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let blocker = Connection::open(fixture.path()).unwrap();
    blocker.execute_batch("begin immediate").unwrap();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.max_blocking_threads(8).build().unwrap().block_on(async {
        let ask = |i| tokio::spawn(store.clone().acquire(vec![claim(&format!("{i}"))]));
        let asked: Vec<_> = (0..32).map(ask).collect();
        tokio::task::yield_now().await;
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert!(asked.iter().all(|asked| !asked.is_finished()), "done before they gave up");
        blocker.execute_batch("rollback").unwrap();
        for asked in asked {
            assert!(matches!(asked.await.unwrap().unwrap()[0], Verdict::Granted(_)));
        }
    });
}

#[test]
fn works_without_a_runtime_where_nothing_is_waited_for() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let mut asked = store.acquire(vec![claim("a")]);
    let waker = std::task::Waker::noop();
    let polled = asked.as_mut().poll(&mut std::task::Context::from_waker(waker));
    assert!(matches!(polled, std::task::Poll::Ready(Ok(_))));
}

#[tokio::test]
async fn the_log_begins_anew_after_a_checkpoint() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let log = || fs::metadata(beside(&fixture.path(), "-wal")).unwrap().len();
    let mut largest = 0;
    for _ in 0..20 {
        let claims: Vec<_> = (0..64).map(|i| claim(&format!("{i:0200}"))).collect();
        store.clone().acquire(claims).await.unwrap();
        fixture.hand.advance(TTL);
        // One that wrote nothing itself, as beside commands that come and go.
        fixture.keeper().tidy(Call::Tick, false);
        if largest == 0 {
            largest = log();
        }
    }
    assert!(log() <= largest * 2, "{} bytes", log());
}

/// Each process counted what it wrote itself: eight that wrote little filled a small disk.
#[tokio::test]
async fn the_log_is_checkpointed_although_no_process_wrote_much() {
    let fixture = Fixture::new();
    let stores: Vec<_> = (0..8).map(|_| fixture.open()).collect();
    for i in 0..u64::from(log::CHECKPOINT_EVERY) {
        let (store, claim) = (&stores[i as usize % stores.len()], claim("a"));
        let grant = take(store, &claim).await;
        give_back(store, &claim, grant).await;
    }
    let keeper = fixture.keeper();
    let saved = || -> i64 {
        let look = "pragma wal_checkpoint(noop)";
        keeper.session.connection.query_row(look, (), |row| row.get(2)).unwrap()
    };
    // Long before the tick.
    let patience = std::time::Instant::now() + Duration::from_secs(5);
    while saved() < i64::from(log::CHECKPOINT_EVERY) / 2 {
        assert!(std::time::Instant::now() < patience, "nobody moves the log into the database");
        tokio::task::yield_now().await;
    }
}

/// No process lived until its first tick: 3,400 short commands left a log of 30 MB.
#[tokio::test]
async fn who_finds_a_long_log_moves_it_into_the_database_first() {
    let fixture = Fixture::new();
    let store = fixture.open();
    // Too few for a call to housekeeping.
    for _ in 0..600 {
        let claim = claim("a");
        let grant = take(&store, &claim).await;
        give_back(&store, &claim, grant).await;
    }
    let log = || -> (i64, i64) {
        let look = "pragma wal_checkpoint(noop)";
        let session = store.session.lock();
        session.connection.query_row(look, (), |row| Ok((row.get(1)?, row.get(2)?))).unwrap()
    };
    let (frames, saved) = log();
    assert!(frames - saved > 1_100 && frames < 2_000, "{frames} frames, {saved} in the database");
    fixture.open();
    assert_eq!(log(), (frames, frames));
}

/// Rows of processes that ended in other pid namespaces were never removed. Nobody else can say
/// that one is gone, so one that lives must find out that it was forgotten.
#[tokio::test]
async fn clients_that_cannot_be_seen_are_forgotten_and_introduce_themselves_again() {
    let fixture = Fixture::new();
    let (store, other) = (fixture.open(), fixture.open());
    let mut keeper = fixture.keeper();
    let clients = |keeper: &Keeper| -> i64 {
        let count = "select count(*) from clients";
        keeper.session.connection.query_row(count, (), |row| row.get(0)).unwrap()
    };
    let mut sweep = |expected| {
        let elsewhere = "update clients set namespace = 'pid:[1]'";
        keeper.session.connection.execute(elsewhere, ()).unwrap();
        keeper.sweep().unwrap();
        assert_eq!(clients(&keeper), expected);
    };
    let held = claim("a");
    let grant = take(&store, &held).await;
    sweep(1);
    give_back(&store, &held, grant).await;
    sweep(0);
    // Alone, in a batch, and in the queue: each names its client again.
    let grant = take(&store, &held).await;
    let shown = store.clone().inspect(name("a").into()).await.unwrap().unwrap();
    let by = shown.lease().and_then(|lease| lease.held_by.holder.as_ref());
    assert_eq!(by.map(|holder| holder.pid), Some(std::process::id()), "{shown:?}");
    give_back(&store, &held, grant).await;
    sweep(0);
    let both = vec![claim("a"), claim("b")];
    store.clone().acquire(both.clone()).await.unwrap();
    sweep(1);
    let waits = queueing("a");
    assert!(matches!(ask(&other, &waits).await, Verdict::Queued(_)));
    other.clone().leave(waits).await.unwrap();
    sweep(1);
    let waits = queueing("a");
    assert!(matches!(ask(&other, &waits).await, Verdict::Queued(_)));
    sweep(2);
}

/// Commands that end before their housekeeping's first tick leave a client each.
#[tokio::test]
async fn what_many_short_processes_left_is_swept_by_the_next() {
    let fixture = Fixture::new();
    let store = fixture.open();
    take(&store, &claim("a")).await;
    let mut keeper = fixture.keeper();
    let left = |keeper: &Keeper| -> i64 {
        let count = "select count(*) from clients";
        keeper.session.connection.query_row(count, (), |row| row.get(0)).unwrap()
    };
    // Each with our pid, but of an earlier start: gone.
    let copy = "with recursive n(i) as (values (1) union all select i + 1 from n where i < ?1) \
                insert into clients (host, pid, label, started, namespace, bell) \
                select host, pid, label, started - 1, namespace, bell from clients, n";
    keeper.session.connection.execute(copy, [100]).unwrap();
    keeper.sweep_after_others().unwrap();
    assert_eq!(left(&keeper), 101, "few: left for the tick");
    keeper.session.connection.execute(copy, [2]).unwrap();
    keeper.sweep_after_others().unwrap();
    assert_eq!(left(&keeper), 1, "the one that lives");
}

#[tokio::test]
async fn examination_finds_a_sound_store() {
    let fixture = Fixture::new();
    let findings = fixture.open().examine().await.unwrap();
    assert!(findings.len() >= 4);
    for finding in findings {
        assert_eq!(finding.severity, Severity::Fine, "{finding:?}");
    }
}
