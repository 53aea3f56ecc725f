//! An older request is never let through after a newer one was.

use std::net::TcpStream;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::client::{begin, put, send};
use crate::service::{Gate, Service, command};

const TOKEN_5: &str = "Fencing-Token: stock;5";
const TOKEN_6: &str = "Fencing-Token: stock;6";

#[test]
fn a_stale_token_gets_412_and_a_missing_one_428() {
    let (folder, service) = (TempDir::new().unwrap(), Service::start());
    let gate = Gate::start(&folder, service.address, &[]);
    assert_eq!(put(gate.address, 5, "five").status, 200);
    assert_eq!(put(gate.address, 6, "six").body, "stored");
    assert_eq!(put(gate.address, 6, "six again").status, 200);
    let late = put(gate.address, 5, "late");
    assert_eq!(late.status, 412, "{late:?}");
    let problem = late.problem();
    assert_eq!((&problem["given"], &problem["seen"]), (&5.into(), &6.into()), "{problem}");
    for line in ["PUT /", "GET /", "DELETE /x"] {
        assert_eq!(send(gate.address, line, &[], "").status, 428, "{line}");
    }
    assert_eq!(send(gate.address, "PUT /", &["Fencing-Token: stock"], "").status, 400);
    let other = send(gate.address, "PUT /x?y=1", &["Fencing-Token: other;1"], "other lock");
    assert_eq!(other.status, 200);
    assert_eq!(service.bodies(), ["five", "six", "six again", "other lock"]);
    let heads = service.heads.lock().unwrap();
    assert!(heads[3].starts_with("PUT /x?y=1 HTTP/1.1\r\n"), "{}", heads[3]);
    assert!(heads[3].contains("x-forwarded-for: 127.0.0.1"), "{}", heads[3]);
}

#[test]
fn reads_need_no_token_if_the_operator_says_so() {
    let (folder, service) = (TempDir::new().unwrap(), Service::start());
    let gate = Gate::start(&folder, service.address, &["--unfenced-reads"]);
    assert_eq!(put(gate.address, 6, "six").status, 200);
    assert_eq!(send(gate.address, "GET /", &[], "").status, 200);
    assert_eq!(send(gate.address, "GET /", &[TOKEN_5], "").status, 412);
    assert_eq!(send(gate.address, "POST /", &[], "").status, 428);
}

#[test]
fn marks_survive_the_death_of_the_gate() {
    let (folder, service) = (TempDir::new().unwrap(), Service::start());
    let gate = Gate::start(&folder, service.address, &[]);
    assert_eq!(put(gate.address, 6, "six").status, 200);
    let other = command(folder.path(), service.address, &[]).stderr(Stdio::piped()).output();
    let other = other.unwrap();
    assert_eq!(other.status.code(), Some(203), "a second gate on the same marks: {other:?}");
    gate.kill();
    let gate = Gate::start(&folder, service.address, &[]);
    assert_eq!(put(gate.address, 5, "late").status, 412);
    assert_eq!(put(gate.address, 6, "six").status, 200);
    assert_eq!(service.bodies(), ["six", "six"]);
}

#[test]
fn a_newer_request_waits_until_the_older_one_is_answered() {
    let (folder, service) = (TempDir::new().unwrap(), Service::start());
    let gate = Gate::start(&folder, service.address, &["--drain", "10m"]);
    let mut older = begin(gate.address, "PUT /slow", &[TOKEN_5], 5);
    older.send("older");
    service.arrived.recv().unwrap();
    let newer = thread::spawn({
        let address = gate.address;
        move || put(address, 6, "newer")
    });
    // Once the newer one has come, the older lease is shut out.
    while put(gate.address, 5, "late").status != 412 {}
    let so_far = service.bodies();
    assert!(!so_far.contains(&"newer".to_owned()), "{so_far:?}");
    // The older client goes away; the service has its request all the same.
    drop(older);
    assert!(!newer.is_finished());
    service.go_on.send(()).unwrap();
    assert_eq!(newer.join().unwrap().status, 200);
    let bodies = service.bodies();
    let at = |body: &str| bodies.iter().position(|found| found == body).unwrap();
    assert!(at("older") < at("newer"), "{bodies:?}");
}

#[test]
fn an_older_request_that_is_never_answered_keeps_the_newer_one_out() {
    let (folder, service) = (TempDir::new().unwrap(), Service::start());
    let gate = Gate::start(&folder, service.address, &["--drain", "200ms"]);
    let mut older = begin(gate.address, "PUT /slow", &[TOKEN_5], 5);
    older.send("older");
    service.arrived.recv().unwrap();
    let newer = put(gate.address, 6, "newer");
    assert_eq!(newer.status, 503, "{newer:?}");
    service.go_on.send(()).unwrap();
    assert_eq!(older.answer().status, 200);
    assert_eq!(put(gate.address, 6, "newer").status, 200);
    assert_eq!(service.bodies(), ["older", "newer"]);
}

