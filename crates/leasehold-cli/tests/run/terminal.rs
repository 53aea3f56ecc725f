//! On a terminal, the command has it, and Ctrl-C reaches the command.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::mpsc;
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::scene::{BOUND, Scene, eventually};

/// A session on a terminal of its own, typed to and read from here.
struct Session {
    leader: Child,
    keyboard: File,
    screen: mpsc::Receiver<String>,
    seen: String,
}

impl Session {
    fn start(scene: &Scene, script: &str) -> Self {
        Self::run(scene, &["sh", "-c", script])
    }

    fn run(scene: &Scene, words: &[&str]) -> Self {
        // Not inherited: a session that held its own terminal open would outlive this test.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a pty");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a pty");
        let name = ptsname(&master, Vec::new()).expect("its name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = || File::from(rustix::fs::open(&name, flags, Mode::empty()).expect("a tty"));
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_leasehold"), "run", "demo", "--"]);
        command.args(words).env("TERM", "xterm").env("PS1", "ready> ");
        let mut command = scene.set(command);
        command.stdin(open()).stdout(open()).stderr(open());
        let leader = command.spawn().expect("setsid starts");
        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().expect("a second handle");
        let (sender, screen) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let _ = sender.send(String::from_utf8_lossy(&bytes[..count]).into_owned());
            }
        });
        Self { leader, keyboard, screen, seen: String::new() }
    }

    fn exit_code(&mut self) -> Option<i32> {
        eventually("the session's end", || self.leader.try_wait().expect("a child of ours")).code()
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal takes it");
    }

    fn shows(&mut self, text: &str) {
        while !self.seen.contains(text) {
            match self.screen.recv_timeout(BOUND) {
                Ok(more) => self.seen.push_str(&more),
                Err(_) => panic!("waited for {text:?}, seen: {:?}", self.seen),
            }
        }
    }
}

#[test]
fn an_interactive_command_reads_from_the_terminal() {
    let scene = Scene::new();
    let mut session = Session::start(&scene, "echo ready; read line; echo \"got <$line>\"; exit 4");
    session.shows("ready");
    session.types("hello\n");
    session.shows("got <hello>");
    assert_eq!(session.exit_code(), Some(4));
}

#[test]
fn ctrl_c_reaches_the_command() {
    let scene = Scene::new();
    let script = "trap 'echo stopped; exit 5' INT; echo ready; while :; do sleep 0.02; done";
    let mut session = Session::start(&scene, script);
    session.shows("ready");
    session.types("\x03");
    session.shows("stopped");
    assert_eq!(session.exit_code(), Some(5));
}

#[test]
fn the_command_starts_with_no_signal_blocked() {
    let scene = Scene::new();
    let mut session = Session::start(&scene, "grep SigBlk /proc/self/status");
    session.shows("SigBlk:\t0000000000000000");
    assert_eq!(session.exit_code(), Some(0));
}

#[test]
fn ctrl_z_without_a_shell_does_not_hang_the_command() {
    let scene = Scene::new();
    let mut session = Session::start(&scene, "echo ready; read line; echo \"got <$line>\"");
    session.shows("ready");
    session.types("\x1a");
    session.shows("^Z");
    session.types("hello\n");
    session.shows("got <hello>");
    assert_eq!(session.exit_code(), Some(0));
}

#[test]
fn an_interactive_shell_works() {
    let scene = Scene::new();
    let mut session = Session::run(&scene, &["sh", "-i"]);
    session.shows("ready> ");
    session.types("echo $((40 + 2)) $LEASEHOLD_LOCK\n");
    session.shows("42 demo");
    // Ctrl-C ends what runs in the shell, not the shell.
    session.types("sh -c 'echo waiting-$((1 + 1)); exec sleep 600'\n");
    session.shows("waiting-2");
    session.types("\x03");
    session.types("echo still-$((2 + 1))\n");
    session.shows("still-3");
    session.types("exit 6\n");
    assert_eq!(session.exit_code(), Some(6));
}

#[test]
fn an_editor_works() {
    let scene = Scene::new();
    let mut session = Session::run(&scene, &["vi", "-u", "NONE", "note.txt"]);
    session.shows("note.txt");
    session.types("ihello\x1b:wq\r");
    assert_eq!(session.exit_code(), Some(0));
    assert_eq!(scene.line("note.txt"), "hello");
}
