//! Where things are in etcd. The lock keys are those of `etcdctl lock` and of Go's
//! `concurrency.Mutex` (`name/` + the lease id in lower-case hex), so that all of them
//! exclude each other. Do not change this: other programs rely on it.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::name::Name;
use crate::token::Token;

/// Below the root, what is no lock: names that begin so are refused.
const RESERVED: &str = ".leasehold/";

/// The keys of one store.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Empty, or a prefix that ends with a slash.
    root: String,
}

impl Layout {
    /// The layout below this prefix, which may be empty.
    pub(super) fn below(prefix: &str) -> Self {
        let root = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Self { root }
    }

    /// The name, unless its keys would be among those that are no locks.
    pub(super) fn check(&self, name: &Name) -> Result<()> {
        if name.as_str().starts_with(RESERVED) {
            let message = format!("names that begin with {RESERVED:?} are the store's own");
            return Err(Error::invalid(message));
        }
        Ok(())
    }

    /// The key of a claim on this lock under this lease.
    pub(super) fn lock(&self, name: &Name, lease: i64) -> String {
        format!("{}{name}/{lease:x}", self.root)
    }

    /// Where the keys of a lock are, and some that are not its own (nested names):
    /// [`Layout::is_claim`] tells them apart.
    pub(super) fn line(&self, name: &Name) -> Range<String> {
        digits_below(&format!("{}{name}", self.root))
    }

    /// Whether this key is a claim on this lock: its rest is exactly the id of the lease
    /// it hangs on. (The lock `jobs` must not see `jobs/42/…`; Go's mutex does.)
    pub(super) fn is_claim(&self, name: &Name, key: &[u8], lease: i64) -> bool {
        lease != 0 && key == self.lock(name, lease).as_bytes()
    }

    /// The lock that this key is a claim on.
    pub(super) fn lock_of(&self, key: &[u8], lease: i64) -> Option<Name> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.root)?;
        let (name, id) = rest.rsplit_once('/')?;
        let is_lock = lease != 0 && id == format!("{lease:x}") && !name.starts_with(RESERVED);
        is_lock.then(|| Name::new(name).ok()).flatten()
    }

    /// Where all keys of locks are whose names begin so.
    pub(super) fn names(&self, prefix: &str) -> String {
        format!("{}{prefix}", self.root)
    }

    /// The key that lives as long as this lease does.
    pub(super) fn session(&self, lease: i64) -> String {
        format!("{}{RESERVED}session/{lease:x}/alive", self.root)
    }

    /// The record of a force-release: of this lock, of the lease with this token.
    pub(super) fn forced(&self, name: &Name, token: Token) -> String {
        format!("{}{RESERVED}forced/{name}/{:016x}", self.root, token.get())
    }

    /// Where the records of a lock are, among others: [`Layout::forced_token`] tells.
    pub(super) fn forced_line(&self, name: &Name) -> Range<String> {
        digits_below(&format!("{}{RESERVED}forced/{name}", self.root))
    }

    /// Where all records are.
    pub(super) fn all_forced(&self) -> String {
        format!("{}{RESERVED}forced/", self.root)
    }

    /// Of which lease of which lock this is the record.
    pub(super) fn forced_of(&self, key: &[u8]) -> Option<(Name, Token)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.all_forced())?;
        let (name, token) = rest.rsplit_once('/')?;
        let token = (token.len() == 16).then(|| u64::from_str_radix(token, 16).ok()).flatten()?;
        Some((Name::new(name).ok()?, Token::new(token)))
    }

    /// A key to ask for when any answer will do.
    pub(super) fn probe(&self) -> String {
        format!("{}{RESERVED}probe", self.root)
    }
}

/// The keys that go on with `/` and a lower-case hexadecimal digit.
fn digits_below(stem: &str) -> Range<String> {
    format!("{stem}/0")..format!("{stem}/g")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    /// Golden: `etcdctl lock` and Go's mutex make these keys.
    #[test]
    fn keys_are_those_of_etcdctl() {
        let lease = 0x694d_8f2a_31c0_9a07;
        assert_eq!(Layout::below("").lock(&name("jobs"), lease), "jobs/694d8f2a31c09a07");
        let prefixed = Layout::below("app/locks").lock(&name("jobs/42"), lease);
        assert_eq!(prefixed, "app/locks/jobs/42/694d8f2a31c09a07");
    }

    #[test]
    fn nested_names_are_told_apart() {
        let (layout, lease) = (Layout::below("app"), 0x1f);
        let (jobs, nested) = (name("jobs"), name("jobs/42"));
        let key = layout.lock(&nested, lease).into_bytes();
        assert!(layout.line(&jobs).contains(&String::from_utf8(key.clone()).unwrap()));
        assert!(!layout.is_claim(&jobs, &key, lease) && layout.is_claim(&nested, &key, lease));
        assert_eq!(layout.lock_of(&key, lease), Some(nested));
        assert_eq!(layout.lock_of(b"app/jobs/1f", 0x2f), None, "another lease's");
        assert_eq!(layout.lock_of(b"app/jobs/1F", 0x1f), None, "not as etcd writes it");
        assert_eq!(layout.lock_of(b"app/jobs/1f", 0), None, "no lease");
    }

    #[test]
    fn what_is_no_lock_is_not_taken_for_one() {
        let layout = Layout::below("");
        assert_eq!(layout.lock_of(layout.session(31).as_bytes(), 31), None);
        let record = layout.forced(&name("a/b"), Token::new(7));
        assert_eq!(layout.forced_of(record.as_bytes()), Some((name("a/b"), Token::new(7))));
        assert!(layout.check(&name(".leasehold/forced/x")).is_err());
        assert!(layout.check(&name("leasehold")).is_ok());
    }
}
