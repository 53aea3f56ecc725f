//! Every case of the contract, on each deployment.

use std::sync::Arc;

use leasehold_conformance::cases::run_all;
use leasehold_faults::stores::redis::Redis;

#[test]
fn single_without_persistence() {
    run_all(Arc::new(Redis::single(&[])));
}

#[test]
fn single_with_an_append_only_file() {
    run_all(Arc::new(Redis::single(&["--appendonly", "yes"])));
}

#[test]
fn sentinel() {
    run_all(Arc::new(Redis::sentinel()));
}

#[test]
fn cluster() {
    run_all(Arc::new(Redis::cluster()));
}
