//! `zk://user:password@host:port,host:port/root?layout=curator`.

use std::fmt;
use std::time::Duration;

use zookeeper_client::CreateMode;

use super::layout::Layout;
use crate::backend::kit::url::{Host, Login, Parts, TlsFiles, decode, duration};
use crate::error::{Error, ErrorKind, Result};
use crate::terms::DEFAULT_TTL;

/// Where locks live when the URL names no root.
const DEFAULT_ROOT: &str = "/leasehold";
/// What ZooKeeper listens on.
const DEFAULT_PORT: u16 = 2181;

/// What a URL says.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) hosts: Vec<Host>,
    pub(super) root: String,
    pub(super) layout: Layout,
    /// `user:password`, as the digest scheme wants it.
    pub(super) digest: Option<String>,
    pub(super) access: Access,
    /// What the node of a lock is. ZooKeeper deletes a container some time after its last child
    /// has gone, as Curator likes it.
    pub(super) parents: CreateMode,
    /// With whom to trust, for `zks:`.
    pub(super) tls: Option<TlsFiles>,
    /// The TTL for which a session is opened at once.
    pub(super) session: Duration,
    /// The servers' `tickTime`, where it is known.
    pub(super) tick: Option<Duration>,
}

/// Who may do what with the nodes we create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Everybody everything.
    Anyone,
    /// Those with our credentials everything.
    Creator,
    /// The same, and everybody may look.
    CreatorAndReaders,
}

impl Target {
    /// Parses what follows `zk:` (with `secure`: `zks:`).
    pub(super) fn parse(rest: &str, secure: bool) -> Result<Self> {
        let rest = rest.strip_prefix("//").ok_or_else(|| {
            Error::invalid("a ZooKeeper URL is zk://host:port,host:port/root, with two slashes")
        })?;
        let parts = Parts::of(rest)?;
        let digest = parts.login()?.map(digest).transpose()?;
        let access = if digest.is_some() { Access::Creator } else { Access::Anyone };
        let mut target = Self {
            hosts: parts.hosts(DEFAULT_PORT)?,
            root: root_path(parts.path)?,
            layout: Layout::Kazoo,
            digest,
            access,
            parents: CreateMode::Persistent,
            tls: None,
            session: DEFAULT_TTL,
            tick: None,
        };
        target.take_options(&parts, secure)?;
        Ok(target)
    }

    fn take_options(&mut self, parts: &Parts<'_>, secure: bool) -> Result<()> {
        let mut files = TlsFiles::default();
        for option in parts.options() {
            let (word, value) = option?;
            match (word, value.as_str()) {
                ("layout", "kazoo") => self.layout = Layout::Kazoo,
                ("layout", "curator") => self.layout = Layout::Curator,
                ("acl", "anyone") => self.access = Access::Anyone,
                ("acl", "creator") => self.access = Access::Creator,
                ("acl", "creator-read") => self.access = Access::CreatorAndReaders,
                ("parents", "persistent") => self.parents = CreateMode::Persistent,
                ("parents", "container") => self.parents = CreateMode::Container,
                ("session", _) => self.session = duration(word, &value)?,
                ("tick", _) => self.tick = Some(duration(word, &value)?),
                (file, path) if files.take(file, path) => {}
                ("layout", _) => return Err(one_of(word, "kazoo or curator")),
                ("acl", _) => return Err(one_of(word, "anyone, creator or creator-read")),
                ("parents", _) => return Err(one_of(word, "persistent or container")),
                _ => {
                    let message = format!(
                        "a ZooKeeper URL has no option {word:?}; it has layout, acl, parents, \
                         session, tick, and with zks: ca, cert and key"
                    );
                    return Err(Error::invalid(message));
                }
            }
        }
        if self.access != Access::Anyone && self.digest.is_none() {
            let message = "acl=creator needs a user: zk://user:password@host/root?acl=creator";
            return Err(Error::invalid(message));
        }
        files.identity()?;
        let wrong = match (secure, &files.ca) {
            (false, _) if !files.are_none() => "ca, cert and key are for zks: URLs",
            (true, None) => "a zks: URL needs the certificate it trusts: ?ca=/path/to/ca.pem",
            _ => {
                self.tls = secure.then_some(files);
                return Ok(());
            }
        };
        Err(Error::invalid(wrong))
    }

