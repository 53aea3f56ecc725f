//! The walk of one acquisition, as ARCHITECTURE.md tells it: every file is there, every store
//! has its row, and no row grows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The most files of a walk, by the name of its row.
const GOALS: [(&str, usize); 8] = [
    ("memory", 6),
    ("sqlite", 6),
    ("postgres, leases", 6),
    ("postgres, sessions", 8),
    ("redis", 8),
    ("etcd", 8),
    ("zookeeper", 8),
    ("redlock", 10),
];

fn library() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The rows of the table: a store, the files that decide, and those that only serve.
fn rows() -> Vec<(String, Vec<String>, Vec<String>)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("\n## The walk of one acquisition\n").expect("the section");
    let section = section.split("\n## ").next().unwrap();
    let files = |cell: &str| -> Vec<String> {
        let words = cell.split('`').skip(1).step_by(2);
        words.map(str::to_owned).collect()
    };
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [store, walk, services] = cells[..] else { panic!("three cells in {row}") };
        (store.to_owned(), files(walk), files(services))
    })
    .collect()
}

#[test]
fn every_file_of_a_walk_is_there() {
    let rows = rows();
    for (store, walk, services) in &rows {
        assert!(walk.len() > 3, "{store}: {walk:?}");
        for file in walk.iter().chain(services) {
            assert!(library().join(file).is_file(), "{store}: there is no {file}");
        }
        let all: BTreeSet<&String> = walk.iter().chain(services).collect();
        assert_eq!(all.len(), walk.len() + services.len(), "{store}: a file is named twice");
    }
}

#[test]
fn no_walk_is_longer_than_its_goal() {
    let rows = rows();
    let stores: Vec<&str> = rows.iter().map(|(store, ..)| &**store).collect();
    assert_eq!(stores, GOALS.map(|(store, _)| store));
    for ((store, walk, _), (_, goal)) in rows.iter().zip(GOALS) {
        assert!(walk.len() <= goal, "{store} passes {} files: {walk:?}", walk.len());
    }
}

#[test]
fn every_store_has_its_row() {
    let rows = rows();
    let folder = library().join("backend");
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let own = format!("backend/{name}/");
        if path.is_dir() && name != "kit" {
            let known = |(store, walk, _): &(String, Vec<String>, Vec<String>)| {
                store.starts_with(&name) && walk.iter().any(|file| file.starts_with(&own))
            };
            assert!(rows.iter().any(known), "{name} has no row of its own");
        }
    }
}
