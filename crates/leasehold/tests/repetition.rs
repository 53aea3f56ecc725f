//! What several stores need is written once, in `backend/kit/`: no run of more than twelve lines
//! stands twice below `backend/`. Blank lines and indentation do not count.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// The shortest run that may not stand twice.
const RUN: usize = 13;

/// Where each line of a file stands, without indentation.
fn lines(text: &str) -> Vec<(usize, &str)> {
    let lines = text.lines().map(str::trim).enumerate();
    lines.filter(|(_, line)| !line.is_empty()).map(|(at, line)| (at + 1, line)).collect()
}

fn read(folder: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, files);
        } else {
            files.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The first place of every run that stands twice, and its second one.
fn repeated(files: &[(String, String)]) -> Vec<String> {
    let mut seen: HashMap<Vec<&str>, String> = HashMap::new();
    let mut found = Vec::new();
    for (file, text) in files {
        for window in lines(text).windows(RUN) {
            let run = window.iter().map(|(_, line)| *line).collect();
            let here = format!("{file}:{}", window[0].0);
            if let Some(there) = seen.get(&run) {
                found.push(format!("{there} and {here}"));
            } else {
                seen.insert(run, here);
            }
        }
    }
    found
}

#[test]
fn nothing_long_is_written_twice() {
    let backend = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend");
    let mut files = Vec::new();
    read(&backend, &mut files);
    assert!(files.len() > 100, "the stores are found: {}", files.len());
    let found = repeated(&files);
    assert!(found.is_empty(), "the same lines stand at\n{}", found.join("\n"));
}

#[test]
fn a_run_that_stands_twice_is_found() {
    let run: String = (0..RUN).map(|line| format!("line {line}\n")).collect();
    let indented = run.replace('\n', "\n\n    ");
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    assert_eq!(repeated(&[file("a", &run), file("b", &indented)]), ["a:1 and b:1"]);
    let short: String = run.lines().skip(1).collect();
    assert!(repeated(&[file("a", &run), file("b", &short)]).is_empty());
}
