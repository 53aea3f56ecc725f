//! A fenced file behind symbolic links, which a write replaced by a file of its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use leasehold::Token;
use leasehold::fence::{FencedFile, StaleToken};
use tempfile::TempDir;

const OLD: Token = Token::new(33);
const NEW: Token = Token::new(34);
const STALE: StaleToken = StaleToken { given: OLD, seen: NEW };

/// `links/one` → `two` → `../data/report`.
fn linked() -> (TempDir, FencedFile, FencedFile) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["links", "data"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    symlink("two", folder.path().join("links/one")).unwrap();
    symlink("../data/report", folder.path().join("links/two")).unwrap();
    let link = FencedFile::new(folder.path().join("links/one"));
    let target = FencedFile::new(folder.path().join("data/report"));
    (folder, link, target)
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_write_goes_through_links_and_leaves_them_there() {
    let (folder, link, target) = linked();
    fs::write(target.path(), "before").unwrap();
    link.write(NEW, b"after").unwrap();
    assert_eq!(fs::read(target.path()).unwrap(), b"after");
    assert!(link.path().is_symlink());
    assert_eq!(names(&folder.path().join("links")), ["one", "two"]);
    assert_eq!(names(&folder.path().join("data")), ["report", "report.fence"]);
    // One file, one mark, by each of its names.
    for path in [&link, &target] {
        assert_eq!(path.write(OLD, b"late").unwrap_err().stale(), Some(STALE));
        assert_eq!(path.seen().unwrap(), Some(NEW));
    }
    let absolute = folder.path().join("absolute");
    symlink(target.path(), &absolute).unwrap();
    let late = FencedFile::new(absolute).delete(OLD).unwrap_err();
    assert_eq!(late.stale(), Some(STALE));
    assert_eq!(fs::read(link.path()).unwrap(), b"after");
}

#[test]
fn a_file_deleted_through_a_link_stays_deleted_and_comes_back_through_it() {
    let (_folder, link, target) = linked();
    link.write(OLD, b"first").unwrap();
    link.delete(NEW).unwrap();
    assert!(!target.path().exists() && link.path().is_symlink());
    assert_eq!(link.write(OLD, b"late").unwrap_err().stale(), Some(STALE));
    link.write(NEW, b"again").unwrap();
    assert_eq!(fs::read(target.path()).unwrap(), b"again");
}

/// An earlier version kept the mark beside the link.
#[test]
fn a_mark_beside_the_link_counts() {
    let (folder, link, _target) = linked();
    let sidecar = format!("{:020}\n", NEW.get());
    fs::write(folder.path().join("links/one.fence"), sidecar).unwrap();
    assert_eq!(link.write(OLD, b"late").unwrap_err().stale(), Some(STALE));
    assert_eq!(link.seen().unwrap(), Some(NEW));
    link.write(NEW, b"new").unwrap();
}

#[test]
fn links_that_lead_nowhere_are_errors_that_say_so() {
    let folder = tempfile::tempdir().unwrap();
    symlink("missing/report", folder.path().join("dangling")).unwrap();
    symlink("round", folder.path().join("and")).unwrap();
    symlink("and", folder.path().join("round")).unwrap();
    for (name, said) in [("dangling", "missing/report, whose folder"), ("round", "in a circle")] {
        let file = FencedFile::new(folder.path().join(name));
        for error in [file.write(NEW, b"x").unwrap_err(), file.seen().unwrap_err()] {
            assert!(error.to_string().contains(said), "{name}: {error}");
        }
        assert!(file.path().is_symlink());
    }
    assert_eq!(names(folder.path()), ["and", "dangling", "round"]);
}
