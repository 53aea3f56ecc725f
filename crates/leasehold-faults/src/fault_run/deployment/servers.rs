//! What any server can be made to suffer, for deployments that have some.

use anyhow::{Result, bail};
use fastrand::Rng;

use crate::fault_run::fault::Fault;
use crate::fault_run::schedule::Strike;
use crate::faults::server::{Data, Server};

/// How far a clock jumps at most, ahead or back, in seconds.
const JUMP: i64 = 3_600;

/// Ends, stops or misleads a server. A leader must be chosen by the deployment, which also
/// remembers which one it was.
pub fn inject(server: &mut Server, fault: Fault, strike: &Strike) -> Result<()> {
    match fault {
        Fault::Restart | Fault::Leader if stops(strike) => server.pause(),
        Fault::Restart | Fault::Leader | Fault::Amnesia | Fault::Older => server.kill(),
        Fault::Clock => server.set_clock(Rng::with_seed(strike.draw).i64(-JUMP..=JUMP)),
        _ => bail!("{} does not strike a server", fault.name()),
    }
}

/// The end of it.
pub fn heal(server: &mut Server, fault: Fault, strike: &Strike) -> Result<()> {
    match fault {
        Fault::Restart | Fault::Leader if stops(strike) => server.resume(),
        // With what was on its disk: of some time ago, if the deployment saw to that.
        Fault::Restart | Fault::Leader | Fault::Older => server.start(Data::Kept),
        Fault::Amnesia => server.start(Data::Lost),
        Fault::Clock => server.set_clock(0),
        _ => bail!("{} does not strike a server", fault.name()),
    }
}

/// One in four is only stopped, and goes on with what it knew.
const fn stops(strike: &Strike) -> bool {
    strike.draw.is_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    fn redis(data: &Path, addr: SocketAddr) -> Command {
        let mut command = Command::new("redis-server");
        command.args(["--port", &addr.port().to_string(), "--save", "", "--appendonly", "yes"]);
        command.args(["--appendfsync", "always", "--dir"]).arg(data);
        command
    }

    fn ask(addr: SocketAddr, line: &str, wait: Duration) -> Option<String> {
        let mut stream = TcpStream::connect(addr).ok()?;
        stream.set_read_timeout(Some(wait)).unwrap();
        stream.write_all(format!("{line}\r\n").as_bytes()).ok()?;
        let mut answer = [0; 64];
        let length = stream.read(&mut answer).ok()?;
        Some(String::from_utf8_lossy(&answer[..length]).trim().to_owned())
    }

    const LONG: Duration = Duration::from_secs(30);

    fn started(folder: &Path) -> Server {
        let server = Server::new(folder, redis).unwrap().with_clock().unwrap();
        // It takes connections while it still reads its data.
        let mut server =
            server.ready_when(|addr| ask(addr, "PING", LONG).as_deref() == Some("+PONG"));
        server.start(Data::Kept).unwrap();
        server
    }

    fn strike(draw: u64) -> Strike {
        Strike { at: Duration::ZERO, slot: 0, lasts: Duration::ZERO, draw }
    }

    #[test]
    fn what_is_injected_is_healed() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = started(folder.path());
        let mut count = 0;
        for (fault, draw) in [(Fault::Restart, 1), (Fault::Leader, 4), (Fault::Amnesia, 2)] {
            count += 1;
            assert_eq!(ask(server.addr(), "INCR count", LONG), Some(format!(":{count}")));
            inject(&mut server, fault, &strike(draw)).unwrap();
            assert_eq!(ask(server.addr(), "PING", Duration::from_millis(100)), None, "{fault:?}");
            heal(&mut server, fault, &strike(draw)).unwrap();
        }
        assert_eq!(ask(server.addr(), "INCR count", LONG), Some(":1".to_owned()));
    }

    #[test]
    fn its_clock_jumps_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = started(folder.path());
        let now = |server: &Server| -> i64 {
            let answer = ask(server.addr(), "TIME", LONG).expect("an answer");
            answer.lines().nth(2).expect("*2, $10, seconds").trim().parse().unwrap()
        };
        let before = now(&server);
        inject(&mut server, Fault::Clock, &strike(1)).unwrap();
        let jumped = Rng::with_seed(1).i64(-JUMP..=JUMP);
        assert!((now(&server) - before - jumped).abs() < 300);
        heal(&mut server, Fault::Clock, &strike(1)).unwrap();
        assert!((now(&server) - before).abs() < 300);
    }
}
