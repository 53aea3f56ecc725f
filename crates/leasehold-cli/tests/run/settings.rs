//! Where settings come from, in which order, and what is never repeated.

use std::fs;
use std::process::Command;

use crate::scene::{Ended, Scene, ended};

/// A scene whose config file says this.
fn configured(text: &str) -> Scene {
    let scene = Scene::new();
    fs::create_dir(scene.path("leasehold")).expect("a directory");
    fs::write(scene.path("leasehold/config.toml"), text).expect("a file");
    scene
}

fn with(mut command: Command, name: &str, value: &str) -> Ended {
    command.env(name, value);
    ended(command)
}

/// Which database `doctor` talks of.
fn database(mut doctor: Command, store: Option<&str>) -> String {
    match store {
        Some(store) => doctor.env("LEASEHOLD_STORE", store),
        None => doctor.env_remove("LEASEHOLD_STORE"),
    };
    let told = ended(doctor).stdout;
    let line = told.lines().find_map(|line| line.split_once("database ")).expect(&told).1;
    line.rsplit('/').next().expect("a file's name").to_owned()
}

#[test]
fn the_store_is_the_flags_the_environments_the_files_or_the_default() {
    let scene = configured("store = \"sqlite:file.db\"");
    let flag = scene.leasehold(["doctor", "--store", "sqlite:flag.db"]);
    assert_eq!(database(flag, Some("sqlite:env.db")), "flag.db");
    assert_eq!(database(scene.leasehold(["doctor"]), Some("sqlite:env.db")), "env.db");
    assert_eq!(database(scene.leasehold(["doctor"]), None), "file.db");
    let mut default = Scene::new().leasehold(["doctor"]);
    default.env("XDG_STATE_HOME", scene.path("state")).current_dir("/");
    assert_eq!(database(default, None), "locks.db");
    assert!(scene.path("state/leasehold/locks.db").exists());
}

#[test]
fn terms_come_from_the_file_unless_a_flag_says_otherwise() {
    let scene = configured("ttl = \"7s\"\nwait = \"50ms\"\ngrace = \"1s\"\n");
    let holder = scene.hold("demo");
    let left = scene.json("show demo")["lock"]["remaining_seconds"].as_f64();
    assert!(left.is_some_and(|left| left <= 7.0), "{left:?}");
    assert_eq!(ended(scene.run("", "true")).code, Some(201), "waited 50 ms");
    scene.touch("go");
    assert_eq!(holder.end().code, Some(0));
    let refused = ended(scene.run("--no-renew --ttl 900ms", "true"));
    assert!(refused.code == Some(2) && refused.stderr.contains("grace of 1s"), "{refused:?}");
    assert_eq!(ended(scene.run("--no-renew --ttl 900ms --grace 100ms", "true")).code, Some(0));
}

#[test]
fn leasehold_config_names_another_file_which_must_be_there() {
    let scene = configured("store = \"sqlite:file.db\"");
    fs::write(scene.path("other.toml"), "store = \"sqlite:other.db\"").expect("a file");
    let mut doctor = scene.leasehold(["doctor"]);
    doctor.env("LEASEHOLD_CONFIG", scene.path("other.toml"));
    assert_eq!(database(doctor, None), "other.db");
    let missing = with(scene.leasehold(["ls"]), "LEASEHOLD_CONFIG", "/no/such/file");
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(missing.stderr.contains("config file /no/such/file"), "{missing:?}");
}

#[test]
fn an_unknown_key_is_named_with_its_file() {
    let scene = configured("ttl = \"7s\"\nstoer = \"sqlite:x\"\n");
    for words in [&["ls"][..], &["run", "demo", "--", "true"]] {
        let ended = ended(scene.leasehold(words.iter().copied()));
        assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{ended:?}");
        assert!(ended.stderr.contains("`stoer`"), "{ended:?}");
        assert!(ended.stderr.contains("leasehold/config.toml: line 2"), "{ended:?}");
    }
}

