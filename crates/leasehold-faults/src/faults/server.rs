//! A server as a child process: ended without warning and started again, with or without its
//! data; stopped and continued; with a wall clock of its own.

use std::fmt;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Pid;

use super::faketime::FakeTime;
use super::signals;

/// How long a server may take until it answers, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What becomes of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// It is there again.
    Kept,
    /// It is gone.
    Lost,
}

type Make = Box<dyn Fn(&Path, SocketAddr) -> Command + Send>;
type Probe = Box<dyn Fn(SocketAddr) -> bool + Send>;

/// A server of ours. Killed when dropped.
pub struct Server {
    make: Make,
    answers: Probe,
    folder: PathBuf,
    addr: SocketAddr,
    clock: Option<FakeTime>,
    child: Option<Child>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, addr, clock, child, .. } = self;
        let mut server = f.debug_struct("Server");
        server.field("folder", folder).field("addr", addr).field("clock", clock);
        server.field("child", child).finish_non_exhaustive()
    }
}

impl Server {
    /// A server to be, on a free port of this machine, with its data in `folder/data` and its
    /// output in `folder/log`. `make` gives the command, from the folder of the data and the
    /// address.
    pub fn new(
        folder: &Path,
        make: impl Fn(&Path, SocketAddr) -> Command + Send + 'static,
    ) -> Result<Self> {
        Ok(Self {
            make: Box::new(make),
            answers: Box::new(|addr| TcpStream::connect(addr).is_ok()),
            folder: folder.to_owned(),
            addr: free_addr()?,
            clock: None,
            child: None,
        })
    }

    /// It is ready when this says so. Default: when it takes a connection.
    pub fn ready_when(mut self, answers: impl Fn(SocketAddr) -> bool + Send + 'static) -> Self {
        self.answers = Box::new(answers);
        self
    }

    /// With a wall clock that [`Server::set_clock`] sets.
    pub fn with_clock(mut self) -> Result<Self> {
        fs::create_dir_all(&self.folder)?;
        self.clock = Some(FakeTime::new(&self.folder)?);
        Ok(self)
    }

    /// Where it listens, also when it is down.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The folder of its data.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts it and waits until it answers.
    pub fn start(&mut self, data: Data) -> Result<()> {
        if data == Data::Lost && self.data().exists() {
            fs::remove_dir_all(self.data())?;
        }
        fs::create_dir_all(self.data())?;
        let log = File::options().create(true).append(true).open(self.folder.join("log"))?;
        let mut command = (self.make)(&self.data(), self.addr);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if let Some(clock) = &self.clock {
            clock.apply(&mut command);
        }
        let child = command.spawn().with_context(|| format!("{:?}", command.get_program()))?;
        self.child = Some(child);
        self.wait_until_it_answers()
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let began = Instant::now();
        while !(self.answers)(self.addr) {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().transpose());
            if let Some(status) = ended.transpose()? {
                bail!("the server ended with {status}: {}", self.last_words());
            }
            if began.elapsed() > PATIENCE {
                bail!("the server did not answer in {PATIENCE:?}: {}", self.last_words());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(10).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Ends it without warning.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<Pid> {
        self.child.as_ref().map(Pid::from_child)
    }

    /// Stops it where it stands.
    pub fn pause(&self) -> Result<()> {
        Ok(signals::pause(self.pid().context("the server is down")?)?)
    }

    /// Lets it go on.
    pub fn resume(&self) -> Result<()> {
        Ok(signals::resume(self.pid().context("the server is down")?)?)
    }

    /// Sets its wall clock this many seconds ahead of the true one, or behind it.
    pub fn set_clock(&self, seconds: i64) -> Result<()> {
        self.clock.as_ref().context("started without a clock of its own")?.set(seconds)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// An address of this machine where nobody listens now.
pub fn free_addr() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn redis(data: &Path, addr: SocketAddr) -> Command {
        let mut command = Command::new("redis-server");
        command.args(["--port", &addr.port().to_string(), "--save", "", "--appendonly", "yes"]);
        command.args(["--appendfsync", "always", "--dir"]).arg(data);
        command
    }

    fn tell(addr: SocketAddr, line: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(addr)?;
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        let mut answer = [0; 32];
        let length = stream.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..length]).trim().to_owned())
    }

    #[test]
    fn it_comes_back_with_its_data_or_without() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::new(folder.path(), redis).unwrap();
        // It takes connections while it still reads its data.
        let mut server =
            server.ready_when(|addr| tell(addr, "PING").is_ok_and(|answer| answer == "+PONG"));
        server.start(Data::Kept).unwrap();
        assert_eq!(tell(server.addr(), "INCR count").unwrap(), ":1");
        server.kill().unwrap();
        assert!(TcpStream::connect(server.addr()).is_err());
        server.start(Data::Kept).unwrap();
        assert_eq!(tell(server.addr(), "INCR count").unwrap(), ":2");
        server.kill().unwrap();
        server.start(Data::Lost).unwrap();
        assert_eq!(tell(server.addr(), "INCR count").unwrap(), ":1");
    }

    #[test]
    fn one_that_ends_says_its_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::new(folder.path(), |_, _| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo no port for you; exit 3"]);
            command
        })
        .unwrap();
        let error = server.start(Data::Kept).unwrap_err().to_string();
        assert!(error.contains("no port for you"), "{error}");
    }
}
