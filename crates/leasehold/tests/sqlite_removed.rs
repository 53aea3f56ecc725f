//! A store whose file, log or index is removed or replaced while leases are held.
#![cfg(feature = "sqlite")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use leasehold::{ErrorKind, Lease, LeaseState, Locks};

/// Far less than the first renewal is away, far more than a look.
const SOON: Duration = Duration::from_secs(6);
const TTL: Duration = Duration::from_secs(60);

async fn held(path: &Path) -> (Locks, Lease, Lease) {
    let locks = leasehold::connect(format!("sqlite:{}", path.display())).await.unwrap();
    let renewed = locks.lock("renewed").ttl(TTL).acquire().await.unwrap();
    let plain = locks.lock("plain").ttl(TTL).no_renewal().acquire().await.unwrap();
    (locks, renewed, plain)
}

/// Others meet elsewhere from then on. It was doubt, and found with the next renewal.
#[tokio::test]
async fn all_leases_are_lost_soon_and_with_the_reason() {
    for part in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let folder = tempfile::tempdir().unwrap();
        let (locks, renewed, plain) = held(&folder.path().join("locks.db")).await;
        fs::remove_file(folder.path().join(part)).unwrap();
        for lease in [&renewed, &plain] {
            let loss = tokio::time::timeout(SOON, lease.lost()).await.expect(part);
            assert!(loss.to_string().contains("removed or replaced"), "{part}: {loss}");
            let error = lease.checkpoint().await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{part}: {error}");
        }
        // Neither a grant nor a long wait for a store that does not come back.
        let other = locks.lock("other").wait(TTL);
        let waiting = other.acquire();
        let error = tokio::time::timeout(SOON, waiting).await.expect(part).unwrap_err();
        assert!(error.to_string().contains("removed or replaced"), "{part}: {error}");
        let error = renewed.release().await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NotHeld, "{part}: {error}");
    }
}

#[tokio::test]
async fn asking_about_one_lease_tells_the_loss_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let (_locks, renewed, plain) = held(&path).await;
    fs::write(folder.path().join("new.db"), "").unwrap();
    fs::rename(folder.path().join("new.db"), &path).unwrap();
    let asked = async {
        loop {
            match plain.verify().await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => return error,
            }
        }
    };
    let error = tokio::time::timeout(SOON, asked).await.expect("it is noticed");
    assert!(error.loss().is_some(), "not only an error: {error}");
    assert!(matches!(renewed.state(), LeaseState::Lost(_)), "{renewed:?}");
}
