//! A client whose runtime ends.

use std::time::Duration;

use leasehold_conformance::fixture::Fixture;
use leasehold_faults::servers::Etcd;
use tokio::runtime::Builder;

/// The driver's connection wakes whoever waits for an answer under a lock of its own. Work that
/// nobody waits for any more is dropped right there when its runtime has ended, with its stream,
/// for which that lock is needed: the process hung.
#[test]
fn a_runtime_ends_while_requests_are_under_way() {
    let server = Etcd::start(1, &[]).unwrap();
    let url = server.url();
    let (done, over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for threads in [0, 2] {
            let mut builder = match threads {
                0 => Builder::new_current_thread(),
                _ => Builder::new_multi_thread(),
            };
            let runtime = builder.enable_all().build().unwrap();
            let locks = runtime.block_on(async { leasehold::connect(&url).await }).unwrap();
            let lease = runtime.block_on(locks.lock("a").acquire()).unwrap();
            server.process(0).pause();
            // Given up by their callers, they go on by themselves.
            runtime.block_on(async {
                let asking = async {
                    let other = locks.lock("b");
                    let _ = futures_util::join!(other.acquire(), lease.renew());
                };
                assert!(tokio::time::timeout(Duration::from_millis(200), asking).await.is_err());
            });
            drop(runtime);
            server.process(0).resume();
        }
        done.send(()).unwrap();
    });
    over.recv_timeout(Fixture::BOUND * 4).expect("both runtimes have ended");
}
