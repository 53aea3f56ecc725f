//! An etcd cluster of one or more members.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use super::{ATTEMPTS, PATIENCE, Process, free_port};
use crate::faults::namespace::Namespace;

/// A cluster of its own. It writes without fsync: a killed process loses nothing by that.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    options: Vec<String>,
    certificates: Option<Certificates>,
    /// Given to `etcdctl` once authentication is on.
    user: Option<String>,
    /// Where the first member runs, if not on this machine's own network.
    apart: Option<Arc<Namespace>>,
    folder: TempDir,
}

#[derive(Debug)]
struct Member {
    name: String,
    host: String,
    client_port: u16,
    peer_port: u16,
    process: Option<Process>,
}

/// Where the certificates of a secure cluster are.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// Of the authority.
    pub ca: PathBuf,
    /// Of the members and of clients, and its key.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Etcd {
    /// A cluster of this many members with these further options.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(members: usize, options: &[&str]) -> Result<Self> {
        Self::start_with(members, options, None, None)
    }

    /// A cluster of three whose first member is on a network of its own.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start_apart(namespace: Arc<Namespace>) -> Result<Self> {
        Self::start_with(3, &[], None, Some(namespace))
    }

    /// One member that speaks TLS and wants a certificate from its clients.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start_secure(folder: &Path) -> Result<Self> {
        Self::start_with(1, &[], Some(certificates(folder)?), None)
    }

    fn start_with(
        members: usize,
        options: &[&str],
        certificates: Option<Certificates>,
        apart: Option<Arc<Namespace>>,
    ) -> Result<Self> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let member = |number| Member {
                name: format!("m{number}-{}-{:08x}", std::process::id(), fastrand::u32(..)),
                host: match &apart {
                    Some(namespace) if number == 0 => namespace.inside(),
                    Some(namespace) => namespace.outside(),
                    None => "127.0.0.1".to_owned(),
                },
                client_port: free_port(),
                peer_port: free_port(),
                process: None,
            };
            let mut cluster = Self {
                members: (0..members).map(member).collect(),
                options: options.iter().map(|option| (*option).to_owned()).collect(),
                certificates: certificates.clone(),
                user: None,
                apart: apart.clone(),
                folder: TempDir::new()?,
            };
            match cluster.start_all() {
                Ok(()) => return Ok(cluster),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("at least one attempt"))
    }

    fn start_all(&mut self) -> Result<()> {
        for index in 0..self.members.len() {
            // No member is ready before a majority runs.
            self.spawn(index)?;
        }
        (0..self.members.len()).try_for_each(|index| self.await_ready(index))
    }

    fn spawn(&mut self, index: usize) -> Result<()> {
        let member = &self.members[index];
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://{}:{}", member.host, member.client_port);
        let peer = |member: &Member| format!("http://{}:{}", member.host, member.peer_port);
        let all: Vec<_> =
            self.members.iter().map(|member| format!("{}={}", member.name, peer(member))).collect();
        let mut command = match &self.apart {
            Some(namespace) if index == 0 => namespace.command("etcd"),
            _ => Command::new("etcd"),
        };
        command.args(["--name", &member.name, "--unsafe-no-fsync", "--logger", "zap"]);
        command.args(["--log-level", "warn", "--initial-cluster", &all.join(",")]);
        command.arg("--data-dir").arg(self.folder.path().join(&member.name));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer(member)]);
        command.args(["--initial-advertise-peer-urls", &peer(member)]);
        if let Some(Certificates { ca, cert, key }) = &self.certificates {
            command.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
            command.arg("--trusted-ca-file").arg(ca).arg("--client-cert-auth");
        }
        command.args(&self.options);
        let log = self.folder.path().join(format!("{}.log", member.name));
        self.members[index].process = Some(Process::start(command, &log, || true)?);
        Ok(())
    }

    fn await_ready(&self, index: usize) -> Result<()> {
        let member = &self.members[index];
        let until = Instant::now() + PATIENCE;
        // Its own name: a process of somebody else on this port would answer as well. The
        // write shows that there is a leader.
        let ready = || {
            let list = self.ctl_on(index, &["member", "list"]);
            list.is_ok_and(|list| list.contains(&member.name))
                && self.ctl_on(index, &["endpoint", "health"]).is_ok()
        };
        while !ready() {
            if Instant::now() > until {
                bail!("etcd was not ready within {PATIENCE:?}: {}", self.process(index).said());
            }
            if !Path::new(&format!("/proc/{}", self.process(index).pid())).exists() {
                bail!("etcd ended: {}", self.process(index).said());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// How many members it has.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Where clients reach a member.
    pub fn addr(&self, member: usize) -> SocketAddr {
        let Member { host, client_port, .. } = &self.members[member];
        SocketAddr::new(host.parse().expect("an address"), *client_port)
    }

    /// The ports on which its members speak to each other.
    pub fn peer_ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.peer_port).collect()
    }

    /// Makes this member the leader.
    ///
    /// # Errors
    ///
    /// When it does not come to lead in time.
    pub fn make_leader(&self, member: usize) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut leader = self.leader()?;
        while leader != member {
            ensure!(Instant::now() < until, "another member leads after {PATIENCE:?}");
            let status = self.status(member)?;
            let id = status.pointer("/header/member_id").context("a member")?.as_u64();
            let id = format!("{:x}", id.context("an id")?);
            // Whether it succeeds is seen by who leads.
            let _ = self.ctl_on(leader, &["move-leader", &id]);
            leader = self.leader()?;
        }
        Ok(())
    }

    /// The store's URL, with all members, and without certificates.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = (0..self.count()).map(|member| self.addr(member).to_string()).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// The endpoint as drivers want it.
    pub fn endpoint(&self, member: usize) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.addr(member))
    }

    /// Its certificates, if it has any.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// A member's process, while it runs.
    pub fn process(&self, member: usize) -> &Process {
        self.members[member].process.as_ref().expect("it runs")
    }

    /// Ends a member with SIGKILL.
    pub fn kill(&mut self, member: usize) {
        self.members[member].process = None;
    }

    /// Starts a member again on its port with its data, and waits until it serves.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn restart(&mut self, member: usize) -> Result<()> {
        self.kill(member);
        self.spawn(member)?;
        self.await_ready(member)
    }

    /// Which member leads.
    ///
    /// # Errors
    ///
    /// When none of those that answer says so in time.
    pub fn leader(&self) -> Result<usize> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            for index in 0..self.count() {
                if self.members[index].process.is_some() && self.leads(index).unwrap_or(false) {
                    return Ok(index);
                }
            }
            thread::sleep(Duration::from_millis(50));
        }
        let running = self.members.iter().filter_map(|member| member.process.as_ref());
        let said: Vec<String> = running.map(Process::said).collect();
        bail!("no leader within {PATIENCE:?}; its members: {}", said.join("\n--\n"))
    }

    fn leads(&self, index: usize) -> Result<bool> {
        let status = self.status(index)?;
        let own = status.pointer("/header/member_id").context("a member")?;
        Ok(status.get("leader") == Some(own))
    }

    fn status(&self, index: usize) -> Result<serde_json::Value> {
        let said = self.ctl_on(index, &["endpoint", "status", "--write-out=json"])?;
        let mut status: serde_json::Value = serde_json::from_str(&said)?;
        let status = status.get_mut(0).context("one endpoint")?.get_mut("Status");
        Ok(status.context("a status")?.take())
    }

    /// Asks for this user and password from now on.
    pub fn use_user(&mut self, user: &str, password: &str) {
        self.user = Some(format!("{user}:{password}"));
    }

    /// What `etcdctl` says to these words, asking the first member that runs.
    ///
    /// # Errors
    ///
    /// When it fails.
    pub fn ctl(&self, words: &[&str]) -> Result<String> {
        let running = self.members.iter().position(|member| member.process.is_some());
        self.ctl_on(running.context("a member runs")?, words)
    }

    /// The same of this member.
    ///
    /// # Errors
    ///
    /// When it fails.
    pub fn ctl_on(&self, member: usize, words: &[&str]) -> Result<String> {
        let output = self.ctl_command(member, words).stdin(Stdio::null()).output()?;
        let Output { status, stdout, stderr } = output;
        if !status.success() {
            bail!("etcdctl {words:?}: {}", String::from_utf8_lossy(&stderr));
        }
        Ok(String::from_utf8_lossy(&stdout).trim_end().to_owned())
    }

    /// An `etcdctl` that goes on by itself, with its output to be read.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn ctl_spawn(&self, member: usize, words: &[&str]) -> Result<Child> {
        let mut command = self.ctl_command(member, words);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?)
    }

    fn ctl_command(&self, member: usize, words: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoint(member)]);
        command.args(["--dial-timeout", "2s", "--command-timeout", "5s"]);
        if let Some(Certificates { ca, cert, key }) = &self.certificates {
            command.arg("--cacert").arg(ca).arg("--cert").arg(cert).arg("--key").arg(key);
        }
        if let Some(user) = &self.user {
            command.args(["--user", user]);
        }
        command.args(words);
        command
    }
}

