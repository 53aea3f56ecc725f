//! The command's process group: signals reach it, nothing of it outlives the lease or
//! the supervisor, and the lock is kept while any of it is left.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::scene::{Running, Scene, await_gone, ended, send, state, until};

#[test]
fn signals_reach_the_commands_own_children() {
    // Trap: consul lock signals only the pid (consul#9788, #797).
    let scene = Scene::new();
    let grandchild =
        "trap 'echo USR1 > got; exit' USR1; echo > ready; while :; do sleep 0.02; done";
    let script = format!("sh -c \"{grandchild}\" & trap 'wait; exit 9' USR1; wait");
    let running = Running::start(scene.run("", &script));
    scene.line("ready");
    running.signal(Signal::USR1);
    assert_eq!(scene.line("got"), "USR1");
    assert_eq!(running.end().code, Some(9));
}

#[test]
fn a_signal_that_ends_the_command_shows_in_the_exit_code() {
    let scene = Scene::new();
    let running = Running::start(scene.run("", "echo > ready; exec sleep 60"));
    scene.line("ready");
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, Some(143));
}

#[test]
fn the_command_dies_within_100_ms_of_a_supervisor_that_is_killed() {
    let scene = Scene::new();
    let dies_in_time = |try_number: u32| {
        let file = format!("pid{try_number}");
        let running = Running::start(scene.run("", &format!("echo $$ > {file}; exec sleep 600")));
        let pid = scene.line(&file);
        assert!(state(&pid).is_some());
        let killed = Instant::now();
        running.signal(Signal::KILL);
        await_gone(&pid);
        killed.elapsed() < Duration::from_millis(100)
    };
    // The machine may be busy once, not always.
    assert!((0..3).any(dies_in_time));
}

/// A command whose own child ignores signals and stays in the group.
const LEAVES_A_MEMBER: &str =
    "sh -c 'trap \"\" TERM HUP INT; echo $$ > member; exec sleep 600' & exec sleep 600";

#[test]
fn what_a_killed_supervisor_left_of_the_group_keeps_others_out() {
    let scene = Scene::new();
    let holder = Running::start(scene.run("--ttl 10m", LEAVES_A_MEMBER));
    let member = scene.line("member");
    holder.signal(Signal::KILL);
    let mut next = Running::start(scene.run("", "echo ran"));
    next.says();
    let refused = ended(scene.run("--wait 300ms", "echo ran"));
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(201), ""), "{refused:?}");
    assert!(state(&member).is_some() && !next.has_ended());
    send(member.parse().expect("a process id"), Signal::KILL);
    let next = next.end();
    assert_eq!((next.code, next.stdout.as_str()), (Some(0), "ran\n"), "{next:?}");
}

#[test]
fn what_a_killed_supervisor_left_of_the_group_keeps_others_out_for_the_ttl_at_most() {
    let scene = Scene::new();
    let holder = Running::start(scene.run("--ttl 3s", LEAVES_A_MEMBER));
    let member = scene.line("member");
    holder.signal(Signal::KILL);
    let next = ended(scene.run("", "echo ran"));
    assert_eq!((next.code, next.stdout.as_str()), (Some(0), "ran\n"), "{next:?}");
    assert!(state(&member).is_some());
    send(member.parse().expect("a process id"), Signal::KILL);
}

#[test]
fn a_command_that_never_got_its_lock_leaves_nothing_behind() {
    let scene = Scene::new();
    let holder = Running::start(scene.run("", &format!("echo > ready; {}", until("go"))));
    scene.line("ready");
    let waiter = Running::start(scene.run("", "echo ran"));
    waiter.says();
    let children = format!("/proc/{0}/task/{0}/children", waiter.pid());
    let children = fs::read_to_string(children).expect("its children");
    let prepared = children.trim();
    assert!(state(prepared).is_some(), "{children:?}");
    waiter.signal(Signal::KILL);
    await_gone(prepared);
    scene.touch("go");
    assert_eq!(holder.end().code, Some(0));
}

#[test]
fn the_command_inherits_no_descriptor_of_ours() {
    let scene = Scene::new();
    let look = "ls /proc/$$/fd";
    let mut directly = std::process::Command::new("sh");
    directly.args(["-c", look]);
    let directly = ended(scene.set(directly));
    assert!(directly.stdout.contains('2'), "{directly:?}");
    assert_eq!(ended(scene.run("", look)).stdout, directly.stdout);
}

#[test]
fn the_lock_is_kept_until_the_whole_group_is_gone() {
    let scene = Scene::new();
    let script = format!("({}; echo > done) & echo > left; exit 3", until("go"));
    let mut running = Running::start(scene.run("", &script));
    scene.line("left");
    let other = ended(scene.run("--wait 200ms", "echo ran"));
    assert_eq!((other.code, other.stdout.as_str()), (Some(201), ""), "{other:?}");
    assert!(!running.has_ended());
    scene.touch("go");
    assert_eq!(running.end().code, Some(3));
    assert!(scene.path("done").exists());
}

