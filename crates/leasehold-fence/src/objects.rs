//! Objects (S3 and whatever has conditional puts) that take no late writes.
//!
//! An object's content begins with a line that names the token and a nonce:
//!
//! ```text
//! leasehold-fence 1 token=1763241600123456 nonce=8f1c… live
//! ```
//!
//! A write reads that line, compares, and puts the new object only if the old one is still
//! the same (`If-Match`, `If-None-Match`). The line belongs to the content and not to the metadata
//! for a reason: S3's ETag is a hash of the content alone, so two versions that differ
//! in metadata only would look the same to `If-Match`, and a late writer could slip in.
//!
//! A put that was not answered, or answered with an error, may have been done: even a *412*
//! may be the answer to a driver's own second attempt. The object is read again, and the nonce
//! tells. Use [`no_retries`] all the same. A deleted object is a line that says so.
//!
//! `object_store`'s local file system has no conditional puts: use
//! [`FencedFile`](super::FencedFile) there.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig,
    UpdateVersion,
};

use super::error::{FenceError, StaleToken};
use super::rejection::rejected;
use crate::outcome::Outcome;
use crate::token::Token;

use envelope::Envelope;

mod envelope;

/// The kind of resource, in metrics and events.
const KIND: &str = "object";
/// How often a write begins again because another of the same lease came between.
const ATTEMPTS: u32 = 32;

/// For the builder of a store (`AmazonS3Builder::with_retry`): a conditional put that is sent
/// twice may be refused because of itself.
pub fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// An object that only the newest lease may write.
///
/// ```
/// use std::sync::Arc;
/// use leasehold_fence::Token;
/// use leasehold_fence::objects::FencedObject;
/// use object_store::memory::InMemory;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let report = FencedObject::new(Arc::new(InMemory::new()), "reports/today.csv");
/// report.put(Token::new(34), "new").await?;
/// assert!(report.put(Token::new(33), "late").await.unwrap_err().stale().is_some());
/// assert_eq!(report.get().await?.unwrap(), "new");
/// # Ok::<(), leasehold_fence::FenceError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct FencedObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
}

/// An object as it was read.
struct Found {
    envelope: Envelope,
    content: Bytes,
    version: UpdateVersion,
}

impl FencedObject {
    /// The object at this path; it need not exist.
    pub fn new(store: Arc<dyn ObjectStore>, path: impl Into<Path>) -> Self {
        Self { store, path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content; `None` if it is not there or was deleted.
    ///
    /// # Errors
    ///
    /// [`FenceError::Failed`] when it cannot be read, or is no fenced object.
    pub async fn get(&self) -> Result<Option<Bytes>, FenceError> {
        let found = self.read().await?;
        Ok(found.filter(|found| found.envelope.live).map(|found| found.content))
    }

    /// The highest token it has seen.
    ///
    /// # Errors
    ///
    /// [`FenceError::Failed`] when it cannot be read, or is no fenced object.
    pub async fn seen(&self) -> Result<Option<Token>, FenceError> {
        Ok(self.read().await?.map(|found| found.envelope.token))
    }

    /// Replaces the whole object.
    ///
    /// # Errors
    ///
    /// [`FenceError::Stale`] when a newer lease has been here. After [`FenceError::Failed`]
    /// with an unknown outcome it may still be written, unless a newer lease comes first.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may or may not be written.
    pub async fn put(&self, token: Token, content: impl Into<Bytes>) -> Result<(), FenceError> {
        let content = content.into();
        self.write(token, |_| (true, content.clone())).await
    }

    /// Deletes the object: a line remains, so that a late writer cannot bring it back.
    ///
    /// # Errors
    ///
    /// As [`FencedObject::put`].
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may or may not be deleted.
    pub async fn delete(&self, token: Token) -> Result<(), FenceError> {
        self.write(token, |_| (false, Bytes::new())).await
    }

    /// Shuts out every older lease from now on. Writes the content again, as it is.
    ///
    /// # Errors
    ///
    /// As [`FencedObject::put`].
    ///
    /// # Cancel safety
    ///
    /// Dropped, the mark may or may not be raised.
    pub async fn advance(&self, token: Token) -> Result<(), FenceError> {
        let as_it_is = |found: &Found| (found.envelope.live, found.content.clone());
        self.write(token, |found| found.map_or_else(|| (false, Bytes::new()), as_it_is)).await
    }

    /// Puts what `change` makes of the object as it is: whether it lives, and its content. Asked
    /// again whenever another write came between.
    async fn write(
        &self,
        token: Token,
        change: impl Fn(Option<&Found>) -> (bool, Bytes),
    ) -> Result<(), FenceError> {
        // Nobody else's: by it a write recognises itself.
        let nonce = format!("{:032x}", rand::random::<u128>());
        for _ in 0..ATTEMPTS {
            let found = self.read().await?;
            if let Some(found) = &found {
                if found.envelope.nonce == nonce {
                    return Ok(());
                }
                if found.envelope.token > token {
                    let stale = StaleToken { given: token, seen: found.envelope.token };
                    return Err(rejected(KIND, self.path.as_ref(), stale).into());
                }
            }
            let (live, content) = change(found.as_ref());
            let payload = Envelope { token, nonce: nonce.clone(), live }.seal(&content);
            let mode = found.map_or(PutMode::Create, |found| PutMode::Update(found.version));
            match self.store.put_opts(&self.path, payload.into(), PutOptions::from(mode)).await {
                Ok(_) => return Ok(()),
                // Changed since we read it, perhaps by ourselves: look again.
                Err(
                    StoreError::AlreadyExists { .. }
                    | StoreError::Precondition { .. }
                    | StoreError::NotFound { .. },
                ) => {}
                Err(
                    error @ (StoreError::NotImplemented { .. } | StoreError::NotSupported { .. }),
                ) => {
                    return Err(self.failed(Outcome::NotApplied, error));
                }
                Err(error) => {
                    // Done or not? If it cannot be read, nobody knows.
                    let found = self.read().await.ok().flatten();
                    return match found.is_some_and(|f| f.envelope.nonce == nonce) {
                        true => Ok(()),
                        false => Err(self.failed(Outcome::Unknown, error)),
                    };
                }
            }
        }
        Err(FenceError::Failed {
            resource: self.path.to_string(),
            outcome: Outcome::NotApplied,
            message: format!("{ATTEMPTS} times another write came between; write less at once"),
            source: None,
        })
    }

    async fn read(&self) -> Result<Option<Found>, FenceError> {
        let got = match self.store.get(&self.path).await {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            got => got.map_err(|error| self.failed(Outcome::NotApplied, error))?,
        };
        let version =
            UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
        let payload = got.bytes().await;
        let payload = payload.map_err(|error| self.failed(Outcome::NotApplied, error))?;
        let (envelope, content) = Envelope::open(payload).ok_or_else(|| FenceError::Failed {
            resource: self.path.to_string(),
            outcome: Outcome::NotApplied,
            message: "it is no fenced object: it does not begin with a leasehold-fence line; \
                      somebody wrote it without a token"
                .to_owned(),
            source: None,
        })?;
        Ok(Some(Found { envelope, content, version }))
    }

    fn failed(&self, outcome: Outcome, error: StoreError) -> FenceError {
        FenceError::failed(self.path.to_string(), outcome, error)
    }
}

impl fmt::Debug for FencedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedObject").field("path", &self.path).finish_non_exhaustive()
    }
}
