//! TLS, client certificates, users and passwords.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, connect};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::servers::{Etcd, free_port};

use crate::scene::Client;

/// A cluster of one with these options, whose user `app` may use the keys below `app/`.
fn with_users(options: &[&str]) -> Etcd {
    let mut cluster = Etcd::start(1, options).unwrap();
    for words in [
        &["user", "add", "root:r00t"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "app:p@ss/word"],
        &["role", "add", "app"],
        &["role", "grant-permission", "--prefix=true", "app", "readwrite", "app/"],
        &["user", "grant-role", "app", "app"],
        &["auth", "enable"],
    ] {
        cluster.ctl(words).unwrap();
    }
    cluster.use_user("root", "r00t");
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_a_client_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Etcd::start_secure(folder.path()).unwrap();
    let files = cluster.certificates().unwrap();
    let (ca, cert, key) = (files.ca.display(), files.cert.display(), files.key.display());
    let host = cluster.addr(0);
    let url = format!("etcds://{host}/locks?ca={ca}&cert={cert}&key={key}");
    let client = Client::at(&url).await;
    client.lock("a").acquire().await.unwrap().release().await.unwrap();
    let named = format!("{url}&server-name=localhost");
    Client::at(&named).await.lock("a").acquire().await.unwrap().release().await.unwrap();
    for wrong in [
        // No certificate of ours; no authority that we know; no TLS at all; not its name.
        format!("etcds://{host}/locks?ca={ca}"),
        format!("etcds://{host}/locks?cert={cert}&key={key}"),
        format!("etcd://{host}/locks"),
        format!("{url}&server-name=elsewhere"),
    ] {
        let error = within_bound("an answer", connect(&*wrong).into_future()).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unreachable, "{wrong}: {error}");
    }
    let missing = connect(format!("etcds://{host}?ca=/no/such/file")).await.unwrap_err();
    assert!(missing.to_string().contains("/no/such/file"), "{missing}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_may_lock_where_their_role_allows() {
    let cluster = with_users(&[]);
    let host = cluster.addr(0);
    let client = Client::at(&format!("etcd://app:p%40ss%2Fword@{host}/app")).await;
    let lease = client.lock("a").acquire().await.unwrap();
    assert_eq!(lease.verify().await.unwrap(), lease.token());
    assert_eq!(client.locks.list("").await.unwrap().len(), 1);
    lease.release().await.unwrap();
    for (wrong, said) in [
        ("app:wr0ng", "check the user and the password"),
        ("nobody:p%40ss%2Fword", "check the user and the password"),
        ("app", "no password"),
    ] {
        let error = connect(format!("etcd://{wrong}@{host}/app")).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unusable, "{error}");
        let told = format!("{error} {error:?}");
        assert!(told.contains(said), "{told}");
        assert!(!told.contains("wr0ng") && !told.contains("p@ss"), "{told}");
    }
    let elsewhere = connect(format!("etcd://app:p%40ss%2Fword@{host}/other")).await.unwrap_err();
    assert_eq!(*elsewhere.kind(), ErrorKind::Unusable, "{elsewhere}");
    let nobody = connect(format!("etcd://{host}/app")).await.unwrap_err();
    assert_eq!(*nobody.kind(), ErrorKind::Unusable, "{nobody}");
    assert!(nobody.to_string().contains("the URL has none"), "{nobody}");
    let open = Etcd::start(1, &[]).unwrap();
    let needless = connect(format!("etcd://app:p%40ss@{}", open.addr(0))).await.unwrap_err();
    assert_eq!(*needless.kind(), ErrorKind::Unusable, "{needless}");
    assert!(needless.to_string().contains("not enabled"), "{needless}");
}

/// Tokens of the kind `jwt` name the revision of the users: any change makes them old, for
/// requests and for new watches on a stream that was opened with one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_users_or_roles_ends_no_lease() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "signs the tokens of this test").unwrap();
    let tokens = format!("jwt,priv-key={},sign-method=HS256,ttl=10m", secret.display());
    let cluster = with_users(&["--auth-token", &tokens]);
    let url = format!("etcd://app:p%40ss%2Fword@{}/app", cluster.addr(0));
    let (client, other) = (Client::at(&url).await, Client::at(&url).await);
    let mut held = client.lock("a").acquire().await.unwrap();
    for (name, change) in [("b", ["role", "add", "one"]), ("c", ["user", "add", "two:2"])] {
        let lock = other.lock(held.name().as_str());
        let waiting = tokio::spawn(async move { lock.acquire().await });
        let waits = async || client.waiters(held.name().as_str()).await == 1;
        eventually("it waits", waits).await;
        cluster.ctl(&change).unwrap();
        assert_eq!(held.verify().await.unwrap(), held.token());
        let next = client.lock(name).acquire().await.unwrap();
        held.release().await.unwrap();
        let handed_over = within_bound("the hand-over", waiting).await.unwrap().unwrap();
        handed_over.release().await.unwrap();
        held = next;
    }
    held.release().await.unwrap();
}

/// A watch on a stream that was opened before the change is refused. Without a new stream those who
/// wait hear of no release any more, and look only now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_change_of_users_waiters_hear_of_releases_again() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "signs the tokens of this test").unwrap();
    let tokens = format!("jwt,priv-key={},sign-method=HS256,ttl=10m", secret.display());
    let cluster = with_users(&["--auth-token", &tokens]);
    let url = format!("etcd://app:p%40ss%2Fword@{}/app", cluster.addr(0));
    let (client, other) = (Client::at(&url).await, Client::at(&url).await);
    let mut fastest = Duration::MAX;
    for number in 0..5 {
        let name = format!("a{number}");
        let held = client.lock(&name).acquire().await.unwrap();
        let lock = other.lock(&name);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        eventually("it waits", async || client.waiters(&name).await == 1).await;
        let released = Instant::now();
        held.release().await.unwrap();
        let next = within_bound("the hand-over", waiting).await.unwrap().unwrap();
        if number == 0 {
            // The stream is open now.
            cluster.ctl(&["role", "add", "one"]).unwrap();
        } else {
            fastest = fastest.min(released.elapsed());
        }
        next.release().await.unwrap();
    }
    // Waiters that hear of nothing look every two seconds.
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
}

/// Nobody listens: an error in bounded time, and nothing was applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_not_there_is_said_to_be_so() {
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", free_port(), free_port());
    let error = within_bound("an answer", connect(url).into_future()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable);
    assert_eq!(error.outcome(), leasehold::Outcome::NotApplied, "{error}");
    let refused = connect("etcd://127.0.0.1/?colour=red").await.unwrap_err();
    assert!(refused.to_string().contains("colour"), "{refused}");
}

/// The server goes and comes back: requests fail meanwhile, and work again by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_serves_its_old_clients() {
    let mut cluster = Etcd::start(1, &[]).unwrap();
    let client = Client::on(&cluster).await;
    let before = client.lock("a").acquire().await.unwrap();
    let token = before.token();
    before.release().await.unwrap();
    cluster.kill(0);
    let error = within_bound("an answer", client.lock("a").try_acquire()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable);
    cluster.restart(0).unwrap();
    let free = async || client.is_free("a").await;
    leasehold_conformance::fixture::eventually("it serves again", free).await;
    let after = client.lock("a").acquire().await.unwrap();
    assert!(after.token() > token);
}
