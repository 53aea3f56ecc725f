//! No two modules of the library need each other.
//!
//! A folder and its parts count as one: for each folder, the modules in it are in an order in
//! which each needs only those before it. A module may need what is above it, and what it
//! contains. Re-exports are followed to where a name is defined. What macros expand to is not
//! seen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};

type ModulePath = Vec<String>;
/// Which module needs which, and by which names.
type Needs = BTreeMap<(String, String), BTreeSet<String>>;

#[derive(Default)]
struct Module {
    /// What it imports under which name.
    imports: HashMap<String, ModulePath>,
    /// Every path that it mentions, made absolute.
    paths: Vec<ModulePath>,
}

#[test]
fn no_modules_need_each_other() {
    let mut modules = HashMap::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut Vec::new(), &mut modules);
    assert!(modules.len() > 100, "the modules are found: {}", modules.len());
    let mut complaints = Vec::new();
    for folder in modules.keys() {
        let needs = needs_within(folder, &modules);
        for cycle in cycles(&needs) {
            complaints.push(format!("in {}:", shown(folder)));
            for ((from, to), names) in &needs {
                if cycle.contains(from) && cycle.contains(to) {
                    complaints.push(format!("    {from} needs {to}: {names:?}"));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "these modules need each other\n{}", complaints.join("\n"));
}

fn read(folder: &Path, at: &mut ModulePath, modules: &mut HashMap<ModulePath, Module>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let is_code = path.extension().is_some_and(|extension| extension == "rs");
        if path.is_dir() && name != "tests" {
            at.push(name);
            read(&path, at, modules);
            at.pop();
        } else if is_code && !["tests", "schedules", "callers"].contains(&&*name) {
            let mut own = at.clone();
            own.extend((name != "lib").then_some(name));
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            let mut reading = Reading { at: own.clone(), module: Module::default() };
            reading.visit_file(&file);
            modules.insert(own, reading.module);
        }
    }
}

/// One file on the way to a [`Module`].
struct Reading {
    at: ModulePath,
    module: Module,
}

impl Reading {
    /// Makes a path absolute. One that begins with another crate stays as it is, and leads nowhere.
    fn absolute(&self, segments: &[String]) -> ModulePath {
        let mut at = match &*segments[0] {
            "crate" => Vec::new(),
            _ => self.at.clone(),
        };
        let mut rest = segments;
        while let Some((first, others)) = rest.split_first() {
            match &**first {
                "crate" | "self" => {}
                "super" => _ = at.pop(),
                _ => break,
            }
            rest = others;
        }
        at.extend_from_slice(rest);
        at
    }

    fn import(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, before));
            }
            syn::UseTree::Name(name) => self.import_as(&name.ident, &name.ident, before),
            syn::UseTree::Rename(name) => self.import_as(&name.ident, &name.rename, before),
            syn::UseTree::Glob(_) => self.mention(before),
        }
    }

    fn import_as(&mut self, name: &syn::Ident, known_as: &syn::Ident, before: &[String]) {
        let mut path = before.to_vec();
        path.extend((name != "self").then(|| name.to_string()));
        let known_as = match known_as == "self" {
            true => path.last().cloned().unwrap_or_default(),
            false => known_as.to_string(),
        };
        let absolute = self.absolute(&path);
        self.module.paths.push(absolute.clone());
        self.module.imports.insert(known_as, absolute);
    }

    fn mention(&mut self, segments: &[String]) {
        let absolute = self.absolute(segments);
        self.module.paths.push(absolute);
    }
}

impl<'ast> Visit<'ast> for Reading {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> =
            path.segments.iter().map(|part| part.ident.to_string()).collect();
        if segments.len() > 1 {
            self.mention(&segments);
        }
        visit::visit_path(self, path);
    }
}

fn is_for_tests(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("cfg") && {
        let condition = list.tokens.to_string();
        condition == "test"
            || condition.starts_with("all (test")
            || condition.starts_with("all(test")
    }
}

/// The module in which this path ends, re-exports followed.
fn defined_in(path: &[String], modules: &HashMap<ModulePath, Module>) -> Option<ModulePath> {
    let mut path = path.to_vec();
    // A chain of re-exports is short; an import of itself would go on for ever.
    for _ in 0..8 {
        let known = (0..=path.len()).rev().find(|end| modules.contains_key(&path[..*end]))?;
        let Some(name) = path.get(known) else { return Some(path) };
        let imported = modules[&path[..known]].imports.get(name);
        let Some(imported) = imported.filter(|imported| **imported != path) else {
            path.truncate(known);
            return Some(path);
        };
        let mut next = imported.clone();
        next.extend_from_slice(&path[known + 1..]);
        path = next;
    }
    None
}

/// Which of the modules of a folder need which others of it, what they contain included.
fn needs_within(folder: &[String], modules: &HashMap<ModulePath, Module>) -> Needs {
    let mut needs = Needs::new();
    let part =
        |module: &[String]| module.strip_prefix(folder).and_then(|rest| rest.first()).cloned();
    for (at, module) in modules {
        let Some(from) = part(at) else { continue };
        for path in &module.paths {
            let Some(to) = defined_in(path, modules).as_deref().and_then(part) else { continue };
            if from != to {
                let names = needs.entry((from.clone(), to)).or_default();
                names.insert(format!("{} → {}", shown(at), path.join("::")));
            }
        }
    }
    needs
}

/// The groups of modules in which each can be reached from each.
fn cycles(needs: &Needs) -> Vec<BTreeSet<String>> {
    let reached_from = |start: &String| {
        let mut reached = BTreeSet::new();
        let mut next = vec![start.clone()];
        while let Some(at) = next.pop() {
            for (_, to) in needs.keys().filter(|(from, _)| *from == at) {
                if reached.insert(to.clone()) {
                    next.push(to.clone());
                }
            }
        }
        reached
    };
    let starts: BTreeSet<&String> = needs.keys().map(|(from, _)| from).collect();
    let reached: BTreeMap<_, _> =
        starts.iter().map(|start| (*start, reached_from(start))).collect();
    let mut found = BTreeSet::new();
    for (start, to) in reached.iter().filter(|(start, to)| to.contains(**start)) {
        let back = |other: &&String| reached.get(*other).is_some_and(|back| back.contains(*start));
        found.insert(to.iter().filter(back).cloned().collect::<BTreeSet<_>>());
    }
    found.into_iter().collect()
}

fn shown(module: &[String]) -> String {
    if module.is_empty() { "the library".into() } else { module.join("::") }
}
