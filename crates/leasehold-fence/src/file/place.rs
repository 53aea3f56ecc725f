//! Where a fenced file is: behind symbolic links, as for `open`.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::{fs, iter};

/// As many links as Linux follows.
const LINKS: usize = 40;

/// A file and its sidecar.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) file: PathBuf,
    pub(super) sidecar: PathBuf,
    /// Sidecars beside the links on the way: an earlier version kept the mark there.
    pub(super) former: Vec<PathBuf>,
}

impl Place {
    /// Follows a path to the file that it names, which need not exist. Were a link not followed, it
    /// would be the link that a new file is renamed over.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let mut file = path.to_owned();
        let mut former = Vec::new();
        while is_link(&file)? {
            if former.len() == LINKS {
                let message =
                    format!("it leads through more than {LINKS} symbolic links, or in a circle");
                return Err(io::Error::new(ErrorKind::InvalidInput, message));
            }
            former.push(beside(&file, ".fence"));
            let target = fs::read_link(&file)?;
            // An absolute one replaces the folder.
            file.pop();
            file.push(target);
        }
        let place = Self { sidecar: beside(&file, ".fence"), file, former };
        if !place.former.is_empty() && !place.folder().is_dir() {
            let message = format!(
                "it is a symbolic link to {}, whose folder is not there",
                place.file.display()
            );
            return Err(io::Error::new(ErrorKind::NotFound, message));
        }
        Ok(place)
    }

    /// The folder of the file, which has the sidecar and new files, too.
    pub(super) fn folder(&self) -> &Path {
        let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or_else(|| Path::new("."))
    }

    /// Where a new file is written before it takes the place of the old one.
    pub(super) fn temporary(&self) -> PathBuf {
        beside(&self.sidecar, ".new")
    }

    /// All files that may have a mark.
    pub(super) fn sidecars(&self) -> impl Iterator<Item = &Path> {
        iter::once(&self.sidecar).chain(&self.former).map(PathBuf::as_path)
    }
}

fn is_link(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(found.is_symlink()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
