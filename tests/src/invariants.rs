//! `design/invariants.md` names the test of each invariant, `design/peers-bugs.md` the one of each weakness of Burrito, and
//! `design/mutants.md` the one that detects each mutant. These tests check that each row names a test, that it exists, and that a test of a
//! weakness cites its number.

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        fs,
        path::Path,
        sync::Arc,
    };

    /// Tests by name, with the texts of the files that contain one of that name.
    type Tests = BTreeMap<String, Vec<Arc<str>>>;

    /// The rows of the page: number, and the cell that names the tests.
    fn rows(page: &str) -> Vec<(String, String)> {
        let row = |line: &str| {
            let cells: Vec<&str> = line
                .trim()
                .trim_matches('|')
                .split(" | ")
                .map(str::trim)
                .collect();
            let number = *cells
                .first()
                .filter(|n| n.starts_with(['S', 'L']) && n[1..].parse::<u32>().is_ok())?;
            Some((number.to_owned(), (*cells.last()?).to_owned()))
        };
        page.lines().filter_map(row).collect()
    }

    /// Names of tests in a cell: `kills::*`, `cel::claim_never_changes`.
    fn names(cell: &str) -> Vec<&str> {
        cell.split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| name.contains("::"))
            .collect()
    }

    /// The tests of the files below a folder, by their paths in their crate, also with the crate's name as prefix. A folder with a crate
    /// root begins a crate: that of the package whose `src` it is, or a suite of its own name.
    fn read(dir: &Path, krate: &str, modules: &[String], into: &mut Tests) {
        let is_root = ["lib.rs", "main.rs"]
            .iter()
            .any(|root| dir.join(root).exists());
        let modules: &[String] = if is_root { &[] } else { modules };
        let named = Some(dir).filter(|_| is_root).and_then(|dir| {
            if dir.ends_with("src") {
                dir.parent()
            } else {
                Some(dir)
            }
        });
        let named = named
            .and_then(Path::file_name)
            .map(|name| name.display().to_string());
        let krate = named.as_deref().unwrap_or(krate);
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().display().to_string();
            let within = || {
                let name = Some(name.clone())
                    .filter(|name| !["mod", "lib", "main"].contains(&name.as_str()));
                modules.iter().cloned().chain(name).collect::<Vec<_>>()
            };
            if path.is_dir() && name != "target" {
                read(&path, krate, &within(), into);
            } else if path.extension().is_some_and(|end| end == "rs")
                && !path.ends_with("src/invariants.rs")
            {
                let text: Arc<str> = fs::read_to_string(&path).unwrap().into();
                for test in tests(&text, &within()) {
                    let full = format!("{krate}::{test}");
                    for test in [full, test] {
                        into.entry(test).or_default().push(text.clone());
                    }
                }
                written(&text).for_each(|test| into.entry(test).or_default().push(text.clone()));
            }
        }
    }

    /// The unit tests of a file.
    fn tests(text: &str, modules: &[String]) -> Vec<String> {
        let (mut found, mut within) = (Vec::new(), Vec::<(usize, &str)>::new());
        let (mut is_test, mut is_listed) = (false, false);
        for line in text.lines() {
            let (depth, line) = (line.len() - line.trim_start().len(), line.trim_start());
            if line.starts_with('}') && within.last().is_some_and(|(at, _)| *at == depth) {
                within.pop();
            }
            if let Some(name) = line
                .strip_prefix("pub(crate) ")
                .unwrap_or(line)
                .strip_prefix("mod ")
                .and_then(|rest| rest.strip_suffix(" {"))
            {
                within.push((depth, name));
            }
            is_listed = line == "tests! {" || is_listed && line != "}";
            // As registered in the suite `api`: `Guarded: claim_needs_live_approval,`.
            if let (true, Some((_, name))) =
                (is_listed, line.trim_end_matches(',').split_once(": "))
            {
                found.push(
                    modules
                        .iter()
                        .map(String::as_str)
                        .chain([name])
                        .collect::<Vec<_>>()
                        .join("::"),
                );
            }
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let function = line
                .strip_prefix("async ")
                .unwrap_or(line)
                .strip_prefix("fn ")
                .and_then(|rest| rest.split('(').next());
            if let (true, Some(name)) = (is_test, function) {
                let inner = within.iter().map(|(_, name)| *name);
                found.push(
                    modules
                        .iter()
                        .map(String::as_str)
                        .chain(inner)
                        .chain([name])
                        .collect::<Vec<_>>()
                        .join("::"),
                );
                is_test = false;
            }
        }
        found
    }

    /// Names of suite tests in a source text: string literals, cut at their first brace (`matrix::{place:?}` gives `matrix::`).
    fn written(text: &str) -> impl Iterator<Item = String> {
        let names = text
            .split('"')
            .map(|text| text.split('{').next().unwrap_or_default());
        let is_name =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ':';
        names
            .filter(move |name| name.contains("::") && name.chars().all(is_name))
            .map(str::to_owned)
    }

    fn is_there(name: &str, tests: &Tests) -> bool {
        match name.split_once('*') {
            Some((start, _)) => tests.keys().any(|test| test.starts_with(start)),
            None => tests.contains_key(name),
        }
    }

    /// A page of the design, and the tests of all crates.
    fn page_and_tests(page: &str) -> (String, Tests) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut tests = Tests::new();
        for part in ["crds", "controller", "runner-agent", "tests"] {
            read(&root.join(part), part, &[part.to_owned()], &mut tests);
        }
        (
            fs::read_to_string(root.join("design").join(page)).unwrap(),
            tests,
        )
    }

    #[test]
    fn every_weakness_of_burrito_has_a_test_that_cites_its_number() {
        let (page, tests) = page_and_tests("peers-bugs.md");
        let mut wrong = Vec::new();
        for number in 1..=26 {
            let row = page
                .lines()
                .find_map(|line| line.strip_prefix(&format!("| 11.{number} | ")))
                .unwrap_or_default();
            let cell = row
                .trim_end_matches(" |")
                .rsplit(" | ")
                .next()
                .unwrap_or_default();
            let cites = |text: &str| {
                text.split(&format!("Burrito 11.{number}"))
                    .skip(1)
                    .any(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
            };
            let names = names(cell);
            if names.is_empty() && !cell.starts_with("cannot apply, because ") {
                wrong.push(format!("11.{number} has no row, or names neither a test nor why it cannot apply: {cell}"));
            }
            let citing: Tests = tests
                .iter()
                .filter(|(_, texts)| texts.iter().any(|text| cites(text)))
                .map(|(name, texts)| (name.clone(), texts.clone()))
                .collect();
            let missing = names.into_iter().filter(|name| !is_there(name, &citing));
            wrong.extend(missing.map(|name| {
                format!("11.{number}: there is no test {name} in a file that cites it")
            }));
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn every_invariant_has_a_test_that_is_there() {
        let (page, tests) = page_and_tests("invariants.md");
        let rows = rows(&page);
        assert!(rows.len() > 40, "the page has no table any more");
        let numbers: BTreeSet<_> = rows.iter().map(|(number, _)| number).collect();
        assert_eq!(numbers.len(), rows.len(), "a number stands twice");
        let mut wrong = Vec::new();
        for (number, cell) in &rows {
            if names(cell).is_empty() {
                wrong.push(format!("{number} names no test: {cell}"));
            }
            let missing = names(cell)
                .into_iter()
                .filter(|name| !is_there(name, &tests));
            wrong.extend(missing.map(|name| format!("{number}: there is no test {name}")));
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn every_fault_names_a_test_that_exists() {
        let (page, tests) = page_and_tests("mutants.md");
        let rows: Vec<_> = page
            .lines()
            .filter(|line| line.starts_with("| "))
            .skip(1)
            .collect();
        assert!(rows.len() >= 20, "{rows:?}");
        let of = |row: &str| {
            names(row)
                .first()
                .is_some_and(|name| is_there(name, &tests))
        };
        let wrong: Vec<_> = rows.iter().filter(|row| !of(row)).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_test_that_is_not_there_is_seen() {
        let code = "mod tests {\n    #[test]\n    fn twice() {}\n}\nfn never() {}\ntests! {\n    Bare: listed,\n}\n    Bare: never,\nTest::new(\"kills::once\", \"x::{p:?}\")";
        let all: Tests = tests(code, &["a".to_owned()])
            .into_iter()
            .chain(written(code))
            .map(|name| (name, vec![]))
            .collect();
        for name in [
            "kills::*",
            "kills::once",
            "kills::on*",
            "a::tests::*",
            "a::listed",
            "a::tests::twice",
            "x::*",
        ] {
            assert!(is_there(name, &all), "{name}");
        }
        for name in [
            "kills::never",
            "gone::*",
            "kills::no*",
            "gone::once",
            "tests::twice",
            "a::tests",
            "a::never",
        ] {
            assert!(!is_there(name, &all), "{name}");
        }
        assert_eq!(
            rows("| S1 | a \\| b | kept | `x::y` |\n| what | is | this |"),
            [("S1".to_owned(), "`x::y`".to_owned())]
        );
    }
}
