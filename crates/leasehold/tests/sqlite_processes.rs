//! The embedded store between real processes that are killed without warning:
//! never two holders, never a token twice, and no waiting for the dead one's TTL.
#![cfg(feature = "sqlite")]

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backend::sqlite::SqliteStore;
use leasehold::backend::{Backend, Claim, Grant, Renewal, Turn, Verdict};
use leasehold::clock::Clock;
use leasehold::{Holder, Name};

const FOLDER: &str = "LEASEHOLD_TEST_FOLDER";
/// Far longer than the test: only the death of a process can end its lease in time.
const TTL: Duration = Duration::from_secs(3_600);

/// Not a test by itself: the process that the other test starts and kills.
#[tokio::test]
async fn worker() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let store = SqliteStore::open(&folder.join("locks.db"), Clock::boot()).unwrap();
    let mut log = log(folder);
    let holder = Arc::new(Holder::this_process());
    loop {
        let mut claim = Claim::new(Name::new("the lock").unwrap(), TTL, holder.clone());
        claim.queue = true;
        let token = acquire(&store, &claim).await.token.get();
        let hold = claim.hold(leasehold::Token::new(token));
        // A pushed grant is short; make it last, as the keeper would.
        let renewal = store.clone().renew(vec![hold.clone()]).await.unwrap().remove(0);
        if !matches!(renewal, Renewal::Renewed(_)) {
            continue;
        }
        say(&mut log, "enter", std::process::id(), token);
        say(&mut log, "leave", std::process::id(), token);
        store.clone().release(vec![hold]).await.unwrap();
    }
}

async fn acquire(store: &Arc<SqliteStore>, claim: &Claim) -> Grant {
    loop {
        match store.clone().acquire(vec![claim.clone()]).await.unwrap().remove(0) {
            Verdict::Granted(grant) => return grant,
            Verdict::Queued(_) => {}
            other => panic!("asked to queue, but {other:?}"),
        }
        if let Turn::Granted(grant) = store.clone().wait(claim.clone()).await.unwrap() {
            return grant;
        }
    }
}

fn log(folder: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap()
}

fn say(log: &mut File, what: &str, pid: u32, token: u64) {
    // One write, so that lines of several processes do not mix.
    log.write_all(format!("{what} {pid} {token}\n").as_bytes()).unwrap();
}

fn lines(folder: &Path) -> Vec<(String, u32, u64)> {
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    let parse = |line: &str| {
        let mut parts = line.split(' ');
        let what = parts.next()?.to_owned();
        Some((what, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    log.lines().filter_map(parse).collect()
}

/// A worker process; killed at the latest when the test ends, however it ends.
struct Worker(Child);

impl Worker {
    fn start(folder: &Path) -> Self {
        let mut worker = Command::new(std::env::current_exe().unwrap());
        worker.args(["--exact", "worker", "--nocapture"]).env(FOLDER, folder);
        Self(worker.stdout(Stdio::null()).spawn().unwrap())
    }

    fn kill(&mut self, log: &mut File) {
        say(log, "doomed", self.0.id(), 0);
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn killed_holders_and_waiters_stop_nobody_and_no_token_comes_twice() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = log(folder.path());
    let mut workers: Vec<_> = (0..4).map(|_| Worker::start(folder.path())).collect();
    for round in 0..12 {
        let began = Instant::now();
        let goal = lines(folder.path()).len() + 100;
        while lines(folder.path()).len() < goal {
            assert!(began.elapsed() < Duration::from_secs(60), "stuck in round {round}");
            std::thread::sleep(Duration::from_millis(1));
        }
        let victim = &mut workers[round % 4];
        victim.kill(&mut log);
        *victim = Worker::start(folder.path());
    }
    workers.iter_mut().for_each(|worker| worker.kill(&mut log));
    check(lines(folder.path()));
}

fn check(lines: Vec<(String, u32, u64)>) {
    let (mut doomed, mut last, mut inside) = (HashSet::new(), 0, None);
    for (what, pid, token) in lines {
        match what.as_str() {
            "doomed" => drop(doomed.insert(pid)),
            "leave" => assert_eq!(inside.take(), Some(pid), "left without being the holder"),
            _ => {
                if let Some(before) = inside.replace(pid) {
                    assert!(doomed.contains(&before), "{pid} entered while {before} was inside");
                }
                assert!(token > last, "{token} after {last}");
                last = token;
            }
        }
    }
}
