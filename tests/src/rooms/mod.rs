//! Rooms: the modules of a crate, and those of each folder, depend on each other in one direction, and so do the crates.
//!
//! Dependencies are read from the source as rustfmt formats it, without test-only code: `use` items, and other paths that begin with
//! `crate`, `super` or `self`. A re-exported name counts as a use of the module that defines it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs, io,
    path::{Path, PathBuf},
};

/// Path from the root of a crate.
type Names = Vec<String>;
/// The rooms that each room uses, with an example of the use.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// Shared crates, and the crates of this workspace that each may depend on.
const SHARED: [(&str, &[&str]); 4] = [
    ("crds", &[]),
    ("tool-versions", &[]),
    ("datastore-client", &["crds"]),
    ("source", &["crds", "tool-versions"]),
];
/// The folders of the two sides. A crate may depend on shared crates and on crates of its own side.
const SIDES: [&str; 2] = ["controller", "runner-agent"];

/// A crate.
#[derive(Default)]
struct Source {
    modules: BTreeSet<Names>,
    /// By module: imported names.
    uses: BTreeMap<Names, BTreeMap<String, Names>>,
    /// By module: its paths.
    paths: Vec<(Names, Names)>,
}

impl Source {
    /// Parses files, by their paths below `src`.
    fn of(files: &BTreeMap<String, String>) -> Self {
        let (mut texts, mut tests) = (Vec::new(), Vec::new());
        for (path, text) in files {
            let path = path.trim_end_matches(".rs");
            let names: Names = path
                .split('/')
                .filter(|name| !matches!(*name, "mod" | "lib"))
                .map(str::to_owned)
                .collect();
            // Binaries are separate crates.
            if names
                .first()
                .is_some_and(|first| first == "bin" || (first == "main" && names.len() == 1))
            {
                continue;
            }
            let (kept, left_out) = product(text);
            tests.extend(
                left_out
                    .into_iter()
                    .map(|name| [names.as_slice(), &[name]].concat()),
            );
            texts.push((names, kept));
        }
        texts.retain(|(names, _)| !tests.iter().any(|test| names.starts_with(test)));
        let mut source = Self {
            modules: texts.iter().map(|(names, _)| names.clone()).collect(),
            ..Self::default()
        };
        source.modules.insert(Names::new());
        for (names, kept) in &texts {
            source.read(names, kept);
        }
        source
    }

