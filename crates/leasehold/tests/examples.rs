//! The examples do what they say. They are built with the tests.
#![cfg(feature = "sqlite")]

use std::path::PathBuf;
use std::process::{Command, Output};

fn run(example: &str) -> Output {
    let tests = std::env::current_exe().unwrap();
    let built: PathBuf = tests.ancestors().nth(2).unwrap().join("examples").join(example);
    assert!(
        built.exists(),
        "{built:?} is not there: `cargo nextest run` and `cargo test` build examples unless a \
         target is named; `cargo build --examples --all-features` does it"
    );
    Command::new(built).output().unwrap()
}

fn succeeds(example: &str) -> String {
    let output = run(example);
    assert!(output.status.success(), "{example}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn inventory_never_oversells_with_paused_workers() {
    let said = succeeds("inventory");
    assert!(said.contains("fenced:   40 pieces, 40 sold, 0 left"), "{said}");
    let late = said.rsplit(": ").next().and_then(|count| count.trim().parse().ok());
    assert!(late.is_some_and(|late: u32| late >= 1), "nobody was turned away: {said}");
}

#[test]
fn a_payment_is_charged_once_although_a_process_dies() {
    let said = succeeds("payment");
    assert!(said.contains("2 requests to the provider, 1 charge"), "{said}");
}

#[test]
fn a_delivery_gets_one_driver_although_a_failover_loses_the_lock() {
    let said = succeeds("dispatch");
    assert!(said.contains("the driver is Ada"), "{said}");
}
