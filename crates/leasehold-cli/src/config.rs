//! The config file: defaults for what is not said on the command line or in the
//! environment.

use std::path::{self, Path, PathBuf};
use std::time::Duration;
use std::{env, fs, io};

use clap::ValueEnum;
use serde::Deserialize;

use crate::args::Require;
use crate::exit::{Failure, USAGE};
use crate::nested::CONFIG;

/// What the file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// Where it is, in full.
    pub(crate) file: Option<PathBuf>,
    pub(crate) store: Option<String>,
    pub(crate) require: Option<Require>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) grace: Option<Duration>,
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    store: Option<String>,
    require: Option<String>,
    ttl: Option<String>,
    wait: Option<String>,
    grace: Option<String>,
}

impl Config {
    /// Reads `$LEASEHOLD_CONFIG`, which must be there; else the user's own, if it is.
    pub(crate) fn load() -> Result<Self, Failure> {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let asked_for = env::var_os(CONFIG).map(PathBuf::from);
        if asked_for.as_deref().is_some_and(|path| path.as_os_str().is_empty()) {
            // A variable that is not set: another file may name another store.
            let message = "LEASEHOLD_CONFIG is empty: name a config file, or unset it";
            return Err(Failure::new(USAGE, message));
        }
        let folder = || set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")));
        let path =
            asked_for.clone().or_else(|| Some(folder()?.join("leasehold").join("config.toml")));
        let Some(path) = path else { return Ok(Self::default()) };
        match fs::read_to_string(&path) {
            Ok(text) => {
                let config = Self::parse(&text).map_err(|why| refuse(&path, &why))?;
                Ok(Self { file: path::absolute(&path).ok(), ..config })
            }
            Err(error) if asked_for.is_none() && is_absent(&error) => Ok(Self::default()),
            Err(error) => Err(refuse(&path, &format!("cannot be read: {error}"))),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let keys: Keys = toml::from_str(text).map_err(|error| {
            // Counted in bytes: a span need not begin at a character.
            let before = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count();
            let line = error.span().map_or(0, |span| before(span.start)) + 1;
            format!("line {line}: {}", error.message().trim_end())
        })?;
        Ok(Self {
            file: None,
            store: keys.store,
            require: keys.require.as_deref().map(require).transpose()?,
            ttl: keys.ttl.as_deref().map(|text| duration("ttl", text)).transpose()?,
            wait: keys.wait.as_deref().map(|text| duration("wait", text)).transpose()?,
            grace: keys.grace.as_deref().map(|text| duration("grace", text)).transpose()?,
        })
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn require(text: &str) -> Result<Require, String> {
    Require::from_str(text, false).map_err(|_| {
        "the key \"require\" must be \"linearizable\", \"quorum\" or \"best-effort\"".to_owned()
    })
}

fn duration(key: &str, text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("the key {key:?} must be a duration such as \"30s\": {error}"))
}

fn refuse(path: &Path, why: &str) -> Failure {
    Failure::new(USAGE, format!("config file {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_understood() {
        let text = "store = \"sqlite:/x\"\nrequire = \"quorum\"\nttl = \"1m\"\nwait = \"5s\"\n\
                    grace = \"2s\"\n";
        let config = Config {
            file: None,
            store: Some("sqlite:/x".to_owned()),
            require: Some(Require::Quorum),
            ttl: Some(Duration::from_secs(60)),
            wait: Some(Duration::from_secs(5)),
            grace: Some(Duration::from_secs(2)),
        };
        assert_eq!(Config::parse(text), Ok(config));
        assert_eq!(Config::parse(""), Ok(Config::default()));
    }

    #[test]
    fn mistakes_are_named_with_key_or_line_in_one_line() {
        let wrong = [
            ("ttl = \"1m\"\nstoer = \"x\"", ["line 2", "stoer"]),
            ("ttl = 30", ["line 1", "string"]),
            ("ttl = \"30\"", ["\"ttl\"", "duration"]),
            ("require = \"strong\"", ["\"require\"", "linearizable"]),
            ("ttl", ["line 1", ""]),
        ];
        for (text, parts) in wrong {
            let why = Config::parse(text).unwrap_err();
            assert!(parts.iter().all(|part| why.contains(part)), "{text}: {why}");
            assert!(!why.contains('\n'), "{why}");
        }
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_in_one_line(
            text in prop_oneof![
                ".{0,40}",
                r#"((store|require|ttl|wait|grace|x)( ?= ?["'é0-9a-z\[\]{}.]{0,8})?[\n# ]){0,6}"#,
            ],
        ) {
            if let Err(why) = Config::parse(&text) {
                prop_assert!(!why.contains('\n'), "{why}");
            }
        }

        /// The file may hold a password: whatever is wrong in it, errors do not repeat the store.
        #[test]
        fn no_error_repeats_the_store(
            before in r#"["'\[{ ]{0,2}"#,
            after in r#"["'\]} ]{0,2}\n[a-z=0-9"'\n ]{0,20}"#,
        ) {
            let text = format!("store = {before}redis://me:hush@host{after}");
            if let Err(why) = Config::parse(&text) {
                prop_assert!(!why.contains("hush"), "{why}");
            }
        }

        #[test]
        fn a_printed_duration_is_read_back(seconds in any::<u32>(), nanos in 0..1_000_000_000u32) {
            let duration = Duration::new(seconds.into(), nanos);
            let text = format!("ttl = \"{}\"", humantime::format_duration(duration));
            prop_assert_eq!(Config::parse(&text).unwrap().ttl, Some(duration));
        }
    }
}
