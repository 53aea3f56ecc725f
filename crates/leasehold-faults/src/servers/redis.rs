//! A Redis server.

use std::net::SocketAddr;
use std::process::{Command, Output};

use anyhow::{Result, bail};
use tempfile::TempDir;

use super::{ATTEMPTS, Process, free_port, loopback};

pub use authority::Authority;
pub use cluster::RedisCluster;
pub use redlock::Redlock;
pub use sentinel::RedisSentinel;

mod authority;
mod cluster;
mod redlock;
mod sentinel;

/// A Redis server of its own, without persistence unless its options ask for it.
#[derive(Debug)]
pub struct Redis {
    port: u16,
    options: Vec<String>,
    process: Option<Process>,
    folder: TempDir,
    /// In front of the program, as `faketime` is.
    wrapper: Vec<String>,
}

impl Redis {
    /// A server with these options, as on the command line (`--maxmemory`, `1mb`, …).
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(options: &[&str]) -> Result<Self> {
        Self::start_under(&[], options)
    }

    /// The same behind another program that runs it.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start_under(wrapper: &[&str], options: &[&str]) -> Result<Self> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let mut server = Self {
                port: free_port(),
                options: options.iter().map(|option| (*option).to_owned()).collect(),
                process: None,
                folder: TempDir::new()?,
                wrapper: wrapper.iter().map(|word| (*word).to_owned()).collect(),
            };
            match server.restart() {
                Ok(()) => return Ok(server),
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
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its process, while it runs.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it (again) on its port with its files: with what it persisted, if it did.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn restart(&mut self) -> Result<()> {
        self.process = None;
        let mut words = self.wrapper.iter().map(String::as_str).chain(["redis-server"]);
        let mut command = Command::new(words.next().expect("at least the program"));
        command.args(words).args(["--bind", "127.0.0.1", "--port", &self.port.to_string()]);
        command.arg("--dir").arg(self.folder.path());
        command.args(["--save", "", "--appendonly", "no"]).args(&self.options);
        // A process of somebody else on this port would answer a ping as well.
        let identity = format!("{}", self.folder.path().display());
        let log = self.folder.path().join("log");
        let port = self.port.to_string();
        let ready = || {
            let asked = Command::new("redis-cli")
                .args(["-p", &port, "--no-auth-warning"])
                .args(self.password().into_iter().flat_map(|word| ["-a".to_owned(), word]))
                .args(["config", "get", "dir"])
                .output();
            asked.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(&identity))
        };
        self.process = Some(Process::start(command, &log, ready)?);
        Ok(())
    }

    fn password(&self) -> Option<String> {
        let at = self.options.iter().position(|option| option == "--requirepass")?;
        self.options.get(at + 1).cloned()
    }

    /// What `redis-cli` says to these words.
    ///
    /// # Errors
    ///
    /// When it fails.
    pub fn cli(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port.to_string(), "--no-auth-warning"]);
        command.args(self.password().into_iter().flat_map(|word| ["-a".to_owned(), word]));
        let Output { status, stdout, stderr } = command.args(words).output()?;
        if !status.success() {
            bail!("redis-cli {words:?}: {}", String::from_utf8_lossy(&stderr));
        }
        Ok(String::from_utf8_lossy(&stdout).trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_answers_and_forgets_when_killed() {
        let mut server = Redis::start(&[]).unwrap();
        assert_eq!(server.cli(&["set", "a", "1"]).unwrap(), "OK");
        server.kill();
        assert!(server.cli(&["ping"]).is_err());
        server.restart().unwrap();
        assert_eq!(server.cli(&["get", "a"]).unwrap(), "");
    }
}
