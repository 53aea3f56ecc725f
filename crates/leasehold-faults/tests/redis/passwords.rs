//! Passwords that are wrong or missing.

use leasehold::{Error, ErrorKind};
use leasehold_faults::servers::{Redis, RedisSentinel};

use crate::client::{connect, connecting};

/// The error of this URL, which must say this, and no password.
async fn refused(url: String, said: &str) {
    let error: Error = connecting(url).await.expect_err("the password is wrong or missing");
    assert_eq!(*error.kind(), ErrorKind::Unusable, "{error:?}");
    assert!(error.to_string().contains(said), "{error}");
    let all = format!("{error} {error:?}");
    assert!(!all.contains("hush") && !all.contains("guess"), "{all}");
}

#[tokio::test]
async fn a_server_says_whether_the_password_is_wrong_or_missing() {
    let server = Redis::start(&["--requirepass", "hush"]).unwrap();
    let address = server.addr();
    refused(format!("redis://{address}"), "wants a password, and the URL has none").await;
    for login in [":guess", "nobody:hush", "default:guess"] {
        let said = "refuses the user or the password before the @";
        refused(format!("redis://{login}@{address}"), said).await;
    }
    connect(format!("redis://:hush@{address}")).await;
}

/// They have a password of their own, and the one before the `@` is the master's.
#[tokio::test]
async fn sentinels_say_whether_their_password_is_wrong_or_missing() {
    let servers = RedisSentinel::start(&[]).unwrap();
    servers.lock_sentinels("hush").unwrap();
    let url = servers.url();
    refused(url.clone(), "wants a password of its own: add sentinel-password=").await;
    let said = "refuses sentinel-user or sentinel-password";
    refused(format!("{url}?sentinel-password=guess"), said).await;
    let locks = connect(format!("{url}?sentinel-password=hush")).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}
