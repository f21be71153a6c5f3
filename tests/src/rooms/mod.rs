//! Rooms: the modules of a crate, and those of each folder, stand on each other in one direction.
//!
//! That is read off the source as it is written: paths that begin with `crate`, `super` or `self`, in `use` and elsewhere, without what is
//! compiled for tests only. A name that a module only passes on, by a `use`, counts as used where it comes from.

mod text;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs, io,
    path::Path,
};

use text::{product, tokens, tree};

/// Names from the root of a crate.
type Names = Vec<String>;
/// Which room uses which, and by what.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// A crate.
#[derive(Default)]
struct Source {
    modules: BTreeSet<Names>,
    /// By module: names that it takes from elsewhere.
    uses: BTreeMap<Names, BTreeMap<String, Names>>,
    /// By module: the paths that stand in it.
    paths: Vec<(Names, Names)>,
}

impl Source {
    /// Reads files, by their paths below `src`.
    fn of(files: &BTreeMap<String, String>) -> Self {
        let mut source = Self::default();
        let (mut texts, mut tests) = (Vec::new(), Vec::new());
        for (path, text) in files {
            let path = path.trim_end_matches(".rs");
            let names: Names = path.split('/').filter(|name| !matches!(*name, "mod" | "lib")).map(str::to_owned).collect();
            // Programs are crates of their own.
            if names.first().is_some_and(|first| first == "bin" || (first == "main" && names.len() == 1)) {
                continue;
            }
            let (kept, left_out) = product(&tokens(text));
            tests.extend(left_out.into_iter().map(|name| [names.as_slice(), &[name]].concat()));
            texts.push((names, kept));
        }
        texts.retain(|(names, _)| !tests.iter().any(|test| names.starts_with(test)));
        source.modules = texts.iter().map(|(names, _)| names.clone()).collect();
        source.modules.insert(Names::new());
        for (names, kept) in &texts {
            source.read(names, kept);
        }
        source
    }

    fn read(&mut self, module: &Names, tokens: &[String]) {
        let mut i = 0;
        while let Some(token) = tokens.get(i) {
            let before = i.checked_sub(1).and_then(|i| tokens.get(i)).map(String::as_str);
            if token == "use" && before != Some("::") {
                let mut found = Vec::new();
                i += 1;
                tree(tokens, &mut i, &[], &mut found);
                for (path, name) in found {
                    if let Some(path) = self.absolute(module, &path) {
                        self.uses.entry(module.clone()).or_default().insert(name, path.clone());
                        self.paths.push((module.clone(), path));
                    }
                }
                continue;
            }
            let begins =
                matches!(token.as_str(), "crate" | "super" | "self") && tokens.get(i + 1).is_some_and(|next| next == "::");
            let is_visibility = before == Some("in") && i > 1 && tokens[i - 2] == "(";
            if begins && !is_visibility {
                let mut path = vec![token.clone()];
                while tokens.get(i + 1).is_some_and(|next| next == "::")
                    && let Some(word) = tokens.get(i + 2).filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
                {
                    path.push(word.clone());
                    i += 2;
                }
                self.paths.extend(self.absolute(module, &path).map(|path| (module.clone(), path)));
            }
            i += 1;
        }
    }

    /// A path from the root of the crate; `None` when it leads elsewhere.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Names> {
        let (mut base, mut rest) = (module.to_vec(), path);
        match rest.first()?.as_str() {
            "crate" => (base, rest) = (Names::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {}
            _ => {
                base.push(rest[0].clone());
                return self.modules.contains(&base).then(|| [module, path].concat());
            }
        }
        while rest.first().is_some_and(|first| first == "super") {
            base.pop()?;
            rest = &rest[1..];
        }
        Some([base.as_slice(), rest].concat())
    }

    /// The module that a path leads to, through whatever only passes it on.
    fn target(&self, path: &[String], depth: usize) -> Names {
        let length = (0..=path.len()).rev().find(|length| self.modules.contains(&path[..*length])).unwrap_or(0);
        let (module, rest) = path.split_at(length);
        let passed = rest.first().and_then(|name| self.uses.get(module)?.get(name));
        match passed.filter(|passed| depth < 9 && passed.as_slice() != &path[..=length]) {
            Some(passed) => self.target(&[passed.as_slice(), &rest[1..]].concat(), depth + 1),
            None => module.to_vec(),
        }
    }

    /// Which modules of a folder use which.
    fn graph(&self, folder: &[String]) -> Graph {
        let mut graph = Graph::new();
        for (module, path) in self.paths.iter().filter(|(module, _)| module.len() > folder.len() && module.starts_with(folder)) {
            let target = self.target(path, 0);
            if target.len() > folder.len() && target.starts_with(folder) && target[folder.len()] != module[folder.len()] {
                let by = format!("{} has crate::{}", module.join("::"), path.join("::"));
                graph.entry(module[folder.len()].clone()).or_default().entry(target[folder.len()].clone()).or_insert(by);
            }
        }
        graph
    }

    /// The knots of each folder, by its name: the rooms that use each other, and the shortest way around.
    fn knots(&self, name: &str) -> Vec<(String, Names, String)> {
        let mut found = Vec::new();
        for folder in &self.modules {
            let (graph, mut told) = (self.graph(folder), BTreeSet::new());
            let place = std::iter::once(name.to_owned()).chain(folder.iter().cloned()).collect::<Vec<_>>().join("::");
            for room in graph.keys() {
                let Some(way) = way(&graph, room, room).filter(|_| !told.contains(room)) else { continue };
                let knot: Names = graph
                    .keys()
                    .filter(|other| way_exists(&graph, room, other) && way_exists(&graph, other, room))
                    .cloned()
                    .collect();
                told.extend(knot.iter().cloned());
                found.push((place.clone(), knot, way));
            }
        }
        found
    }
}

