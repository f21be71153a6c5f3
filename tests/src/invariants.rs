//! `design/invariants.md` says which test shows each invariant; here it is seen that it names one, and that those are there.

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

    /// The rows of the page: number, and what is said to show it.
    fn rows(page: &str) -> Vec<(String, String)> {
        let row = |line: &str| {
            let cells: Vec<&str> = line.trim().trim_matches('|').split(" | ").map(str::trim).collect();
            let number = *cells.first().filter(|n| n.starts_with(['S', 'L']) && n[1..].parse::<u32>().is_ok())?;
            Some((number.to_owned(), (*cells.last()?).to_owned()))
        };
        page.lines().filter_map(row).collect()
    }

    /// Names of tests in a cell: `kills::*`, `cel::a_claim_never_changes`.
    fn names(cell: &str) -> Vec<&str> {
        cell.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).collect()
    }

    /// All code, ours and that of tests.
    fn sources(dir: &Path, into: &mut String) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                let _ = writeln!(into, "mod {};", path.file_name().unwrap().display());
                sources(&path, into);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let _ = writeln!(into, "mod {};", path.file_stem().unwrap().display());
                into.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }

    /// A suite's tests have their whole name in a text; others are functions in a module of that name.
    fn is_there(name: &str, code: &str) -> bool {
        let (module, test) = name.rsplit_once("::").unwrap();
        let of_module = || {
            let last = module.rsplit("::").next().unwrap();
            code.contains(&format!("mod {last};"))
                || code.contains(&format!("mod {last} {{"))
                || code.contains(&format!("\"{last}::"))
        };
        match test.split_once('*') {
            Some(("", "")) => of_module(),
            Some((start, _)) => code.contains(&format!("\"{module}::{start}")) || code.contains(&format!("fn {start}")),
            None => code.contains(&format!("\"{name}\"")) || (code.contains(&format!("fn {test}(")) && of_module()),
        }
    }

    #[test]
    fn every_invariant_has_a_test_that_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let page = fs::read_to_string(root.join("design/invariants.md")).unwrap();
        let mut code = String::new();
        for part in ["crds", "controller", "runner-agent", "tests"] {
            sources(&root.join(part), &mut code);
        }
        let rows = rows(&page);
        assert!(rows.len() > 40, "the page has no table any more");
        let numbers: BTreeSet<_> = rows.iter().map(|(number, _)| number).collect();
        assert_eq!(numbers.len(), rows.len(), "a number stands twice");
        let mut wrong = Vec::new();
        for (number, cell) in &rows {
            if names(cell).is_empty() {
                wrong.push(format!("{number} names no test: {cell}"));
            }
            let missing = names(cell).into_iter().filter(|name| !is_there(name, &code));
            wrong.extend(missing.map(|name| format!("{number}: there is no test {name}")));
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_test_that_is_not_there_is_seen() {
        let code = "mod kills;\nTest::new(\"kills::once\", …)\nmod tests {\n fn twice() {}";
        for name in ["kills::*", "kills::once", "kills::on*", "tests::*"] {
            assert!(is_there(name, code), "{name}");
        }
        for name in ["kills::never", "gone::*", "kills::no*", "gone::once"] {
            assert!(!is_there(name, code), "{name}");
        }
        assert_eq!(rows("| S1 | a \\| b | kept | `x::y` |\n| what | is | this |"), [("S1".to_owned(), "`x::y`".to_owned())]);
    }
}
