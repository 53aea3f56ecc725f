//! A holder that is a process of its own, stopped by a signal.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use leasehold::{LeaseState, Token};
use leasehold_conformance::fixture::within_bound;
use leasehold_faults::servers::Etcd;
use rustix::process::{Pid, Signal, kill_process};

use crate::scene::{Client, PREFIX};

/// Names the cluster to the process that is the holder: this test's program once more.
const STORE: &str = "LEASEHOLD_TEST_STORE";
const ENDPOINT: &str = "LEASEHOLD_TEST_ENDPOINT";
const THIS: &str = "stopped::a_stopped_process_is_replaced_and_its_guarded_write_fails";
/// How the holder's lines begin: the harness writes others.
const SAYS: &str = "holder: ";
/// How long it may take to say something on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// FAULTS 1 and 16: SIGSTOP for longer than the TTL. Another has the lock; awake, the
/// holder's own transaction is refused by etcd, and its lease says that it is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_is_replaced_and_its_guarded_write_fails() {
    if let Ok(store) = std::env::var(STORE) {
        return hold(&store, &std::env::var(ENDPOINT).unwrap()).await;
    }
    let cluster = Etcd::start(1, &[]).unwrap();
    let mut holder = Holder::start(&cluster);
    let token = Token::new(holder.hears("holds ").parse().unwrap());
    holder.signal(Signal::STOP);
    let client = Client::on(&cluster).await;
    let lock = client.lock("a");
    let next = within_bound("the stopped one's lease ends", lock.acquire()).await.unwrap();
    assert!(next.token() > token);
    holder.signal(Signal::CONT);
    holder.tell("write");
    assert_eq!(holder.hears("wrote "), "false", "etcd must refuse it");
    assert_eq!(holder.hears("lost "), "true");
    assert!(holder.child.wait().unwrap().success());
    let value = cluster.ctl(&["get", "resource", "--print-value-only"]).unwrap();
    assert_eq!(value, "first");
    assert_eq!(next.verify().await.unwrap(), next.token());
}

/// What the holder's process does.
async fn hold(store: &str, endpoint: &str) {
    let client = Client::at(store).await;
    let mut etcd = etcd_client::Client::connect([endpoint], None).await.unwrap();
    let lease = client.lock("a").acquire().await.unwrap();
    let guard = client.store.is_owner(&lease.hold()).unwrap();
    let write = |value: &str| {
        let put = TxnOp::put("resource", value, None);
        Txn::new().when([guard.clone()]).and_then([put])
    };
    assert!(etcd.txn(write("first")).await.unwrap().succeeded());
    println!("\n{SAYS}holds {}", lease.token());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "write");
    println!("\n{SAYS}wrote {}", etcd.txn(write("late")).await.unwrap().succeeded());
    println!("\n{SAYS}lost {}", matches!(lease.state(), LeaseState::Lost(_)));
}

struct Holder {
    child: Child,
    says: mpsc::Receiver<String>,
}

impl Holder {
    fn start(cluster: &Etcd) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", THIS, "--nocapture"]);
        command.env(STORE, format!("{}/{PREFIX}", cluster.url()));
        command.env(ENDPOINT, cluster.endpoint(0));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, says) = mpsc::channel();
        thread::spawn(move || {
            let lines = lines.map_while(Result::ok);
            for line in lines.filter_map(|line| line.strip_prefix(SAYS).map(str::to_owned)) {
                let _ = tell.send(line);
            }
        });
        Self { child, says }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    /// The rest of its next line, which begins like this.
    fn hears(&mut self, beginning: &str) -> String {
        let line = self.says.recv_timeout(PATIENCE).expect(beginning);
        line.strip_prefix(beginning).expect(beginning).to_owned()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
