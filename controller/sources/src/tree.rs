//! The tree of a commit, as listed by `git ls-tree -r -t -l -z`. Directories are listed, so that each step of a walk prints an entry and is
//! counted, also where no file is; they are not kept.

/// Mode of a symbolic link.
const LINK: u32 = 0o120_000;
/// Mode of a directory.
const DIRECTORY: u32 = 0o040_000;
/// Mode of a submodule's commit.
const GITLINK: u32 = 0o160_000;

/// A file, a symbolic link or a submodule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its path from the root.
    pub path: String,
    /// The mode in git.
    pub mode: u32,
    /// Id of the blob, or of the commit of a submodule.
    pub id: String,
    /// Size in bytes; 0 for a submodule.
    pub size: u64,
}

impl Entry {
    /// Whether it is a symbolic link.
    pub const fn is_link(&self) -> bool {
        self.mode == LINK
    }

    /// Whether it is a submodule.
    pub const fn is_gitlink(&self) -> bool {
        self.mode == GITLINK
    }
}

/// All entries of a commit, sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree(Vec<Entry>);

impl Tree {
    /// Parses a listing.
    ///
    /// # Errors
    /// The line that cannot be parsed.
    pub fn parse(listing: &[u8]) -> Result<Self, String> {
        let mut entries = Vec::new();
        for line in listing
            .split(|byte| *byte == 0)
            .filter(|line| !line.is_empty())
        {
            let line = String::from_utf8_lossy(line);
            entries.push(entry(&line).ok_or_else(|| {
                format!("git lists a tree in a way that is not understood: {line}")
            })?);
        }
        entries.retain(|entry: &Entry| entry.mode != DIRECTORY);
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self(entries))
    }

    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entry with exactly this path.
    pub fn at(&self, path: &str) -> Option<&Entry> {
        let at = self
            .0
            .binary_search_by(|entry| entry.path.as_str().cmp(path))
            .ok()?;
        self.0.get(at)
    }

    /// The entries below a directory; all for the root, which is ``.
    pub fn below(&self, dir: &str) -> &[Entry] {
        if dir.is_empty() {
            return &self.0;
        }
        let prefix = format!("{dir}/");
        let (_, rest) = self
            .0
            .split_at(self.0.partition_point(|entry| entry.path < prefix));
        rest.split_at(rest.partition_point(|entry| entry.path.starts_with(&prefix)))
            .0
    }

    /// The top-level directories, for people.
    pub fn top(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .0
            .iter()
            .filter_map(|entry| Some(entry.path.split_once('/')?.0))
            .collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| !name.starts_with('.'));
        names
    }
}

/// Parses `MODE TYPE ID SIZE<tab>PATH`.
fn entry(line: &str) -> Option<Entry> {
    let (facts, path) = line.split_once('\t')?;
    let mut facts = facts.split_ascii_whitespace();
    let (mode, _, id, size) = (facts.next()?, facts.next()?, facts.next()?, facts.next()?);
    Some(Entry {
        path: path.to_owned(),
        mode: u32::from_str_radix(mode, 8).ok()?,
        id: id.to_owned(),
        size: if size == "-" { 0 } else { size.parse().ok()? },
    })
}

/// Joins a relative path to a directory; `` is the root. `None` when the result is outside.
pub fn join(dir: &str, relative: &str) -> Option<String> {
    let mut names: Vec<&str> = if relative.starts_with('/') {
        return None;
    } else {
        dir.split('/').filter(|n| !n.is_empty()).collect()
    };
    for name in relative.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop()?;
            }
            name => names.push(name),
        }
    }
    Some(names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_listing_gives_directories_as_ranges() {
        let id = "a".repeat(40);
        let listing = format!(
            "100644 blob {id}      12\ta.tf\0120000 blob {id}       4\tapp/link\0100755 blob {id}       1\tapp/run me\0\
             100644 blob {id}       1\tapp-old/x\0040000 tree {id}       -\tapp\0160000 commit {id}       -\tmodules/m\0"
        );
        let tree = Tree::parse(listing.as_bytes()).unwrap();
        let names = |entries: &[Entry]| {
            entries
                .iter()
                .map(|entry| entry.path.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(tree.below("app")), ["app/link", "app/run me"]);
        assert_eq!(names(tree.below("")).len(), 5);
        assert!(tree.below("modules/m").is_empty() && tree.at("modules/m").is_some());
        assert!(tree.at("app/link").unwrap().is_link());
        assert!(tree.at("modules/m").unwrap().is_gitlink());
        assert_eq!(tree.at("a.tf").unwrap().size, 12);
        assert_eq!(tree.top(), ["app", "app-old", "modules"]);
        assert!(Tree::parse(b"what is this\0").is_err());
    }

    #[test]
    fn joined_paths_stay_inside_the_repository() {
        let rows = [
            ("stacks/a", "../../modules/x", Some("modules/x")),
            ("stacks/a", "./", Some("stacks/a")),
            ("", "a//b/.", Some("a/b")),
            ("a", "..", Some("")),
            ("a", "../..", None),
            ("a", "/etc", None),
        ];
        for (dir, relative, expected) in rows {
            assert_eq!(join(dir, relative).as_deref(), expected, "{dir} {relative}");
        }
    }
}
