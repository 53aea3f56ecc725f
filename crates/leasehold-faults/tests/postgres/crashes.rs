//! The server is killed, restarted, or replaced by its standby: no token comes twice.

use std::time::Duration;

use leasehold::{LeaseState, Token};
use leasehold_conformance::fixture::within_bound;
use leasehold_faults::crashes;
use leasehold_faults::servers::Postgres;
use tokio::runtime::Runtime;

use crate::scene::{connect, until, url};

const CRASHES: usize = 3;
const TTL: Duration = Duration::from_secs(2);

#[test]
fn no_token_twice_over_crashes_in_lease_mode() {
    crashes::amid_acquirers("lease", CRASHES).unwrap();
}

#[test]
fn no_token_twice_over_crashes_in_session_mode() {
    crashes::amid_acquirers("session", CRASHES).unwrap();
}

/// What was granted before a crash is held after it, and renewed.
#[test]
fn a_lease_survives_a_crash_and_a_session_does_not() {
    let mut server = Postgres::start(&[]).unwrap();
    let runtime = Runtime::new().unwrap();
    let long = Duration::from_secs(120);
    let (row, session) = runtime.block_on(async {
        let row = connect(&server, "lease").await.lock("a").ttl(long).acquire().await.unwrap();
        let session = connect(&server, "session").await;
        (row, session.lock("a").ttl(long).acquire().await.unwrap())
    });
    server.crash();
    runtime.block_on(within_bound("the session's loss", session.lost()));
    server.restart().unwrap();
    runtime.block_on(async {
        within_bound("a renewal", async { while row.renew().await.is_err() {} }).await;
        assert_eq!(row.state(), LeaseState::Held);
        let other = connect(&server, "lease").await;
        assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    });
}

/// The next session had the lock before its last holder had read of the end of its own.
#[test]
fn a_server_that_starts_grants_nothing_before_its_last_sessions_have_heard_of_it() {
    let mut server = Postgres::start(&[]).unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async { drop(connect(&server, "session").await) });
    for crashes in [true, false] {
        match crashes {
            true => server.crash(),
            false => server.stop(),
        }
        server.restart().unwrap();
        let lease = runtime.block_on(async {
            let locks = connect(&server, "session").await;
            locks.lock("a").acquire().await.unwrap()
        });
        let heard = "select started = pg_postmaster_start_time() \
                     and clock_timestamp() - since >= interval '1 second' from leasehold.intact";
        assert_eq!(server.psql(heard).unwrap(), "t", "crashed: {crashes}");
        runtime.block_on(lease.release()).unwrap();
    }
}

/// A standby that never heard of the last tokens gives none of them again.
#[test]
fn a_promoted_standby_that_lagged_repeats_no_token() {
    let mut primary = Postgres::start(&[]).unwrap();
    let runtime = Runtime::new().unwrap();
    let modes = ["lease", "session"];
    let acquire = async |server: &Postgres, mode: &str| {
        let locks = leasehold::connect(url(server, mode)).await.unwrap();
        let lease = locks.lock("a").ttl(TTL).acquire().await.unwrap();
        let token = lease.token();
        lease.release().await.unwrap();
        token
    };
    for mode in modes {
        runtime.block_on(acquire(&primary, mode));
    }
    let standby = primary.standby().unwrap();
    // Cut the stream: from here on it hears nothing.
    standby.psql("alter system set primary_conninfo = ''").unwrap();
    standby.psql("select pg_reload_conf()").unwrap();
    let streams = || primary.psql("select count(*) from pg_stat_replication").unwrap();
    until("the stream is cut", || streams() == "0");
    let before: Vec<Token> =
        modes.iter().map(|mode| runtime.block_on(acquire(&primary, mode))).collect();
    primary.crash();
    standby.promote().unwrap();
    for (mode, before) in modes.iter().zip(before) {
        let after = runtime.block_on(acquire(&standby, mode));
        assert!(after > before, "{mode}: {after} after {before}");
    }
}
