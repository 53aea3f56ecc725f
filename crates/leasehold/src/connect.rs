//! From a URL, or a store opened by hand, to a client.

use std::collections::BTreeMap;
use std::fmt;
use std::future::IntoFuture;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::memory::MemoryStore;
use crate::backend::{Backend, Reply};
use crate::client::Client;
use crate::clock::{Alarm, Clock};
use crate::context::Context;
use crate::detach::Detacher;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::event::Announcer;
use crate::failpoint::Failpoints;
use crate::guarantees::Consistency;
use crate::holder::Holder;
use crate::locks::Locks;
use crate::observe::{Meter, StallWatch};
use crate::store_kind::StoreKind;

/// How long a request may take before its outcome counts as unknown.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Connects to the store behind `url`:
///
/// | URL | store |
/// |---|---|
/// | `sqlite:` | the embedded store of this user, for the processes of this machine |
/// | `sqlite:/path/to/locks.db` | an embedded store at this path |
/// | `etcd://host:port,host:port/prefix` | an etcd cluster (feature `etcd`); `etcds:` with TLS |
/// | `zk://host:2181,host:2181/root` | ZooKeeper (with the feature `zookeeper`); `zks:` for TLS |
/// | `postgres://user@host/database` | PostgreSQL, leases in a table; `?mode=session` for advisory locks |
/// | `memory:` | a store of its own in the memory of this process |
/// | `memory:name` | the store of this name in the memory of this process |
/// | `redlock://host,host,host` | a majority of independent Redis servers (feature `redis`) |
/// | `redis://host` | a Redis or Valkey server (feature `redis`); also `redis+sentinel://`, `redis+cluster://` |
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = leasehold::connect("memory:").await?;
/// let lease = locks.lock("inventory:item42").acquire().await?;
/// println!("write with token {}", lease.token());
/// lease.release().await?;
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
pub fn connect(url: impl Into<String>) -> Connect {
    Connect::new(Target::Url(url.into()))
}

impl Locks {
    /// A client of this store, for stores that were opened by hand.
    pub fn on(backend: Arc<dyn Backend>) -> Connect {
        Connect::new(Target::Backend(backend))
    }
}

/// A client to be: set what it needs, then `.await` it.
#[must_use = "a client connects when it is awaited"]
pub struct Connect {
    target: Target,
    required: Option<Consistency>,
    holder: Holder,
    clock: Option<Clock>,
    schemes: Schemes,
    failpoints: Failpoints,
    request_timeout: Duration,
}

/// Opens a store by its URL.
type Open = Box<dyn FnOnce(String, Clock) -> Reply<Arc<dyn Backend>> + Send>;

/// How stores from elsewhere are opened, by the scheme of their URLs.
type Schemes = BTreeMap<String, Open>;

enum Target {
    Url(String),
    Backend(Arc<dyn Backend>),
}

impl Connect {
    fn new(target: Target) -> Self {
        Self {
            target,
            required: None,
            holder: Holder::this_process(),
            clock: None,
            schemes: Schemes::new(),
            failpoints: Failpoints::default(),
            request_timeout: REQUEST_TIMEOUT,
        }
    }

    /// Refuses a store that promises less.
    pub fn require(mut self, consistency: Consistency) -> Self {
        self.required = Some(consistency);
        self
    }

