//! Servers that are not there, not primary, not allowed, not private, not safe.

use std::time::Duration;

use leasehold::backend::postgres::SCHEMA;
use leasehold::{ErrorKind, Outcome, Severity};
use leasehold_faults::servers::{Postgres, free_port};

use crate::scene::{connect, url};

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    for mode in ["lease", "session"] {
        let nowhere = format!("postgres://me:s3cret@127.0.0.1:{}/db?mode={mode}", free_port());
        let error = leasehold::connect(nowhere).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unreachable);
        assert_eq!(error.outcome(), Outcome::NotApplied);
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
}

/// A wrong password was called unsafe, and a missing one a server that is not there.
#[tokio::test]
async fn a_user_that_is_not_let_in_is_told_what_to_check() {
    let mut server = Postgres::start(&[]).unwrap();
    server.psql("create role worker superuser login password 's3cret'").unwrap();
    server.demand_passwords("worker").unwrap();
    let port = server.port();
    let connect = async |user: &str, rest: &str| {
        leasehold::connect(format!("postgres://{user}@127.0.0.1:{port}/{rest}")).await
    };
    for mode in ["lease", "session"] {
        let right = format!("postgres?mode={mode}");
        for (user, rest, told) in [
            ("worker:wr0ng", &*right, "check user and password"),
            ("worker", &*right, "PGPASSWORD"),
            ("stranger:wr0ng", &*right, "pg_hba.conf"),
            ("worker:s3cret", "elsewhere", "the database in the URL"),
        ] {
            let error = connect(user, rest).await.unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Unusable, "{user}: {error}");
            assert_eq!(error.outcome(), Outcome::NotApplied, "{user}");
            assert!(error.to_string().contains(told), "{user}: {error}");
            let all = format!("{error} {error:?}");
            assert!(!all.contains("wr0ng") && !all.contains("s3cret"), "{all}");
        }
        connect("worker:s3cret", &right).await.unwrap();
    }
}

#[tokio::test]
async fn a_standby_is_refused() {
    let primary = Postgres::start(&[]).unwrap();
    let standby = primary.standby().unwrap();
    for mode in ["lease", "session"] {
        let error = leasehold::connect(url(&standby, mode)).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains("standby"), "{error}");
    }
}

