//! A store in a temporary directory, the command started on it, and waiting for things
//! to happen.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// A temporary directory with a store in it. Scripts run in that directory.
pub(crate) struct Scene {
    dir: TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self { dir: TempDir::new().expect("a temporary directory") }
    }

    /// `leasehold` with these words, on this scene's store.
    pub(crate) fn leasehold<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.args(words);
        self.set(command)
    }

    /// `leasehold run demo <options> -- sh -c <script>`.
    pub(crate) fn run(&self, options: &str, script: &str) -> Command {
        let words = ["run", "demo"].into_iter().chain(options.split_whitespace());
        self.leasehold(words.chain(["--", "sh", "-c", script]))
    }

    /// A `leasehold run` that holds this lock until it is told to end by the file `go`.
    pub(crate) fn hold(&self, lock: &str) -> Running {
        let script = format!("echo > ready; {}", until("go"));
        let holder = Running::start(self.leasehold(["run", lock, "--", "sh", "-c", &script]));
        self.line("ready");
        fs::remove_file(self.path("ready")).expect("the file it made");
        holder
    }

    /// The JSON that `leasehold` prints with these words.
    pub(crate) fn json(&self, words: &str) -> Value {
        let ended = ended(self.leasehold(words.split_whitespace().chain(["--json"])));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        serde_json::from_str(&ended.stdout).expect("one JSON document")
    }

    /// Puts another command on this scene.
    pub(crate) fn set(&self, mut command: Command) -> Command {
        let store = format!("sqlite:{}", self.dir.path().join("locks.db").display());
        command.env("LEASEHOLD_STORE", store).current_dir(self.dir.path());
        command.env("XDG_CONFIG_HOME", self.dir.path());
        for ours in ["LEASEHOLD_CONFIG", "LEASEHOLD_LOG", "LEASEHOLD_REQUIRE", "COLUMNS"] {
            command.env_remove(ours);
        }
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// Waits until a script has written a whole line to this file.
    pub(crate) fn line(&self, file: &str) -> String {
        eventually(&format!("a line in {file}"), || {
            let text = fs::read_to_string(self.path(file)).ok()?;
            text.strip_suffix('\n').map(str::to_owned)
        })
    }

    /// Lets scripts go on that wait for this file.
    pub(crate) fn touch(&self, file: &str) {
        fs::write(self.path(file), "").expect("a file in the temporary directory");
    }
}

/// A line of shell that waits for a file.
pub(crate) fn until(file: &str) -> String {
    format!("while ! [ -e {file} ]; do sleep 0.02; done")
}

/// Waits until `look` finds something.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    while started.elapsed() < BOUND {
        if let Some(found) = look() {
            return found;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("waited {BOUND:?} in vain for {what}");
}

/// A `leasehold` that runs; killed when the test ends without it.
///
/// Its output goes to files, not pipes: those end only when the last process that
/// inherited them does.
pub(crate) struct Running {
    child: Child,
    stdout: File,
    stderr: File,
}

impl Running {
    pub(crate) fn start(command: Command) -> Self {
        Self::start_into(command, None, None)
    }

    /// The same with an output of the caller's own, of which nothing is seen here.
    pub(crate) fn start_into(
        mut command: Command,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    ) -> Self {
        let into = |given: Option<OwnedFd>| {
            let file = tempfile::tempfile().expect("a temporary file");
            let second = file.try_clone().expect("a second handle");
            (file, given.map_or_else(|| Stdio::from(second), Stdio::from))
        };
        let ((stdout, out), (stderr, err)) = (into(stdout), into(stderr));
        command.stdout(out).stderr(err);
        Self { child: command.spawn().expect("it starts"), stdout, stderr }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_some()
    }

    /// Waits until it has said a whole line on stderr; all it said.
    pub(crate) fn says(&self) -> String {
        eventually("a line on stderr", || {
            Some(text(&self.stderr)).filter(|said| said.ends_with('\n'))
        })
    }

    /// Waits until it has said this on stderr.
    pub(crate) fn tells(&self, part: &str) {
        eventually(part, || text(&self.stderr).contains(part).then_some(()));
    }

    /// Waits until it has printed this on stdout.
    pub(crate) fn prints(&self, part: &str) {
        eventually(part, || text(&self.stdout).contains(part).then_some(()));
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let status = eventually("its end", || self.child.try_wait().expect("a child of ours"));
        Ended { code: status.code(), stdout: text(&self.stdout), stderr: text(&self.stderr) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was written to a file so far. Writers share its position, so it stays untouched.
fn text(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().map_or(0, |metadata| metadata.len() as usize)];
    file.read_exact_at(&mut bytes, 0).expect("a readable file");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How `leasehold` ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs to the end.
pub(crate) fn ended(command: Command) -> Ended {
    Running::start(command).end()
}

pub(crate) fn send(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("a process id");
    kill_process(pid, signal).expect("a process to signal");
}

/// The state letter of a process; `None` when it is gone (an unreaped one is).
pub(crate) fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    (state != 'Z' && state != 'X').then_some(state)
}

pub(crate) fn await_gone(pid: &str) {
    eventually(&format!("the end of process {pid}"), || state(pid).is_none().then_some(()));
}

pub(crate) fn await_stopped(pid: &str) {
    eventually(&format!("the stop of process {pid}"), || (state(pid) == Some('T')).then_some(()));
}
