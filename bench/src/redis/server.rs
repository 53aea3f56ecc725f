//! A Redis server for a run, without persistence.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// The cores that the server is pinned to, as `taskset` names them. (Pin the client with
/// `taskset` itself: placement alone moves a one-client figure threefold.)
const CORES: &str = "BENCH_SERVER_CPU";

/// A server that ends with its value.
#[derive(Debug)]
pub(crate) struct Server {
    process: Child,
    port: u16,
}

impl Server {
    pub(crate) fn start() -> Result<Self> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut command = match std::env::var(CORES) {
            Ok(cores) => {
                let mut command = Command::new("taskset");
                command.args(["-c", &cores, "redis-server"]);
                command
            }
            Err(_) => Command::new("redis-server"),
        };
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--save", "", "--appendonly", "no"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().context("redis-server (Debian: redis-server)")?;
        let server = Self { process, port };
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < until, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
