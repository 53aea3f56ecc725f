//! What the URLs of stores have in common:
//! `//user:password@host:port,host:port/path?option=value`.
//!
//! No message repeats a part of a URL that could be a password: without its `@`, that is any part.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::error::{Error, Result};

/// The parts of a URL behind its `//`, as they were written.
#[derive(Clone, Copy)]
pub(in crate::backend) struct Parts<'a> {
    login: Option<&'a str>,
    hosts: &'a str,
    /// What follows the first slash.
    pub(in crate::backend) path: Option<&'a str>,
    query: &'a str,
}

/// Who logs in.
#[derive(Clone, Default, PartialEq, Eq)]
pub(in crate::backend) struct Login {
    pub(in crate::backend) user: Option<String>,
    pub(in crate::backend) password: Option<String>,
}

/// One address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::backend) struct Host {
    pub(in crate::backend) name: String,
    pub(in crate::backend) port: u16,
}

/// The files of TLS, in PEM form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::backend) struct TlsFiles {
    /// Whom to trust, in place of the system's certificates.
    pub(in crate::backend) ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl<'a> Parts<'a> {
    pub(in crate::backend) fn of(rest: &'a str) -> Result<Self> {
        check_encoded(rest)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match place.split_once('/') {
            Some((authority, path)) => (authority, Some(path)),
            None => (place, None),
        };
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        Ok(Self { login, hosts, path, query })
    }

    /// Who logs in; `None` in a URL without `@`.
    pub(in crate::backend) fn login(&self) -> Result<Option<Login>> {
        let Some(login) = self.login else { return Ok(None) };
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (login, None),
        };
        let user = Some(user).filter(|user| !user.is_empty());
        let decoded = |text: Option<&str>, what| text.map(|text| decode(text, what)).transpose();
        Ok(Some(Login { user: decoded(user, "user")?, password: decoded(password, "password")? }))
    }

    /// Whether it names no host at all.
    pub(in crate::backend) fn is_hostless(&self) -> bool {
        self.hosts.is_empty()
    }

    pub(in crate::backend) fn hosts(&self, default_port: u16) -> Result<Vec<Host>> {
        let hosts = self.hosts.split(',').enumerate().map(|(index, text)| {
            Host::parse(text, default_port).ok_or_else(|| {
                let number = index + 1;
                Error::invalid(format!("host {number} of the store's URL is not host:port"))
            })
        });
        hosts.collect()
    }

    /// Each option with its value; one without `=` has an empty one.
    pub(in crate::backend) fn options(&self) -> impl Iterator<Item = Result<(&'a str, String)>> {
        self.query.split('&').filter(|option| !option.is_empty()).map(|option| {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            Ok((name, decode(value, "option")?))
        })
    }
}

impl Host {
    fn parse(text: &str, default_port: u16) -> Option<Self> {
        let (name, port) = match text.strip_prefix('[') {
            // The brackets of an IPv6 address hide its colons.
            Some(rest) => match rest.split_once(']')? {
                (name, "") => (name, None),
                (name, port) => (name, Some(port.strip_prefix(':')?)),
            },
            None => match text.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (text, None),
            },
        };
        let port = port.map_or(Some(default_port), |port| port.parse().ok())?;
        let name = decode(name, "host").ok()?;
        let fine = |c: char| !c.is_whitespace() && !c.is_control();
        let usable = !name.is_empty() && name.chars().all(fine) && port != 0;
        usable.then_some(Self { name, port })
    }
}

impl TlsFiles {
    /// Takes the option if it is one of TLS.
    pub(in crate::backend) fn take(&mut self, option: &str, value: &str) -> bool {
        let file = match option {
            "ca" => &mut self.ca,
            "cert" => &mut self.cert,
            "key" => &mut self.key,
            _ => return false,
        };
        *file = Some(value.into());
        true
    }

    /// Our own certificate and its key.
    pub(in crate::backend) fn identity(&self) -> Result<Option<(PathBuf, PathBuf)>> {
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Ok(Some((cert.clone(), key.clone()))),
            (None, None) => Ok(None),
            _ => Err(Error::invalid("a client certificate needs both cert and key")),
        }
    }

    pub(in crate::backend) fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Refuses an `@` behind the hosts, given what follows the `//`. A password with a bare `/`, `?`
/// or `#` in it would be taken for a host, a path or an option, and be repeated as such.
pub(in crate::backend) fn check_encoded(rest: &str) -> Result<()> {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    if rest[end..].contains('@') {
        let message = "the URL has an @ behind its first /, ? or #. Special characters in the user \
                       and the password must be percent-encoded (/ is %2F, ? is %3F, # is %23, @ \
                       is %40), and so must an @ in what follows the hosts";
        return Err(Error::invalid(message));
    }
    Ok(())
}

