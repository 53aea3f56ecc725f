//! `docs/guide/track-record.md` promises a replay for every defect: the tests it names must exist.

use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/guide/track-record.md";

/// A page that names tests is wrong as soon as somebody renames one of them.
#[test]
fn every_replay_of_the_track_record_names_a_test() {
    let page = fs::read_to_string(root().join(PAGE)).expect("the page");
    let replays: Vec<(&str, &str)> = page.lines().flat_map(replays_of).collect();
    assert!(replays.len() > 100, "only {} replays were found in {PAGE}", replays.len());
    let missing: Vec<_> = replays
        .into_iter()
        .filter(|(package, test)| !has_test(&root().join("crates").join(package), test))
        .collect();
    assert!(missing.is_empty(), "{PAGE} names tests that do not exist: {missing:#?}");
}

/// Only the last table, of fixes without a test, has three columns.
#[test]
fn every_defect_of_the_track_record_has_its_columns() {
    let page = fs::read_to_string(root().join(PAGE)).expect("the page");
    let (replayed, others) = page.split_once("## Fixed, but nothing replays it").expect("a list");
    for row in rows_of(replayed) {
        assert_eq!(columns(row), 4, "{row}");
        assert!(!replays_of(row).is_empty(), "{row}");
    }
    for row in rows_of(others) {
        assert_eq!(columns(row), 3, "{row}");
    }
}

fn rows_of(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with("| **"))
}

fn columns(row: &str) -> usize {
    row.trim_matches('|').split(" | ").count()
}

/// The package and the names in `-p PACKAGE -E 'test(NAME) + test(NAME)'`.
fn replays_of(line: &str) -> Vec<(&str, &str)> {
    let Some((_, replay)) = line.split_once("`-p ") else { return Vec::new() };
    let Some((package, expression)) = replay.split_once(" -E '") else { return Vec::new() };
    let names = expression.split("test(").skip(1).filter_map(|rest| rest.split_once(')'));
    names.map(|(name, _)| (package, name)).collect()
}

/// Whether a source of the package defines it; the models' tests are `name: "variant"` in a macro.
fn has_test(folder: &Path, name: &str) -> bool {
    let (plain, of_model) = (format!("fn {name}("), format!(" {name}: \""));
    let entries = fs::read_dir(folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
    entries.map(|entry| entry.expect("an entry").path()).any(|path| {
        if path.is_dir() {
            return has_test(&path, name);
        }
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        is_source && {
            let text = fs::read_to_string(&path).expect("a source");
            text.contains(&plain) || text.contains(&of_model)
        }
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
