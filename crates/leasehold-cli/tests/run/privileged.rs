//! A command that runs as another user, as under `sudo`: it cannot be signalled.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::{Signal, geteuid};

use crate::scene::{Running, Scene, await_gone, send, state, until};

/// What `sudo` does: all of its user ids become root's, so that its caller may not signal it.
const AS_ROOT: &str = "
    #include <unistd.h>
    int main(int count, char **words) {
        if (count < 2 || setuid(0) != 0) return 99;
        execvp(words[1], words + 1);
        return 98;
    }";

/// A scene for a user without privileges, with `leasehold` and the set-user-ID program in it.
fn scene() -> Scene {
    let scene = Scene::new();
    let allow = |file: &str, mode| {
        fs::set_permissions(scene.path(file), Permissions::from_mode(mode))
            .expect("a file of ours");
    };
    allow("", 0o777);
    // Where it was built, other users may not look.
    fs::copy(env!("CARGO_BIN_EXE_leasehold"), scene.path("leasehold")).expect("a copy");
    allow("leasehold", 0o755);
    fs::write(scene.path("as-root.c"), AS_ROOT).expect("a file");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(scene.path("as-root")).arg(scene.path("as-root.c"));
    assert!(cc.status().expect("a C compiler").success());
    allow("as-root", 0o4755);
    scene
}

/// Starts `leasehold run` as nobody; the script runs as root where it says `./as-root`.
fn run_as_nobody(scene: &Scene, script: &str) -> Running {
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    setpriv.arg(scene.path("leasehold"));
    setpriv.args(["run", "demo", "--max-hold", "1500ms", "--grace", "500ms", "--"]);
    setpriv.args(["sh", "-c", script]);
    Running::start(scene.set(setpriv))
}

/// The error of kill(2) was dropped, and the message said that the command was ended.
#[test]
fn a_command_that_cannot_be_signalled_is_reported_until_it_is_gone() {
    if !geteuid().is_root() {
        // Only root can make a program that runs as root.
        return;
    }
    let scene = scene();
    let alone = "exec ./as-root sh -c 'echo $$ > alone; exec sleep 100'";
    // A part of the group can be signalled: then kill(2) reports no error.
    let beside = "./as-root sh -c 'echo $$ > beside; exec sleep 100' & wait";
    for (script, file) in [(alone, "alone"), (beside, "beside")] {
        let mut running = run_as_nobody(&scene, script);
        let pid = scene.line(file);
        running.tells(&format!("CANNOT END sleep (pid {pid})"));
        assert!(state(&pid).is_some() && !running.has_ended(), "{script}");
        send(pid.parse().expect("a process id"), Signal::KILL);
        await_gone(&pid);
        let ended = running.end();
        assert_eq!(ended.code, Some(202), "{ended:?}");
        assert!(ended.stderr.contains("the command could NOT be ended"), "{ended:?}");
        assert!(!ended.stderr.contains("the command was ended"), "{ended:?}");
    }
}

/// One attempt to end it is not enough: it may give up its privileges.
#[test]
fn a_command_that_gives_up_its_privileges_is_ended_then() {
    if !geteuid().is_root() {
        return;
    }
    let scene = scene();
    let script = format!(
        "exec ./as-root sh -c 'echo $$ > drops; {}; \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups sleep 100'",
        until("drop")
    );
    let mut running = run_as_nobody(&scene, &script);
    let pid = scene.line("drops");
    running.tells("CANNOT END");
    assert!(state(&pid).is_some() && !running.has_ended());
    scene.touch("drop");
    await_gone(&pid);
    assert_eq!(running.end().code, Some(202));
}
