//! What is left on the server.

use std::time::Duration;

use leasehold_faults::servers::Redis;

use crate::client::{acquire, client, connect, granted, server, until_waiters};

fn keys(server: &Redis) -> Vec<String> {
    server.cli(&["keys", "*"]).unwrap().lines().map(str::to_owned).collect()
}

/// redisson#6510: 25 of 75 million keys were counters that never expired.
#[tokio::test]
async fn everything_expires() {
    let server = server();
    let (locks, other) = (client(&server).await, client(&server).await);
    let names = ["jobs", "jobs{42}", "{a}{b}", "}{", "größe {日本}"];
    for name in names {
        let lease = locks.lock(name).ttl(Duration::from_secs(9)).acquire().await.unwrap();
        let waiting = acquire(other.lock(name));
        until_waiters(&locks, name, 1).await;
        for key in keys(&server) {
            assert_ne!(server.cli(&["pttl", &key]).unwrap(), "-1", "{key}");
        }
        lease.release().await.unwrap();
        granted(waiting).await.release().await.unwrap();
        let _held = locks.lock(name).acquire().await.unwrap();
        locks.force_release(name, "test").await.unwrap();
    }
    let day = 24 * 60 * 60 * 1000;
    for key in keys(&server) {
        let left: i64 = server.cli(&["pttl", &key]).unwrap().parse().unwrap();
        assert!((1..=day).contains(&left), "{key} {left}");
        assert!(!key.contains("leasehold:queue:"), "nobody waits: {key}");
    }
}

/// Two prefixes are two namespaces, and a prefix may be empty.
#[tokio::test]
async fn prefixes_are_namespaces_of_their_own() {
    let server = server();
    let first = connect(format!("{}?prefix=one:", server.url())).await;
    let second = connect(format!("{}?prefix=", server.url())).await;
    let lease = first.lock("a").acquire().await.unwrap();
    assert_eq!(server.cli(&["get", "one:a"]).unwrap(), lease.owner().to_string());
    let other = second.lock("a").acquire().await.unwrap();
    assert_eq!(server.cli(&["get", "a"]).unwrap(), other.owner().to_string());
    let names = async |locks: &leasehold::Locks| {
        let infos = locks.list("").await.unwrap();
        infos.into_iter().map(|info| info.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&first).await, ["a"]);
    assert_eq!(names(&second).await, ["a", "one:a"]);
}

/// With an empty prefix the name is the key: what only looks like a key of the store is a lock like
/// any other, and what is one is refused.
#[tokio::test]
async fn without_a_prefix_no_name_hides_or_breaks_another() {
    let server = server();
    let locks = connect(format!("{}?prefix=", server.url())).await;
    let other = connect(format!("{}?prefix=", server.url())).await;
    let odd = "{a}leasehold:record:x";
    let lease = locks.lock(odd).acquire().await.unwrap();
    assert_eq!(locks.list("").await.unwrap()[0].name.as_str(), odd);
    lease.release().await.unwrap();
    let lease = locks.lock("a").acquire().await.unwrap();
    let waiting = acquire(other.lock("a"));
    until_waiters(&locks, "a", 1).await;
    let queue = server.cli(&["keys", "*leasehold:queue:a"]).unwrap();
    let refused = |error: leasehold::Error| {
        assert_eq!(*error.kind(), leasehold::ErrorKind::Invalid, "{error}");
    };
    refused(locks.lock(&queue).try_acquire().await.unwrap_err());
    refused(locks.inspect(&queue).await.unwrap_err());
    refused(locks.force_release(&queue, "test").await.unwrap_err());
    lease.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
}

/// A password, a database, and a user who may do only what is needed.
#[tokio::test]
async fn a_user_with_few_rights_is_enough() {
    let server = Redis::start(&["--requirepass", "p/w"]).unwrap();
    let rule = "~lock:* ~{*}leasehold:* &leasehold:* -@all +evalsha +script|load +script +get +mget \
                +set +del +exists +pexpire +pttl +hset +hmget +rpush +lpush +lpop +lpos +lset +lrem \
                +lrange +publish +subscribe +time +info +ping +hello +auth +client +select +scan";
    let words = ["acl", "setuser", "locker", "on", ">s:cret"];
    let words: Vec<_> = words.into_iter().chain(rule.split_whitespace()).collect();
    assert_eq!(server.cli(&words).unwrap(), "OK");
    let address = server.addr();
    let locks = connect(format!("redis://locker:s%3Acret@{address}/3")).await;
    let other = connect(format!("redis://:p%2Fw@{address}/3")).await;
    let lease = locks.lock("a").acquire().await.unwrap();
    let waiting = acquire(other.lock("a"));
    until_waiters(&locks, "a", 1).await;
    assert_eq!(locks.list("").await.unwrap().len(), 1);
    assert_eq!(server.cli(&["-n", "3", "exists", "lock:a"]).unwrap(), "1");
    lease.release().await.unwrap();
    let held = granted(waiting).await;
    // Long enough for heartbeats, and then it gives up.
    let impatient = locks.lock("a").ttl(Duration::from_millis(300));
    let error = impatient.wait(Duration::from_millis(250)).acquire().await.unwrap_err();
    assert!(matches!(error.kind(), leasehold::ErrorKind::Held(_)), "{error}");
    held.release().await.unwrap();
    let wrong = crate::client::connecting(format!("redis://locker:no@{address}")).await;
    let error = wrong.expect_err("the password is wrong");
    assert_eq!(*error.kind(), leasehold::ErrorKind::Unusable, "{error:?}");
}