#[test]
fn an_older_request_that_stops_in_its_body_is_cut_off() {
    let (folder, service) = (TempDir::new().unwrap(), Service::start());
    let gate = Gate::start(&folder, service.address, &[]);
    let mut older = begin(gate.address, "PUT /slow", &[TOKEN_5], 1_000);
    older.send("only the beginning");
    service.arrived.recv().unwrap();
    let newer = send(gate.address, "PUT /", &[TOKEN_6], "newer");
    assert_eq!(newer.status, 200, "{newer:?}");
    older.send(&"x".repeat(1_000));
    let late = older.answer();
    assert_eq!(late.status, 412, "{late:?}");
    assert_eq!(service.bodies(), ["newer"]);
}

#[test]
fn tokens_of_other_locks_are_refused_where_the_locks_are_named() {
    let (folder, service) = (TempDir::new().unwrap(), Service::start());
    let gate = Gate::start(&folder, service.address, &["--lock", "stock", "--lock", "orders"]);
    assert_eq!(put(gate.address, 5, "stock").status, 200);
    let with = |header| send(gate.address, "PUT /", &[header], "x").status;
    assert_eq!(with("Fencing-Token: orders;1"), 200);
    assert_eq!(with("Fencing-Token: mine;99"), 403);
    assert_eq!(with("Fencing-Token: stock;5, stock;5"), 400, "joined headers");
    assert_eq!(service.bodies(), ["stock", "x"]);
}

#[test]
fn a_slow_upload_does_not_count_as_the_services_time() {
    let (folder, service) = (TempDir::new().unwrap(), Service::start());
    let gate = Gate::start(&folder, service.address, &["--upstream-timeout", "2s"]);
    let mut slow = begin(gate.address, "PUT /", &[TOKEN_5], 10);
    slow.send("first");
    thread::sleep(Duration::from_secs(4));
    slow.send(" last");
    let answer = slow.answer();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(service.bodies(), ["first last"]);
}

/// It ended ten seconds after the signal, and the next gate let a newer token in while the service
/// was still at work on the older one.
#[test]
fn the_gate_waits_for_the_service_and_lets_nothing_more_through() {
    let (folder, service) = (TempDir::new().unwrap(), Service::start());
    let mut gate = Gate::start(&folder, service.address, &["--drain", "10m"]);
    let mut orphan = begin(gate.address, "PUT /slow", &[TOKEN_5], 5);
    orphan.send("older");
    service.arrived.recv().unwrap();
    drop(orphan);
    let mut stalled = begin(gate.address, "PUT /slow", &["Fencing-Token: other;1"], 1_000);
    stalled.send("only the beginning");
    service.arrived.recv().unwrap();
    let newer = thread::spawn({
        let address = gate.address;
        move || put(address, 6, "newer")
    });
    // Once the newer one has come, the older lease is shut out.
    while put(gate.address, 5, "late").status != 412 {}
    gate.signal();
    // As long as the service may take, and clients to send the rest: not ten seconds.
    let closes = gate.line();
    assert!(closes.contains("under way (2)") && closes.contains("at most 1m 6s"), "{closes}");
    while TcpStream::connect(gate.address).is_ok() {}
    let cut = stalled.answer();
    assert_eq!(cut.status, 503, "clients may not go on for ever: {cut:?}");
    assert!(gate.is_running() && !newer.is_finished(), "the service has not answered yet");
    service.go_on.send(()).unwrap();
    assert_eq!(newer.join().unwrap().status, 503, "it comes again, to the next gate");
    assert_eq!(gate.end(), Some(0));
    assert!(!service.bodies().contains(&"newer".to_owned()), "{:?}", service.bodies());
}

#[test]
fn a_second_signal_ends_the_gate_and_it_says_what_is_under_way() {
    let (folder, service) = (TempDir::new().unwrap(), Service::start());
    let mut gate = Gate::start(&folder, service.address, &[]);
    let mut older = begin(gate.address, "PUT /slow", &[TOKEN_5], 5);
    older.send("older");
    service.arrived.recv().unwrap();
    gate.signal();
    assert!(gate.line().contains("another signal ends it at once"));
    gate.signal();
    let said = gate.line();
    assert!(said.contains("under way (1): PUT with the token stock;5"), "{said}");
    assert_eq!(gate.end(), Some(128 + 15));
}

#[test]
fn connections_to_the_service_are_used_again() {
    let (folder, service) = (TempDir::new().unwrap(), Service::start());
    let gate = Gate::start(&folder, service.address, &[]);
    for number in 0..50 {
        assert_eq!(put(gate.address, 5, &number.to_string()).status, 200);
    }
    // Each of the gate's threads has its own.
    let cores = thread::available_parallelism().unwrap().get();
    let made = service.connections();
    assert!((1..=cores).contains(&made), "{made} connections on {cores} cores");
    assert_eq!(service.bodies().len(), 50);
}

#[test]
fn a_service_that_is_not_there_is_502_and_the_gate_ends_in_order() {
    let folder = TempDir::new().unwrap();
    let nobody = ([127, 0, 0, 1], leasehold_faults::servers::free_port()).into();
    let mut gate = Gate::start(&folder, nobody, &[]);
    assert_eq!(put(gate.address, 5, "x").status, 502);
    gate.signal();
    assert_eq!(gate.end(), Some(0));
}
