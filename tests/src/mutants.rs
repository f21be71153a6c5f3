//! Seeded faults in our own code: each is put into a copy of the tree, and a named test has to fail.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use crds::datastore::hex_digest;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

/// The list, beside the suites.
const LIST: &str = include_str!("../mutants/faults.yaml");

/// What is said of a fault that no test has seen.
const NOTHING: &str = "**nothing**";
/// What is said of a fault that is no program.
const BROKEN: &str = "**does not compile**";

/// Where a fault is looked for.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Suite {
    Lib,
    Sim,
    Model,
    Api,
    Agent,
    Versions,
}

#[derive(Debug, Deserialize)]
struct Fault {
    name: String,
    file: String,
    suite: Suite,
    test: String,
    find: String,
    put: String,
}

enum Found {
    /// These failed.
    Caught(Vec<String>),
    /// All passed.
    Missed,
    /// The fault is no program.
    Broken,
}

fn list() -> Result<Vec<Fault>> {
    serde_saphyr::from_str(LIST).context("tests/mutants/faults.yaml")
}

fn mutated(text: &str, fault: &Fault) -> Result<String> {
    let times = text.matches(&fault.find).count();
    ensure!(times == 1, "{}: what is to be replaced stands {times} times in {}", fault.name, fault.file);
    Ok(text.replace(&fault.find, &fault.put))
}

/// Tries all faults with `only` in their name; with `write` the table of `design/mutants.md` is made anew. Returns how many no
/// test has seen.
///
/// # Errors
/// When a fault does not apply, or the tree cannot be copied.
pub fn run(only: &str, write: bool) -> Result<usize> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no root")?;
    let work = root.join("target/mutants");
    // Crates of others are those that are built already.
    let (tree, target, kept) = (work.join("tree"), root.join("target"), work.join("found"));
    copy(root, &tree)?;
    fs::create_dir_all(&kept)?;
    let (mut rows, mut missed) = (String::new(), 0);
    let faults = list()?;
    for (number, fault) in faults.iter().enumerate().filter(|(_, fault)| fault.name.contains(only)) {
        let path = tree.join(&fault.file);
        let whole = fs::read_to_string(&path).with_context(|| fault.file.clone())?;
        let faulty = mutated(&whole, fault)?;
        // What was found stays found as long as file and fault are the same: a run that was cut off goes on.
        let key = hex_digest(&Sha256::digest(format!("{} {}\n{faulty}", fault.name, fault.test)));
        let kept = kept.join(key);
        let said = if let Ok(said) = fs::read_to_string(&kept) {
            said
        } else {
            fs::write(&path, faulty)?;
            let found = test(&tree, &target, fault);
            fs::write(&path, &whole)?;
            let said = match found? {
                Found::Caught(tests) => tests.first().map_or_else(|| "a panic".to_owned(), |test| format!("`{test}`")),
                Found::Missed => NOTHING.to_owned(),
                Found::Broken => BROKEN.to_owned(),
            };
            // A test that is written then may see what none has seen.
            if said != NOTHING && said != BROKEN {
                fs::write(kept, &said)?;
            }
            said
        };
        missed += usize::from(said == NOTHING || said == BROKEN);
        println!("{}/{} {}: {said}", number + 1, faults.len(), fault.name);
        let _ = writeln!(rows, "| {} | `{}` | {said} |", fault.name.replace('-', " "), fault.file);
    }
    println!("{missed} faults were seen by nothing");
    if write {
        let page = root.join("design/mutants.md");
        let text = fs::read_to_string(&page)?;
        let head = text.split_once("|---|---|---|\n").map(|(head, _)| head).context("no table in design/mutants.md")?;
        fs::write(page, format!("{head}|---|---|---|\n{rows}"))?;
    }
    Ok(missed)
}

/// What git knows of the tree, as it stands.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let listed = Command::new("git").arg("ls-files").current_dir(from).output().context("cannot run git")?;
    for name in String::from_utf8(listed.stdout)?.lines() {
        let (from, to): (PathBuf, PathBuf) = (from.join(name), to.join(name));
        let Ok(bytes) = fs::read(&from) else { continue };
        // What did not change keeps its time, and is not built again.
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        fs::create_dir_all(to.parent().context("no folder")?)?;
        fs::copy(&from, &to)?;
    }
    Ok(())
}

fn test(tree: &Path, target: &Path, fault: &Fault) -> Result<Found> {
    let suite: &[&str] = match fault.suite {
        // A fault of the product is seen by the product's own unit tests: those of the harness are not built for it.
        Suite::Lib => &["--lib", "--exclude", "tests", "--exclude", "xtask"],
        Suite::Sim => &["--test", "sim"],
        Suite::Model => &["--test", "model"],
        Suite::Api => &["--test", "api"],
        Suite::Agent => &["--test", "attempts"],
        Suite::Versions => &["--test", "versions"],
    };
    // Each fault is built once and run for seconds: what is ours is built fast rather than well, and again only as far as the fault
    // reaches; what it depends on is built as ever.
    let ours = ["crds", "controller", "datastore", "datastore-client", "serving", "runner-agent", "source", "tool-versions", "tests"];
    let fast = ours.map(|name| {
        ["opt-level=0", "debug=0", "codegen-units=256"].map(|setting| format!("profile.release.package.{name}.{setting}"))
    });
    let output = Command::new("cargo")
        .args(["test", "--release", "--workspace", "--no-fail-fast"])
        .args(fast.iter().flatten().flat_map(|setting| ["--config", setting.as_str()]))
        .args(suite)
        .args(["--", &fault.test])
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_INCREMENTAL", "1")
        .env("CI", "true")
        .output()
        .context("cannot run cargo")?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if said.contains("error: could not compile") {
        return Ok(Found::Broken);
    }
    Ok(if output.status.success() { Found::Missed } else { Found::Caught(failures(&said)) })
}

/// The names below the last `failures:` of each test program.
fn failures(said: &str) -> Vec<String> {
    let names = |part: &str| -> Vec<String> {
        let lines = part.lines().skip(1).take_while(|line| line.starts_with("    "));
        lines.map(|line| line.trim().to_owned()).filter(|name| !name.contains(' ')).collect()
    };
    said.split("\nfailures:").skip(1).flat_map(names).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_applies_to_the_code_as_it_is() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let faults = list().unwrap();
        assert!(faults.len() >= 30);
        for fault in &faults {
            let whole = fs::read_to_string(root.join(&fault.file)).unwrap();
            assert_ne!(mutated(&whole, fault).unwrap(), whole, "{}", fault.name);
        }
    }

    #[test]
    fn what_failed_is_read_of_both_kinds_of_programs() {
        let said = "test a::b ... sim: 3 schedules\nFAILED\n\nfailures:\n\n---- a::b ----\ntext\n\nfailures:\n    a::b\n    of_an_integration_test\n\n\
                    test result: FAILED. 1 passed; 2 failed\n";
        assert_eq!(failures(said), ["a::b", "of_an_integration_test"]);
    }

    #[test]
    fn no_two_faults_have_one_name() {
        let faults = list().unwrap();
        let names: std::collections::BTreeSet<_> = faults.iter().map(|fault| &fault.name).collect();
        assert_eq!(names.len(), faults.len());
    }
}
