//! Several `leasehold run` on one store.

use rustix::process::Signal;

use crate::scene::{Running, Scene, await_gone, await_stopped, ended, send, until};

const SAY_TOKEN: &str = "echo $LEASEHOLD_TOKEN";

fn number(token: &str) -> u64 {
    token.trim().parse().unwrap_or_else(|_| panic!("{token:?} is no token"))
}

#[test]
fn a_held_lock_is_201_and_says_who_holds_it() {
    let scene = Scene::new();
    let holder = Running::start(scene.run("", &format!("echo > ready; {}", until("go"))));
    scene.line("ready");
    let second = ended(scene.run("--no-wait", "echo ran"));
    assert_eq!((second.code, second.stdout.as_str()), (Some(201), ""), "{second:?}");
    let who = format!("\"demo\" is held by leasehold run sh (pid {} on ", holder.pid());
    assert!(second.stderr.contains(&who), "{second:?}");
    let since = second.stderr.split(") since ").nth(1).expect("since when");
    assert!(since.starts_with("20") && since.contains("ago)"), "{since}");
    assert_eq!(ended(scene.run("--no-wait --exit-code 42", "echo ran")).code, Some(42));
    assert_eq!(ended(scene.run("--wait 50ms", "echo ran")).code, Some(201));
    scene.touch("go");
    assert_eq!(holder.end().code, Some(0));
}

#[test]
fn a_waiter_says_once_for_whom_and_gets_a_higher_token() {
    let scene = Scene::new();
    let script = format!("{SAY_TOKEN} > token; {}", until("go"));
    let holder = Running::start(scene.run("", &script));
    let first = scene.line("token");
    let waiter = Running::start(scene.run("", SAY_TOKEN));
    let said = waiter.says();
    assert!(
        said.starts_with("leasehold: waiting for \"demo\", held by leasehold run sh"),
        "{said}"
    );
    scene.touch("go");
    assert_eq!(holder.end().code, Some(0));
    let waiter = waiter.end();
    assert_eq!(waiter.code, Some(0), "{waiter:?}");
    assert!(number(&waiter.stdout) > number(&first));
    assert_eq!(waiter.stderr, said, "once");
}

#[test]
fn a_signal_ends_the_wait() {
    let scene = Scene::new();
    let holder = Running::start(scene.run("", &format!("echo > ready; {}", until("go"))));
    scene.line("ready");
    let waiter = Running::start(scene.run("", "echo ran"));
    waiter.says();
    waiter.signal(Signal::TERM);
    let waiter = waiter.end();
    assert_eq!((waiter.code, waiter.stdout.as_str()), (Some(143), ""));
    scene.touch("go");
    assert_eq!(holder.end().code, Some(0));
    assert_eq!(
        ended(scene.run("--wait 10s", "exit 5")).code,
        Some(5),
        "no place in the queue is left"
    );
}

#[test]
fn a_holder_that_slept_through_its_lease_is_ended_when_it_wakes() {
    let scene = Scene::new();
    let script = "echo $$ > pid; echo $LEASEHOLD_TOKEN > token; exec sleep 60";
    let holder = Running::start(scene.run("--ttl 3s", script));
    let (pid, first) = (scene.line("pid"), scene.line("token"));
    holder.signal(Signal::STOP);
    send(pid.parse().expect("a process id"), Signal::STOP);
    await_stopped(&pid);
    let other = ended(scene.run("", SAY_TOKEN));
    assert_eq!(other.code, Some(0), "{other:?}");
    assert!(number(&other.stdout) > number(&first));
    holder.signal(Signal::CONT);
    let holder = holder.end();
    assert_eq!(holder.code, Some(202), "{holder:?}");
    await_gone(&pid);
}

#[test]
fn the_lock_of_a_killed_supervisor_is_free_before_its_ttl() {
    let scene = Scene::new();
    let script = "echo $LEASEHOLD_TOKEN > token; exec sleep 600";
    let holder = Running::start(scene.run("--ttl 10m", script));
    let first = scene.line("token");
    holder.signal(Signal::KILL);
    let next = ended(scene.run("", SAY_TOKEN));
    assert_eq!(next.code, Some(0), "{next:?}");
    assert!(number(&next.stdout) > number(&first));
}

#[test]
fn a_store_that_does_not_answer_ends_the_command_before_the_lease_ends() {
    let scene = Scene::new();
    let script = "trap 'echo asked > got; exit 0' TERM; echo > ready; while :; do sleep 0.02; done";
    let holder = Running::start(scene.run("--ttl 4s --grace 2s", script));
    scene.line("ready");
    let blocking = rusqlite::Connection::open(scene.path("locks.db")).expect("the store's file");
    blocking.busy_timeout(std::time::Duration::from_secs(30)).expect("a connection of ours");
    blocking.execute_batch("BEGIN EXCLUSIVE").expect("the store is ours");
    assert_eq!(scene.line("got"), "asked");
    drop(blocking);
    let holder = holder.end();
    assert_eq!(holder.code, Some(202), "{holder:?}");
    assert!(holder.stderr.contains("the store does not answer"), "{holder:?}");
}
