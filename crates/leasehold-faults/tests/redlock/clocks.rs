//! Nodes whose clocks are wrong.

use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_conformance::fixture::within_bound;
use leasehold_faults::faults::faketime::FakeTime;
use leasehold_faults::servers::{Redis, Redlock};

use crate::scene::{LONG, client};

const DAY: i64 = 86_400;

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// One clock that jumps ahead poisons no tokens; one that jumps back repeats none.
#[tokio::test]
async fn tokens_follow_most_clocks_and_rise() {
    let folder = tempfile::tempdir().unwrap();
    let fake = FakeTime::new(folder.path()).expect("scripts/test installs libfaketime");
    let wrapper = fake.wrapper();
    let wrapper: Vec<_> = wrapper.iter().map(String::as_str).collect();
    let mut nodes = vec![Redis::start_under(&wrapper, &[]).unwrap()];
    nodes.extend((0..2).map(|_| Redis::start(&[]).unwrap()));
    let three = Redlock { nodes };
    let mut last = 0;
    for jump in [0, 2 * DAY, -2 * DAY, 3_500, 0] {
        fake.set(jump).unwrap();
        // One that knew the clocks before, and one that meets them as they are.
        for locks in [client(&three).await, client(&three).await] {
            for _ in 0..3 {
                let lock = locks.lock("a").ttl(LONG);
                let lease = within_bound("the lock", lock.acquire()).await.unwrap();
                let token = lease.token().get();
                assert!(token > last, "{token} after {last}, clock at {jump:+} s");
                assert!(token < now() + 60_000_000, "{token} is ahead, clock at {jump:+} s");
                last = token;
                lease.release().await.unwrap();
            }
        }
    }
}