    fn read(&mut self, module: &Names, lines: &[&str]) {
        let mut lines = lines.iter();
        while let Some(line) = lines.next() {
            // `pub(in …)` is not a path of the code.
            let code = line
                .strip_prefix("pub(in ")
                .and_then(|rest| rest.split_once(')'))
                .map_or(*line, |(_, rest)| rest.trim_start());
            let item = code
                .split_once("use ")
                .filter(|(before, _)| ["", "pub ", "pub(crate) ", "pub(super) "].contains(before));
            if let Some((_, first)) = item {
                let mut text = first.to_owned();
                while !text.ends_with(';') {
                    let Some(next) = lines.next() else { break };
                    text.push_str(next);
                }
                for (path, name) in tree("", text.trim_end_matches(';')) {
                    if let Some(path) = self.absolute(module, &path) {
                        self.uses
                            .entry(module.clone())
                            .or_default()
                            .insert(name, path.clone());
                        self.paths.push((module.clone(), path));
                    }
                }
                continue;
            }
            for word in code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')) {
                let path = names(word);
                if path.len() > 1 && matches!(path[0].as_str(), "crate" | "super" | "self") {
                    self.paths.extend(
                        self.absolute(module, &path)
                            .map(|path| (module.clone(), path)),
                    );
                }
            }
        }
    }

    /// Resolves a path from the root of the crate; `None` for other crates.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Names> {
        let (mut base, mut rest) = (module.to_vec(), path);
        match rest.first()?.as_str() {
            "crate" => (base, rest) = (Names::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {}
            _ => {
                base.push(rest[0].clone());
                return self
                    .modules
                    .contains(&base)
                    .then(|| [module, path].concat());
            }
        }
        while rest.first().is_some_and(|first| first == "super") {
            base.pop()?;
            rest = &rest[1..];
        }
        Some([base.as_slice(), rest].concat())
    }

    /// The module that defines a path, resolving re-exports.
    fn target(&self, path: &[String], depth: usize) -> Names {
        let length = (0..=path.len())
            .rev()
            .find(|length| self.modules.contains(&path[..*length]))
            .unwrap_or(0);
        let (module, rest) = path.split_at(length);
        let passed = rest
            .first()
            .and_then(|name| self.uses.get(module)?.get(name));
        match passed.filter(|passed| depth < 9 && passed.as_slice() != &path[..=length]) {
            Some(passed) => self.target(&[passed.as_slice(), &rest[1..]].concat(), depth + 1),
            None => module.to_vec(),
        }
    }

    /// The graph of uses between the modules of a folder.
    fn graph(&self, folder: &[String]) -> Graph {
        let mut graph = Graph::new();
        for (module, path) in self
            .paths
            .iter()
            .filter(|(module, _)| module.len() > folder.len() && module.starts_with(folder))
        {
            let target = self.target(path, 0);
            if target.len() > folder.len()
                && target.starts_with(folder)
                && target[folder.len()] != module[folder.len()]
            {
                let by = format!("{} has crate::{}", module.join("::"), path.join("::"));
                graph
                    .entry(module[folder.len()].clone())
                    .or_default()
                    .entry(target[folder.len()].clone())
                    .or_insert(by);
            }
        }
        graph
    }

    /// The cycles of each folder, by name: the rooms that use each other, and the shortest cycle.
    fn knots(&self, name: &str) -> Vec<(String, Names, String)> {
        let mut found = Vec::new();
        for folder in &self.modules {
            let (graph, mut told) = (self.graph(folder), BTreeSet::new());
            let place = std::iter::once(name.to_owned())
                .chain(folder.iter().cloned())
                .collect::<Vec<_>>()
                .join("::");
            for room in graph.keys() {
                let Some(way) = way(&graph, room, room).filter(|_| !told.contains(room)) else {
                    continue;
                };
                let knot: Names = graph
                    .keys()
                    .filter(|other| {
                        way_exists(&graph, room, other) && way_exists(&graph, other, room)
                    })
                    .cloned()
                    .collect();
                told.extend(knot.iter().cloned());
                found.push((place.clone(), knot, way));
            }
        }
        found
    }
}

fn names(path: &str) -> Names {
    path.split("::")
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The lines compiled for the product, without comments, and the modules declared for tests only.
fn product(text: &str) -> (Vec<&str>, Vec<String>) {
    let (mut kept, mut tests) = (Vec::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if code.starts_with("#[cfg(test") || code.starts_with("#[cfg(all(test") {
            let indent = line.len() - code.len();
            let Some(item) = lines.find(|line| !line.trim_start().starts_with(['#', '/'])) else {
                break;
            };
            let module = item
                .trim_start()
                .split_once("mod ")
                .and_then(|(_, name)| name.strip_suffix(';'));
            tests.extend(module.map(str::to_owned));
            if item.ends_with(['{', '(']) {
                // Up to the line that closes it.
                lines.find(|line| {
                    line.len() - line.trim_start().len() == indent
                        && line.trim_start().starts_with('}')
                });
            }
        } else if !code.starts_with("//") {
            kept.push(code.split("// ").next().unwrap_or_default().trim_end());
        }
    }
    (kept, tests)
}

/// The paths of a `use`, and the names that they introduce.
fn tree(prefix: &str, text: &str) -> Vec<(Names, String)> {
    if let Some((head, inner)) = text.trim().split_once('{') {
        let mut depth = 0;
        let parts = inner.strip_suffix('}').unwrap_or(inner).split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && c == ','
        });
        return parts
            .flat_map(|part| tree(&format!("{prefix}{head}"), part))
            .collect();
    }
    let (path, alias) = text.split_once(" as ").unwrap_or((text, ""));
    let mut path = names(&format!("{prefix}{}", path.trim()));
    if path.len() > 1 {
        path.pop_if(|last| last == "self");
    }
    let name = Some(alias.trim().to_owned())
        .filter(|name| !name.is_empty())
        .or_else(|| path.last().cloned());
    name.map(|name| (path, name)).into_iter().collect()
}

fn way_exists(graph: &Graph, from: &String, to: &String) -> bool {
    way(graph, from, to).is_some()
}

