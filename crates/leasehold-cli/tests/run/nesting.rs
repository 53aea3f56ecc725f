//! Which store is meant: an empty URL means none, and a `leasehold` inside of a command meets
//! the store of the one outside.

use std::fs;
use std::process::Command;

use leasehold_faults::servers::Redis;

use crate::scene::{Ended, Scene, ended};

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold");

/// A scene whose default store and config file are in its own directory.
fn scene(config: &str) -> Scene {
    let scene = Scene::new();
    fs::create_dir(scene.path("leasehold")).expect("a directory");
    fs::write(scene.path("leasehold/config.toml"), config).expect("a file");
    scene
}

/// Runs it with a home in the scene, and with this `LEASEHOLD_STORE`.
fn at_home(scene: &Scene, mut command: Command, store: Option<&str>) -> Ended {
    command.env("XDG_STATE_HOME", scene.path("state")).env("HOME", scene.path("home"));
    match store {
        Some(store) => command.env("LEASEHOLD_STORE", store),
        None => command.env_remove("LEASEHOLD_STORE"),
    };
    ended(command)
}

/// An unset variable (`--store "$LOCKS"`) silently meant the user's own store, even over
/// `LEASEHOLD_STORE`, and the lock kept nobody out.
#[test]
fn an_empty_store_is_refused_wherever_it_comes_from() {
    let plain = scene("");
    let run = |scene: &Scene, options: &[&str]| {
        let words = [&["run", "demo"][..], options, &["--", "echo", "ran"]].concat();
        scene.leasehold(words)
    };
    let empty_in_file = scene("store = \"\"");
    let mut empty_reference = run(&plain, &["--store", "sqlite:${env:EMPTY}"]);
    empty_reference.env("EMPTY", "");
    let mut empty_config = run(&plain, &[]);
    empty_config.env("LEASEHOLD_CONFIG", "");
    let refused = [
        at_home(&plain, run(&plain, &["--store", ""]), Some("sqlite:locks.db")),
        at_home(&plain, run(&plain, &["--store", ""]), None),
        at_home(&plain, run(&plain, &[]), Some("")),
        at_home(&empty_in_file, run(&empty_in_file, &[]), None),
        at_home(&plain, empty_reference, None),
        at_home(&plain, empty_config, None),
        at_home(&plain, plain.leasehold(["ls"]), Some("")),
    ];
    for refused in refused {
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{refused:?}");
        assert!(refused.stderr.contains("empty"), "{refused:?}");
        assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    }
}

/// What the inner `leasehold run` of the same lock, in another directory and with another home,
/// says of it: 201 if both mean the same store.
fn nested(scene: &Scene, options: &[&str], store: Option<&str>) -> Ended {
    let inner = format!(
        "mkdir -p sub && cd sub && exec env HOME=/nowhere XDG_STATE_HOME=\"$PWD\" \
         {LEASEHOLD} run demo --no-wait -- echo ran"
    );
    let words = [&["run", "demo"][..], options, &["--", "sh", "-c", &inner]].concat();
    at_home(scene, scene.leasehold(words), store)
}

/// Nested runs did not inherit the store, so the inner one locked elsewhere.
#[test]
fn a_run_inside_a_run_meets_the_same_store() {
    let (plain, configured) = (scene(""), scene("store = \"sqlite:file.db\""));
    let same = [
        nested(&plain, &["--store", "sqlite:flag.db"], Some("sqlite:/proc/no/such.db")),
        nested(&plain, &[], Some("sqlite:env.db")),
        nested(&plain, &[], None),
        nested(&configured, &[], None),
    ];
    for ended in same {
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(201), ""), "{ended:?}");
    }
    assert!(plain.path("flag.db").exists() && configured.path("file.db").exists());
}

#[test]
fn a_reference_is_passed_on_and_not_what_it_stands_for() {
    let scene = scene("");
    fs::write(scene.path("folder"), scene.path(".").display().to_string()).expect("a file");
    let print = |store: &str| {
        let words = ["run", "demo", "--store", store, "--", "sh", "-c", "echo $LEASEHOLD_STORE"];
        let mut command = scene.leasehold(words);
        command.env("FOLDER", scene.path("."));
        let ended = at_home(&scene, command, None);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout.trim_end().to_owned()
    };
    assert_eq!(print("sqlite:${env:FOLDER}/x.db"), "sqlite:${env:FOLDER}/x.db");
    let here = scene.path("").canonicalize().expect("a directory");
    let file = format!("sqlite:${{file:{}}}/x.db", here.join("folder").display());
    assert_eq!(print("sqlite:${file:folder}/x.db"), file);
    assert_eq!(print(&file), file);
}

/// A password that a user keeps in a file must not come into the environment of everything
/// that the command starts.
#[test]
fn a_password_in_the_config_file_is_not_passed_on_and_yet_the_store_is_met() {
    let server = Redis::start(&["--requirepass", "hunter2"]).expect("a server starts");
    let scene = scene(&format!("store = \"redis://:hunter2@{}\"", server.addr()));
    let look = "env | grep -c hunter2";
    let seen = at_home(&scene, scene.leasehold(["run", "look", "--", "sh", "-c", look]), None);
    assert_eq!(seen.stdout, "0\n", "{seen:?}");
    let inner = format!("XDG_CONFIG_HOME=/nowhere exec {LEASEHOLD} run demo --no-wait -- echo ran");
    let nested = at_home(&scene, scene.leasehold(["run", "demo", "--", "sh", "-c", &inner]), None);
    assert_eq!((nested.code, nested.stdout.as_str()), (Some(201), ""), "{nested:?}");
}
