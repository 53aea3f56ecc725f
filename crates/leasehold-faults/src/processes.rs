//! The cases that need processes: killed, stopped, and many of them at once. They go
//! through the real `leasehold` command, on any store that reaches beyond a process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long anything may take on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// The command, a store for it, and a folder for what it writes.
#[derive(Debug)]
pub struct Scene {
    command: PathBuf,
    store: String,
    folder: TempDir,
}

impl Scene {
    /// A scene for the `leasehold` at this path. `store` makes a URL for a folder.
    pub fn new(command: impl Into<PathBuf>, store: impl FnOnce(&Path) -> String) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        Self { command: command.into(), store: store(folder.path()), folder }
    }

    /// Starts `leasehold run case <options> -- sh -c <script>` in the scene's folder.
    fn run(&self, options: &str, script: &str) -> Running {
        let mut command = Command::new(&self.command);
        command.args(["run", "case"]).args(options.split_whitespace());
        command.args(["--", "sh", "-c", script]);
        command.env("LEASEHOLD_STORE", &self.store).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().expect("leasehold starts")))
    }

    /// Waits for a whole line in a file.
    fn line(&self, file: &str) -> String {
        eventually(file, || {
            let text = fs::read_to_string(self.folder.path().join(file)).ok()?;
            text.strip_suffix('\n').map(str::to_owned)
        })
    }

    fn numbers(&self, file: &str) -> Vec<u64> {
        let text = fs::read_to_string(self.folder.path().join(file)).expect("it was written");
        text.lines().map(number).collect()
    }
}

/// A holder that is killed with SIGKILL is replaced long before its TTL, by a higher
/// token.
pub fn a_killed_holder_is_replaced_at_once(scene: &Scene) {
    let mut holder =
        scene.run("--ttl 10m", "echo $LEASEHOLD_TOKEN > token; exec sleep 600 >&- 2>&-");
    let first = number(&scene.line("token"));
    let waiter = scene.run("--wait 5m", "echo $LEASEHOLD_TOKEN");
    holder.signal(Signal::KILL);
    assert!(number(&waiter.stdout()) > first);
}

/// A holder that is stopped with SIGSTOP beyond its TTL is replaced; when it wakes up
/// its command is ended, and it says that it lost the lock.
pub fn a_stopped_holder_is_replaced_and_told(scene: &Scene) {
    let script = "echo $LEASEHOLD_TOKEN > token; echo $$ > pid; exec sleep 600 >&- 2>&-";
    let mut holder = scene.run("--ttl 3s", script);
    let (first, child) = (number(&scene.line("token")), scene.line("pid"));
    holder.signal(Signal::STOP);
    let waiter = scene.run("--wait 5m", "echo $LEASEHOLD_TOKEN");
    assert!(number(&waiter.stdout()) > first);
    holder.signal(Signal::CONT);
    let ended = holder.end();
    assert_eq!(ended.status.code(), Some(202), "{ended:?}");
    let gone = || (!Path::new("/proc").join(&child).join("cwd").exists()).then_some(());
    eventually("the end of its command", gone);
}

/// Sixteen processes at a time add one to a number in a plain file, fifty times each: none
/// is lost, and tokens rise in the order of the additions.
pub fn no_increment_is_lost(scene: &Scene) {
    const PROCESSES: u64 = 16;
    const TIMES: u64 = 50;
    fs::write(scene.folder.path().join("number"), "0\n").expect("a file");
    let add = "read n < number; echo $((n + 1)) > number; echo $LEASEHOLD_TOKEN >> tokens";
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                for _ in 0..TIMES {
                    let ended = scene.run("--wait 5m", add).end();
                    assert!(ended.status.success(), "{ended:?}");
                }
            });
        }
    });
    assert_eq!(scene.numbers("number"), [PROCESSES * TIMES]);
    let tokens = scene.numbers("tokens");
    assert_eq!(tokens.len() as u64, PROCESSES * TIMES);
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// A process of ours; killed by its id if the case ends without it.
struct Running(Option<Child>);

impl Running {
    fn signal(&mut self, signal: Signal) {
        let child = self.0.as_ref().expect("it was not waited for yet");
        kill_process(Pid::from_child(child), signal).expect("it is there");
    }

    fn end(mut self) -> Output {
        eventually("its end", || {
            let child = self.0.as_mut().expect("it was not waited for yet");
            child.try_wait().expect("a child of ours")
        });
        let child = self.0.take().expect("it was not waited for yet");
        child.wait_with_output().expect("its output")
    }

    fn stdout(self) -> String {
        let ended = self.end();
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    while began.elapsed() < BOUND {
        if let Some(found) = look() {
            return found;
        }
        thread::sleep(Duration::from_millis(2));
    }
    panic!("waited {BOUND:?} in vain for {what}");
}
