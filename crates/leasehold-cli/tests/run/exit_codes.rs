//! What `leasehold` says when it ends: exit codes, messages, help.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::scene::{Running, Scene, ended, until};

#[test]
fn the_commands_exit_code_and_output_are_passed_on() {
    let ended = ended(Scene::new().run("", "echo out; echo err >&2; exit 7"));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(7), "out\n"));
    assert_eq!(ended.stderr, "err\n");
}

#[test]
fn a_command_ended_by_a_signal_counts_as_128_and_the_signal() {
    assert_eq!(ended(Scene::new().run("", "kill -KILL $$")).code, Some(137));
    assert_eq!(ended(Scene::new().run("", "kill -TERM $$")).code, Some(143));
    // One without a name.
    assert_eq!(ended(Scene::new().run("", "kill -40 $$")).code, Some(168));
}

#[test]
fn the_command_knows_its_lock_token_and_owner() {
    let script = "echo $LEASEHOLD_LOCK $LEASEHOLD_TOKEN $LEASEHOLD_OWNER";
    let ended = ended(Scene::new().run("", script));
    let words: Vec<&str> = ended.stdout.split_whitespace().collect();
    let [lock, token, owner] = words[..] else { panic!("{ended:?}") };
    assert_eq!(lock, "demo");
    assert!(token.parse::<u64>().is_ok_and(|token| token > 0), "{token}");
    assert!(owner.len() == 32 && owner.chars().all(|c| c.is_ascii_hexdigit()), "{owner}");
}

#[test]
fn a_command_that_is_not_there_is_127_and_named() {
    let ended = ended(Scene::new().leasehold(["run", "demo", "--", "no-such-command"]));
    assert_eq!(ended.code, Some(127));
    assert!(ended.stderr.starts_with("leasehold: command \"no-such-command\" not found"));
}

#[test]
fn a_command_without_a_name_is_not_there() {
    let ended = ended(Scene::new().leasehold(["run", "demo", "--", ""]));
    assert_eq!(ended.code, Some(127), "{ended:?}");
}

#[test]
fn nobody_waits_for_a_command_that_is_not_there() {
    let scene = Scene::new();
    let holder = Running::start(scene.run("", &format!("echo > ready; {}", until("go"))));
    scene.line("ready");
    let ended = ended(scene.leasehold(["run", "demo", "--", "no-such-command"]));
    assert_eq!(ended.code, Some(127), "{ended:?}");
    scene.touch("go");
    assert_eq!(holder.end().code, Some(0));
}

#[test]
fn a_script_whose_interpreter_is_missing_is_127_too() {
    let scene = Scene::new();
    fs::write(scene.path("script"), "#!/no/such/interpreter\n").expect("a file");
    let permissions = Permissions::from_mode(0o755);
    fs::set_permissions(scene.path("script"), permissions).expect("a file of ours");
    let ended = ended(scene.leasehold(["run", "demo", "--", "./script"]));
    assert_eq!(ended.code, Some(127), "{ended:?}");
}

#[test]
fn a_command_that_cannot_be_executed_is_126_and_named() {
    let ended = ended(Scene::new().leasehold(["run", "demo", "--", "/etc/passwd"]));
    assert_eq!(ended.code, Some(126));
    assert!(ended.stderr.contains("/etc/passwd"), "{ended:?}");
}

#[test]
fn names_that_no_store_could_keep_are_refused_with_the_reason() {
    let long = "x".repeat(256);
    for (name, reason) in [("", "empty"), ("a\nb", "control character"), (&long, "255 bytes")] {
        let ended = ended(Scene::new().leasehold(["run", name, "--", "true"]));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.starts_with("leasehold: "), "{ended:?}");
        assert!(ended.stderr.contains(reason), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
}

#[test]
fn arguments_that_cannot_work_are_refused() {
    let refused = |options: &str| {
        let ended = ended(Scene::new().run(options, "echo ran"));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{options}: {ended:?}");
    };
    refused("--wait 1s --no-wait");
    refused("--ttl 30");
    refused("--ttl 1ms");
    refused("--ttl 1s --no-renew --grace 1s");
    refused("--exit-code 256");
    refused("--store nonsense");
    refused("--store no-such-store:");
    let without_command = ended(Scene::new().leasehold(["run", "demo"]));
    assert_eq!(without_command.code, Some(2));
}

#[test]
fn an_unreachable_store_is_203() {
    let ended = ended(Scene::new().run("--store sqlite:/proc/no/such/locks.db", "echo ran"));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(203), ""), "{ended:?}");
    assert!(ended.stderr.starts_with("leasehold: "), "{ended:?}");
}

