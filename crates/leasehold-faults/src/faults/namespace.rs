//! Network namespaces: a client or server with a network of its own, which can be cut off
//! both ways or one way. Needs root and the commands `ip` and `nft`.

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

    /// Drops what comes in: what runs inside is heard, but hears nothing.
    pub fn deafen(&self) -> Result<()> {
        self.drop_at("input")
    }

    /// Drops what goes out: what runs inside hears, but is not heard.
    pub fn mute(&self) -> Result<()> {
        self.drop_at("output")
    }

    fn drop_at(&self, hook: &str) -> Result<()> {
        self.nft("add table inet cut")?;
        let chain = format!("{{ type filter hook {hook} priority 0 ; policy drop ; }}");
        self.nft(&format!("add chain inet cut {hook} {chain}"))
    }

    /// Drops what goes to or comes from these TCP ports, on either side. All else is heard.
    pub fn cut_ports(&self, ports: &[u16]) -> Result<()> {
        let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
        let ports = ports.join(",");
        self.nft("add table inet cut")?;
        for hook in ["input", "output"] {
            let chain = format!("{{ type filter hook {hook} priority 0 ; }}");
            self.nft(&format!("add chain inet cut {hook} {chain}"))?;
            for end in ["sport", "dport"] {
                self.nft(&format!("add rule inet cut {hook} tcp {end} {{{ports}}} drop"))?;
            }
        }
        Ok(())
    }

    /// Joins it again.
    pub fn join(&self) -> Result<()> {
        // Added first, so that deleting it cannot fail when it was not there.
        self.nft("add table inet cut")?;
        self.nft("delete table inet cut")?;
        ip(&format!("link set {} up", self.link))
    }

    fn nft(&self, arguments: &str) -> Result<()> {
        ip(&format!("netns exec {} nft {arguments}", self.name))
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
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::time::Duration;

    use super::*;

    /// Whether a connection to this address from inside comes about in time.
    fn probe(namespace: &Namespace, address: SocketAddr, wait: &str) -> bool {
        let script = format!("exec 3<>/dev/tcp/{}/{}", address.ip(), address.port());
        let mut command = namespace.command("timeout");
        command.args([wait, "bash", "-c", &script]).output().unwrap().status.success()
    }

    #[test]
    fn what_is_cut_off_is_out_of_reach_until_it_is_joined() {
        let namespace = Namespace::create(17).expect("root may make namespaces");
        let listener = TcpListener::bind((namespace.outside(), 0)).unwrap();
        let address = listener.local_addr().unwrap();
        assert!(probe(&namespace, address, "30"));
        namespace.cut().unwrap();
        assert!(!probe(&namespace, address, "0.3"));
        namespace.join().unwrap();
        assert!(probe(&namespace, address, "30"));
        drop(listener);
        let gone = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        assert!(gone.is_err());
    }

    #[test]
    fn a_port_that_is_cut_is_out_of_reach_and_others_are_not() {
        let namespace = Namespace::create(19).expect("root may make namespaces");
        let listen = || TcpListener::bind((namespace.outside(), 0)).unwrap();
        let (cut, open) = (listen(), listen());
        let (cut, open) = (cut.local_addr().unwrap(), open.local_addr().unwrap());
        assert!(probe(&namespace, cut, "30"));
        namespace.cut_ports(&[cut.port(), 1]).unwrap();
        assert!(!probe(&namespace, cut, "0.3"));
        assert!(probe(&namespace, open, "30"));
        namespace.join().unwrap();
        assert!(probe(&namespace, cut, "30"));
    }

    /// What was sent from inside so far, as it arrived outside.
    fn heard(socket: &UdpSocket, wait: Duration) -> Option<SocketAddr> {
        socket.set_read_timeout(Some(wait)).unwrap();
        socket.recv_from(&mut [0; 8]).ok().map(|(_, from)| from)
    }

    fn say(namespace: &Namespace, address: SocketAddr) {
        let script = format!("echo hello >/dev/udp/{}/{}", address.ip(), address.port());
        namespace.command("bash").args(["-c", &script]).output().unwrap();
    }

    #[test]
    fn the_deaf_are_heard_and_the_mute_are_not() {
        let namespace = Namespace::create(18).expect("root may make namespaces");
        let listener = TcpListener::bind((namespace.outside(), 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let outside = UdpSocket::bind((namespace.outside(), 0)).unwrap();
        let receiver = outside.local_addr().unwrap();
        assert!(probe(&namespace, address, "30"), "in touch, and neighbours know each other");
        namespace.deafen().unwrap();
        assert!(!probe(&namespace, address, "0.3"), "the handshake's answer is dropped");
        say(&namespace, receiver);
        assert!(heard(&outside, Duration::from_secs(30)).is_some());
        namespace.join().unwrap();
        namespace.mute().unwrap();
        say(&namespace, receiver);
        assert!(heard(&outside, Duration::from_millis(300)).is_none());
        namespace.join().unwrap();
        assert!(probe(&namespace, address, "30"));
    }
}
