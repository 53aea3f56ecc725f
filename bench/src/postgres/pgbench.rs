//! pgbench beside it: what PostgreSQL's own tool makes of the same two statements.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leasehold_faults::servers::Postgres;

const SCRIPT: &str = "\\set key random(1, 1000000)\n\
     select pg_advisory_lock(:key);\nselect pg_advisory_unlock(:key);\n";

/// Its pairs per second, as a note.
pub(super) fn note(server: &Postgres, measure: Duration) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("script.sql");
    fs::write(&script, SCRIPT)?;
    let mut told = Vec::new();
    for clients in [8, 64] {
        let mut pgbench = Command::new("pgbench");
        pgbench.args(["--no-vacuum", "--protocol=prepared", "--jobs=2", "--file"]).arg(&script);
        pgbench.arg(format!("--client={clients}"));
        pgbench.arg(format!("--time={}", measure.as_secs().max(1)));
        pgbench.args(["--host=127.0.0.1", "--username=postgres", "postgres"]);
        pgbench.arg(format!("--port={}", server.port()));
        let ran = pgbench.output().context("pgbench")?;
        if !ran.status.success() {
            bail!("pgbench: {}", String::from_utf8_lossy(&ran.stderr));
        }
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        let rate = said.lines().find_map(|line| line.strip_prefix("tps = "));
        let rate = rate.and_then(|rate| rate.split_whitespace().next()?.parse::<f64>().ok());
        let rate = rate.with_context(|| format!("pgbench said {said:?}"))?;
        told.push(format!("{rate:.0}/s with {clients} connections"));
    }
    Ok(format!("pgbench, advisory lock and unlock: {}.", told.join(", ")))
}