#[test]
fn a_cause_is_said_once() {
    let ended = ended(Scene::new().run("--store sqlite:/no/such/locks.db", "echo ran"));
    assert_eq!(ended.stderr.matches("No such file").count(), 1, "{ended:?}");
}

#[test]
fn a_store_that_keeps_nobody_out_is_refused() {
    let ended = ended(Scene::new().run("--store memory:", "echo ran"));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(204), ""), "{ended:?}");
    assert!(ended.stderr.contains("only this process"), "{ended:?}");
}

#[test]
fn help_has_an_example_and_the_exit_codes() {
    let ended = ended(Scene::new().leasehold(["run", "--help"]));
    assert_eq!(ended.code, Some(0));
    for part in ["leasehold run nightly-report", "201", "202", "203", "204", "LEASEHOLD_TOKEN"] {
        assert!(ended.stdout.contains(part), "{part} in {}", ended.stdout);
    }
    assert!(!ended.stdout.contains("__exec"));
}

#[test]
fn help_does_not_repeat_a_store_url_that_may_hold_a_password() {
    let scene = Scene::new();
    let mut help = scene.leasehold(["run", "--help"]);
    help.env("LEASEHOLD_STORE", "redis://:hunter2@localhost");
    let ended = ended(help);
    assert!(ended.code == Some(0) && !ended.stdout.contains("hunter2"), "{ended:?}");
}

#[test]
fn the_version_is_told() {
    let ended = ended(Scene::new().leasehold(["--version"]));
    assert_eq!(ended.stdout, format!("leasehold {}\n", env!("CARGO_PKG_VERSION")));
}

/// A server that may throw locks away is refused, by every command, unless that is meant.
#[test]
fn an_evicting_server_is_204_unless_allowed() {
    let options = ["--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru"];
    let server = leasehold_faults::servers::Redis::start(&options).expect("a server starts");
    let code = |words: &[&str], url: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_leasehold"));
        let ended = command.args(words).env("LEASEHOLD_STORE", url).output().expect("it runs");
        ended.status.code()
    };
    let allowed = format!("{}?allow-unsafe", server.url());
    for words in [&["doctor"][..], &["ls"], &["run", "a", "--", "true"]] {
        assert_eq!(code(words, &server.url()), Some(204), "{words:?}");
    }
    assert_eq!(code(&["run", "a", "--", "true"], &allowed), Some(0));
    assert_eq!(code(&["doctor"], &allowed), Some(1), "it is found, and said");
}

/// A password that is wrong or missing: 203, and what to check.
#[test]
fn a_refused_password_is_203_with_what_to_check() {
    let server = leasehold_faults::servers::Redis::start(&["--requirepass", "hush"]);
    let (scene, server) = (Scene::new(), server.expect("a server starts"));
    let ls = |login: &str| {
        let mut command = scene.leasehold(["ls"]);
        command.env("LEASEHOLD_STORE", format!("redis://{login}{}", server.addr()));
        ended(command)
    };
    for (login, said) in [("", "the URL has none"), (":guess@", "refuses the user or the password")]
    {
        let ended = ls(login);
        assert_eq!(ended.code, Some(203), "{ended:?}");
        assert!(ended.stderr.contains(said) && !ended.stderr.contains("guess"), "{ended:?}");
    }
    assert_eq!(ls(":hush@").code, Some(0));
}
