//! Completions, manual pages, help, and the schema that no store needs yet.

use std::fs;

use crate::scene::{Scene, ended};

const COMMANDS: [&str; 9] =
    ["run", "ls", "show", "watch", "release", "doctor", "schema", "completions", "man"];

#[test]
fn every_shell_gets_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = ended(Scene::new().leasehold(["completions", shell]));
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        for part in COMMANDS.iter().chain(&["max-hold"]) {
            assert!(ended.stdout.contains(part), "{shell}: {part}");
        }
        assert!(!ended.stdout.contains("__exec"));
    }
}

#[test]
fn bash_takes_its_completions() {
    let scene = Scene::new();
    let script = ended(scene.leasehold(["completions", "bash"])).stdout;
    fs::write(scene.path("completions"), script).expect("a file");
    let mut bash = std::process::Command::new("bash");
    let try_it = "source completions; COMP_WORDS=(leasehold re); COMP_CWORD=1; \
                  _leasehold leasehold re leasehold; echo \"${COMPREPLY[@]}\"";
    bash.args(["--norc", "-c", try_it]);
    let ended = ended(scene.set(bash));
    assert_eq!(ended.stdout.trim(), "release", "{ended:?}");
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let scene = Scene::new();
    let page = ended(scene.leasehold(["man"]));
    assert!(page.code == Some(0) && page.stdout.contains(".SH SYNOPSIS"), "{page:?}");
    assert_eq!(ended(scene.leasehold(["man", "new/man1"])).code, Some(0));
    for command in COMMANDS {
        let path = scene.path(&format!("new/man1/leasehold-{command}.1"));
        let page = fs::read_to_string(path).expect("a page");
        assert!(page.contains(".SH NAME") && page.contains("leasehold"), "{page}");
        assert!(page.contains("leasehold "), "an example: {page}");
    }
}

#[test]
fn manual_pages_keep_the_lines_of_examples_and_refer_only_to_pages_that_exist() {
    let scene = Scene::new();
    assert_eq!(ended(scene.leasehold(["man", "man1"])).code, Some(0));
    let page = |name: &str| fs::read_to_string(scene.path("man1").join(name)).expect("a page");
    assert_eq!(ended(scene.leasehold(["man"])).stdout, page("leasehold.1"));
    assert!(!page("leasehold.1").contains("help(1)"), "{}", page("leasehold.1"));
    let run = page("leasehold-run.1");
    let notes = run.split(".SH NOTES\n.nf\n").nth(1).expect(&run);
    assert!(notes.contains("leasehold run nightly") && notes.ends_with(".fi\n"), "{run}");
    let nowhere = ended(scene.leasehold(["man", "/proc/no/such"]));
    assert!(nowhere.code == Some(125) && nowhere.stderr.contains("/proc/no/such"), "{nowhere:?}");
}

#[test]
fn help_has_an_example_for_each_command() {
    for command in COMMANDS {
        let ended = ended(Scene::new().leasehold([command, "--help"]));
        assert_eq!(ended.code, Some(0));
        let example = ended.stdout.split("Example").nth(1).expect("an example");
        assert!(example.contains(&format!("  leasehold {command}")), "{}", ended.stdout);
    }
}

#[test]
fn schema_says_that_none_is_needed() {
    let scene = Scene::new();
    let told = ended(scene.leasehold(["schema"]));
    assert_eq!((told.code, told.stdout.as_str()), (Some(0), ""), "nothing for another program");
    assert!(told.stderr.contains("needs no schema by hand"), "{told:?}");
    assert_eq!(ended(scene.leasehold(["schema", "--store", "nothing:"])).code, Some(2));
}
