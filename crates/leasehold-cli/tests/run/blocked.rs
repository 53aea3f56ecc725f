//! Output that nobody reads: it must cost lines, and nothing else.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;

use crate::scene::{Running, Scene, await_gone, eventually, until};

/// A pipe that takes nothing more: the end to read from, and the end to write to.
fn full_pipe() -> (File, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let flags = fcntl_getfl(&writer).expect("its flags");
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("a pipe of ours");
    for size in [4096, 1] {
        while rustix::io::write(&writer, &b"."[..].repeat(size)).is_ok() {}
    }
    fcntl_setfl(&writer, flags).expect("a pipe of ours");
    (reader.into(), writer)
}

/// The supervisor told of the end before it signalled, on its only thread: with a full pipe the
/// command went on beside the next holder.
#[test]
fn a_full_stderr_does_not_keep_a_command_alive_beyond_its_lease() {
    let scene = Scene::new();
    let (_reader, stderr) = full_pipe();
    let run = scene.run("--ttl 3s --grace 1s", "echo $$ > pid; exec sleep 600");
    let holder = Running::start_into(run, None, Some(stderr));
    let pid = scene.line("pid");
    let blocking = rusqlite::Connection::open(scene.path("locks.db")).expect("the store's file");
    blocking.busy_timeout(Duration::from_secs(30)).expect("a connection of ours");
    blocking.execute_batch("BEGIN EXCLUSIVE").expect("the store is ours");
    let silent = Instant::now();
    await_gone(&pid);
    // The lease ends at most a TTL after the last renewal; the rest is for a busy machine.
    assert!(silent.elapsed() < Duration::from_secs(5), "{:?}", silent.elapsed());
    drop(blocking);
    assert_eq!(holder.end().code, Some(202));
}

/// With `LEASEHOLD_LOG=trace` and a full pipe renewal stopped, although the store was healthy.
#[test]
fn a_log_that_nobody_reads_does_not_stop_renewal() {
    let scene = Scene::new();
    let (_reader, stderr) = full_pipe();
    let mut run = scene.run("--ttl 1s", "sleep 3; echo done");
    run.env("LEASEHOLD_LOG", "trace");
    let ended = Running::start_into(run, None, Some(stderr)).end();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "done\n"), "{ended:?}");
}

#[test]
fn what_was_said_meanwhile_comes_when_somebody_reads() {
    let scene = Scene::new();
    let (mut reader, stderr) = full_pipe();
    let mut run = scene.run("--max-hold 2s", &format!("echo > ready; {}", until("go")));
    run.env("LEASEHOLD_LOG", "info");
    let running = Running::start_into(run, None, Some(stderr));
    scene.line("ready");
    let reading = thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("text");
        text
    });
    assert_eq!(running.end().code, Some(202));
    let said = reading.join().expect("no panic");
    for part in ["acquired", "ending the command within", "the command was ended"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// It took the signals for itself and waited in a write that never ended.
#[test]
fn a_watcher_that_nobody_reads_ends_by_a_signal() {
    let scene = Scene::new();
    let (_reader, stdout) = full_pipe();
    let watch = scene.leasehold(["watch", "demo", "--every", "20ms"]);
    let watch = Running::start_into(watch, Some(stdout), None);
    eventually("its handler", || catches(watch.pid(), Signal::TERM).then_some(()));
    watch.signal(Signal::TERM);
    assert_eq!(watch.end().code, Some(0));
}

fn catches(pid: i32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw() - 1) & 1 == 1
}