/// The schema can be made by hand, for roles that may not make one.
#[tokio::test]
async fn a_role_without_ddl_uses_what_an_owner_made() {
    let server = Postgres::start(&[]).unwrap();
    server.psql("create role worker login").unwrap();
    for mode in ["lease", "session"] {
        let url = format!("postgres://worker@127.0.0.1:{}/postgres?mode={mode}", server.port());
        server.psql("drop schema if exists leasehold cascade").unwrap();
        let error = leasehold::connect(&url).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("leasehold schema"), "{error}");
        // Twice, as careful people do.
        server.psql(SCHEMA).unwrap();
        server.psql(SCHEMA).unwrap();
        let grants: Vec<String> = SCHEMA
            .lines()
            .filter_map(|line| line.strip_prefix("--     grant "))
            .map(|grant| format!("grant {}", grant.replace("ROLE", "worker")))
            .collect();
        assert_eq!(grants.len(), 3, "the grants are in the schema's own comment");
        server.psql(&grants.join("")).unwrap();
        let locks = leasehold::connect(&url).await.unwrap();
        let lease = locks.lock("a").acquire().await.unwrap();
        lease.renew().await.unwrap();
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn many_clients_may_come_first() {
    let server = Postgres::start(&[]).unwrap();
    let mut coming = tokio::task::JoinSet::new();
    for client in 0..12 {
        let url = url(&server, if client % 2 == 0 { "lease" } else { "session" });
        coming.spawn(async move { leasehold::connect(url).await });
    }
    while let Some(came) = coming.join_next().await {
        came.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_schema_of_another_version_is_not_touched() {
    let server = Postgres::start(&[]).unwrap();
    drop(connect(&server, "lease").await);
    server.psql("update leasehold.meta set version = 99").unwrap();
    let error = leasehold::connect(server.url()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("99"), "{error}");
}

/// What programs installed before functions told their revision.
const REVISION_1: &str = include_str!("older/revision_1.sql");

fn installed(server: &Postgres) -> String {
    server.psql("select leasehold.revision()").unwrap()
}

#[tokio::test]
async fn functions_of_an_older_revision_are_brought_up_to_date() {
    for mode in ["lease", "session"] {
        let server = Postgres::start(&[]).unwrap();
        server.psql(REVISION_1).unwrap();
        // A sequence and a row that are ahead of every clock.
        let ahead = 4_400_000_000_000_000_u64;
        server.psql(&format!("select setval('leasehold.tokens', {ahead})")).unwrap();
        let row = "insert into leasehold.locks (name, token, proved, term, expires, since)";
        server.psql(&format!("{row} values ('a', {ahead}, 0, 0, now(), now())")).unwrap();
        let first = connect(&server, mode).await;
        let newest = installed(&server);
        assert_ne!(newest, "1");
        let lease = first.lock("a").acquire().await.unwrap();
        assert!(lease.token().get() > ahead, "{mode}: {:?}", lease.token());
        let before = lease.token();
        // While it is held, an older program's schema comes back, and the next client with it.
        server.psql("drop function leasehold.revision()").unwrap();
        server.psql(REVISION_1).unwrap();
        let second = connect(&server, mode).await;
        assert_eq!(installed(&server), newest);
        assert!(second.lock("a").try_acquire().await.unwrap().is_none(), "{mode}");
        lease.renew().await.unwrap();
        lease.release().await.unwrap();
        let after = second.lock("a").acquire().await.unwrap();
        assert!(after.token() > before, "{mode}: {:?} after {before:?}", after.token());
        after.release().await.unwrap();
    }
}

#[tokio::test]
async fn functions_of_a_newer_revision_are_left_alone() {
    let server = Postgres::start(&[]).unwrap();
    drop(connect(&server, "lease").await);
    let newer = "create or replace function leasehold.revision() returns integer \
                 language sql immutable as 'select 99'";
    server.psql(newer).unwrap();
    let locks = connect(&server, "lease").await;
    assert_eq!(installed(&server), "99");
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_role_that_may_not_bring_them_up_to_date_says_so() {
    let server = Postgres::start(&[]).unwrap();
    server.psql("create role worker login").unwrap();
    server.psql(REVISION_1).unwrap();
    server.psql("grant usage on schema leasehold to worker").unwrap();
    server.psql("grant select on all tables in schema leasehold to worker").unwrap();
    let url = format!("postgres://worker@127.0.0.1:{}/postgres", server.port());
    let error = leasehold::connect(&url).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("leasehold schema"), "{error}");
}

#[tokio::test]
async fn doctor_tells_what_is_unsafe() {
    let safe = Postgres::start(&[]).unwrap();
    let bad = Postgres::start(&["fsync=off", "synchronous_commit=off"]).unwrap();
    for mode in ["lease", "session"] {
        let worst = async |server: &Postgres| {
            let findings = connect(server, mode).await.examine().await.unwrap();
            let worst = findings.iter().map(|finding| finding.severity).max();
            (worst.unwrap(), format!("{findings:?}"))
        };
        let (severity, told) = worst(&safe).await;
        assert_eq!(severity, Severity::Fine, "{told}");
        let (severity, told) = worst(&bad).await;
        assert_eq!(severity, Severity::Unsafe);
        assert!(told.contains("fsync is off") && told.contains("synchronous_commit is off"));
    }
    let _standby = safe.standby().unwrap();
    let findings = connect(&safe, "lease").await.examine().await.unwrap();
    let standbys = findings.iter().find(|finding| finding.what.contains("1 standbys")).unwrap();
    assert_eq!(standbys.severity, Severity::Warning, "{standbys:?}");
}

#[tokio::test]
async fn tls_is_verified_as_far_as_sslmode_says() {
    let made = rcgen::generate_simple_self_signed(vec!["db.example".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let server = Postgres::start_with_tls(&certificate, &key).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.pem");
    std::fs::write(&root, certificate).unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let stranger = folder.path().join("stranger.pem");
    std::fs::write(&stranger, other.cert.pem()).unwrap();
    let connects = async |options: String| {
        leasehold::connect(format!("{}?{options}", server.url())).await.map(drop)
    };
    let (root, stranger) = (root.display(), stranger.display());
    for options in [
        "sslmode=disable".to_owned(),
        "sslmode=prefer".to_owned(),
        "sslmode=require".to_owned(),
        format!("sslmode=verify-ca&sslrootcert={root}"),
    ] {
        connects(options.clone()).await.unwrap_or_else(|error| panic!("{options}: {error}"));
    }
    for options in [
        // Signed by ours, but it is another's: it names db.example.
        format!("sslmode=verify-full&sslrootcert={root}"),
        format!("sslmode=verify-ca&sslrootcert={stranger}"),
        format!("sslmode=require&sslrootcert={stranger}"),
    ] {
        let error = connects(options.clone()).await.expect_err(&options);
        assert_eq!(*error.kind(), ErrorKind::Unreachable, "{options}: {error}");
    }
    let lease = leasehold::connect(format!("{}?sslmode=require&mode=session", server.url()));
    let lease = lease.await.unwrap().lock("a").ttl(Duration::from_secs(5)).acquire().await.unwrap();
    let encrypted = "select count(*) from pg_stat_ssl s join pg_stat_activity a using (pid) \
                     where a.application_name = 'leasehold' and not s.ssl";
    assert_eq!(server.psql(encrypted).unwrap(), "0");
    lease.release().await.unwrap();
}
