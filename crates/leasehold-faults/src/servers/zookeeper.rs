//! ZooKeeper: one server on its own, or an ensemble of several.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::{ATTEMPTS, Process, free_port, loopback};

/// Where Debian keeps it.
const CLASSPATH: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar:/usr/share/java/netty-codec.jar";
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// The servers' tick. Short, so that sessions of a few hundred milliseconds are possible.
pub const TICK: Duration = Duration::from_millis(200);

/// One ZooKeeper server, on its own or one of an ensemble.
#[derive(Debug)]
pub struct Zookeeper {
    port: u16,
    process: Option<Process>,
    folder: TempDir,
    /// More of Java's options (`-Dzookeeper.…`).
    java: Vec<String>,
}

impl Zookeeper {
    /// A server on its own.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start() -> Result<Self> {
        Self::start_with("", &[])
    }

    /// The same with more lines of configuration, and more of Java's options.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start_with(config: &str, java: &[&str]) -> Result<Self> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let mut server = Self::prepare(free_port(), config, java)?;
            match server.restart() {
                Ok(()) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("at least one attempt"))
    }

    fn prepare(port: u16, more: &str, java: &[&str]) -> Result<Self> {
        let folder = TempDir::new()?;
        let data = folder.path().join("data");
        fs::create_dir(&data)?;
        let tick = TICK.as_millis();
        let mut config = format!(
            "tickTime={tick}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
             maxClientCnxns=0\nminSessionTimeout={}\nmaxSessionTimeout=120000\n\
             4lw.commands.whitelist=*\nadmin.enableServer=false\n",
            data.display(),
            2 * tick,
        );
        // A later line replaces an earlier one.
        config.push_str(more);
        fs::write(folder.path().join("zoo.cfg"), config)?;
        let java = java.iter().map(|option| (*option).to_owned()).collect();
        Ok(Self { port, process: None, folder, java })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Its process, while it runs.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }

    /// Its files, gone with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it (again) with what it has written so far, and waits until it serves.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn restart(&mut self) -> Result<()> {
        self.spawn(true)
    }

    /// Starts it; only with `serving` waits until it serves, for which an ensemble needs
    /// its other servers.
    fn spawn(&mut self, serving: bool) -> Result<()> {
        self.process = None;
        let mut command = Command::new("java");
        command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        // A killed process loses nothing that the kernel has; only a power cut would.
        command.args(["-Dzookeeper.forceSync=no", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]);
        command.args(&self.java).args(["-cp", CLASSPATH, MAIN]);
        command.arg(self.folder.path().join("zoo.cfg"));
        let log = self.folder.path().join("log");
        // A process of somebody else on this port would answer as well, but say another folder
        // (if it says anything: some configurations allow no words).
        let identity = format!("dataDir={}", self.folder.path().display());
        let ready = || {
            let conf = self.word("conf").unwrap_or_default();
            let somebody_else = conf.contains("dataDir=") && !conf.contains(&identity);
            match serving {
                true => !somebody_else && self.serves(),
                false => TcpStream::connect(self.addr()).is_ok(),
            }
        };
        let process = Process::start(command, &log, ready)?;
        self.process = Some(process);
        Ok(())
    }

    /// Its answer to a four-letter word.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn word(&self, word: &str) -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.addr(), Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Whether it opens sessions.
    pub fn serves(&self) -> bool {
        self.open_session().is_ok_and(|session| session != 0)
    }

    /// The protocol's first exchange, and its last: the number of a session.
    fn open_session(&self) -> Result<i64> {
        let mut stream = TcpStream::connect_timeout(&self.addr(), Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        // Version, last transaction seen, time-out, no session yet, its password.
        let mut hello = Vec::from(44_i32.to_be_bytes());
        hello.extend([0; 12]);
        hello.extend(1_000_i32.to_be_bytes());
        hello.extend([0; 8]);
        hello.extend(16_i32.to_be_bytes());
        hello.extend([0; 16]);
        stream.write_all(&hello)?;
        let mut answer = [0; 20];
        stream.read_exact(&mut answer)?;
        let close_session = [8_i32, 1, -11].map(i32::to_be_bytes).concat();
        stream.write_all(&close_session)?;
        Ok(i64::from_be_bytes(answer[12..].try_into()?))
    }

    /// `standalone`, `leader`, `follower` or `observer`; `None` while it serves nobody.
    pub fn mode(&self) -> Option<String> {
        let said = self.word("srvr").ok()?;
        let mode = said.lines().find_map(|line| line.strip_prefix("Mode: "))?;
        Some(mode.to_owned())
    }

    /// The URL of the locks below this root.
    pub fn url(&self, root: &str) -> String {
        format!("zk://127.0.0.1:{}{root}", self.port)
    }
}

/// Several servers that agree with each other.
#[derive(Debug)]
pub struct Ensemble {
    /// They.
    pub servers: Vec<Zookeeper>,
}

impl Ensemble {
    /// An ensemble of this many.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(count: usize) -> Result<Self> {
        Self::start_with(count, "")
    }

    /// The same with more lines of configuration for each server.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start_with(count: usize, more: &str) -> Result<Self> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            match Self::try_start(count, more) {
                Ok(ensemble) => return Ok(ensemble),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("at least one attempt"))
    }

    fn try_start(count: usize, more: &str) -> Result<Self> {
        let ports = free_port;
        let mut config = format!("initLimit=100\nsyncLimit=10\n{more}");
        for id in 1..=count {
            writeln!(config, "server.{id}=127.0.0.1:{}:{}", ports(), ports())?;
        }
        let mut servers = Vec::new();
        for id in 1..=count {
            let server = Zookeeper::prepare(ports(), &config, &[])?;
            fs::write(server.folder.path().join("data/myid"), id.to_string())?;
            servers.push(server);
        }
        for server in &mut servers {
            server.spawn(false)?;
        }
        let ensemble = Self { servers };
        ensemble.wait_until_all_serve()?;
        Ok(ensemble)
    }

    /// Waits until every server that runs has found its place.
    ///
    /// # Errors
    ///
    /// When one of them does not.
    pub fn wait_until_all_serve(&self) -> Result<()> {
        let until = std::time::Instant::now() + super::PATIENCE;
        let mut running = self.servers.iter().filter(|server| server.process.is_some());
        while !running.clone().all(|server| server.mode().is_some() && server.serves()) {
            if std::time::Instant::now() > until {
                let slow = running.find(|server| server.mode().is_none());
                let said = slow.map(|server| server.process().said()).unwrap_or_default();
                bail!("an ensemble did not find together: {said}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The one that leads.
    ///
    /// # Errors
    ///
    /// When none does.
    pub fn leader(&self) -> Result<usize> {
        let leads = |server: &Zookeeper| server.mode().as_deref() == Some("leader");
        self.servers.iter().position(leads).context("no server leads")
    }

    /// The URL of the locks below this root, with all servers.
    pub fn url(&self, root: &str) -> String {
        let host = |server: &Zookeeper| format!("127.0.0.1:{}", server.port);
        let hosts: Vec<_> = self.servers.iter().map(host).collect();
        format!("zk://{}{root}", hosts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_starts_says_what_it_is_and_ends() {
        let mut server = Zookeeper::start().unwrap();
        assert_eq!(server.mode().as_deref(), Some("standalone"));
        server.kill();
        assert!(server.word("srvr").is_err());
    }
}
