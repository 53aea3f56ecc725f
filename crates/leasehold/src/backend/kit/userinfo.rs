//! Where the user and the password of a store's URL end.

use crate::error::{Error, Result};

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
}

/// What the property tests of the parsers have in common.
#[cfg(test)]
pub(in crate::backend) mod properties {
    use proptest::prelude::*;

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
}
