//! A PostgreSQL server.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{ATTEMPTS, PATIENCE, Process, free_port, loopback};
use crate::faults::faketime::FakeTime;

/// The account it runs under when the tests run as root, which it refuses.
const ACCOUNT: &str = "postgres";

/// A PostgreSQL cluster of its own, with the superuser `postgres` and no password.
#[derive(Debug)]
pub struct Postgres {
    port: u16,
    options: Vec<String>,
    process: Option<Process>,
    clock: Option<FakeTime>,
    folder: TempDir,
}

impl Postgres {
    /// A server with these settings, as `name=value`.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(settings: &[&str]) -> Result<Self> {
        Self::fresh(settings)?.started()
    }

    /// A server with a wall clock that [`Postgres::set_clock`] sets.
    ///
    /// # Errors
    ///
    /// When it does not start, or there is no libfaketime.
    pub fn start_with_clock(settings: &[&str]) -> Result<Self> {
        let mut server = Self::fresh(settings)?;
        server.clock = Some(FakeTime::new(server.folder.path())?);
        server.started()
    }

    /// A server that speaks TLS with this certificate and key, as PEM.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start_with_tls(certificate: &str, key: &str) -> Result<Self> {
        let mut server = Self::fresh(&["ssl=on"])?;
        for (name, text) in [("ssl_cert_file", certificate), ("ssl_key_file", key)] {
            let (given, own) = (server.folder.path().join(name), server.data().join(name));
            fs::write(&given, text)?;
            // The server wants its key for itself alone.
            let mut install = as_account(Path::new("/usr/bin/install"));
            let installed = install.args(["-m", "600"]).arg(&given).arg(&own).status()?;
            if !installed.success() {
                bail!("cannot install {}", own.display());
            }
            server.options.push(format!("{name}={}", own.display()));
        }
        server.started()
    }

    /// A standby that follows this server, as an asynchronous replica.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn standby(&self) -> Result<Self> {
        let folder = folder()?;
        let mut copy = as_account(&program("pg_basebackup")?);
        copy.args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--dbname"]);
        copy.arg(self.url()).arg("--pgdata").arg(folder.path().join("data"));
        let copied = copy.output().context("pg_basebackup")?;
        if !copied.status.success() {
            bail!("pg_basebackup: {}", String::from_utf8_lossy(&copied.stderr));
        }
        let options = self.options.clone();
        Self { port: 0, options, process: None, clock: None, folder }.started()
    }

    /// Makes a standby a primary, and waits until it is.
    ///
    /// # Errors
    ///
    /// When it does not become one.
    pub fn promote(&self) -> Result<()> {
        self.psql("select pg_promote(true, 60)").map(drop)
    }

    /// Sets its wall clock this many seconds ahead of the true one, or behind it.
    ///
    /// # Errors
    ///
    /// When it was started without one.
    pub fn set_clock(&self, seconds: i64) -> Result<()> {
        self.clock.as_ref().context("started without a clock of its own")?.set(seconds)
    }

    /// A cluster that does not run yet.
    fn fresh(settings: &[&str]) -> Result<Self> {
        let folder = folder()?;
        let data = folder.path().join("data");
        let mut initdb = as_account(&program("initdb")?);
        initdb.arg("--pgdata").arg(&data).args(["--no-sync", "--auth=trust"]);
        initdb.args(["--username=postgres", "--encoding=UTF8", "--locale=C"]);
        let made = initdb.output().context("initdb")?;
        if !made.status.success() {
            bail!("initdb: {}", String::from_utf8_lossy(&made.stderr));
        }
        let options = settings.iter().map(|setting| (*setting).to_owned()).collect();
        Ok(Self { port: 0, options, process: None, clock: None, folder })
    }

    /// Starts it, on a port that is free.
    fn started(mut self) -> Result<Self> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            self.port = free_port();
            match self.restart() {
                Ok(()) => return Ok(self),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("at least one attempt"))
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Where its data is.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Its process, while it runs.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }

    /// Ends it at once, as a crash would: with SIGKILL to all of its processes.
    pub fn crash(&mut self) {
        if let Some(process) = self.process.take() {
            // Its children notice that the postmaster is gone and end, but not at once.
            let children = children_of(process.pid());
            drop(process);
            for child in children.iter().filter_map(|child| Pid::from_raw(*child as i32)) {
                let _ = kill_process(child, Signal::KILL);
            }
            // While one of them lives, the server does not start again: they share memory.
            let until = Instant::now() + PATIENCE;
            while children.iter().any(|child| runs(*child)) && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Ends it in order, cutting all sessions.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.end(Signal::INT);
        }
    }

    /// Starts it (again) on its port with its data.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn restart(&mut self) -> Result<()> {
        self.stop();
        // The clock is the server's alone: setpriv would take it with it as root.
        let mut command = as_account(Path::new("/usr/bin/env"));
        if let Some(clock) = &self.clock {
            let mut clocked = Command::new("env");
            clock.apply(&mut clocked);
            for (name, value) in clocked.get_envs() {
                let value = value.unwrap_or_default();
                command.arg([name, OsStr::new("="), value].into_iter().collect::<OsString>());
            }
        }
        command.arg(program("postgres")?);
        command.arg("-D").arg(self.data());
        let port = format!("port={}", self.port);
        let sockets = format!("unix_socket_directories={}", self.folder.path().display());
        for setting in ["listen_addresses=127.0.0.1", &port, &sockets, "max_connections=200"] {
            command.args(["-c", setting]);
        }
        for setting in &self.options {
            command.args(["-c", setting]);
        }
        let identity = self.data().display().to_string();
        let ready =
            || self.psql("show data_directory").is_ok_and(|said| said.trim_end() == identity);
        let log = self.folder.path().join("log");
        let process = Process::start(command, &log, ready)?;
        self.process = Some(process);
        Ok(())
    }

    /// Lets in `postgres` and this user only, the latter by password (SCRAM). Starts it again.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn demand_passwords(&mut self, user: &str) -> Result<()> {
        self.stop();
        let rules = format!(
            "host all postgres 127.0.0.1/32 trust\nhost all {user} 127.0.0.1/32 scram-sha-256\n"
        );
        fs::write(self.data().join("pg_hba.conf"), rules)?;
        self.restart()
    }

    /// What `psql` prints for this SQL, unaligned and without headings.
    ///
    /// # Errors
    ///
    /// With what it complained about.
    pub fn psql(&self, sql: &str) -> Result<String> {
        let mut command = Command::new("psql");
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        command.args(["--set", "ON_ERROR_STOP=1", "--dbname", &self.url(), "--command", sql]);
        let Output { status, stdout, stderr } = command.output()?;
        if !status.success() {
            bail!("{}", String::from_utf8_lossy(&stderr));
        }
        Ok(String::from_utf8_lossy(&stdout).trim_end().to_owned())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.crash();
    }
}

