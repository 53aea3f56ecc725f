//! Network namespaces: a client or server with a network of its own, which can be cut off
//! both ways. Needs root and the `ip` command.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// A namespace joined to this machine by a pair of virtual links. Removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    link: String,
    subnet: u8,
}

impl Namespace {
    /// A new one, `10.231.<subnet>.2` inside and `.1` outside, or why it cannot be.
    pub fn create(subnet: u8) -> Result<Self> {
        let pid = std::process::id();
        let namespace = Self {
            name: format!("leasehold-{pid}-{subnet}"),
            link: format!("lh{pid}.{subnet}"),
            subnet,
        };
        let Self { name, link, .. } = &namespace;
        ip(&format!("netns add {name}"))?;
        // From here on dropping it cleans up.
        ip(&format!("link add {link} type veth peer name eth0 netns {name}"))?;
        ip(&format!("addr add {}/24 dev {link}", namespace.outside()))?;
        ip(&format!("link set {link} up"))?;
        ip(&format!("-n {name} addr add {}/24 dev eth0", namespace.inside()))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        Ok(namespace)
    }

    /// The address of what runs inside.
    pub fn inside(&self) -> String {
        format!("10.231.{}.2", self.subnet)
    }

    /// This machine's address as seen from inside.
    pub fn outside(&self) -> String {
        format!("10.231.{}.1", self.subnet)
    }

    /// A command that will run inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Cuts it off, both ways.
    pub fn cut(&self) -> Result<()> {
        ip(&format!("link set {} down", self.link))
    }

    /// Joins it again.
    pub fn join(&self) -> Result<()> {
        ip(&format!("link set {} up", self.link))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&format!("link del {}", self.link));
        let _ = ip(&format!("netns del {}", self.name));
    }
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output().context("ip")?;
    if !output.status.success() {
        bail!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_cut_off_is_out_of_reach_until_it_is_joined() {
        let namespace = Namespace::create(17).expect("root may make namespaces");
        let listener = TcpListener::bind((namespace.outside(), 0)).unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let probe = |wait: &str| {
            let script = format!("exec 3<>/dev/tcp/{}/{}", address.ip(), address.port());
            let mut command = namespace.command("timeout");
            command.args([wait, "bash", "-c", &script]).output().unwrap().status.success()
        };
        assert!(probe("5"));
        namespace.cut().unwrap();
        assert!(!probe("0.3"));
        namespace.join().unwrap();
        assert!(probe("5"));
        drop(listener);
        let gone = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        assert!(gone.is_err());
    }
}
