//! `etcd://user:password@host:port,host:port/prefix?ca=…`: read once, into parts.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use crate::backend::kit::userinfo;
use crate::error::{Error, Operation, Result};

const PORT: u16 = 2379;

/// What a URL says. Its `Debug` has no password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// `host:port` of each member, in the order of the URL.
    pub(super) hosts: Vec<String>,
    /// Below which keys the locks are; without slashes at its ends.
    pub(super) prefix: String,
    pub(super) user: Option<(String, String)>,
    /// With TLS, if at all.
    pub(super) tls: Option<Tls>,
}

/// How to speak TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tls {
    /// Whose certificates are believed; the machine's own choice without it.
    pub(super) ca: Option<PathBuf>,
    /// What we show, and its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate, if it is not the host's.
    pub(super) server_name: Option<String>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("hosts", &self.hosts)
            .field("prefix", &self.prefix)
            .field("user", &self.user.as_ref().map(|(user, _)| user))
            .field("tls", &self.tls)
            .finish()
    }
}

impl Address {
    /// Reads what follows the scheme and its colon; `secure` for `etcds:`.
    pub(super) fn parse(secure: bool, rest: &str) -> Result<Self> {
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        userinfo::check_encoded(rest).map_err(on_connecting)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(credentials(user)?), hosts),
            None => (None, authority),
        };
        let hosts = match hosts {
            "" => vec![format!("127.0.0.1:{PORT}")],
            hosts => hosts.split(',').enumerate().map(host).collect::<Result<_>>()?,
        };
        let prefix = decoded(path)?.trim_matches('/').to_owned();
        if prefix.chars().any(char::is_control) {
            return Err(refused("the prefix must not contain control characters"));
        }
        Ok(Self { hosts, prefix, user, tls: options(secure, query)? })
    }
}

fn options(secure: bool, query: &str) -> Result<Option<Tls>> {
    let mut tls = Tls::default();
    let (mut cert, mut key) = (None, None);
    for (option, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let value = value.into_owned();
        match &*option {
            "ca" => tls.ca = Some(value.into()),
            "cert" => cert = Some(value.into()),
            "key" => key = Some(value.into()),
            "server-name" => tls.server_name = Some(value),
            other => {
                let known = "ca, cert, key and server-name";
                return Err(refused(format!("no option {other:?}: there are {known}")));
            }
        }
    }
    tls.identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err(refused("a client certificate needs both cert and key")),
    };
    match secure {
        true => Ok(Some(tls)),
        false if tls == Tls::default() => Ok(None),
        false => Err(refused("ca, cert, key and server-name are for TLS: write etcds://")),
    }
}

fn credentials(text: &str) -> Result<(String, String)> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    if user.is_empty() {
        return Err(refused("a password needs a user: etcd://user:password@host"));
    }
    Ok((decoded(user)?, decoded(password)?))
}

fn host((index, text): (usize, &str)) -> Result<String> {
    // Not repeated: without an @ it may be a user and a password.
    let wrong = || {
        let number = index + 1;
        refused(format!("host {number} is none: write etcd://user:password@host:port,host:port"))
    };
    // The brackets of an IPv6 address hide its colons.
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let fine = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    let bracketed = bare.len() < name.len();
    if bare.is_empty() || !bare.chars().all(fine) || (bare.contains(':') && !bracketed) {
        return Err(wrong());
    }
    let port = port.map_or(Ok(PORT), |port| port.parse::<u16>()).map_err(|_| wrong())?;
    Ok(format!("{name}:{port}"))
}

fn decoded(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| refused("a percent-encoded part is not UTF-8"))
}

/// The URL itself may carry a password: it is not repeated.
fn refused(message: impl Into<String>) -> Error {
    on_connecting(Error::invalid(format!("the store's URL cannot be used: {}", message.into())))
}

fn on_connecting(error: Error) -> Error {
    error.on_store(super::STORE).during(Operation::Connect, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(rest: &str) -> Address {
        Address::parse(false, rest).unwrap()
    }

    #[test]
    fn hosts_prefix_and_user_are_read() {
        let address = parse("//me:p%40ss@a,b:1,[::1]:2/app/locks/");
        assert_eq!(address.hosts, ["a:2379", "b:1", "[::1]:2"]);
        assert_eq!(address.prefix, "app/locks");
        assert_eq!(address.user, Some(("me".to_owned(), "p@ss".to_owned())));
        assert_eq!(parse("").hosts, ["127.0.0.1:2379"]);
        assert_eq!(parse("//[::1]").hosts, ["[::1]:2379"]);
        assert_eq!(parse("//h").prefix, "");
    }

    #[test]
    fn passwords_are_not_printed() {
        let address = parse("//jane:secret@a");
        assert!(!format!("{address:?}").contains("secret"));
        for wrong in ["//:secret@a", "//jane:secret@a:b:c", "//jane:secret@a?secret2=1"] {
            let error = Address::parse(false, wrong).unwrap_err();
            assert!(!format!("{error:?}").contains("secret@"), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("jane:"), "{error:?}");
        }
    }

    #[test]
    fn no_part_of_a_password_is_repeated() {
        for wrong in [
            "//jane:hush/hush@a:2379",
            "//jane:12/hush@a:2379",
            "//jane:hush?hush@a:2379",
            "//jane:hush@hush/hush@a",
            "//jane:hush",
            "//jane:hush@a,b:hush",
        ] {
            let error = Address::parse(false, wrong).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hush"), "{wrong}: {error:?}");
        }
        let error = Address::parse(false, "//jane:hush/hush@a").unwrap_err();
        assert!(error.to_string().contains("percent-encoded"), "{error}");
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for wrong in ["//a,,b", "//a:x", "//a b", "//::1", "//a?cert=x", "//a?ca=x", "//a/%ff"] {
            assert!(Address::parse(false, wrong).is_err(), "{wrong}");
        }
        let half = Address::parse(true, "//a?cert=x").unwrap_err();
        assert!(half.to_string().contains("both cert and key"), "{half}");
        let tls = Address::parse(true, "//a?ca=/ca&cert=/c&key=/k&server-name=s").unwrap();
        let identity = Some(("/c".into(), "/k".into()));
        let server_name = Some("s".to_owned());
        assert_eq!(tls.tls, Some(Tls { ca: Some("/ca".into()), identity, server_name }));
        assert_eq!(Address::parse(true, "//a").unwrap().tls, Some(Tls::default()));
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::kit::userinfo::properties::{SECRET, TEXT, with_password};

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(secure in any::<bool>(), text in TEXT) {
            let _ = Address::parse(secure, &text);
            let _ = Address::parse(secure, &format!("//{text}"));
        }

        /// A password from a generator has a slash now and then, and nobody escapes it.
        #[test]
        fn no_error_repeats_a_password(secure in any::<bool>(), rest in with_password()) {
            if let Err(error) = Address::parse(secure, &format!("//{rest}")) {
                let told = format!("{error} {error:?}");
                prop_assert!(!told.contains(SECRET), "{told}");
            }
        }

        #[test]
        fn printed_hosts_are_read_back(
            hosts in prop::collection::vec((r"[a-z0-9.-]{1,20}|\[[0-9a-f:]{2,20}\]", 1u16..), 1..4),
        ) {
            let print = |(name, port): &(String, u16)| format!("{name}:{port}");
            let hosts: Vec<String> = hosts.iter().map(print).collect();
            let address = Address::parse(false, &format!("//{}", hosts.join(",")));
            prop_assert_eq!(address.unwrap().hosts, hosts);
        }
    }
}
