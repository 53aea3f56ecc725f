//! The real kazoo and Leasehold on one path: no overlap, and both make progress.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use leasehold::Token;
use leasehold::clock::{Clock, Moment};
use leasehold_faults::servers::Zookeeper;
use tokio::process::{Child, Command};

use crate::scene::{client, url_at};

/// How long they contend.
const LASTS: Duration = Duration::from_secs(30);
/// How many contenders there are of each kind.
const EACH: usize = 2;
/// The least that each kind must have got.
const PROGRESS: usize = 50;

/// Somebody had the lock, from when to when.
#[derive(Debug, Clone, Copy)]
struct Turn {
    since: u64,
    until: u64,
    kazoo: bool,
}

/// Python with the foreign clients.
fn python() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below target");
    let python = target.join("foreign/bin/python");
    assert!(python.exists(), "{} is missing: scripts/test makes it", python.display());
    python
}

fn kazoo(server: &Zookeeper, path: &str, node_name: Option<&str>) -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign/kazoo_contender.py");
    let mut command = Command::new(python());
    command.arg(script).arg(server.addr().to_string()).arg(path);
    command.arg(LASTS.as_secs().to_string()).args(node_name);
    command.stdout(Stdio::piped()).kill_on_drop(true);
    command.spawn().expect("python starts")
}

/// What a contender of Leasehold's had, and its tokens.
async fn contend(url: String, lasts: Duration) -> Vec<(Turn, Token)> {
    let (locks, _) = client(&url).await;
    let (clock, mut turns) = (Clock::boot(), Vec::new());
    let end = clock.now() + lasts;
    while clock.now() < end {
        let lease = locks.lock("job").ttl(Duration::from_secs(10)).acquire().await.unwrap();
        let since = clock.now();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..4_000))).await;
        // What it does after its deadline it does not do under the lock.
        let until = clock.now().min(lease.deadline());
        let turn = Turn { since: nanos(since), until: nanos(until), kazoo: false };
        turns.push((turn, lease.token()));
        lease.release().await.unwrap();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2_000))).await;
    }
    turns
}

fn nanos(moment: Moment) -> u64 {
    moment.as_nanos()
}

fn turns_of(output: &[u8]) -> Vec<Turn> {
    let text = String::from_utf8_lossy(output);
    let turns = text.lines().filter_map(|line| {
        let (since, until) = line.split_once(' ')?;
        Some(Turn { since: since.parse().ok()?, until: until.parse().ok()?, kazoo: true })
    });
    turns.collect()
}

async fn both_make_progress_without_overlap(layout: &str, node_name: Option<&str>) {
    let server = Zookeeper::start().unwrap();
    // They are read from the start: who fills its pipe while it has the lock keeps it.
    let foreign = (0..EACH).map(|_| kazoo(&server, "/shared/job", node_name));
    let foreign: Vec<_> = foreign.map(|each| tokio::spawn(each.wait_with_output())).collect();
    let url = url_at(server.addr(), &format!("/shared?session=10s&layout={layout}"));
    let ours: Vec<_> = (0..EACH).map(|_| tokio::spawn(contend(url.clone(), LASTS))).collect();
    let (mut turns, mut tokens) = (Vec::new(), Vec::new());
    for contender in ours {
        for (turn, token) in contender.await.unwrap() {
            turns.push(turn);
            tokens.push((turn.since, token));
        }
    }
    for contender in foreign {
        let output = contender.await.unwrap().unwrap();
        assert!(output.status.success(), "kazoo failed: {}", output.status);
        turns.extend(turns_of(&output.stdout));
    }
    turns.sort_by_key(|turn| turn.since);
    for pair in turns.windows(2) {
        assert!(pair[0].until <= pair[1].since, "{pair:?}");
    }
    tokens.sort();
    assert!(tokens.is_sorted_by(|(_, a), (_, b)| a < b), "tokens out of order");
    let theirs = turns.iter().filter(|turn| turn.kazoo).count();
    let ours = turns.len() - theirs;
    println!("{layout}: kazoo {theirs}, Leasehold {ours}");
    assert!(theirs >= PROGRESS && ours >= PROGRESS, "kazoo {theirs}, Leasehold {ours}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_and_leasehold_exclude_each_other() {
    both_make_progress_without_overlap("kazoo", None).await;
}

/// The same algorithm on names that Curator counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_curator_and_leasehold_exclude_each_other() {
    both_make_progress_without_overlap("curator", Some("-lock-")).await;
}
