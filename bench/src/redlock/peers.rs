//! Other libraries' locks on the same nodes, where they are installed.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::redis::peers::node_packages;
use crate::zookeeper::python;

/// redlock-py's pairs in a second.
pub(super) fn redlock_py(hosts: &[&str], measure: Duration) -> Result<Option<f64>> {
    let Some(python) = python() else { return Ok(None) };
    let script =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/leasehold-faults/foreign/redlock_pairs.py");
    let mut command = Command::new(python);
    command.arg(script).arg(measure.as_secs_f64().to_string()).args(hosts);
    rate(command, measure).map(Some)
}

/// node-redlock's pairs in a second.
pub(super) fn node_redlock(hosts: &[&str], tasks: usize, measure: Duration) -> Result<Option<f64>> {
    let Some(packages) = node_packages()? else { return Ok(None) };
    let mut command = Command::new("node");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/peers/node_redlock.mjs"));
    command.env("NODE_PEERS", packages);
    let ports: Vec<_> = hosts.iter().filter_map(|host| host.rsplit(':').next()).collect();
    command.args(["pairs", &ports.join(","), &tasks.to_string()]);
    command.args([measure.as_secs_f64().to_string(), "0".to_owned()]);
    rate(command, measure).map(Some)
}

fn rate(mut command: Command, measure: Duration) -> Result<f64> {
    let output = command.output()?;
    ensure!(output.status.success(), "a peer: {}", String::from_utf8_lossy(&output.stderr));
    let count: f64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    Ok(count / measure.as_secs_f64())
}
