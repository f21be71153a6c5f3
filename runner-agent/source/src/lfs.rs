//! Files that git holds only pointers to, by Large File Storage. Their contents are not fetched; so a stack whose files are pointers is
//! told of, before the text of a pointer is taken for what it stands for.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

/// No pointer is longer, in bytes.
pub const MAX_POINTER: u64 = 1024;
/// How each begins.
const FIRST: &str = "version https://git-lfs.github.com/spec/";
/// The longest list of attributes that is read.
const MAX_ATTRIBUTES: u64 = 1 << 20;

/// What stands in git for a large file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// SHA-256 of its content, in 64 hexadecimal digits.
    pub oid: String,
    /// Its bytes.
    pub size: u64,
}

impl Pointer {
    /// Reads one; none when it is something else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() as u64 <= MAX_POINTER && text.starts_with(FIRST))?;
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let oid = value("oid sha256:")?;
        let is_sum = oid.len() == 64 && oid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        Some(Self { oid: is_sum.then(|| oid.to_owned())?, size: value("size ")?.parse().ok()? })
    }

    /// Where git-lfs keeps the content, below its `objects`.
    pub fn place(&self) -> PathBuf {
        let part = |range| self.oid.get(range).unwrap_or_default();
        PathBuf::from_iter([part(0..2), part(2..4), &self.oid])
    }
}

/// The pointers below the top of a repository, by their paths there, in order. None where no `.gitattributes` asks for Large File
/// Storage; what cannot be read is none.
pub fn pointers(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut asked = false;
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if kind.is_dir() && entry.file_name() != ".git" {
                dirs.push(path);
            } else if kind.is_file() && entry.file_name() == ".gitattributes" {
                asked = asked || read(&path, MAX_ATTRIBUTES).contains("filter=lfs");
            } else if kind.is_file() && entry.metadata().is_ok_and(|meta| meta.len() <= MAX_POINTER) {
                files.push(path);
            }
        }
    }
    if !asked {
        return Vec::new();
    }
    files.retain(|path| read(path, MAX_POINTER).starts_with(FIRST));
    let mut names: Vec<_> =
        files.iter().map(|path| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The beginning of a file.
fn read(path: &Path, most: u64) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_found_where_the_repository_asks_for_large_files() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
        write("net/lambda.zip", pointer);
        write("net/main.tf", "# version https://git-lfs.github.com/spec/v1\n");
        write("a.bin", &format!("{pointer}{}", "x".repeat(1024)));
        write(".git/b.bin", pointer);
        assert!(pointers(dir.path()).is_empty(), "nobody asks for it");
        write("net/.gitattributes", "*.zip filter=lfs diff=lfs merge=lfs -text\n");
        assert_eq!(pointers(dir.path()), ["net/lambda.zip"]);
    }
}
