//! The suite's cases with processes, on every store that reaches beyond one.

use std::path::Path;

use leasehold::StoreKind;
use leasehold_faults::processes::{self, Scene};

/// How a folder becomes a store of this kind; `None` for one that ends with its process.
/// A new store has to say.
fn url(kind: StoreKind) -> Option<fn(&Path) -> String> {
    match kind {
        StoreKind::Memory => None,
        StoreKind::Sqlite => Some(|folder| format!("sqlite:{}/locks.db", folder.display())),
        // Behind a server: below.
        StoreKind::Redis | StoreKind::Redlock | StoreKind::Postgres => None,
        StoreKind::Etcd | StoreKind::Zookeeper => None,
        kind => panic!("say how {kind:?} is reached"),
    }
}

fn on_every_store(case: fn(&Scene)) {
    for store in StoreKind::ALL.iter().filter_map(|kind| url(*kind)) {
        case(&Scene::new(env!("CARGO_BIN_EXE_leasehold"), store));
    }
}

#[test]
fn a_killed_holder_is_replaced_at_once() {
    on_every_store(processes::a_killed_holder_is_replaced_at_once);
}

#[test]
fn a_stopped_holder_is_replaced_and_told() {
    on_every_store(processes::a_stopped_holder_is_replaced_and_told);
}

#[test]
fn no_increment_is_lost() {
    on_every_store(processes::no_increment_is_lost);
}

/// Where a server keeps the leases it cannot see whether their process is gone: then the TTL
/// ends them, and the other cases hold as everywhere.
#[test]
fn redis_passes_what_needs_no_eyes() {
    let server = leasehold_faults::servers::Redis::start(&[]).expect("a Redis server starts");
    for case in [processes::a_stopped_holder_is_replaced_and_told, processes::no_increment_is_lost]
    {
        case(&Scene::new(env!("CARGO_BIN_EXE_leasehold"), |_| server.url()));
    }
}

#[test]
fn redlock_passes_what_needs_no_eyes() {
    let nodes = leasehold_faults::servers::Redlock::start(3, &[]).expect("Redis servers start");
    for case in [processes::a_stopped_holder_is_replaced_and_told, processes::no_increment_is_lost]
    {
        case(&Scene::new(env!("CARGO_BIN_EXE_leasehold"), |_| nodes.url()));
    }
}

/// A session does not see that its client's process is gone: its TTL ends it.
#[test]
fn zookeeper_passes_what_needs_no_eyes() {
    let server = leasehold_faults::servers::Zookeeper::start().expect("a server starts");
    for case in [processes::a_stopped_holder_is_replaced_and_told, processes::no_increment_is_lost]
    {
        case(&Scene::new(env!("CARGO_BIN_EXE_leasehold"), |_| server.url("/processes")));
    }
}

/// A row in a table does not see whether its holder's process is gone: its TTL ends it. A
/// session does, by its socket.
#[test]
fn postgres_passes_what_each_mode_can_see() {
    let server = leasehold_faults::servers::Postgres::start(&[]).expect("a server starts");
    let on = |mode: &str| {
        let url = format!("{}?mode={mode}", server.url());
        Scene::new(env!("CARGO_BIN_EXE_leasehold"), |_| url)
    };
    processes::a_stopped_holder_is_replaced_and_told(&on("lease"));
    processes::no_increment_is_lost(&on("lease"));
    processes::a_stopped_holder_is_replaced_and_told(&on("session"));
    processes::a_killed_holder_is_replaced_at_once(&on("session"));
}

/// A session does not see that its client's process is gone: its TTL ends it.
#[test]
fn etcd_passes_what_it_can_see() {
    let server = leasehold_faults::servers::Etcd::start(1, &[]).expect("a server starts");
    let scene = || Scene::new(env!("CARGO_BIN_EXE_leasehold"), |_| server.url());
    processes::a_stopped_holder_is_replaced_and_told(&scene());
    processes::no_increment_is_lost(&scene());
}
