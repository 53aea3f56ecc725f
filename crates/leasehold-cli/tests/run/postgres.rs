//! The command on PostgreSQL.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use leasehold_faults::servers::Postgres;

use crate::scene::{Running, Scene, ended, eventually, until};

/// A psql that holds what this SQL locks, until it is dropped.
struct Psql(Child);

impl Psql {
    fn run(server: &Postgres, sql: &str) -> Self {
        let mut psql = Command::new("psql");
        psql.args(["--no-psqlrc", "--quiet", "--dbname", &server.url()]);
        psql.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = psql.spawn().expect("psql");
        writeln!(child.stdin.as_mut().expect("a pipe"), "{sql};").expect("psql reads");
        Self(child)
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many advisory locks are held and waited for.
fn await_locks(server: &Postgres, expected: &str) {
    let count = "select count(*) filter (where granted), count(*) filter (where not granted) \
                 from pg_locks where locktype = 'advisory'";
    eventually(expected, || (server.psql(count).expect("pg_locks") == expected).then_some(()));
}

#[test]
fn psql_and_run_exclude_each_other() {
    let (scene, server) = (Scene::new(), Postgres::start(&[]).expect("a server"));
    let store = format!("{}?mode=session", server.url());
    let run = |options: &str, script: &str| {
        let words = ["run", "pg:1,42", "--store", &store].map(str::to_owned).into_iter();
        let words = words.chain(options.split_whitespace().map(str::to_owned));
        let words: Vec<String> =
            words.chain(["--", "sh", "-c", script].map(str::to_owned)).collect();
        scene.leasehold(words.iter().map(String::as_str))
    };
    let psql = Psql::run(&server, "select pg_advisory_lock(1, 42)");
    await_locks(&server, "1|0");
    let refused = ended(run("--no-wait", "echo ran"));
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(201), ""), "{refused:?}");
    assert!(refused.stderr.contains("psql"), "it says who: {refused:?}");
    let script = format!("echo > ready; {}", until("go"));
    let running = Running::start(run("", &script));
    await_locks(&server, "1|1");
    drop(psql);
    scene.line("ready");
    let psql = Psql::run(&server, "select pg_advisory_lock(1, 42)");
    await_locks(&server, "1|1");
    scene.touch("go");
    assert_eq!(running.end().code, Some(0));
    await_locks(&server, "1|0");
    drop(psql);
}

/// `pg:05` was hashed, and the command ran beside what pg_advisory_lock(5) protects.
#[test]
fn a_pg_name_that_cannot_exclude_its_key_is_a_usage_error() {
    let (scene, server) = (Scene::new(), Postgres::start(&[]).expect("a server"));
    for (name, mode) in [("pg:05", "session"), ("pg:1, 42", "session"), ("pg:1,42", "lease")] {
        let store = format!("{}?mode={mode}", server.url());
        let said = ended(scene.leasehold(["run", name, "--store", &store, "--", "echo", "ran"]));
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""), "{name} {mode}: {said:?}");
        assert!(said.stderr.contains("advisory lock"), "{said:?}");
    }
}

/// It was 204, which says that a store is unsafe.
#[test]
fn a_password_that_is_wrong_or_missing_is_203() {
    let (scene, mut server) = (Scene::new(), Postgres::start(&[]).expect("a server"));
    server.psql("create role worker login password 's3cret'").expect("a role");
    server.demand_passwords("worker").expect("it starts again");
    for (user, told) in [("worker:wr0ng", "pg_hba.conf"), ("worker", "wants a password")] {
        let store = format!("postgres://{user}@127.0.0.1:{}/postgres", server.port());
        let said = ended(scene.leasehold(["run", "job", "--store", &store, "--", "echo", "ran"]));
        assert_eq!((said.code, said.stdout.as_str()), (Some(203), ""), "{user}: {said:?}");
        assert!(said.stderr.contains(told) && !said.stderr.contains("wr0ng"), "{said:?}");
    }
}

#[test]
fn everything_works_on_both_modes() {
    let (scene, server) = (Scene::new(), Postgres::start(&[]).expect("a server"));
    for mode in ["lease", "session"] {
        let store = format!("{}?mode={mode}", server.url());
        let command = |words: &[&str]| {
            let mut command = scene.leasehold(words.iter().copied());
            command.env("LEASEHOLD_STORE", &store);
            command
        };
        let script = format!("echo > ready-{mode}; {}", until(&format!("go-{mode}")));
        let holder = Running::start(command(&["run", "job", "--", "sh", "-c", &script]));
        scene.line(&format!("ready-{mode}"));
        for words in [&["ls"][..], &["show", "job"]] {
            let said = ended(command(words));
            assert_eq!(said.code, Some(0), "{said:?}");
            assert!(
                said.stdout.contains("job") && said.stdout.contains("leasehold run sh"),
                "{said:?}"
            );
        }
        let doctor = ended(command(&["doctor"]));
        assert_eq!(doctor.code, Some(0), "{doctor:?}");
        assert!(doctor.stdout.contains("PostgreSQL"), "{doctor:?}");
        let forced = ended(command(&["release", "job", "--force", "--reason", "stuck"]));
        assert_eq!(forced.code, Some(0), "{forced:?}");
        let lost = holder.end();
        assert_eq!(lost.code, Some(202), "{lost:?}");
        assert!(lost.stderr.contains("stuck"), "{lost:?}");
    }
}

#[test]
fn the_schema_can_be_made_by_hand() {
    let (scene, server) = (Scene::new(), Postgres::start(&[]).expect("a server"));
    let printed = ended(scene.leasehold(["schema", "postgres"]));
    assert_eq!(printed.code, Some(0), "{printed:?}");
    server.psql(&printed.stdout).expect("it is SQL that runs");
    assert_eq!(server.psql("select version from leasehold.meta").expect("it is there"), "1");
}
