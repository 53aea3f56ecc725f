//! A server on cores of its own: placement alone moves a one-client figure threefold.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use leasehold_faults::servers::Postgres;

/// The cores that the server is pinned to, as `taskset` names them. (Pin the client with
/// `taskset` itself.)
const CORES: &str = "BENCH_SERVER_CPU";

/// Pins the server, if that is wanted: every session that begins from now on.
pub(super) fn pin(server: &Postgres) -> Result<()> {
    let Ok(cores) = std::env::var(CORES) else { return Ok(()) };
    let pid = server.psql("select split_part(pg_read_file('postmaster.pid'), E'\\n', 1)")?;
    let mut taskset = Command::new("taskset");
    let pinned = taskset.args(["-cp", &cores, pid.trim()]).output().context("taskset")?;
    ensure!(pinned.status.success(), "{}", String::from_utf8_lossy(&pinned.stderr));
    Ok(())
}
