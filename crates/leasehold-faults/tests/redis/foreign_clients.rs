//! Real clients of other makers on the same key, in both directions.
//!
//! The packages are pinned in `foreign/requirements.txt`; `scripts/test` installs them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use leasehold_conformance::fixture::within_bound;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::client::{LONG, acquire, client, granted, server, until_waiters};

/// Python with the foreign clients.
fn python() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below target");
    let python = target.join("foreign/bin/python");
    assert!(python.exists(), "{} is missing: scripts/test makes it", python.display());
    python
}

/// A foreign client that does what it is told, line by line.
struct Foreign {
    _process: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Foreign {
    async fn start(library: &str, port: u16) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign/redis_locks.py");
        let mut command = Command::new(python());
        command.arg(script).arg(library).arg(port.to_string()).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("python starts");
        let to = process.stdin.take().expect("it is piped");
        let from = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        Self { _process: process, to, from }
    }

    /// Tells it, and waits for its answer.
    async fn told(&mut self, order: &str) -> String {
        self.to.write_all(format!("{order}\n").as_bytes()).await.expect("it listens");
        let line = within_bound("the foreign client's answer", self.from.next_line()).await;
        line.expect("it speaks").unwrap_or_else(|| panic!("{order}: it ended"))
    }
}

/// Each excludes the other, and goes on when the other is done.
async fn exclude_each_other(library: &str) {
    let server = server();
    let locks = client(&server).await;
    let mut foreign = Foreign::start(library, server.port()).await;
    for _ in 0..3 {
        assert_eq!(foreign.told("try lock:a").await, "held");
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
        let lease = locks.inspect("a").await.unwrap().leases.remove(0);
        assert!(lease.owner.is_none() && lease.held_by.holder.is_none(), "as foreign: {lease:?}");
        let waiting = acquire(locks.lock("a").ttl(LONG));
        until_waiters(&locks, "a", 1).await;
        assert_eq!(foreign.told("release").await, "released");
        let lease = granted(waiting).await;
        assert_eq!(foreign.told("try lock:a").await, "refused");
        assert_eq!(lease.verify().await.unwrap(), lease.token());
        lease.release().await.unwrap();
    }
    assert_eq!(foreign.told("try lock:a").await, "held");
}

#[tokio::test]
async fn redis_py_lock() {
    exclude_each_other("redis-py").await;
}

#[tokio::test]
async fn redlock_py() {
    exclude_each_other("redlock-py").await;
}

#[tokio::test]
async fn hand_written_set_nx_px() {
    exclude_each_other("by-hand").await;
}
