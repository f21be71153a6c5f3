//! Counts code and comment lines of each package in rustfmt's default layout, so that the count does not depend on the tree's layout.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    ops::AddAssign,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context, Result, bail, ensure};

use crate::cache;

/// Rustfmt's defaults, written to a file so that no other configuration applies.
const LAYOUT: &str =
    "style_edition = \"2024\"\nmax_width = 100\nuse_small_heuristics = \"Default\"\n";

/// Line counts. A line is a comment if it begins with a comment, even inside a string literal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) code: u64,
    pub(crate) comments: u64,
}

impl Lines {
    /// Counts the lines that are not blank.
    fn of(text: &str) -> Self {
        let (mut lines, mut closing) = (Self::default(), None);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let mut rest = line;
            for (open, close) in [("/*", "*/"), ("<!--", "-->")] {
                if let (None, Some(opened)) = (closing, line.strip_prefix(open)) {
                    (closing, rest) = (Some(close), opened);
                }
            }
            if closing.is_some() || line.starts_with("//") {
                lines.comments += 1;
            } else {
                lines.code += 1;
            }
            closing = closing.filter(|close| !rest.contains(close));
        }
        lines
    }
}

impl AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.comments += other.comments;
    }
}

/// Counts `.rs`, `.ts` and `.svelte` files by the directory of their package, without generated types (`.d.ts`), relative to `root`. Writes rustfmt's settings below
/// `scratch`.
///
/// # Errors
/// When a file cannot be read, or rustfmt cannot parse it.
pub(crate) fn count(root: &Path, scratch: &Path) -> Result<BTreeMap<String, Lines>> {
    let layout = scratch.join("rustfmt.toml");
    cache::write(&layout, LAYOUT)?;
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    let count = |(package, path): &(String, PathBuf)| {
        let lines = of_file(path, &layout);
        Ok((
            package.clone(),
            lines.with_context(|| format!("cannot count the lines of {}", path.display()))?,
        ))
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let parts: Vec<Result<Vec<_>>> = thread::scope(|scope| {
        let parts = files.chunks(files.len().div_ceil(threads).max(1));
        let workers: Vec<_> = parts
            .map(|part| scope.spawn(|| part.iter().map(count).collect()))
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| bail!("a thread panicked")))
            .collect()
    });
    let mut counts = BTreeMap::<String, Lines>::new();
    for part in parts {
        for (package, lines) in part? {
            *counts.entry(package).or_default() += lines;
        }
    }
    Ok(counts)
}

/// Source files below a directory, each with its package: the nearest parent directory with a manifest.
fn collect(root: &Path, directory: &Path, into: &mut Vec<(String, PathBuf)>) -> Result<()> {
    for entry in
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?
    {
        let entry = entry?;
        let (path, name) = (
            entry.path(),
            entry.file_name().to_string_lossy().into_owned(),
        );
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && !["target", "node_modules"].contains(&name.as_str()) {
                collect(root, &path, into)?;
            }
        } else if !name.ends_with(".d.ts")
            && path
                .extension()
                .is_some_and(|end| ["rs", "ts", "svelte"].iter().any(|known| end == *known))
        {
            let is_package = |at: &&Path| {
                ["Cargo.toml", "package.json"]
                    .iter()
                    .any(|manifest| at.join(manifest).exists())
            };
            let package = directory
                .ancestors()
                .take_while(|at| at.starts_with(root))
                .find(is_package)
                .unwrap_or(root);
            into.push((package.strip_prefix(root)?.display().to_string(), path));
        }
    }
    Ok(())
}

fn of_file(path: &Path, layout: &Path) -> Result<Lines> {
    if path.extension().is_none_or(|end| end != "rs") {
        return Ok(Lines::of(&fs::read_to_string(path)?));
    }
    // With stdin, rustfmt does not follow `mod` declarations, so each file is counted once.
    let output = Command::new(rustfmt())
        .args(["--edition", "2024", "--emit", "stdout", "--config-path"])
        .arg(layout)
        .stdin(File::open(path)?)
        .output()
        .context("cannot run rustfmt")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "rustfmt ended with {}: {said}",
        output.status
    );
    Ok(Lines::of(&String::from_utf8_lossy(&output.stdout)))
}

/// The rustfmt next to the running Cargo: rustup's proxy would resolve the toolchain for each file.
fn rustfmt() -> PathBuf {
    let cargo = std::env::var_os("CARGO").map(PathBuf::from);
    let beside = cargo.map(|cargo| cargo.with_file_name("rustfmt"));
    beside
        .filter(|path| path.exists())
        .unwrap_or_else(|| "rustfmt".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_code_count_apart_blank_lines_not_at_all() {
        let rows = [
            ("//! Doc\n\n/// Doc\nfn f() {} // code\n  // note\n", 1, 3),
            (
                "/* one */\nlet a = 1; /* two */\n/* three\n\nfour\n*/\nlet b = 2;\n",
                2,
                4,
            ),
            ("<!-- one\ntwo -->\n<p>text</p>\n", 1, 2),
            ("", 0, 0),
        ];
        for (text, code, comments) in rows {
            assert_eq!(Lines::of(text), Lines { code, comments }, "{text}");
        }
    }

    #[test]
    fn files_count_once_in_default_layout_under_the_nearest_package() {
        let root = std::env::temp_dir().join(format!("lines-{}", std::process::id()));
        let write = |path: &str, text: &str| cache::write(&root.join(path), text).unwrap();
        write("Cargo.toml", "");
        write("one/Cargo.toml", "");
        // The tree's own layout does not apply, and `mod` is not followed.
        write(
            "one/rustfmt.toml",
            "use_small_heuristics = \"Max\"\nmax_width = 130\n",
        );
        write(
            "one/src/lib.rs",
            "mod other;\nfn f() -> A { A { one: 1, two: 2, three: 3 } }\n",
        );
        write("one/src/other.rs", "// note\n");
        write("one/target/made.rs", "fn made() {}\n");
        write("web/package.json", "");
        write("web/src/app.ts", "// note\nlet a = 1;\n");
        let counts = count(&root, &root.join(".scratch"));
        fs::remove_dir_all(&root).unwrap();
        let counts: Vec<_> = counts.unwrap().into_iter().collect();
        let expected = [
            (
                "one",
                Lines {
                    code: 8,
                    comments: 1,
                },
            ),
            (
                "web",
                Lines {
                    code: 1,
                    comments: 1,
                },
            ),
        ];
        assert_eq!(
            counts,
            expected.map(|(name, lines)| (name.to_owned(), lines))
        );
    }
}
