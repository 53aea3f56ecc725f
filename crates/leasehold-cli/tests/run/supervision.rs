//! The command's process group: signals reach it, nothing of it outlives the lease or
//! the supervisor, and the lock is kept while any of it is left.

use rustix::process::Signal;

use crate::scene::{Running, Scene, await_gone, ended, state, until};

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
fn the_command_dies_with_a_supervisor_that_is_killed() {
    let scene = Scene::new();
    let running = Running::start(scene.run("", "echo $$ > pid; exec sleep 60"));
    let pid = scene.line("pid");
    assert!(state(&pid).is_some());
    running.signal(Signal::KILL);
    await_gone(&pid);
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

#[test]
fn a_command_is_asked_to_end_before_its_term_does() {
    let scene = Scene::new();
    let script = "trap 'echo asked > got; exit 0' TERM; while :; do sleep 0.02; done";
    let ended = ended(scene.run("--ttl 1500ms --no-renew --grace 1s", script));
    assert_eq!(scene.line("got"), "asked");
    assert_eq!(ended.code, Some(202), "ended by us is no success: {ended:?}");
    assert!(ended.stderr.contains("time it may hold the lock is up"), "{ended:?}");
}

#[test]
fn a_group_that_ignores_sigterm_is_killed_when_its_time_is_up() {
    let scene = Scene::new();
    let stubborn = "trap '' TERM; sh -c 'echo $$ > pid; exec sleep 60' & sleep 60; wait";
    let ended = ended(scene.run("--max-hold 600ms --grace 200ms", stubborn));
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