/// Makes an authority and one certificate of it, for servers and clients alike.
fn certificates(folder: &Path) -> Result<Certificates> {
    let mut authority = rcgen::CertificateParams::new(Vec::new())?;
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_key = rcgen::KeyPair::generate()?;
    let authority_cert = authority.self_signed(&authority_key)?;
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate()?;
    let mut leaf =
        rcgen::CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    leaf.distinguished_name.push(rcgen::DnType::CommonName, "leasehold");
    let cert = leaf.signed_by(&key, &issuer)?;
    let made = Certificates {
        ca: folder.join("ca.pem"),
        cert: folder.join("cert.pem"),
        key: folder.join("key.pem"),
    };
    std::fs::write(&made.ca, authority_cert.pem())?;
    std::fs::write(&made.cert, cert.pem())?;
    std::fs::write(&made.key, key.serialize_pem())?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_starts_and_survives_the_loss_of_its_leader() {
        let mut cluster = Etcd::start(3, &[]).unwrap();
        cluster.ctl(&["put", "a", "1"]).unwrap();
        let leader = cluster.leader().unwrap();
        cluster.kill(leader);
        assert_ne!(cluster.leader().unwrap(), leader);
        assert_eq!(cluster.ctl(&["get", "a", "--print-value-only"]).unwrap(), "1");
        cluster.restart(leader).unwrap();
        assert_eq!(cluster.ctl_on(leader, &["get", "a", "--print-value-only"]).unwrap(), "1");
    }
}
