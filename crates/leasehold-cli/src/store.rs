//! The store that is meant: from the flag, the environment, the config file or the
//! default, with its secrets put in.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;

use leasehold::{Connect, Consistency, Error, Locks};

use crate::args::{OnStore, Require};
use crate::config::Config;
use crate::exit::{Failure, HELD, USAGE};
use crate::nested::{self, Inherited};
use crate::secrets;

/// The embedded store of this user.
const DEFAULT: &str = "sqlite:";

/// A store to be connected to.
pub(crate) struct Store {
    url: String,
    /// As the user wrote it.
    given: String,
    /// The config file, if it is written there.
    file: Option<PathBuf>,
    required: Option<Consistency>,
}

impl Store {
    pub(crate) fn resolve(args: OnStore, config: &Config) -> Result<Self, Failure> {
        let (given, file) = match (args.store, &config.store) {
            (Some(url), _) => (url, None),
            (None, Some(url)) => (url.clone(), config.file.clone()),
            (None, None) => (DEFAULT.to_owned(), None),
        };
        if given.is_empty() {
            // A variable that is not set. The default would be another store than the one that
            // was meant, and would keep nobody out.
            let message = "the store's URL is empty (in --store, LEASEHOLD_STORE or the config \
                           file): name the store, or leave it out; this user's own is sqlite:";
            return Err(Failure::new(USAGE, message));
        }
        let url = secrets::resolve(&given)?;
        if !url.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme)) {
            // What was put in may be a secret: only what was given is repeated.
            let message = format!(
                "{:?} is no store's URL; for an embedded store write sqlite:/path/to/locks.db",
                secrets::named(&given)
            );
            return Err(Failure::new(USAGE, message));
        }
        let required = args.require.or(config.require).map(Require::consistency);
        Ok(Self { url, given, file, required })
    }

    /// Its URL, secrets and all.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What its URL begins with.
    pub(crate) fn scheme(&self) -> &str {
        self.url.split_once(':').map_or("", |(scheme, _)| scheme)
    }

    /// What a command under a lock of it inherits, to find it again.
    pub(crate) fn inherited(&self) -> Inherited {
        nested::inherited(&self.given, &self.url, self.file.as_deref())
    }

    /// A client of it that calls itself so.
    pub(crate) fn client(&self, label: impl Into<String>) -> Connect {
        let client = leasehold::connect(&self.url).label(label);
        match self.required {
            Some(consistency) => client.require(consistency),
            None => client,
        }
    }

    /// Connects, and does this with its locks.
    pub(crate) fn with<F>(
        &self,
        label: impl Into<String>,
        work: impl FnOnce(Locks) -> F,
    ) -> Result<u8, Failure>
    where
        F: Future<Output = Result<u8, Failure>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::broken("cannot start", &error))?;
        let client = self.client(label);
        let done = runtime.block_on(async { work(client.await.map_err(refused)?).await });
        runtime.shutdown_background();
        done
    }
}

/// What the library says to a command that takes no lock.
pub(crate) fn refused(error: Error) -> Failure {
    Failure::from_library(&error, HELD)
}

fn is_scheme(text: &str) -> bool {
    let ok = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(ok)
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("scheme", &self.scheme()).finish_non_exhaustive()
    }
}
