//! Who waits in lease mode, and is there no more.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Claim, Verdict, postgres};
use leasehold::clock::Clock;
use leasehold::{Holder, Name};
use leasehold_faults::servers::Postgres;
use tokio::runtime::{Builder, Runtime};

use crate::scene::until;

/// A client with a runtime of its own: it ends as a process does that is killed, without a word.
struct Client {
    runtime: Runtime,
    store: Arc<dyn Backend>,
    claim: Claim,
}

impl Client {
    fn connect(server: &Postgres) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store = runtime.block_on(postgres::open(&server.url(), Clock::boot())).unwrap();
        let holder = Arc::new(Holder::this_process());
        let mut claim = Claim::new(Name::new("a").unwrap(), Duration::from_secs(30), holder);
        claim.queue = true;
        Self { runtime, store, claim }
    }

    fn ask(&self) -> Verdict {
        let asking = self.store.clone().acquire(vec![self.claim.clone()]);
        self.runtime.block_on(asking).unwrap().pop().unwrap()
    }

    /// Whether this client has the lock.
    fn has_it(&self) -> bool {
        let looking = self.store.clone().inspect(self.claim.lock());
        let lease = self.runtime.block_on(looking).unwrap().unwrap().leases.pop();
        lease.unwrap().owner == Some(self.claim.owner)
    }
}

/// The sessions of clients that are there.
fn attending(server: &Postgres) -> String {
    let sessions = "select count(*) from pg_locks where locktype = 'advisory' and granted \
                    and classid = 1818583411 and mode = 'ShareLock'";
    server.psql(sessions).unwrap()
}

/// Killed waiters in a row cost a term each, one after the other, while those behind them
/// starved (redisson#3004 is a queue that stands still for ever).
#[test]
fn a_waiter_whose_client_is_gone_is_passed_over() {
    let server = Postgres::start(&[]).unwrap();
    let [holder, first, second] = [(); 3].map(|()| Client::connect(&server));
    let Verdict::Granted(grant) = holder.ask() else { panic!("it was free") };
    assert!(matches!(first.ask(), Verdict::Queued(_)));
    assert!(matches!(second.ask(), Verdict::Queued(_)));
    assert_eq!(attending(&server), "6");
    drop(first);
    until("the end of its sessions", || attending(&server) == "4");
    let hold = holder.claim.hold(grant.token);
    holder.runtime.block_on(holder.store.clone().release(vec![hold])).unwrap();
    assert!(second.has_it());
}

#[test]
fn a_waiter_whose_client_is_there_comes_first() {
    let server = Postgres::start(&[]).unwrap();
    let [holder, first, second] = [(); 3].map(|()| Client::connect(&server));
    let Verdict::Granted(grant) = holder.ask() else { panic!("it was free") };
    assert!(matches!(first.ask(), Verdict::Queued(_)));
    assert!(matches!(second.ask(), Verdict::Queued(_)));
    let hold = holder.claim.hold(grant.token);
    holder.runtime.block_on(holder.store.clone().release(vec![hold])).unwrap();
    assert!(first.has_it());
}

/// Those who are gone do not keep a newcomer waiting either.
#[test]
fn a_newcomer_gets_what_only_the_gone_wait_for() {
    let server = Postgres::start(&[]).unwrap();
    let [holder, waiter, newcomer] = [(); 3].map(|()| Client::connect(&server));
    let Verdict::Granted(_) = holder.ask() else { panic!("it was free") };
    assert!(matches!(waiter.ask(), Verdict::Queued(_)));
    drop((holder, waiter));
    until("the end of their sessions", || attending(&server) == "2");
    // The holder's lease has run out meanwhile.
    server.psql("update leasehold.locks set expires = clock_timestamp()").unwrap();
    assert!(matches!(newcomer.ask(), Verdict::Granted(_)));
}
