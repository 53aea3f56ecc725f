//! Events per hand-over, by the server's own count: they do not grow with those who wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_faults::servers::Zookeeper;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::scene::{client, queue, raw};

const WAITERS: usize = 1_000;
/// How many connect at once.
const AT_ONCE: usize = 50;
/// Those near the head hear of all who come and go, however many wait behind them.
const MOST_EVENTS: usize = 60;
/// For all of them together.
const LIMIT: Duration = Duration::from_secs(240);
/// None of them is to lapse while the others connect.
const TTL: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_who_wait_cost_few_events_per_hand_over() {
    let server = Zookeeper::start_with("", &["-Xmx512m"]).unwrap();
    let url = server.url("/many?session=60s");
    let raw = raw(server.addr()).await;
    let (holder, _) = client(&url).await;
    let lease = holder.lock("job").ttl(TTL).acquire().await.unwrap();
    let mut last = lease.token();
    let served = Arc::new(AtomicUsize::new(0));
    let mut waiting = JoinSet::new();
    for already in (0..WAITERS).step_by(AT_ONCE) {
        for _ in 0..AT_ONCE {
            let (url, served) = (url.clone(), served.clone());
            waiting.spawn(async move {
                let (locks, _) = client(&url).await;
                let lease = locks.lock("job").ttl(TTL).acquire().await.unwrap();
                let turn = served.fetch_add(1, Ordering::SeqCst);
                let token = lease.token();
                lease.release().await.unwrap();
                (turn, token, locks)
            });
        }
        let all_wait = async {
            while queue(&raw, "/many/job").await.len() < 1 + already + AT_ONCE {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LIMIT, all_wait).await.expect("all of them wait");
    }
    let before = events(&server);
    lease.release().await.unwrap();
    let mut turns = Vec::new();
    while let Some(turn) = timeout(LIMIT, waiting.join_next()).await.expect("another turn") {
        // Its client stays: nothing is saved by sessions that end.
        turns.push(turn.unwrap());
    }
    let each = (events(&server) - before) / WAITERS;
    println!("{each} events per hand-over");
    turns.sort_by_key(|(turn, ..)| *turn);
    for (_, token, _) in &turns {
        assert!(*token > last, "{token} after {last}");
        last = *token;
    }
    assert_eq!(turns.len(), WAITERS);
    assert!(each <= MOST_EVENTS, "{each} events per hand-over");
}

/// How many events this server has sent to watches.
fn events(server: &Zookeeper) -> usize {
    let metrics = server.word("mntr").unwrap();
    let counts: Vec<usize> = metrics
        .lines()
        .filter_map(|queue| queue.split_once('\t'))
        .filter(|(name, _)| name.starts_with("zk_sum_node_") && name.ends_with("_watch_count"))
        .map(|(_, count)| count.parse().unwrap())
        .collect();
    assert_eq!(counts.len(), 4, "created, deleted, changed, children: {metrics}");
    counts.iter().sum()
}