/// Undoes percent-encoding.
pub(in crate::backend) fn decode(text: &str, what: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8().map(Into::into);
    decoded.map_err(|_| Error::invalid(format!("the URL's {what} is not UTF-8")))
}

/// The value of an option that is a span of time.
pub(in crate::backend) fn duration(option: &str, text: &str) -> Result<Duration> {
    let parsed = match text.strip_suffix("ms") {
        Some(number) => number.parse().ok().map(Duration::from_millis),
        None => text.strip_suffix('s').and_then(|n| n.parse().ok()).map(Duration::from_secs),
    };
    let wrong = || format!("write {option} as 500ms or 2s, longer than zero");
    parsed.filter(|span| !span.is_zero()).ok_or_else(|| Error::invalid(wrong()))
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = self.password.as_ref().map(|_| "…");
        f.debug_struct("Login").field("user", &self.user).field("password", &secret).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_with_a_bare_slash_is_noticed() {
        for fine in ["", "a", "me:pw@a:1,b/x?y=z", "me:p%2Fw@a/x%40y", "me:p@w@a"] {
            assert!(check_encoded(fine).is_ok(), "{fine}");
        }
        for wrong in ["me:p/w@a", "me:1/w@a:2", "me:p?w@a", "me:p#w@a", "me:p@w/x@a", "me:p/w@a/x"]
        {
            let error = check_encoded(wrong).unwrap_err();
            assert!(error.to_string().contains("percent-encoded"), "{error}");
        }
    }

    #[test]
    fn hosts_are_read_with_and_without_ports() {
        let parts = Parts::of("a,b:1,[::1]:2,[fe80::1],c%2Dd/x").unwrap();
        let hosts = parts.hosts(7).unwrap().iter().map(Host::to_string).collect::<Vec<_>>();
        assert_eq!(hosts, ["a:7", "b:1", "[::1]:2", "[fe80::1]:7", "c-d:7"]);
        for wrong in ["", "a,", "a:x", "a:0", "a:", "::1", "[::1", "[::1]2", "[::1]:", "a b", ":1"]
        {
            let error = Parts::of(wrong).unwrap().hosts(7).unwrap_err();
            assert!(error.to_string().contains("is not host:port"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let mut files = TlsFiles::default();
        assert!(files.are_none() && !files.take("timeout", "1s"));
        assert!(files.take("cert", "/c"));
        assert!(files.identity().unwrap_err().to_string().contains("both cert and key"));
        assert!(files.take("key", "/k"));
        assert_eq!(files.identity().unwrap(), Some(("/c".into(), "/k".into())));
    }

    #[test]
    fn spans_have_units() {
        assert_eq!(duration("timeout", "500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("timeout", "3s").unwrap(), Duration::from_secs(3));
        for wrong in ["", "3", "0s", "0ms", "-1s", "s", "1.5s", "99999999999999999999s"] {
            let error = duration("timeout", wrong).unwrap_err();
            assert!(error.to_string().contains("write timeout as"), "{wrong}: {error}");
        }
    }
}

/// What the property tests of the parsers have in common.
#[cfg(test)]
pub(in crate::backend) mod properties {
    use proptest::prelude::*;

    use super::Host;

    /// A part of each password, and of nothing else.
    pub(in crate::backend) const SECRET: &str = "hush";

    /// Any text, mostly of characters that mean something in a URL.
    pub(in crate::backend) const TEXT: &str = r"[a-z0-9/?#@:&=%,+.é\[\] -]{0,40}|.{0,40}";

    /// What follows the scheme of a URL: a user, a password in which nothing is escaped, and
    /// anything behind its `@`.
    pub(in crate::backend) fn with_password() -> impl Strategy<Value = String> {
        let part = r"[a-gi-z0-9/?#@:&=%,+.\[\] -]{0,8}";
        (part, part, r"[a-gi-z0-9/?#@:&=%,+.\[\] -]{0,24}")
            .prop_map(|(before, after, rest)| format!("me:{before}{SECRET}{after}@{rest}"))
    }

    proptest! {
        #[test]
        fn a_printed_host_is_read_back(
            name in "[a-z0-9.-]{1,20}|[0-9a-f:]{2,20}",
            port in 1u16..,
        ) {
            let host = Host { name, port };
            prop_assert_eq!(Host::parse(&host.to_string(), 1), Some(host));
        }
    }
}
