//! The gate's process and a small HTTP service behind it that keeps what it is sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A service that keeps every body it was sent, whole. It answers at once, unless the
/// path is `/slow`: then it says that it has the request, and waits to be told.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) bodies: Arc<Mutex<Vec<String>>>,
    pub(crate) heads: Arc<Mutex<Vec<String>>>,
    accepted: Arc<AtomicUsize>,
    pub(crate) arrived: Receiver<()>,
    pub(crate) go_on: Sender<()>,
}

impl Service {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (bodies, heads) = (Arc::default(), Arc::default());
        let accepted = Arc::new(AtomicUsize::new(0));
        let (arriving, arrived) = channel();
        let (go_on, told) = channel();
        let told = Arc::new(Mutex::new(told));
        let service = Self {
            address,
            bodies: Arc::clone(&bodies),
            heads: Arc::clone(&heads),
            accepted: Arc::clone(&accepted),
            arrived,
            go_on,
        };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                accepted.fetch_add(1, Ordering::SeqCst);
                let (bodies, heads) = (bodies.clone(), heads.clone());
                let (arriving, told) = (arriving.clone(), told.clone());
                thread::spawn(move || serve(stream, &bodies, &heads, &arriving, &told));
            }
        });
        service
    }

    pub(crate) fn bodies(&self) -> Vec<String> {
        self.bodies.lock().unwrap().clone()
    }

    /// How many connections were made to it.
    pub(crate) fn connections(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

fn serve(
    stream: TcpStream,
    bodies: &Mutex<Vec<String>>,
    heads: &Mutex<Vec<String>>,
    arriving: &Sender<()>,
    told: &Mutex<Receiver<()>>,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line == "\r\n" {
                break;
            }
            head += &line;
        }
        let slow = head.contains(" /slow ");
        heads.lock().unwrap().push(head);
        let mut body = vec![0; length];
        if slow && length > 100 {
            let _ = arriving.send(());
        }
        reader.read_exact(&mut body).ok()?;
        if slow && length <= 100 {
            let _ = arriving.send(());
            told.lock().unwrap().recv().ok()?;
        }
        bodies.lock().unwrap().push(String::from_utf8(body).ok()?);
        writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstored").ok()?;
    }
}

/// The gate; killed when it is dropped.
pub(crate) struct Gate {
    child: Child,
    pub(crate) address: SocketAddr,
    stderr: BufReader<ChildStderr>,
}

impl Gate {
    pub(crate) fn start(folder: &TempDir, upstream: SocketAddr, more: &[&str]) -> Self {
        let mut command = command(folder.path(), upstream, more);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut said = String::new();
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        stderr.read_line(&mut said).expect("a line");
        let rest = said.split("http://").nth(1).unwrap_or_else(|| panic!("{said}"));
        let address = rest.split(',').next().and_then(|address| address.parse().ok());
        Self { child, address: address.unwrap_or_else(|| panic!("{said}")), stderr }
    }

    /// What it says next.
    pub(crate) fn line(&mut self) -> String {
        let mut said = String::new();
        self.stderr.read_line(&mut said).expect("a line");
        said
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ours");
    }

    /// Asks it to end.
    pub(crate) fn signal(&self) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, Signal::TERM).expect("ours");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("ours").is_none()
    }

    pub(crate) fn end(&mut self) -> Option<i32> {
        self.child.wait().expect("ours").code()
    }
}

pub(crate) fn command(folder: &Path, upstream: SocketAddr, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(["gate", "--listen", "127.0.0.1:0"]).env_remove("LEASEHOLD_LOG");
    command.args(["--upstream", &format!("http://{upstream}")]).args(more);
    command.arg("--marks").arg(folder.join("marks.db")).stdin(Stdio::null());
    command
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
