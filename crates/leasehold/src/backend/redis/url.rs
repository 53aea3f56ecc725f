//! What a URL says about a Redis store. Its secrets show in no `Debug`.

use std::time::Duration;

pub(in crate::backend) use crate::backend::kit::url::{Host, Login};
use crate::backend::kit::url::{Parts, TlsFiles, decode, duration};
use crate::error::{Error, Operation, Result};

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;
const DEFAULT_PREFIX: &str = "lock:";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

/// How to reach a Redis store, and how to use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) deployment: Deployment,
    pub(crate) hosts: Vec<Host>,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    pub(crate) database: i64,
    pub(crate) prefix: String,
    /// How long to wait for a connection, or for an answer that nobody else times.
    pub(crate) timeout: Duration,
    /// How many replicas must have a lease before it counts.
    pub(crate) wait_replicas: u32,
    pub(crate) allow_unsafe: bool,
    /// What a redlock's list of nodes is called, where clients reach them by other addresses.
    pub(crate) list: Option<String>,
}

/// How the servers belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// One server.
    Single,
    /// Sentinels that know the present master of this name.
    Sentinel { master: String },
    /// A cluster; the hosts are where to begin.
    Cluster,
    /// Masters that know nothing of each other: a redlock.
    Independent,
}

impl Settings {
    /// Reads a URL. No message repeats more of it than the option that is wrong.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let store = if url.starts_with("redlock") { "redlock" } else { "redis" };
        Self::read(url).map_err(|error| error.on_store(store).during(Operation::Connect, None))
    }

    fn read(url: &str) -> Result<Self> {
        let form = "write redis://host:port, redis+sentinel://host,host/master or \
                    redis+cluster://host,host (or redlock://host,host,host)";
        let (scheme, rest) = url.split_once("://").ok_or_else(|| Error::invalid(form))?;
        let parts = Parts::of(rest)?;
        let path = parts.path.unwrap_or("");
        let (secure, kind) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            ("redis", kind) => (false, kind),
            ("rediss", kind) => (true, kind),
            ("redlock", "") => (false, "redlock"),
            ("redlocks", "") => (true, "redlock"),
            _ => return Err(Error::invalid(form)),
        };
        let default_port = if kind == "sentinel" { DEFAULT_SENTINEL_PORT } else { DEFAULT_PORT };
        let hosts = parts.hosts(default_port)?;
        let (deployment, database) = match kind {
            "" if hosts.len() > 1 => {
                return Err(Error::invalid(
                    "redis:// is one server; for several write redis+sentinel:// or \
                     redis+cluster://",
                ));
            }
            "" => (Deployment::Single, path),
            "sentinel" => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(Error::invalid(
                        "the master's name is missing: redis+sentinel://host,host/master",
                    ));
                }
                (Deployment::Sentinel { master: decode(master, "master")? }, database)
            }
            "redlock" => (Deployment::Independent, path),
            "cluster" if matches!(path, "" | "0") => (Deployment::Cluster, ""),
            "cluster" => return Err(Error::invalid("a cluster has no database but 0")),
            _ => return Err(Error::invalid(form)),
        };
        let mut settings = Self {
            deployment,
            hosts,
            tls: None,
            login: parts.login()?.unwrap_or_default(),
            sentinel_login: Login::default(),
            database: read_database(database)?,
            prefix: DEFAULT_PREFIX.to_owned(),
            timeout: DEFAULT_TIMEOUT,
            wait_replicas: 0,
            allow_unsafe: false,
            list: None,
        };
        let mut files = TlsFiles::default();
        for option in parts.options() {
            let (name, value) = option?;
            if !files.take(name, &value) {
                settings.set(name, value)?;
            }
        }
        if secure {
            files.identity()?;
            settings.tls = Some(files);
        } else if !files.are_none() {
            let message = "ca, cert and key need TLS: write rediss:// (or redlocks://)";
            return Err(Error::invalid(message));
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: String) -> Result<()> {
        let sentinel = matches!(self.deployment, Deployment::Sentinel { .. });
        let independent = self.deployment == Deployment::Independent;
        match name {
            "prefix" => self.prefix = value,
            "list" if independent && !value.is_empty() => self.list = Some(value),
            "timeout" => self.timeout = duration(name, &value)?,
            "wait-replicas" => {
                self.wait_replicas = value.parse().map_err(|_| {
                    Error::invalid("wait-replicas is a number of replicas, as in wait-replicas=1")
                })?;
            }
            "allow-unsafe" if matches!(value.as_str(), "" | "true") => self.allow_unsafe = true,
            "allow-unsafe" if value == "false" => self.allow_unsafe = false,
            "allow-unsafe" => return Err(Error::invalid("allow-unsafe is true or false")),
            "sentinel-user" if sentinel => self.sentinel_login.user = Some(value),
            "sentinel-password" if sentinel => self.sentinel_login.password = Some(value),
            _ => {
                return Err(Error::invalid(format!(
                    "there is no option {name:?}; there are prefix, timeout, wait-replicas, \
                     allow-unsafe, ca, cert, key, and for Sentinel sentinel-user and \
                     sentinel-password"
                )));
            }
        }
        Ok(())
    }
}