/// The shortest path from a room to another, or back to itself.
fn way(graph: &Graph, from: &String, to: &String) -> Option<String> {
    let (mut queue, mut seen) = (VecDeque::from([(from, from.clone())]), BTreeSet::new());
    while let Some((room, text)) = queue.pop_front() {
        for (next, by) in graph.get(room).into_iter().flatten() {
            let text = format!("{text}\n  -> {next}: {by}");
            if next == to {
                return Some(text);
            }
            if seen.insert(next) {
                queue.push_back((next, text));
            }
        }
    }
    None
}

/// The files below a folder, by relative path.
fn read(folder: &Path, below: &str, files: &mut BTreeMap<String, String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            read(&entry.path(), &format!("{name}/"), files)?;
        } else if entry.path().extension().is_some_and(|end| end == "rs") {
            files.insert(name, fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// The crates below a folder: name and folder of each.
fn crates(folder: &Path, depth: usize, found: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    if folder.join("Cargo.toml").exists() && folder.join("src").is_dir() {
        found.insert(
            folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            folder.to_owned(),
        );
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_ours = name != "target" && name != "src" && !name.to_string_lossy().starts_with('.');
        if depth > 0 && is_ours && entry.file_type()?.is_dir() {
            crates(&entry.path(), depth - 1, found)?;
        }
    }
    Ok(())
}

/// The dependencies of a manifest, without dev-dependencies.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let sections = manifest
        .split("\n[")
        .filter_map(|section| section.split_once("]\n"));
    let product = sections
        .filter(|(name, _)| name.ends_with("dependencies") && !name.ends_with("dev-dependencies"));
    product
        .flat_map(|(_, lines)| lines.lines())
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .collect()
}

/// The dependencies between crates that [`SHARED`] and [`SIDES`] do not permit. `crates` maps each crate's name to its folder and manifest.
fn wrong_arrows(crates: &BTreeMap<String, (PathBuf, String)>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, (folder, manifest)) in crates {
        let own = dependencies(manifest)
            .into_iter()
            .filter_map(|to| Some((to, &crates.get(to)?.0)));
        let shared = |name: &str| SHARED.iter().find(|(shared, _)| *shared == name);
        let side = SIDES.iter().find(|side| folder.starts_with(side));
        let may = |to: &str, at: &Path| match (shared(name), side) {
            (Some((_, allowed)), _) => allowed.contains(&to),
            (None, Some(side)) => shared(to).is_some() || at.starts_with(side),
            (None, None) => true,
        };
        wrong.extend(
            own.filter(|(to, at)| !may(to, at))
                .map(|(to, _)| format!("{name} depends on {to}")),
        );
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knots(files: &[(&str, &str)]) -> Vec<(String, Names, String)> {
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        Source::of(&files).knots("x")
    }

    fn rooms(files: &[(&str, &str)]) -> Vec<(String, Names)> {
        knots(files)
            .into_iter()
            .map(|(place, knot, _)| (place, knot))
            .collect()
    }

    #[test]
    fn modules_of_each_crate_depend_in_one_direction() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (mut all, mut found) = (BTreeMap::new(), Vec::new());
        crates(root, 2, &mut all).unwrap();
        for name in [
            "crds",
            "controller",
            "runner-agent",
            "tool-versions",
            "tests",
            "xtask",
        ] {
            assert!(all.contains_key(name), "{name} is not in {all:?}");
        }
        for (name, folder) in all {
            let mut files = BTreeMap::new();
            read(&folder.join("src"), "", &mut files).unwrap();
            let source = Source::of(&files);
            assert!(
                source.modules.len() == 1 || !source.paths.is_empty(),
                "{name} is not understood"
            );
            found.extend(source.knots(&name));
        }
        let told = |(place, knot, way): &(String, Names, String)| {
            format!(
                "{place}: these rooms use each other: {knot:?}; the shortest way around:\n  {way}"
            )
        };
        assert!(
            found.is_empty(),
            "{}",
            found.iter().map(told).collect::<Vec<_>>().join("\n\n")
        );
    }

    #[test]
    fn shared_crates_depend_on_neither_side() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut all = BTreeMap::new();
        crates(root, 2, &mut all).unwrap();
        let of = |(name, folder): (String, PathBuf)| {
            let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
            (
                name,
                (folder.strip_prefix(root).unwrap().to_owned(), manifest),
            )
        };
        let mut crates: BTreeMap<_, _> = all.into_iter().map(of).collect();
        for (name, _) in SHARED {
            assert!(crates.contains_key(name), "there is no crate {name}");
        }
        assert!(
            dependencies(&crates["source"].1).contains("crds"),
            "no dependencies were read"
        );
        assert_eq!(wrong_arrows(&crates), Vec::<String>::new());
        for (name, to) in [
            ("source", "runner-agent"),
            ("tool-versions", "crds"),
            ("runner-agent", "sources"),
            ("datastore", "runner-agent"),
        ] {
            let before = crates[name].1.clone();
            let manifest = &mut crates.get_mut(name).unwrap().1;
            *manifest = format!("{manifest}\n[dependencies]\n{to}.workspace = true\n");
            assert_eq!(wrong_arrows(&crates), [format!("{name} depends on {to}")]);
            crates.get_mut(name).unwrap().1 = before;
        }
    }

    #[test]
    fn one_direction_is_no_knot() {
        let files = [
            ("lib.rs", "pub mod a;\npub mod b;\nmod c;\npub use a::A;"),
            (
                "a.rs",
                "use std::fs;\n// crate::b::B\npub struct A; // crate::b::B",
            ),
            (
                "b/mod.rs",
                "pub mod d;\nmod e;\nuse crate::{\n    a::A as Other,\n    c,\n};\npub(in crate::b) struct B;",
            ),
            (
                "b/d.rs",
                "fn f() {\n    super::super::a::f();\n    crate::A;\n}",
            ),
            ("b/e.rs", "use super::d;"),
            (
                "c.rs",
                "#[cfg(test)]\nuse crate::b::B;\nfn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}",
            ),
        ];
        assert_eq!(rooms(&files), []);
    }

    #[test]
    fn a_knot_is_found_and_its_way_is_named() {
        for back in [
            "use crate::a::A;",
            "use super::a;",
            "fn f() {\n    crate::a::f()\n}",
            "pub(crate) use crate::{\n    a::{self, A},\n    c::C,\n};",
            "use crate::A;",
        ] {
            let files = [
                ("lib.rs", "pub use a::A;"),
                ("a.rs", "use crate::c::C;\npub struct A;"),
                ("b.rs", back),
                ("c.rs", "use crate::b;"),
            ];
            let found = knots(&files);
            let (place, knot, way) = found.first().unwrap_or_else(|| panic!("{back}"));
            assert_eq!(
                (found.len(), place.as_str(), knot.join(" ")),
                (1, "x", "a b c".to_owned()),
                "{back}"
            );
            assert!(
                way.starts_with(
                    "a\n  -> c: a has crate::c::C\n  -> b: c has crate::b\n  -> a: b has crate::"
                ),
                "{way}"
            );
        }
    }

    #[test]
    fn each_folder_is_looked_at_and_its_modules_count_as_one_above() {
        let inside = [
            ("lib.rs", ""),
            ("a/mod.rs", "mod b;\nmod c;"),
            ("a/b.rs", "use super::c::C;"),
            ("a/c.rs", "fn f() {\n    super::b::f()\n}"),
        ];
        assert_eq!(
            rooms(&inside),
            [("x::a".to_owned(), vec!["b".to_owned(), "c".to_owned()])]
        );
        let above = [
            ("lib.rs", ""),
            ("a/mod.rs", "mod b;\nmod c;"),
            ("a/b.rs", "use crate::d;"),
            ("a/c.rs", ""),
            ("d.rs", "use crate::a::c;"),
        ];
        assert_eq!(
            rooms(&above),
            [("x".to_owned(), vec!["a".to_owned(), "d".to_owned()])]
        );
    }

    #[test]
    fn code_for_tests_only_does_not_count() {
        let files = [
            ("lib.rs", "#[cfg(test)]\nmod testing;\nmod a;\nmod b;"),
            (
                "a.rs",
                "use crate::b;\n#[cfg(test)]\n#[allow(x)]\nmod tests;\n#[cfg(not(test))]\nfn f() {}",
            ),
            ("a/tests.rs", "use crate::testing;"),
            (
                "b.rs",
                "    #[cfg(test)]\n    fn f(\n        x: u8,\n    ) -> crate::a::A {\n        crate::a::f()\n    }\n#[cfg(test)]\nuse crate::{a::A};",
            ),
            ("testing.rs", "use crate::a;"),
        ];
        assert_eq!(rooms(&files), []);
        let mut product = files;
        product[3].1 = "#[cfg(not(test))]\npub fn f() -> crate::a::A {}";
        assert_eq!(rooms(&product).len(), 1);
    }
}