/// The newest version that is installed.
fn program(name: &str) -> Result<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        let path = entry.path().join("bin").join(name);
        if let (Ok(version), true) = (entry.file_name().to_string_lossy().parse(), path.exists()) {
            found.push((version, path));
        }
    }
    let newest = found.into_iter().max().map(|(_, path)| path);
    newest.with_context(|| format!("{name} is not installed: scripts/test installs it"))
}

/// A folder that the server's account can reach, too.
fn folder() -> Result<TempDir> {
    let folder = TempDir::new()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
    Ok(folder)
}

/// A command that does not run as root.
pub(super) fn as_account(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", ACCOUNT, "--regid", ACCOUNT, "--clear-groups", "--"]);
    command.arg(program);
    command
}

/// Whether this process is there and is not a zombie.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name, which may contain anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn children_of(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_and_recovers_from_a_crash() {
        let mut server = Postgres::start(&[]).unwrap();
        server.psql("create table t (n int); insert into t values (1)").unwrap();
        server.crash();
        server.restart().unwrap();
        assert_eq!(server.psql("select n from t").unwrap(), "1");
    }

    #[test]
    fn a_standby_follows_and_is_promoted() {
        let primary = Postgres::start(&[]).unwrap();
        primary.psql("create table t (n int); insert into t values (1)").unwrap();
        let standby = primary.standby().unwrap();
        assert_eq!(standby.psql("select n, pg_is_in_recovery() from t").unwrap(), "1|t");
        standby.promote().unwrap();
        assert_eq!(standby.psql("select pg_is_in_recovery()").unwrap(), "f");
    }
}
