//! Paths outside of a person's folder that its code names: scripts, templates, files of functions, parts of Terragrunt's configuration.
//!
//! A text is not evaluated but searched for words that are paths of existing files, since scripts and templates name files too. So a comment
//! counts as well. A computed name and an absolute path do not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use super::{
    tree::{self, digest},
    uncounted::is_uncounted,
};

/// Maximum number of texts that are searched, and their maximum size in bytes.
const MAX_TEXTS: usize = 20_000;
const MAX_TEXT: u64 = 1 << 20;
/// Terragrunt's configuration file, which it looks for where the code names no other.
const TERRAGRUNT: &str = "terragrunt.hcl";
/// Endings of texts for people alone.
const PROSE: [&str; 3] = ["md", "rst", "adoc"];

/// Files and directories outside of a stack that its code names, directly or by way of another of them. `beside` are directories of its
/// modules, which are counted in any case. The paths have no links.
pub(super) fn named(stack: &Path, beside: &[PathBuf]) -> BTreeSet<PathBuf> {
    let Ok(stack) = stack.canonicalize() else {
        return BTreeSet::new();
    };
    let top = stack
        .ancestors()
        .find(|dir| dir.join(".git").exists())
        .map(Path::to_path_buf);
    let mut search = Search {
        stack: &stack,
        top,
        named: BTreeSet::new(),
        queue: vec![stack.clone()],
        texts: 0,
    };
    search.queue.extend(
        beside
            .iter()
            .filter_map(|dir| stack.join(dir).canonicalize().ok()),
    );
    let counted: Vec<_> = search.queue.clone();
    while let Some(path) = search.queue.pop() {
        search.visit(&path);
    }
    let is_new = |path: &PathBuf| !counted.iter().any(|dir| path.starts_with(dir));
    search.named.into_iter().filter(is_new).collect()
}

/// The digest of each of these paths, by its path from the stack.
pub(super) fn digests(stack: &Path, paths: &BTreeSet<PathBuf>) -> BTreeMap<String, String> {
    let stack = stack.canonicalize().unwrap_or_else(|_| stack.to_owned());
    let of = |path: &PathBuf| {
        let read = if path.is_dir() {
            digest(path, &is_left_out)
        } else {
            tree::file_digest(path)
        };
        // Perhaps only a word that happens to be a path: it stops no run.
        let digest = read.unwrap_or_else(|error| format!("unread {}", error.error().kind()));
        (from(&stack, path).display().to_string(), digest)
    };
    paths.iter().map(of).collect()
}

/// Whether a path outside of the stack is excluded: what the tools write where other stacks run.
pub(super) fn is_left_out(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    is_uncounted(path)
        || [".terraform", ".terragrunt-cache", ".terraform.lock.hcl"]
            .iter()
            .any(|left_out| name == *left_out)
}

/// The path from a directory to another path, both without links.
pub(super) fn from(dir: &Path, path: &Path) -> PathBuf {
    let shared = dir
        .components()
        .zip(path.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = dir.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(path.components().skip(shared)).collect()
}

struct Search<'a> {
    stack: &'a Path,
    /// The top of the repository, if there is one.
    top: Option<PathBuf>,
    named: BTreeSet<PathBuf>,
    queue: Vec<PathBuf>,
    texts: usize,
}

impl Search<'_> {
    /// Searches a file, or everything below a directory.
    fn visit(&mut self, path: &Path) {
        if path.is_file() {
            return self.text(path);
        }
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
                continue;
            };
            if is_left_out(Path::new(&entry.file_name())) {
                continue;
            }
            if kind.is_symlink() {
                self.take(&path);
            } else {
                self.visit(&path);
            }
        }
    }

    /// Searches a text for words that are paths.
    fn text(&mut self, path: &Path) {
        let is_prose = path
            .extension()
            .is_some_and(|ending| PROSE.iter().any(|prose| ending == *prose));
        let is_small = path.metadata().is_ok_and(|meta| meta.len() <= MAX_TEXT);
        if is_prose || !is_small || self.texts == MAX_TEXTS {
            return;
        }
        let Ok(text) = fs::read_to_string(path) else {
            return;
        };
        self.texts += 1;
        let dir = path.parent().unwrap_or(self.stack);
        let mut bases = vec![dir.to_owned()];
        if dir != self.stack {
            bases.push(self.stack.to_owned());
        }
        let words: BTreeSet<&str> = text
            .split(|c: char| !is_of_path(c))
            .filter(|word| !word.is_empty())
            .collect();
        // A command that begins in a directory above the stack names files below that.
        let ups = words.iter().filter(|word| {
            word.split('/').all(|part| matches!(part, "" | "." | "..")) && word.contains("..")
        });
        let above: Vec<_> = ups
            .flat_map(|word| {
                bases
                    .iter()
                    .map(|base| base.join(word.trim_start_matches('/')))
            })
            .filter_map(|dir| dir.canonicalize().ok())
            .filter(|dir| self.is_above(dir))
            .collect();
        let is_terragrunt = path.extension().is_some_and(|ending| ending == "hcl");
        for word in words {
            let relative = word.trim_start_matches('/');
            if relative.split('/').any(|part| part == "..") {
                for base in &bases {
                    self.word(base, relative);
                }
            }
            for base in &above {
                self.word(base, relative);
            }
            // `find_in_parent_folders("NAME")`, `${get_repo_root()}/NAME`, and other functions about directories above.
            let name = match word {
                "find_in_parent_folders" => TERRAGRUNT,
                _ => relative,
            };
            if is_terragrunt && (name.contains('.') || word.contains('/')) {
                let above: Vec<_> = self
                    .stack
                    .ancestors()
                    .skip(1)
                    .filter(|dir| self.is_above(dir))
                    .map(Path::to_path_buf)
                    .collect();
                for base in above {
                    self.word(&base, name);
                }
            }
        }
    }

    /// Whether a directory is above the stack, within its repository.
    fn is_above(&self, dir: &Path) -> bool {
        dir != self.stack
            && self.stack.starts_with(dir)
            && self.top.as_ref().is_some_and(|top| dir.starts_with(top))
    }

    /// Takes a word as a path. All before `//` is copied with the module, so that its code may name it.
    fn word(&mut self, base: &Path, word: &str) {
        if let Some((copied, _)) = word.split_once("//") {
            self.take(&base.join(copied));
        }
        self.take(&base.join(word));
    }

    /// Takes a path that exists. A directory that contains the stack would be everything, so that only its named parts count.
    fn take(&mut self, path: &Path) {
        let Ok(path) = path.canonicalize() else {
            return;
        };
        let is_outside = !path.starts_with(self.stack) && !self.stack.starts_with(&path);
        let is_left_out = path.components().any(|part| is_left_out(part.as_ref()));
        if is_outside && !is_left_out && self.named.insert(path.clone()) {
            self.queue.push(path);
        }
    }
}

fn is_of_path(c: char) -> bool {
    c.is_alphanumeric() || "_-./@+%~".contains(c)
}
