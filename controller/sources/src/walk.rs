//! Follows the references of code in a tree: directories, files, links and modules, each once. Pure: reports the blobs
//! that must be read first.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use tool_versions::request::files;

use crate::{
    place::{Kind, Place},
    references::{self, Read, SPLIT},
    tree::{Entry, Tree, join},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blob {
    /// The target of a link.
    Link(String),
    /// The references of code.
    Code(Arc<Read>),
}

/// How a blob is read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    Link,
    /// As code: the file's name, and whether a Terragrunt file references it.
    Code(String, bool),
}

/// Blobs that were read, by id and form.
pub type Known = BTreeMap<(String, Ask), Blob>;

/// Maximum number of links on the way to one path.
const MAX_LINKS: usize = 32;
/// Maximum number of files and directories followed for one layer. Beyond it the whole tree is relevant.
const MAX_FOLLOWED: usize = 4096;
/// Maximum number of entries visited for one layer, each as often as a reference leads to it: many links may lead to one large directory.
const MAX_VISITED: usize = 1 << 20;

/// A path to follow, relative to the root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A file, or everything below a directory.
    All(String),
    /// A directory with code.
    Module(String),
    /// A Terragrunt file, and the directory that it is evaluated for.
    Config(String, String),
}

/// A walk from a stack along all references.
pub struct Walk<'a> {
    tree: &'a Tree,
    known: &'a Known,
    /// The visited entries.
    pub relevant: BTreeSet<&'a Entry>,
    /// Blobs that must be read first.
    pub missing: BTreeSet<(String, Ask)>,
    /// Whether references are unknown, so that the whole tree is relevant.
    pub everything: bool,
    /// Calls with computed paths, with file and line.
    pub not_followed: BTreeSet<String>,
    /// The directory where the tool runs.
    stack: &'a str,
    queue: VecDeque<Step>,
    visited: usize,
}

impl<'a> Walk<'a> {
    pub const fn new(tree: &'a Tree, known: &'a Known, stack: &'a str) -> Self {
        Self {
            tree,
            known,
            relevant: BTreeSet::new(),
            missing: BTreeSet::new(),
            everything: false,
            not_followed: BTreeSet::new(),
            stack,
            queue: VecDeque::new(),
            visited: 0,
        }
    }

    /// Follows these steps and all references from there.
    pub fn follow(&mut self, first: impl IntoIterator<Item = Step>) {
        self.queue.extend(first);
        let mut done = BTreeSet::new();
        while let Some(step) = self.queue.pop_front() {
            if !done.insert(step.clone()) {
                continue;
            }
            if done.len() > MAX_FOLLOWED || self.visited > MAX_VISITED {
                self.everything = true;
                return;
            }
            match step {
                Step::All(path) => {
                    self.all(&path);
                }
                Step::Module(path) => {
                    if let Some(dir) = self.all(&path) {
                        self.module(&dir);
                    }
                }
                Step::Config(path, base) => {
                    if let Some(file) = self.all(&path) {
                        self.file(&file, &[&base, parent(&file)], true);
                    }
                }
            }
        }
    }

    /// Adds a file, or everything below a directory, and the targets of links in it; returns the path without links.
    fn all(&mut self, path: &str) -> Option<String> {
        let path = self.resolve(path)?;
        self.relevant.extend(self.tree.at(&path));
        let below = self.tree.below(&path);
        self.visited += below.len();
        for entry in below {
            self.relevant.insert(entry);
            if entry.is_link()
                && let Some(target) = self
                    .link(&entry.id)
                    .and_then(|target| join(parent(&entry.path), &target))
            {
                self.queue.push_back(Step::All(target));
            }
        }
        Some(path)
    }

    /// Follows the references of the code in a directory.
    fn module(&mut self, dir: &str) {
        for Entry { path, .. } in self.tree.below(dir) {
            if parent(path) == dir && references::is_code(name(path)) {
                self.file(path, &[dir], false);
            }
        }
    }

    /// Follows the references of a file, evaluated for code in these directories.
    fn file(&mut self, path: &str, bases: &[&str], config: bool) {
        // A link to code counts as code with its own name and place.
        let Some(entry) = self.resolve(path).and_then(|path| self.tree.at(&path)) else {
            return;
        };
        self.relevant.insert(entry);
        if entry.is_gitlink() {
            return;
        }
        if entry.size > references::LARGEST {
            self.everything = true;
            return;
        }
        let key = (entry.id.clone(), Ask::Code(name(path).to_owned(), config));
        let Some(blob) = self.known.get(&key) else {
            self.missing.insert(key);
            return;
        };
        let Blob::Code(read) = blob else { return };
        let Read::From(places) = &**read else {
            self.everything = true;
            return;
        };
        for (kind, place) in places {
            if let (Kind::Computed, Place::Beside(call)) = (kind, place) {
                self.not_followed.insert(format!("{path}:{call}"));
                continue;
            }
            // Terragrunt runs the tool beside a copy of the module.
            let stack = matches!(place, Place::Stack(_)).then_some(self.stack);
            for base in bases.iter().copied().chain(stack) {
                self.take(*kind, place, base);
            }
        }
    }