    /// As the driver wants its servers.
    pub(super) fn cluster(&self) -> String {
        self.hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",")
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("hosts", &self.cluster())
            .field("root", &self.root)
            .field("layout", &self.layout)
            .field("authenticated", &self.digest.is_some())
            .field("access", &self.access)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

fn digest(login: Login) -> Result<String> {
    let password = login.password.ok_or_else(|| {
        let message = "the URL has a user but no password: write zk://user:password@host";
        Error::new(ErrorKind::Unusable, message).not_applied()
    })?;
    Ok(format!("{}:{password}", login.user.unwrap_or_default()))
}

fn root_path(path: Option<&str>) -> Result<String> {
    let Some(path) = path else { return Ok(DEFAULT_ROOT.to_owned()) };
    let root = format!("/{}", decode(path, "root")?);
    let root = match root.trim_end_matches('/') {
        "" => return Ok("/".to_owned()),
        root => root,
    };
    let whole = root[1..].split('/').all(|part| !matches!(part, "" | "." | ".."));
    if !whole || root.contains(char::is_control) || root.starts_with("/zookeeper/") {
        let message = format!("{root:?} cannot be the root of locks: it is no path of ZooKeeper's");
        return Err(Error::invalid(message));
    }
    Ok(root.to_owned())
}

fn one_of(word: &str, choices: &str) -> Error {
    Error::invalid(format!("the option {word} of a ZooKeeper URL is {choices}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_url_has_sensible_defaults() {
        let target = Target::parse("//db1", false).unwrap();
        assert_eq!(target.hosts, [Host { name: "db1".to_owned(), port: 2181 }]);
        assert_eq!((target.root.as_str(), target.layout), ("/leasehold", Layout::Kazoo));
        assert_eq!((target.access, target.session), (Access::Anyone, DEFAULT_TTL));
        assert_eq!(Target::parse("//db1/", false).unwrap().root, "/");
    }

    #[test]
    fn a_long_one_is_read_whole() {
        let rest = "//me:p%40ss%3Aword@a:1,[::1]:2,c/x/y/?layout=curator&acl=creator-read\
                    &parents=container&session=3s&tick=200ms&ca=/ca.pem&cert=/c.pem&key=/k.pem";
        let target = Target::parse(rest, true).unwrap();
        assert_eq!(target.cluster(), "a:1,[::1]:2,c:2181");
        assert_eq!((target.root.as_str(), target.layout), ("/x/y", Layout::Curator));
        assert_eq!(target.digest.as_deref(), Some("me:p@ss:word"));
        assert_eq!(target.access, Access::CreatorAndReaders);
        assert_eq!(target.parents, CreateMode::Container);
        assert_eq!(target.session, Duration::from_secs(3));
        assert_eq!(target.tick, Some(Duration::from_millis(200)));
        let tls = target.tls.as_ref().unwrap();
        assert!(tls.identity().unwrap().is_some());
        let shown = format!("{target:?}");
        assert!(!shown.contains("p@ss") && !shown.contains("me:"), "{shown}");
    }

    #[test]
    fn what_cannot_work_is_refused_without_its_secrets() {
        for (rest, secure) in [
            ("db1", false),
            ("//", false),
            ("//a:x", false),
            ("//a:0", false),
            ("//a,,b", false),
            ("//secret@a", false),
            ("//a/x//y", false),
            ("//a/../y", false),
            ("//a/zookeeper/x", false),
            ("//u:secret@a?colour=red", false),
            ("//u:secret@a?layout=zk", false),
            ("//u:secret/secret@a", false),
            ("//digest:u:12/secret@a", false),
            ("//u:12/secret@a", false),
            ("//u:secret?secret@a", false),
            ("//u:secret@secret/secret@a", false),
            ("//u:secret", false),
            ("//a?acl=creator", false),
            ("//a?session=3", false),
            ("//a?ca=/ca.pem", false),
            ("//a", true),
            ("//a?ca=/ca.pem&cert=/c.pem", true),
        ] {
            let error = Target::parse(rest, secure).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let error = Target::parse("//secret@a", false).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unusable, "{error}");
        let error = Target::parse("//u:secret/secret@a", false).unwrap_err();
        assert!(error.to_string().contains("percent-encoded"), "{error}");
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
            let _ = Target::parse(&text, secure);
            let _ = Target::parse(&format!("//{text}"), secure);
        }

        /// A password from a generator has a slash now and then, and nobody escapes it.
        #[test]
        fn no_error_repeats_a_password(secure in any::<bool>(), rest in with_password()) {
            if let Err(error) = Target::parse(&format!("//{rest}"), secure) {
                let told = format!("{error} {error:?}");
                prop_assert!(!told.contains(SECRET), "{told}");
            }
        }

        #[test]
        fn printed_hosts_are_read_back(
            hosts in prop::collection::vec(("[a-z0-9.-]{1,20}|[0-9a-f:]{2,20}", 1u16..), 1..4),
        ) {
            let hosts = hosts.into_iter().map(|(name, port)| Host { name, port }).collect();
            let target = Target { hosts, ..Target::parse("//a", false).unwrap() };
            let read = Target::parse(&format!("//{}", target.cluster()), false).unwrap();
            prop_assert_eq!(read, target);
        }
    }
}
