//! What the command inherits, so that a `leasehold` that it runs meets the same store. The
//! store is passed on as the user wrote it, references unresolved; only paths are written in
//! full, because the command may change its directory or its HOME.

use std::env;
use std::ffi::OsString;
use std::path::{self, Path, PathBuf};

use leasehold::backend::sqlite::SqliteStore;

use crate::secrets;

/// The variable that names a store.
pub(crate) const STORE: &str = "LEASEHOLD_STORE";
/// The variable that names a config file.
pub(crate) const CONFIG: &str = "LEASEHOLD_CONFIG";

/// Variables of the command's environment.
pub(crate) type Inherited = Vec<(&'static str, OsString)>;

/// What a command under a lock of this store inherits: the store as it was given, what that
/// means with its secrets put in, and the config file, if that is where it was given.
pub(crate) fn inherited(given: &str, resolved: &str, file: Option<&Path>) -> Inherited {
    // A password that a user keeps in a file does not belong into the environment.
    let from_file = file.filter(|_| secrets::holds_password(given));
    let mut inherited = Inherited::new();
    if from_file.is_none() {
        inherited.push((STORE, in_full(given, resolved)));
    }
    let named = || env::var_os(CONFIG).map(PathBuf::from);
    let config = from_file.map(Path::to_owned).or_else(named);
    // An error would come from an empty path, or from a directory that is gone.
    if let Some(config) = config.and_then(|config| path::absolute(config).ok()) {
        inherited.push((CONFIG, config.into()));
    }
    inherited
}

/// A store's URL that means the same in every directory and for every HOME.
fn in_full(given: &str, resolved: &str) -> OsString {
    let here = env::current_dir().ok();
    let given = match &here {
        Some(here) => secrets::with_files_in(given, here),
        None => given.to_owned(),
    };
    let full = match sqlite_path(resolved) {
        Some("") => SqliteStore::default_path().ok(),
        Some(path) if Path::new(path).is_relative() => {
            // If the whole URL is a reference, the path itself is passed on. It is no password.
            let path = sqlite_path(&given).unwrap_or(path);
            here.map(|here| here.join(path))
        }
        _ => None,
    };
    let Some(full) = full else { return given.into() };
    let mut url = OsString::from("sqlite:");
    url.push(full);
    url
}

/// The path in the URL of an embedded store; empty for the user's own.
fn sqlite_path(url: &str) -> Option<&str> {
    let path = url.strip_prefix("sqlite:")?;
    Some(path.strip_prefix("//").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> String {
        env::current_dir().unwrap().display().to_string()
    }

    fn full(given: &str, resolved: &str) -> String {
        in_full(given, resolved).into_string().unwrap()
    }

    #[test]
    fn a_path_is_passed_on_in_full_and_a_reference_as_it_is() {
        let same = |url: &str| assert_eq!(full(url, url), url);
        same("sqlite:/var/lib/locks.db");
        same("sqlite:///var/lib/locks.db");
        same("redis://me:pw@host/0");
        assert_eq!(full("sqlite:x.db", "sqlite:x.db"), format!("sqlite:{}/x.db", here()));
        assert_eq!(full("sqlite://x.db", "sqlite://x.db"), format!("sqlite:{}/x.db", here()));
        let (given, resolved) = ("sqlite:${env:A}/x.db", "sqlite:a/x.db");
        assert_eq!(full(given, resolved), format!("sqlite:{}/${{env:A}}/x.db", here()));
        assert_eq!(full(given, "sqlite:/a/x.db"), given);
        assert_eq!(full("${env:URL}", "sqlite:x.db"), format!("sqlite:{}/x.db", here()));
        assert_eq!(full("${env:URL}", "redis://:secret@host"), "${env:URL}");
        let (given, resolved) = ("redis://:${file:pw}@host", "redis://:secret@host");
        assert_eq!(full(given, resolved), format!("redis://:${{file:{}/pw}}@host", here()));
    }

    #[test]
    fn a_password_in_the_config_file_stays_there() {
        let file = Path::new("/etc/leasehold.toml");
        let pass_on = |given: &str| inherited(given, given, Some(file));
        let config = vec![(CONFIG, OsString::from(file))];
        assert_eq!(pass_on("redis://:hunter2@host"), config);
        assert_eq!(pass_on("redis+sentinel://a/main?sentinel-password=hunter2"), config);
        assert!(pass_on("redis://host").contains(&(STORE, "redis://host".into())));
        let reference = "redis://:${env:PW}@host";
        assert!(pass_on(reference).contains(&(STORE, reference.into())));
        let written = inherited("redis://:hunter2@host", "redis://:hunter2@host", None);
        assert!(written.contains(&(STORE, "redis://:hunter2@host".into())), "not from a file");
    }
}