    /// Queues a reference of code in a directory.
    fn take(&mut self, kind: Kind, place: &Place, base: &str) {
        let (dir, relative) = match place {
            Place::Beside(relative) | Place::Stack(relative) => {
                (base.to_owned(), relative.as_str())
            }
            Place::Top(relative) => (String::new(), relative.trim_start_matches('/')),
            Place::Above(name, relative) => {
                let Some(dir) = self.above(base, name) else {
                    return;
                };
                (
                    dir,
                    relative
                        .as_deref()
                        .map_or(name.as_str(), |relative| relative.trim_start_matches('/')),
                )
            }
        };
        if let Some((copied, _)) = relative.split_once(SPLIT) {
            self.queue.extend(join(&dir, copied).map(Step::All));
        }
        // No commit can change a path outside the repository.
        let Some(path) = join(&dir, &relative.replace(SPLIT, "/")) else {
            return;
        };
        self.queue.push_back(match kind {
            Kind::Module => Step::Module(path),
            // A directory is that of a unit, which counts by itself.
            Kind::Config if !self.tree.below(&path).is_empty() => return,
            Kind::Config => Step::Config(path, base.to_owned()),
            Kind::Mentioned | Kind::MentionedFile if !self.is_mentioned(kind, &path, base) => {
                return;
            }
            Kind::Data | Kind::Computed | Kind::Mentioned | Kind::MentionedFile => Step::All(path),
        });
    }

    /// Whether the tree has such a file, or such a directory that contains neither the code nor the stack.
    fn is_mentioned(&self, kind: Kind, path: &str, base: &str) -> bool {
        let is_above = |own: &str| {
            let rest = own.strip_prefix(path);
            path.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_apart = !is_above(base) && !is_above(self.stack);
        let is_dir = || !self.tree.below(path).is_empty();
        self.tree.at(path).is_some() || kind == Kind::Mentioned && is_apart && is_dir()
    }

    /// The nearest parent directory with a file, or a directory, of this name.
    fn above(&self, dir: &str, name: &str) -> Option<String> {
        let mut dir = dir;
        while !dir.is_empty() {
            dir = parent(dir);
            let has =
                |path: String| self.tree.at(&path).is_some() || !self.tree.below(&path).is_empty();
            if join(dir, name).is_some_and(has) {
                return Some(dir.to_owned());
            }
        }
        None
    }

    /// The files that Setup reads from the stack up to the root, to choose the tool, and those by which a clone is made.
    pub fn consult(&mut self) {
        let mut dir = self.stack;
        loop {
            for name in files::names().chain([".gitattributes"]) {
                self.queue.extend(join(dir, name).map(Step::All));
            }
            if dir.is_empty() {
                break;
            }
            dir = parent(dir);
        }
        let of_clone = [".lfsconfig", ".gitmodules"].map(|name| Step::All(name.to_owned()));
        self.queue.extend(of_clone);
    }

    /// Resolves the links in a path; the links are relevant, and so is a submodule on the way. `None` when the path
    /// leads outside, or when a link must be read first.
    pub fn resolve(&mut self, path: &str) -> Option<String> {
        let (mut done, mut rest) = (String::new(), path.to_owned());
        for _ in 0..=MAX_LINKS {
            let mut followed = false;
            while !rest.is_empty() {
                let (next, left) = rest.split_once('/').unwrap_or((&rest, ""));
                let (here, left) = (join(&done, next)?, left.to_owned());
                match self.tree.at(&here) {
                    Some(entry) if entry.is_link() => {
                        self.relevant.insert(entry);
                        let target = self.link(&entry.id)?;
                        rest = join(&join(&done, &target)?, &left)?;
                        done = String::new();
                        followed = true;
                        break;
                    }
                    Some(entry) if entry.is_gitlink() => {
                        self.relevant.insert(entry);
                    }
                    _ => {}
                }
                (done, rest) = (here, left);
            }
            if !followed {
                return Some(done);
            }
        }
        None
    }

    fn link(&mut self, id: &str) -> Option<String> {
        let key = (id.to_owned(), Ask::Link);
        match self.known.get(&key) {
            Some(Blob::Link(target)) => Some(target.clone()),
            Some(Blob::Code(_)) => None,
            None => {
                self.missing.insert(key);
                None
            }
        }
    }

    /// Whether it is, or may be, a directory: of a submodule only the commit is known.
    pub fn is_dir(&self, path: &str) -> bool {
        let above = (0..path.len())
            .filter(|at| path.as_bytes()[*at] == b'/')
            .map(|at| &path[..at])
            .chain([path]);
        let gitlink = |path| self.tree.at(path).is_some_and(Entry::is_gitlink);
        !self.tree.below(path).is_empty() || above.into_iter().any(gitlink)
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Parses a blob.
pub fn understood(ask: &Ask, text: &[u8]) -> Blob {
    let text = String::from_utf8_lossy(text);
    match ask {
        Ask::Link => Blob::Link(text.into_owned()),
        Ask::Code(name, config) => Blob::Code(Arc::new(references::read(name, &text, *config))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thousand links to one directory of thousands of files would keep a worker busy for minutes.
    #[test]
    fn links_to_one_large_directory_end_the_walk() {
        let id = "a".repeat(40);
        let files = (0..5000).map(|n| format!("100644 blob {id} 1\td/{n}\0"));
        let links = (0..1000).map(|n| format!("120000 blob {id} 1\tl{n}\0"));
        let listing: String = files.chain(links).collect();
        let tree = Tree::parse(listing.as_bytes()).unwrap();
        let known = Known::from([((id, Ask::Link), Blob::Link("d".into()))]);
        let mut walk = Walk::new(&tree, &known, "");
        walk.follow((0..1000).map(|n| Step::All(format!("l{n}"))));
        assert!(walk.everything && walk.visited < 2 * MAX_VISITED);
    }
}
