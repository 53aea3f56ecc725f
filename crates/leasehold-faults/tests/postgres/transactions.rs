//! Locks inside the caller's own transaction.

use leasehold::backend::postgres::{acquire_in_transaction, try_acquire_in_transaction};
use leasehold_conformance::fixture::within_bound;
use leasehold_faults::servers::{PgBouncer, Postgres};
use tokio_postgres::{Client, NoTls};

use crate::scene::connect;

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn commit_and_rollback_release() {
    let server = Postgres::start(&[]).unwrap();
    let (mut first, mut second) = (client(&server.url()).await, client(&server.url()).await);
    for name in ["invoices", "pg:77", "pg:1,42"] {
        for commits in [true, false] {
            let ours = first.transaction().await.unwrap();
            acquire_in_transaction(&ours, name).await.unwrap();
            let theirs = second.transaction().await.unwrap();
            assert!(!try_acquire_in_transaction(&theirs, name).await.unwrap(), "{name}");
            match commits {
                true => ours.commit().await.unwrap(),
                false => ours.rollback().await.unwrap(),
            }
            within_bound("the lock", acquire_in_transaction(&theirs, name)).await.unwrap();
            theirs.rollback().await.unwrap();
        }
    }
}

#[tokio::test]
async fn it_excludes_leases_of_the_same_name_in_session_mode() {
    let server = Postgres::start(&[]).unwrap();
    let locks = connect(&server, "session").await;
    let mut client = client(&server.url()).await;
    let lease = locks.lock("report").acquire().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    assert!(!try_acquire_in_transaction(&transaction, "report").await.unwrap());
    lease.release().await.unwrap();
    assert!(try_acquire_in_transaction(&transaction, "report").await.unwrap());
    assert!(locks.lock("report").try_acquire().await.unwrap().is_none());
    transaction.commit().await.unwrap();
    assert!(locks.lock("report").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn it_works_through_a_transaction_pooler_and_refuses_what_is_no_name() {
    let server = Postgres::start(&[]).unwrap();
    let pooler = PgBouncer::start(&server, "transaction", &[]).unwrap();
    let mut client = client(&pooler.url()).await;
    let transaction = client.transaction().await.unwrap();
    acquire_in_transaction(&transaction, "invoices").await.unwrap();
    assert_eq!(
        server.psql("select count(*) from pg_locks where locktype = 'advisory'").unwrap(),
        "1"
    );
    for name in ["a\nb", "pg:05"] {
        let error = acquire_in_transaction(&transaction, name).await.unwrap_err();
        assert_eq!(*error.kind(), leasehold::ErrorKind::Invalid, "{name:?}");
    }
    transaction.commit().await.unwrap();
}
