//! Git objects and their ids.

use std::fmt;

use sha1_checked::{Digest as _, Sha1};

/// The SHA-1 of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id([u8; 20]);

impl Id {
    /// Parses 40 hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 20];
        hex::decode_to_slice(text, &mut bytes)
            .ok()
            .map(|()| Self(bytes))
    }

    /// The id of an object.
    pub fn of(kind: &str, content: &[u8]) -> Self {
        let mut hashing = Hashing::new(kind, content.len() as u64);
        hashing.update(content);
        hashing.id()
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Computes the id of an object from pieces. Detects SHA-1 collision attacks as git does.
pub struct Hashing(Sha1);

impl Hashing {
    /// Starts an object of a kind with a size in bytes.
    pub fn new(kind: &str, size: u64) -> Self {
        let mut hash = Sha1::new();
        hash.update(format!("{kind} {size}\0"));
        Self(hash)
    }

    /// Adds a piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The id after the last piece.
    pub fn id(self) -> Id {
        Id(self.0.finalize().into())
    }
}

/// The kind of a tree entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Another tree.
    Directory,
    /// A file.
    File,
    /// An executable file.
    Executable,
    /// A symbolic link; its content is the target.
    Link,
    /// The commit of a submodule.
    Submodule,
}

impl Mode {
    const ALL: [Self; 5] = [
        Self::Directory,
        Self::File,
        Self::Executable,
        Self::Link,
        Self::Submodule,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "40000",
            Self::File => "100644",
            Self::Executable => "100755",
            Self::Link => "120000",
            Self::Submodule => "160000",
        }
    }
}

/// A tree entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The kind.
    pub mode: Mode,
    /// The name in its directory.
    pub name: Vec<u8>,
    /// The id of its content.
    pub id: Id,
}

/// Parses the entries of a tree; `None` when it is no tree, or has a mode that git no longer writes.
pub fn entries(mut tree: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    while !tree.is_empty() {
        let space = tree.iter().position(|byte| *byte == b' ')?;
        let (mode, rest) = tree.split_at(space);
        let mode = Mode::ALL
            .into_iter()
            .find(|known| known.as_str().as_bytes() == mode)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        let (name, rest) = (rest.get(1..end)?, rest.get(end + 1..)?);
        let (id, rest) = rest.split_first_chunk::<20>()?;
        entries.push(Entry {
            mode,
            name: name.to_vec(),
            id: Id(*id),
        });
        tree = rest;
    }
    Some(entries)
}

/// The id of a tree with these entries.
pub fn tree_id(mut entries: Vec<Entry>) -> Id {
    // Git sorts a directory as if its name ended in `/`.
    let key = |entry: &Entry| {
        let slash = if entry.mode == Mode::Directory {
            &b"/"[..]
        } else {
            b""
        };
        [&entry.name, slash].concat()
    };
    entries.sort_by_cached_key(key);
    let mut content = Vec::new();
    for Entry { mode, name, id } in &entries {
        for piece in [mode.as_str().as_bytes(), b" ", name, b"\0", &id.0] {
            content.extend_from_slice(piece);
        }
    }
    Id::of("tree", &content)
}

/// The tree of a commit.
pub fn tree_of(commit: &[u8]) -> Option<Id> {
    let line = commit.split(|byte| *byte == b'\n').next()?;
    Id::parse(std::str::from_utf8(line).ok()?.strip_prefix("tree ")?)
}

/// The commit time, in Unix seconds.
pub fn committed(commit: &[u8]) -> Option<u64> {
    let line = commit
        .split(|byte| *byte == b'\n')
        .take_while(|line| !line.is_empty())
        .find(|line| line.starts_with(b"committer "))?;
    let line = String::from_utf8_lossy(line);
    line.rsplit(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_match_git() {
        assert_eq!(
            Id::of("blob", b"hello\n").to_string(),
            "ce013625030ba8dba906f756967f9e9ca394464a"
        );
        assert_eq!(
            Id::of("tree", b"").to_string(),
            "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
        );
        assert_eq!(
            tree_id(Vec::new()).to_string(),
            "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
        );
        assert!(
            Id::parse("4b825dc642cb6eb9a060e54bf8d69288fbee490").is_none()
                && Id::parse(&"a".repeat(64)).is_none()
        );
    }

    #[test]
    fn tree_round_trips_in_git_order() {
        let entry = |mode, name: &str| Entry {
            mode,
            name: name.into(),
            id: Id::of("blob", name.as_bytes()),
        };
        let all = vec![
            entry(Mode::File, "a.tf"),
            entry(Mode::Directory, "a"),
            entry(Mode::Submodule, "a-b"),
            entry(Mode::Link, "a0"),
            entry(Mode::Executable, "Z"),
        ];
        let mut bytes = Vec::new();
        for name in ["Z", "a-b", "a.tf", "a", "a0"] {
            let Entry { mode, name, id } = all
                .iter()
                .find(|entry| entry.name == name.as_bytes())
                .unwrap();
            bytes.extend_from_slice(&[mode.as_str().as_bytes(), b" ", name, b"\0", &id.0].concat());
        }
        assert_eq!(tree_id(all), Id::of("tree", &bytes));
        assert_eq!(tree_id(entries(&bytes).unwrap()), Id::of("tree", &bytes));
        assert!(entries(&bytes[..bytes.len() - 1]).is_none());
        assert!(
            entries(b"100664 a\0aaaaaaaaaaaaaaaaaaaa").is_none(),
            "a mode of 2005"
        );
    }

    #[test]
    fn commit_has_tree_and_time() {
        let tree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
        let commit = format!(
            "tree {tree}\nauthor a <a@b> 1 +0000\ncommitter c d <c@d> 1700000000 +0100\n\ncommitter x 5 +0\n"
        );
        assert_eq!(tree_of(commit.as_bytes()).unwrap().to_string(), tree);
        assert_eq!(committed(commit.as_bytes()), Some(1_700_000_000));
        assert_eq!(
            (
                tree_of(b"parent x\n"),
                committed(b"tree x\n\ncommitter a 5 +0\n")
            ),
            (None, None)
        );
    }
}