    /// What this process calls itself to those who ask who holds a lock. Default: the
    /// program's name.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.holder.label = label.into();
        self
    }

    /// A process group that acts under this client's leases and may outlive this process
    /// when that is killed, as the command of `leasehold run` does. A store that sees
    /// processes come and go counts the holder as gone only when the group is, too.
    pub fn process_group(mut self, group: u32) -> Self {
        self.holder.process_group = Some(group);
        self
    }

    /// How long a request may take before its outcome counts as unknown. Default: 2 s.
    /// (Renewals of leases with a short TTL wait less.)
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.request_timeout = limit;
        self
    }

    /// The clock of the store, and so of its leases, where the store is opened by its URL.
    /// Default: the machine's. (A store that was opened by hand has its own.)
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Opens URLs that begin with `scheme:` by this function: for stores that are not part of
    /// this library.
    ///
    /// ```
    /// use leasehold::backend::{Backend, memory::MemoryStore};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let connect = leasehold::connect("shelf://ours").scheme("shelf", |_url, clock| {
    ///     Box::pin(async { Ok(MemoryStore::new(clock) as _) })
    /// });
    /// let locks = connect.await?;
    /// # locks.lock("job").acquire().await?.release().await?;
    /// # Ok::<(), leasehold::Error>(()) }).unwrap();
    /// ```
    pub fn scheme<F>(mut self, scheme: impl Into<String>, open: F) -> Self
    where
        F: FnOnce(String, Clock) -> Reply<Arc<dyn Backend>> + Send + 'static,
    {
        self.schemes.insert(scheme.into(), Box::new(open));
        self
    }

    /// Points where a test interferes with this client.
    #[cfg(feature = "failpoints")]
    pub fn failpoints(mut self, failpoints: Failpoints) -> Self {
        self.failpoints = failpoints;
        self
    }

    async fn connect(self) -> Result<Locks> {
        let runtime = Handle::try_current().map_err(|_| {
            let message = "connecting needs a tokio runtime: call it inside one";
            Error::new(ErrorKind::NoRuntime, message)
        })?;
        let backend = match self.target {
            Target::Url(url) => open(url, self.clock.unwrap_or_default(), self.schemes).await?,
            Target::Backend(backend) if self.clock.is_none() => backend,
            Target::Backend(_) => {
                let message = "a store that was opened by hand has its own clock: give it there";
                return Err(Error::invalid(message).during(Operation::Connect, None));
            }
        };
        let promised = backend.guarantees();
        if let Some(required) = self.required.filter(|required| *required > promised.consistency) {
            let message = format!(
                "{required} was required, but this store is {}; choose a stronger store",
                promised.consistency
            );
            let refused = Error::new(ErrorKind::Refused, message);
            return Err(refused.on_store(promised.store).during(Operation::Connect, None));
        }
        if self.request_timeout.is_zero() {
            return Err(Error::invalid("a request time-out must not be zero"));
        }
        let store = promised.store;
        let alarm = alarm(backend.clock())?;
        let context = Context {
            clock: backend.clock().clone(),
            backend,
            holder: Arc::new(self.holder),
            announcer: Announcer::default(),
            meter: Meter::new(store),
            stalls: StallWatch::new(store),
            failpoints: self.failpoints,
            detacher: Detacher::on(runtime.clone()),
            runtime,
            request_timeout: self.request_timeout,
        };
        Ok(Locks::new(Client::new(context, alarm)))
    }
}

/// The timer that losses fire by, or why this runtime cannot have one.
fn alarm(clock: &Clock) -> Result<Alarm> {
    // Tokio panics on a runtime without its drivers, and cannot be asked for them.
    let made = std::panic::catch_unwind(AssertUnwindSafe(|| {
        drop(tokio::time::sleep(Duration::ZERO));
        clock.alarm()
    }));
    let made = made.map_err(|_| {
        let message = "this tokio runtime has no timers or no I/O, which leases are kept by: \
                       build it with enable_all()";
        Error::new(ErrorKind::NoRuntime, message).during(Operation::Connect, None)
    })?;
    made.map_err(|error| {
        let message = format!("no timer to keep leases by: {error}");
        Error::new(ErrorKind::Unavailable, message).not_applied().caused_by(error)
    })
}

/// What to do about a store that this build was made without.
fn how_to_get(scheme: &str) -> &'static str {
    match scheme {
        "etcd" | "etcds" => {
            " (build it with the cargo feature `etcd`, which needs protoc: Debian has it in \
             protobuf-compiler)"
        }
        _ => "",
    }
}

