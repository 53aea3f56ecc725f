//! A short form of every fault run. The long one is `scripts/faults`.
//!
//! The control may lose nothing in so short a time: such a run is void and is repeated with
//! the next seed, at most five times.

#![cfg(feature = "suite")]

use std::path::Path;
use std::time::Duration;

use leasehold_faults::fault_run::FaultRun;
use leasehold_faults::fault_run::deployment;
use leasehold_faults::fault_run::fault::Fault;
use leasehold_faults::history::report::{Report, Verdict};

const LASTS: Duration = Duration::from_secs(4);
const ATTEMPTS: u64 = 5;

/// A store whose leases last longer needs longer; and many clients, until each had a turn.
fn lasts(store: &str, fault: Fault) -> Duration {
    match store {
        "etcd" if fault == Fault::Leader => 6 * LASTS,
        "etcd" | "redlock" => 2 * LASTS,
        // Until the first strike is over.
        "pgsession" if matches!(fault, Fault::Clock | Fault::Restart) => 2 * LASTS,
        // Until another takes over.
        "redis-sentinel" | "redis-cluster" => 3 * LASTS,
        _ => LASTS,
    }
}

fn run(store: &str, fault: Fault, seed: u64, heedless: bool) -> Report {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = FaultRun {
        store: deployment::named(store).expect("a store of this name"),
        fault,
        lasts: lasts(store, fault),
        seed,
        folder: folder.path().join("history"),
        program: Path::new(env!("CARGO_BIN_EXE_leasehold-faults")),
        heedless,
    };
    let report = run.run().expect("the run is not hindered by anything but its fault");
    if report.verdict() == Verdict::Failed && !heedless {
        panic!("{report:#?}\nhistory: {}", folder.keep().display());
    }
    report
}

fn passes(store: &str, fault: Fault) {
    if let Some(why) = fault.impossible(deployment::named(store).expect("a store")) {
        panic!("{why}: run the tests as root, as scripts/test does");
    }
    let passed = |seed| run(store, fault, seed, false).verdict() == Verdict::Passed;
    assert!((1..=ATTEMPTS).any(passed), "the control lost nothing: the runs prove nothing");
}

/// The checkers see a real library go wrong, not only histories written by hand.
#[test]
fn a_guard_that_does_not_heed_its_deadline_is_caught() {
    let report = run("sqlite", Fault::Pause, 1, true);
    let (_, found) = report.violations.iter().find(|(letter, _)| *letter == "D").expect("D");
    assert!(!found.is_empty(), "{report:#?}");
}

#[test]
fn sqlite_survives_paused_holders() {
    passes("sqlite", Fault::Pause);
}

#[test]
fn sqlite_survives_frozen_holders() {
    passes("sqlite", Fault::Freeze);
}

#[test]
fn sqlite_survives_clients_paused_in_the_queue() {
    passes("sqlite", Fault::Queue);
}

#[test]
fn sqlite_survives_killed_processes() {
    passes("sqlite", Fault::Kill);
}

#[test]
fn sqlite_survives_a_full_disk() {
    passes("sqlite", Fault::Disk);
}

#[test]
fn sqlite_serves_a_thousand_waiters() {
    passes("sqlite", Fault::Waiters);
}

#[test]
fn memory_survives_paused_holders() {
    passes("memory", Fault::Pause);
}

#[test]
fn memory_survives_clients_paused_in_the_queue() {
    passes("memory", Fault::Queue);
}

#[test]
fn memory_serves_a_thousand_waiters() {
    passes("memory", Fault::Waiters);
}

#[test]
fn redlock_survives_paused_holders() {
    passes("redlock", Fault::Pause);
}

#[test]
fn redlock_survives_clients_that_are_cut_off() {
    passes("redlock", Fault::Partition);
}

#[test]
fn redlock_survives_the_restart_of_a_minority() {
    passes("redlock", Fault::Restart);
}

#[test]
fn redlock_survives_the_loss_of_a_minoritys_data() {
    passes("redlock", Fault::Amnesia);
}

#[test]
fn redlock_survives_a_minority_that_comes_back_with_older_data() {
    passes("redlock", Fault::Older);
}

#[test]
fn redis_survives_paused_holders() {
    passes("redis", Fault::Pause);
}

#[test]
fn redis_survives_partitions() {
    passes("redis", Fault::Partition);
}

#[test]
fn redis_survives_a_bad_network() {
    passes("redis", Fault::Network);
}

#[test]
fn redis_survives_the_loss_of_its_data() {
    passes("redis", Fault::Amnesia);
}

#[test]
fn redis_survives_frozen_holders() {
    passes("redis", Fault::Freeze);
}

#[test]
fn redis_survives_clients_paused_in_the_queue() {
    passes("redis", Fault::Queue);
}

#[test]
fn redis_survives_a_clock_that_jumps() {
    passes("redis", Fault::Clock);
}

#[test]
fn redis_survives_crashes() {
    passes("redis", Fault::Restart);
}

#[test]
fn redis_serves_a_thousand_waiters() {
    passes("redis", Fault::Waiters);
}

#[test]
fn redis_behind_sentinels_survives_the_loss_of_its_master() {
    passes("redis-sentinel", Fault::Leader);
}

#[test]
fn a_redis_cluster_survives_the_loss_of_a_master() {
    passes("redis-cluster", Fault::Leader);
}

#[test]
fn etcd_survives_paused_holders() {
    passes("etcd", Fault::Pause);
}

#[test]
fn etcd_survives_a_bad_network() {
    passes("etcd", Fault::Network);
}

#[test]
fn etcd_survives_partitions() {
    passes("etcd", Fault::Partition);
}

#[test]
fn etcd_survives_the_loss_of_its_leader() {
    passes("etcd", Fault::Leader);
}

#[test]
fn etcd_survives_a_leader_that_was_stopped() {
    passes("etcd", Fault::Stopped);
}

#[test]
fn zookeeper_survives_paused_holders() {
    passes("zookeeper", Fault::Pause);
}

#[test]
fn zookeeper_survives_a_bad_network() {
    passes("zookeeper", Fault::Network);
}

#[test]
fn zookeeper_survives_partitions() {
    passes("zookeeper", Fault::Partition);
}

#[test]
fn zookeeper_survives_a_server_that_is_killed_or_stopped() {
    passes("zookeeper", Fault::Restart);
}

#[test]
fn zookeeper_survives_the_loss_of_its_leader() {
    passes("zookeeper", Fault::Leader);
}

#[test]
fn postgres_survives_paused_holders() {
    passes("postgres", Fault::Pause);
}

#[test]
fn postgres_survives_crashes() {
    passes("postgres", Fault::Restart);
}

#[test]
fn postgres_sessions_survive_paused_holders() {
    passes("pgsession", Fault::Pause);
}

#[test]
fn postgres_sessions_survive_a_bad_network() {
    passes("pgsession", Fault::Network);
}

#[test]
fn postgres_sessions_survive_a_clock_that_jumps() {
    passes("pgsession", Fault::Clock);
}

#[test]
fn postgres_sessions_survive_crashes() {
    passes("pgsession", Fault::Restart);
}

#[test]
fn postgres_sessions_survive_partitions() {
    passes("pgsession", Fault::Partition);
}