fn read_database(text: &str) -> Result<i64> {
    match text {
        "" => Ok(0),
        number => number
            .parse()
            .ok()
            .filter(|number| *number >= 0)
            .ok_or_else(|| Error::invalid("the database after the host is a number, as in /0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(settings: &Settings) -> Vec<String> {
        settings.hosts.iter().map(Host::to_string).collect()
    }

    #[test]
    fn reads_one_server() {
        let settings = Settings::parse("redis://127.0.0.1").unwrap();
        assert_eq!(hosts(&settings), ["127.0.0.1:6379"]);
        assert_eq!((settings.prefix.as_str(), settings.database), ("lock:", 0));
        let url = "rediss://me:s%40cret@[::1]:7000/3?prefix=a%26b:&timeout=500ms&wait-replicas=2";
        let settings = Settings::parse(url).unwrap();
        assert_eq!(hosts(&settings), ["[::1]:7000"]);
        assert_eq!(settings.login.password.as_deref(), Some("s@cret"));
        assert_eq!((settings.prefix.as_str(), settings.database), ("a&b:", 3));
        assert_eq!(settings.timeout, Duration::from_millis(500));
        assert_eq!((settings.wait_replicas, settings.allow_unsafe), (2, false));
        assert!(settings.tls.is_some());
    }

    #[test]
    fn reads_sentinels_and_clusters() {
        let settings =
            Settings::parse("redis+sentinel://:pw@a,b:1/main/2?sentinel-password=x&allow-unsafe")
                .unwrap();
        assert_eq!(hosts(&settings), ["a:26379", "b:1"]);
        assert_eq!(settings.deployment, Deployment::Sentinel { master: "main".to_owned() });
        assert_eq!((settings.database, settings.allow_unsafe), (2, true));
        let settings = Settings::parse("redis+cluster://a,b").unwrap();
        assert_eq!(settings.deployment, Deployment::Cluster);
    }

    #[test]
    fn what_cannot_work_is_refused_without_secrets() {
        for url in [
            "redis:host",
            "redis://",
            "redis://u:hush@host:port",
            "redis://u:hush@a,b",
            "redis+sentinel://u:hush@a",
            "redis+cluster://u:hush@a/1",
            "redis+ring://u:hush@a",
            "redis://u:hush@a/x",
            "redis://u:hush@a?nonsense=1",
            "redis://u:hush@a?timeout=0s",
            "redis://u:hush@a?timeout=5",
            "redis://u:hush@a?ca=file",
            "rediss://u:hush@a?cert=file",
            "redis://u:hush@a:0",
            "redis://u:hush@a?sentinel-password=hush",
            "redis://u:hush%ff@a",
            "redis://u:hush/hush@a",
            "redis+sentinel://u:12/hush@a,b",
        ] {
            let error = Settings::parse(url).unwrap_err();
            assert_eq!(*error.kind(), crate::ErrorKind::Invalid, "{url}");
            assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
        }
        let settings = Settings::parse("redis://u:hush@a").unwrap();
        assert!(!format!("{settings:?}").contains("hush"), "{settings:?}");
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::kit::url::properties::{SECRET, TEXT, with_password};

    const SCHEMES: &[&str] =
        &["redis", "rediss", "redis+sentinel", "rediss+cluster", "redlock", "redlocks"];

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(scheme in prop::sample::select(SCHEMES), text in TEXT) {
            let _ = Settings::parse(&text);
            let _ = Settings::parse(&format!("{scheme}://{text}"));
        }

        /// A password from a generator has a slash now and then, and nobody escapes it.
        #[test]
        fn no_error_repeats_a_password(
            scheme in prop::sample::select(SCHEMES),
            rest in with_password(),
        ) {
            if let Err(error) = Settings::parse(&format!("{scheme}://{rest}")) {
                let told = format!("{error} {error:?}");
                prop_assert!(!told.contains(SECRET), "{told}");
            }
        }
    }
}
