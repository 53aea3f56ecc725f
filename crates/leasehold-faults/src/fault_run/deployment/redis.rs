//! One Redis server, which writes everything down before it answers.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::{Deployment, Store, servers};
use crate::fault_run::fault::Fault;
use crate::fault_run::schedule::Strike;
use crate::faults::server::{Data, Server};

/// Redis, one server.
#[derive(Debug)]
pub(super) struct Redis;

impl Store for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn does_not_apply(&self, fault: Fault) -> Option<&'static str> {
        match fault {
            Fault::Disk => Some("it runs in memory, and says so when it cannot write"),
            Fault::Leader | Fault::Stopped => {
                Some("there is one server; see redis-sentinel and redis-cluster")
            }
            _ => None,
        }
    }

    fn does_not_promise(&self, fault: Fault) -> &'static [(&'static str, &'static str)] {
        match fault {
            Fault::Amnesia | Fault::Older => {
                &[("X", "leases are lost with the data; tokens are not")]
            }
            Fault::Clock => &[
                ("X", "keys expire by the server's wall clock: early when it jumps ahead"),
                ("L", "and late when it jumps back"),
            ],
            _ => &[],
        }
    }

    fn set(&self, folder: &Path, fault: Fault) -> Result<Box<dyn Deployment>> {
        let mut server = new_server(&folder.join("redis"), fault)?;
        if fault == Fault::Clock {
            server = server.with_clock()?;
        }
        server.start(Data::Kept)?;
        Ok(Box::new(OneServer(server)))
    }
}

/// A server that syncs every write; or one with snapshots only, where it is to come back with
/// older data.
pub(super) fn new_server(folder: &Path, fault: Fault) -> Result<Server> {
    let appends = if fault == Fault::Older { "no" } else { "yes" };
    let make = move |data: &Path, addr: SocketAddr| {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string()]);
        command.args(["--save", "", "--appendonly", appends, "--appendfsync", "always"]);
        command.arg("--dir").arg(data);
        command
    };
    Ok(Server::new(folder, make)?.ready_when(answers))
}

/// Takes a snapshot: what the server comes back with after the next strike.
pub(super) fn save(server: &Server) -> Result<()> {
    let port = server.addr().port().to_string();
    let saved = Command::new("redis-cli").args(["-p", &port, "save"]).output()?;
    ensure!(saved.stdout.starts_with(b"OK"), "no snapshot: {saved:?}");
    Ok(())
}

/// It takes connections while it still reads its data.
fn answers(addr: SocketAddr) -> bool {
    let asked = Command::new("redis-cli").args(["-p", &addr.port().to_string(), "ping"]).output();
    asked.is_ok_and(|output| output.stdout.starts_with(b"PONG"))
}

#[derive(Debug)]
struct OneServer(Server);

impl Deployment for OneServer {
    fn servers(&self) -> Vec<SocketAddr> {
        vec![self.0.addr()]
    }

    fn url(&self, servers: &[SocketAddr]) -> String {
        format!("redis://{}?timeout=500ms", servers[0])
    }

    fn inject(&mut self, fault: Fault, strike: &Strike) -> Result<()> {
        servers::inject(&mut self.0, fault, strike)
    }

    fn heal(&mut self, fault: Fault, strike: &Strike) -> Result<()> {
        servers::heal(&mut self.0, fault, strike)?;
        if fault == Fault::Older { save(&self.0) } else { Ok(()) }
    }
}
