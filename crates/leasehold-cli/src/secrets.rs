//! Secrets in a store's URL: where they come from, and that they go nowhere else.
//! A URL refers to them as `${env:NAME}` or `${file:/path}`; what was put in its place,
//! and a password written into the URL itself, is blotted out of everything we say.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use crate::exit::{Failure, USAGE};

/// What must not be repeated.
static KNOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Shorter ones are none, and blotting them out would make messages unreadable.
const SHORTEST: usize = 3;

const BLOT: &str = "***";

/// What ends the place where a password stands.
const END: [char; 3] = ['/', '?', '#'];

/// A piece of a URL as it is written.
enum Part<'a> {
    Text(&'a str),
    /// What is between `${` and `}`.
    Reference(&'a str),
}

fn parts(url: &str) -> Result<Vec<Part<'_>>, Failure> {
    let (mut parts, mut rest) = (Vec::new(), url);
    while let Some((before, reference)) = rest.split_once("${") {
        let Some((reference, after)) = reference.split_once('}') else {
            return Err(refuse("a reference begins with \"${\" but does not end with \"}\""));
        };
        parts.extend([Part::Text(before), Part::Reference(reference)]);
        rest = after;
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

/// Puts in what a URL refers to.
pub(crate) fn resolve(url: &str) -> Result<String, Failure> {
    let mut resolved = String::new();
    for part in parts(url)? {
        match part {
            Part::Text(text) => resolved.push_str(text),
            Part::Reference(reference) => {
                let value = look_up(reference)?;
                remember(&value);
                resolved.push_str(&value);
            }
        }
    }
    if let Some((_, password, _)) = password(&resolved) {
        remember(password);
        // If it should have been percent-encoded, a parser may take its parts for something else.
        password.split(['/', '?', '#', '@']).for_each(remember);
    }
    Ok(resolved)
}

fn look_up(reference: &str) -> Result<String, Failure> {
    let value = match reference.split_once(':') {
        Some(("env", name)) => env::var(name).map_err(|error| match error {
            env::VarError::NotPresent => {
                refuse(&format!("the environment variable {name:?} is not set"))
            }
            env::VarError::NotUnicode(_) => {
                refuse(&format!("the environment variable {name:?} is no text"))
            }
        })?,
        Some(("file", path)) => fs::read_to_string(path)
            .map_err(|error| refuse(&format!("cannot read the file {path:?}: {error}")))?,
        _ => return Err(refuse("a reference is either ${env:NAME} or ${file:/path}")),
    };
    // Files end with a newline that is no part of the secret.
    let value = value.trim_end_matches(['\r', '\n']);
    if value.is_empty() {
        // `sqlite:${env:UNSET}` would be this user's own store.
        return Err(refuse(&format!("\"${{{reference}}}\" is empty")));
    }
    Ok(value.to_owned())
}

fn refuse(why: &str) -> Failure {
    Failure::new(USAGE, format!("the store's URL cannot be resolved: {why}"))
}

fn remember(secret: &str) {
    if secret.len() >= SHORTEST {
        KNOWN.lock().unwrap_or_else(PoisonError::into_inner).push(secret.to_owned());
    }
}

/// The same text without any known secret.
pub(crate) fn blot(text: &str) -> String {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.iter().fold(text.to_owned(), |text, secret| text.replace(secret, BLOT))
}

/// A URL as it was given, references and all, but without its password.
pub(crate) fn named(url: &str) -> String {
    match password(url) {
        Some((before, _, after)) => format!("{before}{BLOT}{after}"),
        // A connection string, `host=db password=…`, which is no URL.
        None if url.contains("password=") => BLOT.to_owned(),
        None => url.to_owned(),
    }
}

/// Whether a URL holds a password itself, and not only a reference to one.
pub(crate) fn holds_password(url: &str) -> bool {
    let text = |part| match part {
        Part::Text(text) => text,
        Part::Reference(_) => "",
    };
    let Ok(parts) = parts(url) else { return true };
    let bare: String = parts.into_iter().map(text).collect();
    let in_parameter =
        bare.split("password=").skip(1).any(|value| !value.starts_with('&') && !value.is_empty());
    in_parameter || password(&bare).is_some_and(|(_, password, _)| !password.is_empty())
}

/// A URL whose references name their files in full, as seen from this folder.
pub(crate) fn with_files_in(url: &str, folder: &Path) -> String {
    let Ok(parts) = parts(url) else { return url.to_owned() };
    let full = |part| match part {
        Part::Text(text) => text.to_owned(),
        Part::Reference(reference) => match reference.strip_prefix("file:") {
            Some(path) => format!("${{file:{}}}", folder.join(path).display()),
            None => format!("${{{reference}}}"),
        },
    };
    parts.into_iter().map(full).collect()
}

/// What is before, in, and after the password of `scheme://user:password@host`. It goes to the
/// last `@`: a `/` in it that is not escaped ends it for the store, but is to be hidden here.
fn password(url: &str) -> Option<(&str, &str, &str)> {
    let authority = url.find("://")? + 3;
    let end = url[authority..].find(END).map_or(url.len(), |end| authority + end);
    let begin = authority + url[authority..end].find(':')? + 1;
    let at = begin + url[begin..].rfind('@')?;
    Some((&url[..begin], &url[begin..at], &url[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_put_in_and_never_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "opensesame\n").unwrap();
        let url =
            format!("redis://:${{file:{}}}@localhost/${{env:CARGO_PKG_NAME}}", path.display());
        let resolved = resolve(&url).unwrap();
        assert_eq!(resolved, "redis://:opensesame@localhost/leasehold-cli");
        assert_eq!(blot("cannot use opensesame!"), "cannot use ***!");
        resolve("redis://me:hunter2@localhost").unwrap();
        assert_eq!(blot("hunter2"), "***");
        resolve("redis://me:swordfish@localhost/0?prefix=a@b").unwrap();
        assert_eq!(blot("swordfish"), "***");
    }

    #[test]
    fn what_cannot_be_resolved_is_refused() {
        let broken = ["${env:LEASEHOLD_NO_SUCH}", "${file:/no/such}", "${env:X", "${HOME}", "${}"];
        for url in broken {
            assert!(resolve(url).is_err(), "{url}");
        }
        assert_eq!(resolve("sqlite:/a$b{c}").unwrap(), "sqlite:/a$b{c}");
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        fs::write(&empty, "\n").unwrap();
        assert!(resolve(&format!("sqlite:${{file:{}}}", empty.display())).is_err());
    }

    #[test]
    fn a_url_is_named_without_its_password() {
        assert_eq!(named("redis://me:a:b@c@host/0"), "redis://me:***@host/0");
        assert_eq!(named("redis://me@host/x:y@z"), "redis://me@host/x:y@z");
        assert_eq!(named("sqlite:/a:b@c"), "sqlite:/a:b@c");
        assert_eq!(named("redis://me:ab/cd@host"), "redis://me:***@host");
        assert_eq!(named("host=db password=x"), "***");
        assert_eq!(named("sqlite:///a:b@c"), "sqlite:///a:b@c");
        assert_eq!(named("redis://h:1/0?x=y"), "redis://h:1/0?x=y");
    }

    #[test]
    fn a_password_that_is_not_percent_encoded_is_blotted_out() {
        assert_eq!(named("etcd://me:pa/ss@host:2379"), "etcd://me:***@host:2379");
        assert_eq!(named("zk://me:p?ss@host"), "zk://me:***@host");
        assert_eq!(named("zk://me:p@a/ss@host/x"), "zk://me:***@host/x");
        resolve("etcd://me:left/right@host").unwrap();
        assert_eq!(blot("no host left:2379, no path /right"), "no host ***:2379, no path /***");
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A password from a generator has a slash now and then, and nobody escapes it.
        #[test]
        fn a_password_is_found_whatever_is_in_it(
            before in "[a-gi-z0-9/?#@:&=%,. ]{0,8}",
            after in "[a-gi-z0-9/?#@:&=%,. ]{0,8}",
            rest in "[a-gi-z0-9/?#@:&=%,. ]{0,16}",
        ) {
            let url = format!("redis://me:{before}hush{after}@{rest}");
            prop_assert!(!named(&url).contains("hush"), "{}", named(&url));
            prop_assert!(holds_password(&url));
        }

        #[test]
        fn any_text_has_a_name(text in r".{0,40}|[a-z:/@$\{\}?=]{0,40}") {
            named(&text);
            holds_password(&text);
            prop_assert!(with_files_in(&text, Path::new("/")).len() >= text.len());
        }
    }
}
