//! `watch`: what happens, as it happens.

use rustix::process::Signal;
use serde_json::Value;

use crate::scene::{Running, Scene, ended};

fn events(printed: &str, lock: &str) -> Vec<(String, Value)> {
    let lines = printed.lines().map(|line| serde_json::from_str(line).expect("a JSON line"));
    let ours = lines.filter(|line: &Value| line["lock"] == lock);
    ours.map(|line| (line["event"].as_str().expect("an event").to_owned(), line)).collect()
}

#[test]
fn a_program_reads_changes_as_json_lines() {
    let scene = Scene::new();
    let watch = scene.leasehold(["watch", "demo", "--every", "20ms", "--json"]);
    let watch = Running::start(watch);
    watch.prints("\"free\"");
    let holder = scene.hold("demo");
    watch.prints("\"acquired\"");
    let waiter = Running::start(scene.run("", "true"));
    watch.prints("\"waiters\":1");
    waiter.signal(Signal::TERM);
    waiter.end();
    watch.prints(
        "\"event\":\"waiters\",\"lock\":\"demo\",\"holder\":null,\"token\":null,\"waiters\":0",
    );
    scene.touch("go");
    let pid = holder.pid();
    assert_eq!(holder.end().code, Some(0));
    watch.prints("\"released\"");
    watch.signal(Signal::INT);
    let watch = watch.end();
    assert_eq!((watch.code, watch.stderr.as_str()), (Some(0), ""), "{watch:?}");
    let events = events(&watch.stdout, "demo");
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["free", "acquired", "waiters", "waiters", "released"]);
    let acquired = &events[1].1;
    assert_eq!(acquired["holder"]["pid"], pid);
    assert!(acquired["token"].is_u64() && acquired["at"].is_string(), "{acquired}");
    assert_eq!(events[4].1["token"], acquired["token"]);
}

#[test]
fn people_read_who_acquired_and_who_took_it_away() {
    let scene = Scene::new();
    let holder = scene.hold("demo");
    let watch = Running::start(scene.leasehold(["watch", "--every", "20ms"]));
    watch.prints(&format!(" demo is held by leasehold run sh (pid {} on ", holder.pid()));
    let words = ["release", "demo", "--force", "--reason", "the report hangs"];
    assert_eq!(ended(scene.leasehold(words)).code, Some(0));
    watch.prints(" demo released by force, token ");
    watch.prints(": the report hangs\n");
    assert_eq!(holder.end().code, Some(202));
    let next = scene.hold("next");
    watch.prints(&format!(" next acquired by leasehold run sh (pid {} on ", next.pid()));
    scene.touch("go");
    assert_eq!(next.end().code, Some(0));
    watch.prints(" next released or expired, was leasehold run sh");
    watch.signal(Signal::TERM);
    assert_eq!(watch.end().code, Some(0));
}

#[test]
fn a_pause_that_gives_no_rest_is_refused() {
    let ended = ended(Scene::new().leasehold(["watch", "--every", "1ms"]));
    assert_eq!(ended.code, Some(2), "{ended:?}");
}
