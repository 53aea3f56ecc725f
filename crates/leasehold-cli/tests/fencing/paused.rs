//! The story: a holder writes, is stopped, loses its lease without knowing, and writes.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Lease;
use leasehold_faults::servers::{Objects, Postgres, Redis};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::resources::{Answers, Resources};
use crate::service::{Gate, Service};
use crate::value;

const RESOURCES: &str = "LEASEHOLD_TEST_RESOURCES";
const LOCK: &str = "note";
const TTL: Duration = Duration::from_secs(5);
/// How long anything may take on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// Not a test by itself: the process that the other test stops.
#[tokio::test]
async fn holder() {
    let Ok(text) = std::env::var(RESOURCES) else { return };
    let resources: Resources = serde_json::from_str(&text).unwrap();
    let lease = acquire(&resources).await;
    let token = lease.token();
    let answers = resources.write_all(token, "old").await;
    say(&resources.folder, "first", &answers);
    // It has decided to write, and is stopped before it does. It does not look at its lease
    // any more: no look could be late enough.
    while !resources.folder.join("go").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let answers = resources.write_all(token, "late").await;
    say(&resources.folder, "second", &answers);
    std::mem::forget(lease);
}

/// Takes the lock, however busy the store is.
async fn acquire(resources: &Resources) -> Lease {
    let until = Instant::now() + BOUND;
    loop {
        let acquired = match leasehold::connect(resources.locks()).await {
            Ok(locks) => locks.lock(LOCK).ttl(TTL).wait(BOUND).acquire().await,
            Err(error) => Err(error),
        };
        match acquired {
            Ok(lease) => return lease,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whole at once, for whoever waits for it.
fn say(folder: &Path, name: &str, answers: &Answers) {
    let temporary = folder.join(format!("{name}.new"));
    fs::write(&temporary, serde_json::to_string(answers).unwrap()).unwrap();
    fs::rename(temporary, folder.join(name)).unwrap();
}

/// The holder's process; killed at the latest when the test ends.
struct Holder(Child);

impl Holder {
    fn start(resources: &Resources) -> Self {
        let mut holder = Command::new(std::env::current_exe().unwrap());
        holder.args(["--exact", "paused::holder", "--nocapture"]).stdout(Stdio::null());
        holder.env(RESOURCES, serde_json::to_string(resources).unwrap());
        Self(holder.spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn says(&mut self, folder: &Path, name: &str) -> Answers {
        let until = Instant::now() + BOUND;
        loop {
            if let Ok(text) = fs::read_to_string(folder.join(name)) {
                return serde_json::from_str(&text).unwrap();
            }
            if let Some(status) = self.0.try_wait().unwrap() {
                panic!("the holder ended: {status}");
            }
            assert!(Instant::now() < until, "the holder does not say {name:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_holder_is_rejected_by_every_fenced_resource_and_by_nothing_else() {
    let folder = TempDir::new().unwrap();
    let (postgres, redis) = (Postgres::start(&["fsync=off"]).unwrap(), Redis::start(&[]).unwrap());
    let (objects, service) = (Objects::start().unwrap(), Service::start());
    let gate = Gate::start(&folder, service.address, &[]);
    let (address, value) = value::serve();
    let resources = Resources {
        folder: folder.path().to_owned(),
        value: address,
        postgres: postgres.url(),
        redis: redis.url(),
        objects: objects.url(),
        gate: gate.address,
    };
    resources.prepare().await;

    let mut holder = Holder::start(&resources);
    let first = holder.says(folder.path(), "first");
    assert_eq!(first.len(), 7, "{first:?}");
    assert!(first.values().all(Option::is_none), "while it held the lock: {first:?}");

    holder.signal(Signal::STOP);
    let lease = acquire(&resources).await;
    let token = lease.token();
    let ours = resources.write_all(token, "new").await;
    assert!(ours.values().all(Option::is_none), "{ours:?}");

    fs::write(folder.path().join("go"), "").unwrap();
    holder.signal(Signal::CONT);
    let second = holder.says(folder.path(), "second");
    let expected: Answers = first.into_keys().map(|name| (name, Some(token.get()))).collect();
    assert_eq!(second, expected, "each has seen the newer token");

    for (resource, text) in resources.read_all().await {
        let expected = if resource == "control" { "late" } else { "new" };
        assert_eq!(text, expected, "{resource}");
    }
    assert_eq!(value.read(String::clone), "new");
    assert_eq!(service.bodies(), ["old", "new"]);
    // Ours to the end, or lost to the machine's load: the resources have said what counts.
    let _ = lease.release().await;
}
