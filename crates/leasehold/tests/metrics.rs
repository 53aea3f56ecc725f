//! What a recorder sees. One test, since the recorder is the whole process's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::memory::MemoryStore;
use leasehold::clock::{Clock, ManualClock};
use leasehold::observe::meter;
use leasehold::{EventKind, Locks};
use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[tokio::test]
async fn a_recorder_sees_the_life_of_leases_by_class() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let hand = Arc::new(ManualClock::new());
    let clock = Clock::manual(hand.clone());
    let locks = Locks::on(MemoryStore::new(clock)).await.unwrap();
    let mut events = locks.events();

    let lease = locks.lock("jobs:1").acquire().await.unwrap();
    assert!(locks.lock("jobs:1").try_acquire().await.unwrap().is_none());
    lease.renew().await.unwrap();
    hand.advance(Duration::from_secs(2));
    lease.release().await.unwrap();
    let _kept = locks.lock("nightly").acquire().await.unwrap();
    let lost = locks.lock("jobs:2").no_renewal().ttl(Duration::from_secs(1)).acquire().await;
    hand.advance(Duration::from_secs(1));
    while !matches!(events.next().await.unwrap().kind, EventKind::Lost(_)) {}
    drop(lost);

    let mut seen = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels = key.key().labels().map(|label| format!("{}={}", label.key(), label.value()));
        let labels = labels.collect::<Vec<_>>().join(",");
        let value = match (key.kind(), value) {
            (MetricKind::Histogram, DebugValue::Histogram(values)) => {
                values.iter().map(|value| value.into_inner()).sum::<f64>()
            }
            (_, DebugValue::Counter(count)) => count as f64,
            (_, DebugValue::Gauge(value)) => value.into_inner(),
            (kind, value) => panic!("{kind:?} {value:?}"),
        };
        seen.insert(format!("{} {labels}", key.key().name()), value);
    }
    let jobs = "store=memory,class=jobs";
    for (metric, value) in [
        (format!("{} {jobs}", meter::ATTEMPTS), 3.0),
        (format!("{} {jobs}", meter::ACQUIRED), 2.0),
        (format!("{} {jobs},why=held", meter::REFUSED), 1.0),
        (format!("{} {jobs},result=ok", meter::RENEWALS), 1.0),
        (format!("{} {jobs},result=failed", meter::RENEWALS), 0.0),
        (format!("{} {jobs}", meter::HOLD_SECONDS), 3.0),
        (format!("{} {jobs},reason=expired", meter::LOST), 1.0),
        (format!("{} {jobs}", meter::HELD), 0.0),
        (format!("{} store=memory,class=other", meter::HELD), 1.0),
    ] {
        assert_eq!(seen.get(&metric), Some(&value), "{metric}\n{seen:#?}");
    }
}