fn way_exists(graph: &Graph, from: &String, to: &String) -> bool {
    way(graph, from, to).is_some()
}

/// The shortest way from a room to another, or around to itself.
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

/// The files below a folder, by their paths from there.
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

/// The crates below a folder: their names, and where their sources are.
fn crates(folder: &Path, depth: usize, found: &mut Vec<(String, std::path::PathBuf)>) -> io::Result<()> {
    if folder.join("Cargo.toml").exists() && folder.join("src").is_dir() {
        found.push((folder.file_name().unwrap_or_default().to_string_lossy().into_owned(), folder.join("src")));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn knots(files: &[(&str, &str)]) -> Vec<(String, Names, String)> {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Source::of(&files).knots("x")
    }

    fn rooms(files: &[(&str, &str)]) -> Vec<(String, Names)> {
        knots(files).into_iter().map(|(place, knot, _)| (place, knot)).collect()
    }

    #[test]
    fn rooms_of_each_crate_stand_on_each_other_in_one_direction() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (mut all, mut found) = (Vec::new(), Vec::new());
        crates(root, 2, &mut all).unwrap();
        for name in ["crds", "controller", "runner-agent", "tool-versions", "tests", "xtask"] {
            assert!(all.iter().any(|(of, _)| of == name), "{name} is not in {all:?}");
        }
        for (name, folder) in all {
            let mut files = BTreeMap::new();
            read(&folder, "", &mut files).unwrap();
            let source = Source::of(&files);
            assert!(source.modules.len() == 1 || !source.paths.is_empty(), "{name} is not understood");
            found.extend(source.knots(&name));
        }
        let told = |(place, knot, way): &(String, Names, String)| {
            format!("{place}: these rooms use each other: {knot:?}; the shortest way around:\n  {way}")
        };
        assert!(found.is_empty(), "{}", found.iter().map(told).collect::<Vec<_>>().join("\n\n"));
    }

    #[test]
    fn one_direction_is_no_knot() {
        let files = [
            ("lib.rs", "pub mod a; pub mod b; mod c; pub use a::A;"),
            (
                "a.rs",
                "use std::fs; pub struct A; impl A { fn x<'a>(c: char) -> bool { c == '\\'' || c == '\"' } } // crate::b::B",
            ),
            (
                "b/mod.rs",
                "pub mod d; mod e; use crate::{a::A as Other, c}; const T: &str = r#\"crate::c::\"C\"#; pub(in crate::b) struct B;",
            ),
            ("b/d.rs", "/* use super::e::E; /* */ */ fn f() { super::super::a::f(); crate::A; }"),
            ("b/e.rs", "use super::d;"),
            ("c.rs", "#[cfg(test)] use crate::b::B; fn f() {} #[cfg(test)] mod tests { use crate::b::B; }"),
        ];
        assert_eq!(rooms(&files), []);
    }

    #[test]
    fn a_knot_is_found_and_its_way_is_named() {
        for back in
            ["use crate::a::A;", "use super::a;", "fn f() { crate::a::f() }", "use crate::{a::{self, A}, c::C};", "use crate::A;"]
        {
            let files = [
                ("lib.rs", "pub use a::A;"),
                ("a.rs", "use crate::c::C; pub struct A;"),
                ("b.rs", back),
                ("c.rs", "use crate::b;"),
            ];
            let found = knots(&files);
            let (place, knot, way) = found.first().unwrap_or_else(|| panic!("{back}"));
            assert_eq!((found.len(), place.as_str(), knot.join(" ")), (1, "x", "a b c".to_owned()), "{back}");
            assert!(way.starts_with("a\n  -> c: a has crate::c::C\n  -> b: c has crate::b\n  -> a: b has crate::"), "{way}");
        }
    }

    #[test]
    fn each_folder_is_looked_at_and_its_modules_count_as_one_above() {
        let inside = [
            ("lib.rs", ""),
            ("a/mod.rs", "mod b; mod c;"),
            ("a/b.rs", "use super::c::C;"),
            ("a/c.rs", "fn f() { super::b::f() }"),
        ];
        assert_eq!(rooms(&inside), [("x::a".to_owned(), vec!["b".to_owned(), "c".to_owned()])]);
        let above = [
            ("lib.rs", ""),
            ("a/mod.rs", "mod b; mod c;"),
            ("a/b.rs", "use crate::d;"),
            ("a/c.rs", ""),
            ("d.rs", "use crate::a::c;"),
        ];
        assert_eq!(rooms(&above), [("x".to_owned(), vec!["a".to_owned(), "d".to_owned()])]);
    }

    #[test]
    fn what_is_for_tests_only_counts_for_nothing() {
        let files = [
            ("lib.rs", "#[cfg(test)] mod testing; mod a; mod b;"),
            ("a.rs", "use crate::b; #[cfg(test)] #[allow(x)] mod tests; #[cfg(not(test))] fn f() {}"),
            ("a/tests.rs", "use crate::testing;"),
            ("b.rs", "#[cfg(test)] pub(crate) fn f(x: [u8; 3]) -> crate::a::A { crate::a::f() } #[cfg(test)] use crate::{a::A};"),
            ("testing.rs", "use crate::a;"),
        ];
        assert_eq!(rooms(&files), []);
        let mut product = files;
        product[3].1 = "#[cfg(not(test))] pub fn f() -> crate::a::A {}";
        assert_eq!(rooms(&product).len(), 1);
    }
}
