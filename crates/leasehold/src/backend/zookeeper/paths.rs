//! Where a lock lives: `<root>/<name>`; what else lies below the root; and how nodes are made:
//! with the ACL that the URL asks for on every one of them, since they are not inherited.
//!
//! A name is one node: what ZooKeeper cannot keep in one (a slash, a lone dot, some
//! characters) is percent-encoded. Other names are themselves, so that kazoo and Curator
//! find them. What begins with a `%` that no encoding gives is ours.

use std::sync::Arc;

use percent_encoding::percent_decode_str;
use zookeeper_client::{
    Acl, Acls, AuthId, Client, CreateMode, CreateOptions, Error as Zk, Permission,
};

use super::error::of_request;
use super::url::{Access, Target};
use crate::error::Result;
use crate::name::Name;

/// The records of force-releases, one node for each lock; the node itself is the bell.
const FORCED: &str = "%forced";
/// What every batch of claims writes, so that it learns the number of its transaction.
const TICK: &str = "%tick";

/// The paths below one root.
#[derive(Debug)]
pub(super) struct Paths {
    /// Without a slash at its end: empty for the root of the tree.
    root: String,
    acls: Vec<Acl>,
    /// What the node of a lock is.
    pub(super) parents: CreateMode,
}

impl Paths {
    pub(super) fn of(target: &Target) -> Self {
        let anyone = |permission| Acl::new(permission, AuthId::anyone());
        let creator = Acl::new(Permission::ALL, AuthId::authed());
        let acls = match target.access {
            Access::Anyone => vec![anyone(Permission::ALL)],
            Access::Creator => vec![creator],
            Access::CreatorAndReaders => vec![creator, anyone(Permission::READ)],
        };
        let root = target.root.trim_end_matches('/').to_owned();
        Self { root, acls, parents: target.parents }
    }

    /// The root itself, as ZooKeeper wants it.
    pub(super) fn root(&self) -> &str {
        if self.root.is_empty() { "/" } else { &self.root }
    }

    /// The node of a lock; those in its queue are its children.
    pub(super) fn lock(&self, name: &Name) -> Arc<str> {
        format!("{}/{}", self.root, self.encode(name.as_str())).into()
    }

    /// The lock behind a child of the root.
    pub(super) fn name(&self, child: &str) -> Option<Name> {
        let name = percent_decode_str(child).decode_utf8().ok()?;
        // Only what we would have written: anything else is no lock of ours.
        (self.encode(&name) == child).then(|| Name::new(&*name).ok()).flatten()
    }

    /// Where force-releases are recorded, and what rings when there is a new one.
    pub(super) fn bell(&self) -> String {
        format!("{}/{FORCED}", self.root)
    }

    /// The record of a lock's last force-release.
    pub(super) fn record(&self, name: &Name) -> String {
        format!("{}/{}", self.bell(), self.encode(name.as_str()))
    }

    /// What a batch of claims writes.
    pub(super) fn tick(&self) -> Arc<str> {
        format!("{}/{TICK}", self.root).into()
    }

    /// How a node is made.
    pub(super) fn options(&self, mode: CreateMode) -> CreateOptions<'_> {
        mode.with_acls(Acls::new(&self.acls))
    }

    /// Makes a node, and the root if need be.
    pub(super) async fn make(&self, client: &Client, path: &str, mode: CreateMode) -> Result<()> {
        for _ in 0..2 {
            match client.create(path, b"", &self.options(mode)).await {
                Ok(_) | Err(Zk::NodeExists) => return Ok(()),
                Err(Zk::NoNode) if !self.root.is_empty() => {
                    let options = self.options(CreateMode::Persistent);
                    client.mkdir(&self.root, &options).await.map_err(of_request)?;
                }
                Err(error) => return Err(of_request(error)),
            }
        }
        Err(of_request(Zk::NoNode))
    }

    fn encode(&self, name: &str) -> String {
        let dots = matches!(name, "." | "..");
        // ZooKeeper keeps a node of this name for itself.
        let taken = self.root.is_empty() && name == "zookeeper";
        let mut encoded = String::with_capacity(name.len());
        for (at, character) in name.char_indices() {
            if cannot_be_kept(character) || dots || (taken && at == 0) {
                let mut bytes = [0; 4];
                for byte in character.encode_utf8(&mut bytes).bytes() {
                    encoded.push_str(&format!("%{byte:02X}"));
                }
            } else {
                encoded.push(character);
            }
        }
        encoded
    }
}

/// What ZooKeeper's `PathUtils` refuses (it counts in UTF-16, so all that needs two units
/// there, too), and what encodes.
fn cannot_be_kept(character: char) -> bool {
    matches!(character,
        '/' | '%' | '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..=char::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(root: &str) -> Paths {
        Paths::of(&Target { root: root.to_owned(), ..Target::parse("//a", false).unwrap() })
    }

    fn name(name: &str) -> Name {
        Name::new(name).unwrap()
    }

    /// Do not change these: a lock would have two places.
    #[test]
    fn names_have_one_place_each() {
        let paths = below("/locks/");
        for (lock, path) in [
            ("inventory:item42", "/locks/inventory:item42"),
            ("jobs/42", "/locks/jobs%2F42"),
            ("100 %", "/locks/100 %25"),
            ("größe 日本", "/locks/größe 日本"),
            (".", "/locks/%2E"),
            ("..", "/locks/%2E%2E"),
            ("a.b", "/locks/a.b"),
            ("zookeeper", "/locks/zookeeper"),
            ("\u{fffd}", "/locks/%EF%BF%BD"),
            ("🔒", "/locks/%F0%9F%94%92"),
        ] {
            assert_eq!(&*paths.lock(&name(lock)), path);
            let child = path.strip_prefix("/locks/").unwrap();
            assert_eq!(paths.name(child), Some(name(lock)));
        }
        assert_eq!(paths.record(&name("a/b")), "/locks/%forced/a%2Fb");
    }

    #[test]
    fn the_root_of_the_tree_can_be_used_too() {
        let paths = below("/");
        assert_eq!(paths.root(), "/");
        assert_eq!(&*paths.lock(&name("a")), "/a");
        assert_eq!(&*paths.lock(&name("zookeeper")), "/%7Aookeeper");
        assert_eq!(paths.name("zookeeper"), None, "the server's own");
        assert_eq!(paths.name("%7Aookeeper"), Some(name("zookeeper")));
    }

    #[test]
    fn what_is_no_lock_is_no_name() {
        let paths = below("/locks");
        for child in ["%forced", "%tick", "%2f", "%41", "a%"] {
            assert_eq!(paths.name(child), None, "{child}");
        }
    }
}
