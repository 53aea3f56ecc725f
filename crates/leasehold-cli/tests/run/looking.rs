//! `ls`, `show` and `doctor`: for people and for programs.

use rustix::process::Signal;

use crate::scene::{Running, Scene, ended};

const LONG: &str = "inventory:warehouse-with-a-long-name:item42";

#[test]
fn ls_shows_lock_holder_age_term_token_and_waiters() {
    let scene = Scene::new();
    let holder = scene.hold("demo");
    let waiter = Running::start(scene.run("", "true"));
    waiter.says();
    let ended = ended(scene.leasehold(["ls"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let [titles, row] = lines[..] else { panic!("{ended:?}") };
    let titles: Vec<&str> = titles.split_whitespace().collect();
    assert_eq!(titles, ["LOCK", "HOLDER", "WHERE", "AGE", "LEFT", "TOKEN", "WAITERS"]);
    assert!(row.starts_with("demo  leasehold run sh  "), "{row}");
    assert!(row.contains(&format!("{}@", holder.pid())) && row.ends_with(" 1"), "{row}");
    let json = scene.json("ls");
    assert_eq!(
        (&json["store"], json["locks"].as_array().map(Vec::len)),
        (&"sqlite".into(), Some(1))
    );
    let lock = &json["locks"][0];
    assert!(row.contains(&lock["token"].to_string()), "{row} {lock}");
    scene.touch("go");
    assert_eq!((holder.end().code, waiter.end().code), (Some(0), Some(0)));
}

#[test]
fn ls_tells_a_program_everything() {
    let scene = Scene::new();
    let holder = scene.hold("demo");
    let lock = scene.json("ls")["locks"][0].clone();
    assert_eq!((&lock["name"], &lock["held"]), (&"demo".into(), &true.into()));
    assert_eq!(lock["holder"]["label"], "leasehold run sh");
    assert_eq!(lock["holder"]["pid"], holder.pid());
    assert!(lock["holder"]["host"].as_str().is_some_and(|host| !host.is_empty()), "{lock}");
    assert!(lock["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{lock}");
    assert!(lock["age_seconds"].as_f64().is_some_and(|age| age < 60.0), "{lock}");
    let remaining = lock["remaining_seconds"].as_f64();
    assert!(remaining.is_some_and(|left| left > 0.0 && left <= 30.0), "{lock}");
    assert!(lock["token"].is_u64() && lock["owner"].is_string(), "{lock}");
    assert_eq!((&lock["waiters"], &lock["last_force_release"]), (&0.into(), &().into()));
    holder.signal(Signal::TERM);
    holder.end();
}

#[test]
fn ls_takes_a_prefix_and_says_when_there_is_nothing() {
    let scene = Scene::new();
    let nothing = ended(scene.leasehold(["ls"]));
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), ""));
    assert!(nothing.stderr.contains("no lock is held"), "{nothing:?}");
    let holders = [scene.hold("jobs:a"), scene.hold("jobs:b"), scene.hold("other")];
    let names = |prefix: &str| -> Vec<String> {
        let json = scene.json(&format!("ls {prefix}"));
        let locks = json["locks"].as_array().expect("a list").iter();
        locks.map(|lock| lock["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(""), ["jobs:a", "jobs:b", "other"]);
    assert_eq!(names("jobs:"), ["jobs:a", "jobs:b"]);
    assert!(names("x").is_empty());
    scene.touch("go");
    assert!(holders.into_iter().all(|holder| holder.end().code == Some(0)));
}

#[test]
fn nothing_is_wider_than_a_narrow_terminal() {
    let scene = Scene::new();
    let holders = [scene.hold(LONG), scene.hold("demo")];
    for columns in ["80", "60", "50", "30", "15"] {
        for words in [&["ls"][..], &["show", LONG], &["doctor"]] {
            let mut command = scene.leasehold(words.iter().copied());
            let ended = ended({
                command.env("COLUMNS", columns);
                command
            });
            let widest = ended.stdout.lines().map(|line| line.chars().count()).max();
            let limit = columns.parse::<usize>().expect("a number").max(24);
            assert!(widest.is_some_and(|widest| widest <= limit), "{columns}: {}", ended.stdout);
            if words == ["ls"] {
                assert_eq!(ended.stdout.lines().count(), 3, "{}", ended.stdout);
                assert!(ended.stdout.contains("item42"), "the end of the name: {}", ended.stdout);
            }
        }
    }
    scene.touch("go");
    assert!(holders.into_iter().all(|holder| holder.end().code == Some(0)));
}

#[test]
fn show_tells_of_a_held_lock_and_its_store() {
    let scene = Scene::new();
    let holder = scene.hold("demo");
    let shown = ended(scene.leasehold(["show", "demo"]));
    let who = format!("held by      leasehold run sh (pid {} on ", holder.pid());
    for part in
        [&who, "since  ", "token  ", "owner  ", "waiters      0", "consistency  linearizable"]
    {
        assert!(shown.stdout.contains(part), "{part}: {}", shown.stdout);
    }
    let json = scene.json("show demo");
    assert_eq!((&json["lock"]["name"], &json["lock"]["held"]), (&"demo".into(), &true.into()));
    let guarantees = &json["guarantees"];
    assert_eq!(guarantees["store"], "sqlite");
    assert_eq!(guarantees["consistency"], "linearizable");
    assert_eq!(
        (&guarantees["scope"], &guarantees["ends_with"]),
        (&"machine".into(), &"ttl".into())
    );
    assert!(guarantees["fair"].is_boolean() && guarantees["survives_restart"].is_boolean());
    assert!(guarantees["tokens"].is_string() && guarantees["may_lose"].is_array());
    scene.touch("go");
    assert_eq!(holder.end().code, Some(0));
}

#[test]
fn show_tells_of_a_free_lock_and_refuses_a_name_that_is_none() {
    let scene = Scene::new();
    let shown = ended(scene.leasehold(["show", "demo"]));
    assert_eq!(shown.code, Some(0));
    assert!(shown.stdout.contains("held by      nobody"), "{shown:?}");
    assert_eq!(scene.json("show demo")["lock"]["held"], false);
    let refused = ended(scene.leasehold(["show", ""]));
    assert_eq!((refused.code, refused.stderr.lines().count()), (Some(2), 1), "{refused:?}");
}

#[test]
fn doctor_tells_what_it_found_and_what_the_store_promises() {
    let scene = Scene::new();
    let told = ended(scene.leasehold(["doctor"]));
    assert_eq!(told.code, Some(0), "{told:?}");
    for part in ["fine         the database is sound", "locks.db", "consistency  linearizable"] {
        assert!(told.stdout.contains(part), "{part}: {}", told.stdout);
    }
    let json = scene.json("doctor");
    assert_eq!(json["guarantees"]["store"], "sqlite");
    let findings = json["findings"].as_array().expect("a list");
    assert!(!findings.is_empty());
    for finding in findings {
        let severity = finding["severity"].as_str();
        assert!(severity.is_some_and(|severity| ["fine", "warning"].contains(&severity)));
        assert!(finding["what"].is_string() && finding["advice"].is_string(), "{finding}");
    }
}

#[test]
fn doctor_ends_with_1_when_something_is_unsafe() {
    let scene = Scene::new();
    assert_eq!(ended(scene.run("", "true")).code, Some(0));
    // A row that breaks its table's own rule: the quick check finds it.
    let store = rusqlite::Connection::open(scene.path("locks.db")).expect("the store's file");
    store
        .execute_batch(
            "create table damage (x integer not null check (x > 0));
             pragma ignore_check_constraints = on;
             insert into damage values (-1);",
        )
        .expect("damage");
    drop(store);
    let told = ended(scene.leasehold(["doctor"]));
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(told.stdout.contains("UNSAFE       the database is damaged"), "{told:?}");
    let json = ended(scene.leasehold(["doctor", "--json"]));
    assert!(json.code == Some(1) && json.stdout.contains("\"worst\": \"unsafe\""), "{json:?}");
}
