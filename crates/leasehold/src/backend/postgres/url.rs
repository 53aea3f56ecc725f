//! What a URL asks for. Its password stays in here.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;
use url::Url;

use super::tls::{self, Verification};
use crate::backend::kit::url::{check_encoded, decode};
use crate::error::{Error, Result};

/// How locks are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// As rows of a table.
    #[default]
    Lease,
    /// As advisory locks of a session.
    Session,
}

/// A URL, taken apart.
pub(super) struct Settings {
    pub(super) mode: Mode,
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
    /// Where the server is, for people.
    pub(super) place: String,
    pub(super) connect_timeout: Duration,
    /// The same database at the address to listen at, when the rest goes through a pooler.
    pub(super) listen: Option<Config>,
    /// A force-release may end a session that holds other locks as well.
    pub(super) force_sessions: bool,
}

const OPTIONS: &str =
    "mode, sslmode, sslrootcert, connect_timeout, application_name, host, listen, force";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl Settings {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
        check_encoded(rest)?;
        // The parser's own errors do not repeat the text, which may hold a password.
        let url = Url::parse(text).map_err(|error| {
            Error::invalid(format!("this is no URL of a PostgreSQL server: {error}"))
        })?;
        let mut config = Config::new();
        let user = decode(url.username(), "user")?;
        if !user.is_empty() {
            config.user(user);
        }
        match url.password() {
            Some(password) => drop(config.password(decode(password, "password")?)),
            None => drop(env::var("PGPASSWORD").map(|password| config.password(password))),
        }
        let database = decode(url.path().trim_start_matches('/'), "database")?;
        if !database.is_empty() {
            config.dbname(database.clone());
        }
        let mut options = Options::default();
        for (key, value) in url.query_pairs() {
            options.set(&key, &value)?;
        }
        let host = match (options.host, url.host_str()) {
            (Some(host), _) => host,
            (None, Some(host)) if !host.is_empty() => {
                decode(host.trim_start_matches('[').trim_end_matches(']'), "host")?
            }
            _ => "localhost".to_owned(),
        };
        let port = url.port().unwrap_or(5432);
        config.application_name(options.application_name.as_deref().unwrap_or("leasehold"));
        let connect_timeout = options.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
        config.connect_timeout(connect_timeout);
        // So that a server that vanished is noticed, and not only when the kernel gives up.
        config.keepalives_idle(Duration::from_secs(5)).keepalives_interval(Duration::from_secs(2));
        config.keepalives_retries(3).tcp_user_timeout(Duration::from_secs(12));
        let (ssl, verification) = options.ssl.unwrap_or((SslMode::Prefer, Verification::None));
        config.ssl_mode(ssl);
        let tls = tls::connector(verification, options.sslrootcert.as_deref())?;
        let listen = options.listen.map(|(host, port)| {
            let mut elsewhere = config.clone();
            elsewhere.host(host).port(port);
            elsewhere
        });
        config.host(&host).port(port);
        let place = format!("{host}:{port}/{database}");
        let Options { mode, force_sessions, .. } = options;
        Ok(Self { mode, config, tls, place, connect_timeout, listen, force_sessions })
    }
}

#[derive(Default)]
struct Options {
    mode: Mode,
    ssl: Option<(SslMode, Verification)>,
    sslrootcert: Option<PathBuf>,
    connect_timeout: Option<Duration>,
    application_name: Option<String>,
    host: Option<String>,
    listen: Option<(String, u16)>,
    force_sessions: bool,
}

impl Options {
    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "mode" => {
                self.mode = match value {
                    "lease" => Mode::Lease,
                    "session" => Mode::Session,
                    _ => return Err(Error::invalid("mode is lease (default) or session")),
                }
            }
            "sslmode" => {
                // As libpq names and means them.
                self.ssl = Some(match value {
                    "disable" => (SslMode::Disable, Verification::None),
                    "prefer" => (SslMode::Prefer, Verification::None),
                    "require" => (SslMode::Require, Verification::None),
                    "verify-ca" => (SslMode::Require, Verification::Chain),
                    "verify-full" => (SslMode::Require, Verification::Full),
                    _ => {
                        let message = "sslmode is disable, prefer (default), require, verify-ca \
                                       or verify-full";
                        return Err(Error::invalid(message));
                    }
                });
            }
            "sslrootcert" => self.sslrootcert = Some(value.into()),
            "connect_timeout" => {
                let seconds = value.parse().ok().filter(|seconds| (1..=600).contains(seconds));
                let wrong = || Error::invalid("connect_timeout is 1 to 600 seconds");
                self.connect_timeout = Some(Duration::from_secs(seconds.ok_or_else(wrong)?));
            }
            "application_name" => self.application_name = Some(value.to_owned()),
            "force" if value == "session" => self.force_sessions = true,
            "force" => return Err(Error::invalid("force can only be session")),
            "host" => self.host = Some(value.to_owned()),
            "listen" => {
                let (host, port) = value.rsplit_once(':').unwrap_or((value, "5432"));
                let wrong = |_| Error::invalid("listen is HOST or HOST:PORT");
                self.listen = Some((host.to_owned(), port.parse().map_err(wrong)?));
            }
            _ => {
                let message = format!("unknown option {key:?}; there are {OPTIONS}");
                return Err(Error::invalid(message));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the driver's settings, which hold the password.
        f.debug_struct("Settings")
            .field("mode", &self.mode)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_password_shows_nowhere() {
        let url = "postgres://me:s3cr%65t@db.example:5433/app?mode=session&sslmode=disable";
        let settings = Settings::parse(url).unwrap();
        assert_eq!(settings.config.get_password(), Some(&b"s3cret"[..]));
        assert_eq!((settings.mode, &*settings.place), (Mode::Session, "db.example:5433/app"));
        assert!(!format!("{settings:?}").contains("s3cr"));
        let error = Settings::parse("postgres://me:s3cret@db:port/app").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }

    #[test]
    fn what_it_does_not_know_is_refused() {
        for (option, told) in [
            ("mode=both", "lease"),
            ("sslmode=maybe", "verify-full"),
            ("colour=red", "unknown option"),
            ("connect_timeout=0", "1 to 600"),
            ("listen=here:there", "HOST:PORT"),
        ] {
            let error = Settings::parse(&format!("postgres://db/app?{option}")).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(told), "{error}");
        }
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::kit::url::properties::{SECRET, TEXT, with_password};

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in TEXT) {
            let _ = Settings::parse(&text);
            let _ = Settings::parse(&format!("postgres://{text}"));
        }

        /// A password from a generator has a slash now and then, and nobody escapes it.
        #[test]
        fn no_error_repeats_a_password(rest in with_password()) {
            if let Err(error) = Settings::parse(&format!("postgres://{rest}")) {
                let told = format!("{error} {error:?}");
                prop_assert!(!told.contains(SECRET), "{told}");
            }
        }
    }
}
