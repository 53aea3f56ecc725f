//! `release --force`: the holder ends, and the record stays.

use crate::scene::{Scene, await_gone, ended};

#[test]
fn the_holder_ends_its_command_with_202_and_the_record_shows_it() {
    let scene = Scene::new();
    let script = "echo $$ > pid; exec sleep 600";
    let holder = crate::scene::Running::start(scene.run("--ttl 10m", script));
    let pid = scene.line("pid");
    let token = scene.json("show demo")["lock"]["token"].clone();
    let words = ["release", "demo", "--force", "--reason", "the report hangs"];
    let released = ended(scene.leasehold(words));
    assert_eq!(released.code, Some(0), "{released:?}");
    let said = format!("released \"demo\" by force, token {token}, from leasehold run sh (pid ");
    assert!(released.stdout.starts_with(&said), "{released:?}");
    let holder = holder.end();
    assert_eq!(holder.code, Some(202), "{holder:?}");
    assert!(holder.stderr.contains("the report hangs"), "{holder:?}");
    await_gone(&pid);

    let shown = ended(scene.leasehold(["show", "demo"]));
    for part in ["held by      nobody", "with leasehold release (pid ", "the report hangs"] {
        assert!(shown.stdout.contains(part), "{part}: {}", shown.stdout);
    }
    let record = scene.json("show demo")["lock"]["last_force_release"].clone();
    assert_eq!((&record["reason"], &record["token"]), (&"the report hangs".into(), &token));
    assert!(record["by"].is_string() && record["at"].is_string(), "{record}");
}

#[test]
fn a_lock_that_nobody_holds_is_1() {
    let scene = Scene::new();
    let ended = ended(scene.leasehold(["release", "demo", "--force", "--reason", "x"]));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    assert!(ended.stderr.contains("nobody holds \"demo\""), "{ended:?}");
}

#[test]
fn without_force_or_a_reason_nothing_happens_and_it_says_what_is_missing() {
    let scene = Scene::new();
    let holder = scene.hold("demo");
    let incomplete = [
        &["release", "demo"][..],
        &["release", "demo", "--force"],
        &["release", "demo", "--reason", "x"],
        &["release", "demo", "--force", "--reason", " "],
    ];
    for words in incomplete {
        let ended = ended(scene.leasehold(words.iter().copied()));
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
        assert!(ended.stderr.contains("add --force and --reason"), "{words:?}: {ended:?}");
    }
    scene.touch("go");
    assert_eq!(holder.end().code, Some(0));
}

#[test]
fn a_program_learns_what_was_released() {
    let scene = Scene::new();
    let holder = scene.hold("demo");
    let token = scene.json("show demo")["lock"]["token"].clone();
    let words = ["release", "demo", "--force", "--reason", "x", "--json"];
    let released = ended(scene.leasehold(words));
    let json: serde_json::Value = serde_json::from_str(&released.stdout).expect("JSON");
    assert_eq!((&json["released"], &json["token"]), (&true.into(), &token));
    assert_eq!(json["holder"]["pid"], holder.pid());
    assert_eq!(holder.end().code, Some(202));
}
