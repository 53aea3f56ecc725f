//! A Redis master with a replica, and three sentinels that watch over them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::{Authority, Redis};
use crate::servers::{ATTEMPTS, PATIENCE, Process, free_port};

/// What the master is called.
const MASTER: &str = "main";
/// How many sentinels there are; two must agree.
const SENTINELS: usize = 3;

/// A master, its replica, their sentinels.
#[derive(Debug)]
pub struct RedisSentinel {
    /// The two servers; the first began as the master.
    pub servers: [Redis; 2],
    sentinels: Vec<Guard>,
    /// The authority's certificate, if all of them speak TLS.
    ca: Option<PathBuf>,
}

#[derive(Debug)]
struct Guard {
    port: u16,
    /// The same as `port` where nobody speaks TLS.
    client_port: u16,
    process: Process,
    _folder: TempDir,
}

impl RedisSentinel {
    /// All of them, knowing each other. A master that is silent for a second is replaced.
    ///
    /// # Errors
    ///
    /// When one of them does not start.
    pub fn start(options: &[&str]) -> Result<Self> {
        Self::start_with(options, None)
    }

    /// The same over TLS, with certificates of this authority.
    ///
    /// # Errors
    ///
    /// When one of them does not start.
    pub fn start_over_tls(authority: &Authority) -> Result<Self> {
        Self::start_with(&["--tls-replication", "yes"], Some(authority))
    }

    fn start_with(options: &[&str], authority: Option<&Authority>) -> Result<Self> {
        let mut options = options.to_vec();
        options.extend(["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]);
        let server = |options: &[&str]| match authority {
            Some(authority) => authority.redis("no", options),
            None => {
                let server = Redis::start(options)?;
                let port = server.port();
                Ok((server, port))
            }
        };
        let (master, port) = server(&options)?;
        let port = port.to_string();
        options.extend(["--replicaof", "127.0.0.1", &port]);
        let (replica, _) = server(&options)?;
        until("the replica follows", || {
            Ok(replica.cli(&["info", "replication"])?.contains("master_link_status:up"))
        })?;
        let sentinels = (0..SENTINELS).map(|_| Guard::start(&port, authority));
        let sentinels = sentinels.collect::<Result<_>>()?;
        let ca = authority.map(|authority| authority.file("ca.pem"));
        let deployment = Self { servers: [master, replica], sentinels, ca };
        for sentinel in &deployment.sentinels {
            until("the sentinels know each other", || {
                let said = sentinel.cli(&["sentinel", "master", MASTER])?;
                let lines: Vec<_> = said.lines().collect();
                let told =
                    |name: &str, value: &str| lines.windows(2).any(|two| two == [name, value]);
                Ok(told("num-other-sentinels", "2") && told("num-slaves", "1"))
            })?;
        }
        Ok(deployment)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.client_port)).collect();
        let hosts = hosts.join(",");
        match &self.ca {
            None => format!("redis+sentinel://{hosts}/{MASTER}"),
            Some(ca) => format!("rediss+sentinel://{hosts}/{MASTER}?ca={}", ca.display()),
        }
    }

    /// The port of the present master, as the sentinels see it.
    ///
    /// # Errors
    ///
    /// When none of them says.
    pub fn master_port(&self) -> Result<u16> {
        let sentinel = self.sentinels.first().context("there are sentinels")?;
        let said = sentinel.cli(&["sentinel", "get-master-addr-by-name", MASTER])?;
        said.lines().nth(1).and_then(|port| port.parse().ok()).context("an address")
    }

    /// From now on the sentinels want this password.
    ///
    /// # Errors
    ///
    /// When one of them refuses.
    pub fn lock_sentinels(&self, password: &str) -> Result<()> {
        self.set_sentinel_user(&["default", "resetpass", &format!(">{password}")])
    }

    /// Changes a user of the sentinels by these rules, or makes it.
    ///
    /// # Errors
    ///
    /// When one of them refuses.
    pub fn set_sentinel_user(&self, rules: &[&str]) -> Result<()> {
        for sentinel in &self.sentinels {
            let said = sentinel.cli(&[&["acl", "setuser"], rules].concat())?;
            if said != "OK" {
                bail!("acl setuser: {said}");
            }
        }
        Ok(())
    }

    /// Asks the sentinels for a fail-over while the master still works.
    ///
    /// # Errors
    ///
    /// When they refuse.
    pub fn fail_over(&self) -> Result<()> {
        let before = self.master_port()?;
        // Refused while the last one is not over yet.
        until("a fail-over begins", || {
            Ok(self.sentinels[0].cli(&["sentinel", "failover", MASTER])?.starts_with("OK"))
        })?;
        until("another master", || Ok(self.master_port()? != before))
    }
}

impl Guard {
    fn start(master: &str, authority: Option<&Authority>) -> Result<Self> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let (folder, port) = (TempDir::new()?, free_port());
            let (tls, client_port) = match authority {
                None => (String::new(), port),
                Some(authority) => {
                    let port = free_port();
                    let lines = authority.settings(port).map(|(name, is)| format!("{name} {is}\n"));
                    (format!("tls-replication yes\ntls-auth-clients no\n{}", lines.concat()), port)
                }
            };
            let file = folder.path().join("sentinel.conf");
            let settings = format!(
                "port {port}\n{tls}bind 127.0.0.1\ndir {}\nsentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
                 sentinel down-after-milliseconds {MASTER} 1000\n\
                 sentinel failover-timeout {MASTER} 5000\nsentinel parallel-syncs {MASTER} 1\n",
                folder.path().display()
            );
            fs::write(&file, settings)?;
            let mut command = Command::new("redis-server");
            command.arg(&file).arg("--sentinel");
            let ready =
                || cli(port, &["sentinel", "master", MASTER]).is_ok_and(|said| !said.is_empty());
            match Process::start(command, &folder.path().join("log"), ready) {
                Ok(process) => return Ok(Self { port, client_port, process, _folder: folder }),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("at least one attempt"))
    }

    fn cli(&self, words: &[&str]) -> Result<String> {
        cli(self.port, words).with_context(|| format!("sentinel {}", self.process.pid()))
    }
}

fn cli(port: u16, words: &[&str]) -> Result<String> {
    let output = Command::new("redis-cli").args(["-p", &port.to_string()]).args(words).output()?;
    if !output.status.success() {
        bail!("redis-cli {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Waits until `done` says so.
pub(super) fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let tried = done();
        if matches!(tried, Ok(true)) {
            return Ok(());
        }
        if Instant::now() > end {
            tried?;
            bail!("{what}: not within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