#[test]
fn what_is_required_is_one_of_three_levels() {
    let scene = configured("require = \"linearizable\"");
    assert_eq!(ended(scene.leasehold(["ls"])).code, Some(0));
    for level in ["linearizable", "quorum", "best-effort"] {
        assert_eq!(ended(scene.leasehold(["doctor", "--require", level])).code, Some(0));
    }
    assert_eq!(ended(scene.leasehold(["ls", "--require", "strong"])).code, Some(2));
    assert_eq!(with(scene.leasehold(["ls"]), "LEASEHOLD_REQUIRE", "strong").code, Some(2));
    let wrong = ended(configured("require = \"strong\"").leasehold(["ls"]));
    assert!(wrong.code == Some(2) && wrong.stderr.contains("\"require\""), "{wrong:?}");
}

#[test]
fn a_store_that_is_refused_is_204_for_every_command() {
    let scene = Scene::new();
    let foreign = rusqlite::Connection::open(scene.path("locks.db")).expect("a database");
    foreign.execute_batch("create table theirs (x)").expect("another application's table");
    let release = "release demo --force --reason x";
    for words in ["run demo -- true", "ls", "show demo", "watch", release, "doctor"] {
        let refused = ended(scene.leasehold(words.split_whitespace()));
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(204), ""), "{refused:?}");
        assert!(refused.stderr.contains("another application"), "{refused:?}");
    }
}

#[test]
fn secrets_are_put_in_but_never_repeated() {
    let scene = Scene::new();
    fs::write(scene.path("secret"), "opensesame\n").expect("a file");
    let file = format!("${{file:{}}}", scene.path("secret").display());
    let references = [
        "${env:SECRET}".to_owned(),
        "${env:SECRET}:x".to_owned(),
        format!("redis://me:{file}@localhost"),
        format!("sqlite:/no/such/{file}/locks.db"),
        "redis://:opensesame@localhost".to_owned(),
        "sqlite:${env:SECRET".to_owned(),
    ];
    let commands = ["run demo -vvv -- true", "ls -vvv", "show demo", "watch", "doctor", "schema"];
    for (store, words) in references.iter().flat_map(|store| commands.map(|words| (store, words))) {
        let mut command = scene.leasehold(words.split_whitespace());
        command.env("LEASEHOLD_STORE", store).env("SECRET", "opensesame");
        let ended = ended(command);
        // `schema` only looks at the scheme.
        assert!(ended.code != Some(0) || words == "schema", "{store} {words}: {ended:?}");
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert!(!said.contains("opensesame") && !said.is_empty(), "{store} {words}: {said}");
    }
}

#[test]
fn a_reference_works_and_one_that_does_not_is_explained() {
    let scene = Scene::new();
    let mut run =
        scene.leasehold(["run", "demo", "--store", "sqlite:${env:FOLDER}/x.db", "--", "true"]);
    run.env("FOLDER", scene.path("."));
    assert_eq!(ended(run).code, Some(0));
    assert!(scene.path("x.db").exists());
    let unset = ended(scene.leasehold(["ls", "--store", "sqlite:${env:NO_SUCH_VARIABLE}"]));
    assert_eq!(unset.code, Some(2));
    assert!(unset.stderr.contains("\"NO_SUCH_VARIABLE\" is not set"), "{unset:?}");
    let missing = ended(scene.leasehold(["ls", "--store", "sqlite:${file:/no/such}"]));
    assert!(missing.code == Some(2) && missing.stderr.contains("/no/such"), "{missing:?}");
}

#[test]
fn log_lines_come_when_they_are_asked_for() {
    let scene = Scene::new();
    assert_eq!(ended(scene.run("", "true")).stderr, "");
    for asked in
        [ended(scene.run("-v", "true")), with(scene.run("", "true"), "LEASEHOLD_LOG", "info")]
    {
        for part in ["acquired", "released", "lock=demo", "token="] {
            assert!(asked.stderr.contains(part), "{part}: {asked:?}");
        }
    }
    let wrong = with(scene.run("", "true"), "LEASEHOLD_LOG", "[");
    assert!(wrong.code == Some(2) && wrong.stderr.contains("LEASEHOLD_LOG"), "{wrong:?}");
}
