//! `etcd://user:password@host:port,host:port/prefix?ca=…`: read once, into parts.

use std::fmt;
use std::path::PathBuf;

use crate::backend::kit::url::{Host, Login, Parts, TlsFiles, decode};
use crate::error::{Error, Result};

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
        let parts = Parts::of(rest.strip_prefix("//").unwrap_or(rest))?;
        let user = match parts.login()? {
            Some(Login { user: Some(user), password }) => {
                Some((user, password.unwrap_or_default()))
            }
            Some(_) => return Err(refused("a password needs a user: etcd://user:password@host")),
            None => None,
        };
        let hosts = match parts.is_hostless() {
            true => vec![format!("127.0.0.1:{PORT}")],
            false => parts.hosts(PORT)?.iter().map(Host::to_string).collect(),
        };
        // They become parts of URIs.
        let fine = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if let Some(wrong) = hosts.iter().position(|host: &String| !host.chars().all(fine)) {
            return Err(refused(format!("host {} has characters of no host", wrong + 1)));
        }
        let prefix = decode(parts.path.unwrap_or(""), "prefix")?.trim_matches('/').to_owned();
        if prefix.chars().any(char::is_control) {
            return Err(refused("the prefix must not contain control characters"));
        }
        Ok(Self { hosts, prefix, user, tls: options(secure, &parts)? })
    }
}

fn options(secure: bool, parts: &Parts<'_>) -> Result<Option<Tls>> {
    let (mut files, mut server_name) = (TlsFiles::default(), None);
    for option in parts.options() {
        let (name, value) = option?;
        match name {
            "server-name" => server_name = Some(value),
            _ if files.take(name, &value) => {}
            other => {
                let known = "ca, cert, key and server-name";
                return Err(refused(format!("no option {other:?}: there are {known}")));
            }
        }
    }
    let identity = files.identity()?;
    match secure {
        true => Ok(Some(Tls { ca: files.ca, identity, server_name })),
        false if files.are_none() && server_name.is_none() => Ok(None),
        false => Err(refused("ca, cert, key and server-name are for TLS: write etcds://")),
    }
}

/// The URL itself may carry a password: it is not repeated.
fn refused(message: impl Into<String>) -> Error {
    Error::invalid(format!("the store's URL cannot be used: {}", message.into()))
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
    use crate::backend::kit::url::properties::{SECRET, TEXT, with_password};

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
            hosts in prop::collection::vec((r"[a-z0-9.-]{1,20}|\[[0-9a-f]{1,4}:[0-9a-f:]{1,18}\]", 1u16..), 1..4),
        ) {
            let print = |(name, port): &(String, u16)| format!("{name}:{port}");
            let hosts: Vec<String> = hosts.iter().map(print).collect();
            let address = Address::parse(false, &format!("//{}", hosts.join(",")));
            prop_assert_eq!(address.unwrap().hosts, hosts);
        }
    }
}
