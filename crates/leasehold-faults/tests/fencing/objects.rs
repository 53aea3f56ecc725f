//! Objects with conditional puts, and answers that say nothing.

use std::sync::Arc;

use leasehold::Outcome;
use leasehold::fence::objects::{FencedObject, no_retries};
use leasehold_faults::servers::Objects;
use leasehold_faults::servers::objects::Mishap;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, RetryConfig};

use crate::{NEW, OLD, STALE};

fn s3(server: &Objects, retry: RetryConfig) -> Arc<dyn ObjectStore> {
    let store = AmazonS3Builder::new()
        .with_endpoint(server.url())
        .with_allow_http(true)
        .with_bucket_name("bucket")
        .with_region("nowhere")
        .with_access_key_id("id")
        .with_secret_access_key("secret")
        .with_retry(retry);
    Arc::new(store.build().unwrap())
}

#[tokio::test]
async fn an_object_takes_no_late_put_and_stays_deleted() {
    let server = Objects::start().unwrap();
    let object = FencedObject::new(s3(&server, no_retries()), "report.csv");
    assert_eq!(object.get().await.unwrap(), None);
    object.put(OLD, "old").await.unwrap();
    object.put(NEW, "new").await.unwrap();
    assert_eq!(object.put(OLD, "late").await.unwrap_err().stale(), Some(STALE));
    assert_eq!(object.delete(OLD).await.unwrap_err().stale(), Some(STALE));
    assert_eq!(object.get().await.unwrap().unwrap(), "new");
    object.delete(NEW).await.unwrap();
    assert_eq!(object.get().await.unwrap(), None);
    assert_eq!(object.put(OLD, "back").await.unwrap_err().stale(), Some(STALE));
    object.put(NEW, "anew").await.unwrap();
    object.advance(leasehold::Token::new(40)).await.unwrap();
    assert_eq!(object.get().await.unwrap().unwrap(), "anew");
    assert!(object.put(NEW, "late").await.unwrap_err().stale().is_some());
}

/// S3's ETag does not see metadata: if the token were there, a put of the same content under a
/// newer token would not change the ETag, and an older write that had looked before would pass.
#[tokio::test]
async fn the_same_content_under_a_newer_token_is_another_version() {
    let server = Objects::start().unwrap();
    let store = s3(&server, no_retries());
    let object = FencedObject::new(store.clone(), "same");
    let etag = async || store.get_opts(object.path(), Default::default()).await.unwrap().meta.e_tag;
    object.put(OLD, "same").await.unwrap();
    let before = etag().await;
    object.put(NEW, "same").await.unwrap();
    assert_ne!(before, etag().await);
    let again = etag().await;
    object.put(NEW, "same").await.unwrap();
    assert_ne!(again, etag().await, "and each write of one lease as well");
}

#[tokio::test]
async fn a_put_that_was_done_but_not_confirmed_is_found_out() {
    let server = Objects::start().unwrap();
    let object = FencedObject::new(s3(&server, no_retries()), "ambiguous");
    for (round, mishap) in [Mishap::DoneButFailed, Mishap::DoneButSilent].into_iter().enumerate() {
        let puts = server.puts();
        server.mishap(mishap);
        object.put(OLD, format!("round {round}")).await.unwrap();
        assert_eq!(server.puts(), puts + 1, "{mishap:?}: sent once");
        assert_eq!(object.get().await.unwrap().unwrap(), format!("round {round}"));
    }
    server.mishap(Mishap::NotDone);
    let failed = object.put(OLD, "lost").await.unwrap_err();
    assert_eq!(failed.outcome(), Outcome::Unknown, "{failed}");
    assert_eq!(object.get().await.unwrap().unwrap(), "round 1");
    object.put(OLD, "again").await.unwrap();
}

/// A driver that sends a conditional put again gets 412 from its own success.
#[tokio::test]
async fn a_412_may_be_our_own_success() {
    let server = Objects::start().unwrap();
    let object = FencedObject::new(s3(&server, RetryConfig::default()), "retried");
    object.put(OLD, "first").await.unwrap();
    server.mishap(Mishap::DoneButFailed);
    object.put(NEW, "second").await.unwrap();
    assert_eq!(object.get().await.unwrap().unwrap(), "second");
    assert_eq!(object.seen().await.unwrap(), Some(NEW));
}

#[tokio::test]
async fn many_writers_of_one_lease_lose_no_version_silently() {
    let server = Objects::start().unwrap();
    let object = FencedObject::new(s3(&server, no_retries()), "busy");
    let writes = (0..8).map(|number| {
        let object = object.clone();
        tokio::spawn(async move { object.put(NEW, format!("{number}")).await })
    });
    for write in writes.collect::<Vec<_>>() {
        write.await.unwrap().unwrap();
    }
    assert!(object.put(OLD, "late").await.unwrap_err().stale().is_some());
}

/// Whether the object lives and what is in it must come from the same look at it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advancing_deletes_nothing_that_is_put_meanwhile() {
    let server = Objects::start().unwrap();
    for round in 0..40 {
        let object = FencedObject::new(s3(&server, no_retries()), format!("round {round}"));
        let putting = tokio::spawn({
            let object = object.clone();
            async move { object.put(NEW, "kept").await }
        });
        object.advance(NEW).await.unwrap();
        putting.await.unwrap().unwrap();
        assert_eq!(object.get().await.unwrap().unwrap(), "kept", "round {round}");
    }
}

#[tokio::test]
async fn what_has_no_conditional_put_and_what_is_foreign_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let object = FencedObject::new(store, "file");
    object.put(OLD, "creating is conditional").await.unwrap();
    let refused = object.put(NEW, "updating is not").await.unwrap_err();
    assert_eq!(refused.outcome(), Outcome::NotApplied, "{refused}");
    std::fs::write(folder.path().join("file"), "somebody's text\n").unwrap();
    let foreign = object.put(NEW, "x").await.unwrap_err();
    assert!(foreign.to_string().contains("no fenced object"), "{foreign}");
}
