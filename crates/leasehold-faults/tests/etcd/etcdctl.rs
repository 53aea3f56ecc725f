//! `etcdctl lock`, which is Go's `concurrency.Mutex`, excludes us and is excluded by us.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::Token;
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::servers::Etcd;
use rustix::process::{Pid, Signal, kill_process};

use crate::scene::Client;

/// An `etcdctl lock` that runs until it is told to end.
struct Foreign(Child);

impl Foreign {
    fn lock(cluster: &Etcd, name: &str) -> Self {
        Self(cluster.ctl_spawn(0, &["lock", "--ttl", "30", name]).expect("etcdctl runs"))
    }

    /// The key that it prints once it has the lock.
    async fn key(&mut self) -> String {
        let stdout = self.0.stdout.take().expect("piped");
        let (tell, told) = tokio::sync::oneshot::channel();
        // To the end: it would die of a pipe that nobody reads, without unlocking.
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines();
            let first = lines.next().transpose().ok().flatten().unwrap_or_default();
            let _ = tell.send(first);
            lines.for_each(drop);
        });
        within_bound("etcdctl's key", told).await.unwrap()
    }

    /// Ends it as Ctrl-C does: it unlocks.
    fn interrupt(&mut self) {
        let pid = Pid::from_raw(self.0.id() as i32).expect("a process id");
        let _ = kill_process(pid, Signal::INT);
        let _ = self.0.wait();
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_etcdctl_holds_is_not_ours_until_it_lets_go() {
    let cluster = Etcd::start(1, &[]).unwrap();
    let client = Client::on(&cluster).await;
    let mut foreign = Foreign::lock(&cluster, "locks/jobs");
    let key = foreign.key().await;
    assert!(key.starts_with("locks/jobs/"), "{key}");
    assert!(client.lock("jobs").try_acquire().await.unwrap().is_none());
    let seen = client.locks.inspect("jobs").await.unwrap().leases.remove(0);
    assert_eq!((seen.owner, seen.held_by.holder), (None, None), "a foreign client");
    let lock = client.lock("jobs");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("we wait", async || client.waiters("jobs").await == 1).await;
    foreign.interrupt();
    let lease = within_bound("the grant", waiting).await.unwrap().unwrap();
    assert!(lease.token() > seen.token.unwrap_or(Token::new(u64::MAX)));
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_waits_for_us_and_gets_it_after_us() {
    let cluster = Etcd::start(1, &[]).unwrap();
    let client = Client::on(&cluster).await;
    let lease = client.lock("jobs").acquire().await.unwrap();
    let mut foreign = Foreign::lock(&cluster, "locks/jobs");
    eventually("etcdctl waits", async || client.waiters("jobs").await == 1).await;
    let token = lease.token();
    lease.release().await.unwrap();
    let key = foreign.key().await;
    assert!(key.starts_with("locks/jobs/"), "{key}");
    let seen = client.locks.inspect("jobs").await.unwrap().leases.remove(0);
    assert!(seen.token > Some(token) && seen.owner.is_none(), "{seen:?}");
    assert_eq!(client.locks.list("").await.unwrap().len(), 1, "listed like our own");
}

/// Keys below a name come and go all the time: a claim that does not wait still gets an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_nested_names_do_not_keep_an_outer_lock_from_being_tried() {
    let cluster = Etcd::start(1, &[]).unwrap();
    let (client, busy) = (Client::on(&cluster).await, Client::on(&cluster).await);
    let turns = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..8)
        .map(|number| {
            let (lock, turns) = (busy.lock(&format!("orders/{number}")), turns.clone());
            tokio::spawn(async move {
                for _ in 0_u64.. {
                    lock.acquire().await.unwrap().release().await.unwrap();
                    turns.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    eventually("they are busy", async || turns.load(Ordering::SeqCst) > 8).await;
    let other = Client::on(&cluster).await;
    for _ in 0..20 {
        let lease = client.lock("orders").try_acquire().await.unwrap().expect("nobody has it");
        assert!(other.lock("orders").try_acquire().await.unwrap().is_none());
        lease.release().await.unwrap();
    }
    assert!(other.is_free("orders").await);
    workers.iter().for_each(|worker| worker.abort());
}

/// Go's mutex takes every key below its name for a claim; we do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_names_and_other_keys_do_not_exclude_each_other() {
    let cluster = Etcd::start(1, &[]).unwrap();
    let (client, other) = (Client::on(&cluster).await, Client::on(&cluster).await);
    // More than a claim reads of a queue, and in the middle of where claims are.
    for number in 0..40 {
        cluster.ctl(&["put", &format!("locks/jobs/4{number}"), "no lock"]).unwrap();
    }
    let nested = client.lock("jobs/42").acquire().await.unwrap();
    let outer = client.lock("jobs").try_acquire().await.unwrap().expect("nobody has it");
    assert!(other.lock("jobs").try_acquire().await.unwrap().is_none());
    let lock = other.lock("jobs");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("it waits", async || client.waiters("jobs").await == 1).await;
    outer.release().await.unwrap();
    within_bound("the grant", waiting).await.unwrap().unwrap().release().await.unwrap();
    let queued = other.lock("jobs").acquire().await.unwrap();
    let names: Vec<_> = client.locks.list("").await.unwrap().into_iter().collect();
    let names: Vec<_> = names.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["jobs", "jobs/42"]);
    queued.release().await.unwrap();
    nested.release().await.unwrap();
}