async fn open(url: String, clock: Clock, mut schemes: Schemes) -> Result<Arc<dyn Backend>> {
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let parts = url.split_once(':').filter(|(scheme, _)| scheme.chars().all(is_scheme));
    let (scheme, rest) = parts.ok_or_else(|| {
        // A connection string (`host=db password=…`) is no URL and has a password all the same.
        let message = match url.contains([':', '=', '@']) {
            true => "this is no store's URL, which begins with its scheme: postgres://user@host/db"
                .to_owned(),
            false => format!("{url:?} is no store's URL; for an embedded store write sqlite:{url}"),
        };
        Error::invalid(message).during(Operation::Connect, None)
    })?;
    if let Some(open) = schemes.remove(scheme) {
        return open(url, clock).await;
    }
    let kind = StoreKind::of_scheme(scheme).ok_or_else(|| {
        // The URL itself may carry a password: only the scheme is repeated.
        let built_in = StoreKind::ALL.iter().map(|kind| kind.schemes()[0]);
        let known: Vec<_> = built_in.chain(schemes.keys().map(String::as_str)).collect();
        let known = known.join(":, ");
        let how = how_to_get(scheme);
        let message = format!("this build knows no store {scheme:?}{how}; it has {known}:");
        Error::invalid(message).during(Operation::Connect, None)
    })?;
    match kind {
        StoreKind::Memory if rest.is_empty() => Ok(MemoryStore::new(clock)),
        StoreKind::Memory if clock.is_boot() => Ok(MemoryStore::named(rest)),
        StoreKind::Memory => {
            let message = "a named memory store runs on the machine's clock; for another one \
                           make a MemoryStore and use Locks::on";
            Err(Error::invalid(message).during(Operation::Connect, None))
        }
        #[cfg(feature = "sqlite")]
        StoreKind::Sqlite => {
            use crate::backend::sqlite::SqliteStore;
            let path = match rest.strip_prefix("//").unwrap_or(rest) {
                "" => SqliteStore::default_path()?,
                path => path.into(),
            };
            Ok(SqliteStore::open(&path, clock)?)
        }
        #[cfg(feature = "redis")]
        StoreKind::Redis => Ok(crate::backend::redis::RedisStore::open(&url, clock).await?),
        #[cfg(feature = "redis")]
        StoreKind::Redlock => Ok(crate::backend::redlock::RedlockStore::open(&url, clock).await?),
        #[cfg(feature = "etcd")]
        StoreKind::Etcd => Ok(crate::backend::etcd::EtcdStore::open(&url, clock).await?),
        #[cfg(feature = "zookeeper")]
        StoreKind::Zookeeper => {
            use crate::backend::zookeeper::ZookeeperStore;
            Ok(ZookeeperStore::open(&url, clock).await?)
        }
        #[cfg(feature = "postgres")]
        StoreKind::Postgres => crate::backend::postgres::open(&url, clock).await,
    }
}

impl IntoFuture for Connect {
    type Output = Result<Locks>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Locks>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.connect())
    }
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the URL nor the store: a URL may carry a password.
        f.debug_struct("Connect")
            .field("required", &self.required)
            .field("holder", &self.holder)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A build without etcd says how to get one; the URL, with its password, is not repeated.
    #[test]
    fn a_store_that_was_left_out_says_how_to_get_it() {
        for scheme in ["etcd", "etcds"] {
            let how = how_to_get(scheme);
            assert!(how.contains("feature `etcd`") && how.contains("protobuf-compiler"), "{how}");
        }
        assert_eq!(how_to_get("ftp"), "");
    }

    /// A scheme of somebody else is named among those that are there, and opens a store.
    #[tokio::test]
    async fn stores_from_elsewhere_have_schemes_of_their_own() {
        let on_shelf = |url| {
            connect(url).scheme("shelf", |url, clock| {
                assert_eq!(url, "shelf://ours");
                Box::pin(async { Ok(MemoryStore::new(clock) as _) })
            })
        };
        let locks = on_shelf("shelf://ours").await.unwrap();
        locks.lock("job").acquire().await.unwrap().release().await.unwrap();
        let error = on_shelf("drawer://ours").await.unwrap_err();
        assert!(error.to_string().contains(", shelf:"), "{error}");
    }

    /// A client and its store count by one clock.
    #[tokio::test]
    async fn a_store_that_was_opened_by_hand_brings_its_clock() {
        let store = MemoryStore::new(Clock::manual(Arc::default()));
        let error = Locks::on(store).clock(Clock::boot()).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
    }

    #[cfg(not(feature = "etcd"))]
    #[tokio::test]
    async fn without_the_feature_the_url_is_refused() {
        let error = connect("etcd://me:secret@host/locks").await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid);
        let told = format!("{error} {error:?}");
        assert!(told.contains("feature `etcd`") && !told.contains("secret"), "{told}");
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    /// Whatever it is, it names no store that could be opened.
    fn refused(url: &str) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let error = runtime
            .block_on(open(url.to_owned(), Clock::boot(), Schemes::new()))
            .expect_err("no such store");
        assert_eq!(*error.kind(), ErrorKind::Invalid);
        format!("{error} {error:?}")
    }

    proptest! {
        #[test]
        fn what_is_no_url_is_refused_without_its_password(before in ".*", after in ".*") {
            let told = refused(&format!("{before}password=hush{after}"));
            prop_assert!(!told.contains("hush"), "{told}");
        }

        #[test]
        fn an_unknown_scheme_is_refused_without_the_rest(scheme in "[A-Z0-9/ .+-]*", rest in ".*") {
            let told = refused(&format!("{scheme}:{rest}hush"));
            prop_assert!(!told.contains("hush"), "{told}");
        }
    }
}