/// A lock was held for 25 s after a command of 0.5 s: a zombie was taken for a member.
#[test]
fn a_zombie_that_nobody_reaps_does_not_keep_the_lock() {
    let scene = Scene::new();
    // The parent leaves the group and does not wait for its child, which ends in it.
    let leave = "$child = fork or exit; setpgrp(0, 0); open F, '>', 'left'; \
                 print F \"$$ $child\\n\"; close F; sleep 100";
    let script = format!("perl -e \"$LEAVE\" > /dev/null 2>&1 & {}; exit 3", until("left"));
    let mut run = scene.run("", &script);
    run.env("LEAVE", leave);
    let ended = ended(run);
    let pids = scene.line("left");
    let (parent, zombie) = pids.split_once(' ').expect("two process ids");
    let stat = fs::read_to_string(format!("/proc/{zombie}/stat")).unwrap_or_default();
    send(parent.parse().expect("a process id"), Signal::KILL);
    assert!(stat.contains(") Z "), "no zombie: {stat:?}");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("left the command's group"), "{ended:?}");
}

#[test]
fn a_command_is_asked_to_end_before_its_term_does() {
    let scene = Scene::new();
    let script = "trap 'echo asked > got; exit 0' TERM; while :; do sleep 0.02; done";
    let ended = ended(scene.run("--ttl 4s --no-renew --grace 1s", script));
    assert_eq!(scene.line("got"), "asked");
    assert_eq!(ended.code, Some(202), "ended by us is no success: {ended:?}");
    assert!(ended.stderr.contains("time it may hold the lock is up"), "{ended:?}");
}

#[test]
fn a_group_that_ignores_sigterm_is_killed_when_its_time_is_up() {
    let scene = Scene::new();
    let stubborn = "trap '' TERM; sh -c 'echo $$ > pid; exec sleep 60' & sleep 60; wait";
    let ended = ended(scene.run("--max-hold 3s --grace 500ms", stubborn));
    assert_eq!(ended.code, Some(202), "{ended:?}");
    assert!(state(&scene.line("pid")).is_none(), "gone before the supervisor");
}

#[test]
fn what_leaves_the_group_is_reported() {
    let scene = Scene::new();
    let daemon = format!("setsid sh -c 'echo $$ > pid; {}' > /dev/null 2>&1", until("go"));
    let ended = ended(scene.run("", &format!("{daemon} & {}", until("pid"))));
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("left the command's group"), "{ended:?}");
    scene.touch("go");
    await_gone(&scene.line("pid"));
}

#[test]
fn a_signal_that_was_ignored_stays_so() {
    // As under nohup.
    let scene = Scene::new();
    let mut nohup = std::process::Command::new("sh");
    let script = format!("echo > ready; {}", until("go"));
    nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_leasehold")]);
    nohup.args(["run", "demo", "--", "sh", "-c", &format!("kill -HUP $$; {script}")]);
    let running = Running::start(scene.set(nohup));
    scene.line("ready");
    running.signal(Signal::HUP);
    scene.touch("go");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn a_command_that_leaves_its_own_group_is_ended_all_the_same() {
    let scene = Scene::new();
    let leave = "setpgrp(0, getpgrp(getppid())) or die; $| = 1; print \"$$\\n\"; sleep 600";
    let perl = |options: &str| {
        let words = ["run", "demo"].into_iter().chain(options.split_whitespace());
        scene.leasehold(words.chain(["--", "perl", "-e", leave]))
    };
    assert_eq!(ended(perl("--max-hold 300ms")).code, Some(202));
    let running = Running::start(perl(""));
    running.prints("\n");
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, Some(143));
}

#[test]
fn the_commands_end_is_noticed_even_if_we_started_with_that_signal_blocked() {
    let scene = Scene::new();
    let mut env = std::process::Command::new("env");
    // With a TTL whose renewals wake nobody up.
    let words = ["run", "demo", "--ttl", "10m", "--"];
    env.args(["--block-signal=CHLD", env!("CARGO_BIN_EXE_leasehold")]).args(words);
    env.args(["sh", "-c", "sleep 0.3; grep SigBlk /proc/self/status"]);
    let ended = ended(scene.set(env));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "SigBlk:\t0000000000000000\n"));
}

#[test]
fn why_the_store_does_not_answer_is_told() {
    let scene = Scene::new();
    let script = "rm -r locks.db*; exec sleep 600";
    let ended = ended(scene.run("--ttl 2s", script));
    assert_eq!(ended.code, Some(202), "{ended:?}");
    assert!(ended.stderr.contains("removed"), "{ended:?}");
}

#[test]
fn a_run_that_waits_for_its_own_lock_is_told_so() {
    let scene = Scene::new();
    let inner = format!("{} run demo --wait 300ms -- true", env!("CARGO_BIN_EXE_leasehold"));
    let ended = ended(scene.run("", &inner));
    assert_eq!(ended.code, Some(201), "{ended:?}");
    assert!(ended.stderr.contains("runs under \"demo\" itself"), "{ended:?}");
}
