//! Git LFS: files that git has only pointers to. `git-lfs` downloads the contents into a directory of the repository; this module
//! replaces the pointers itself, so that no write follows a link.

use std::{
    error::Error,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::{
    git::{Git, Repository},
    git_errors::{FetchError, contents_refused},
};

/// The longest pointer, in bytes.
pub const MAX_POINTER: u64 = 1024;
/// The first lines of pointers: the present and former names of the program.
const FIRST: [&str; 3] = [
    "version https://git-lfs.github.com/spec/",
    "version https://hawser.github.com/spec/",
    "version http://git-media.io/v/",
];
/// The longest `.gitattributes` that is read, in bytes.
const MAX_ATTRIBUTES: u64 = 1 << 20;
/// The most bytes of all contents: the limit of an archive.
pub const MAX_CONTENTS: u64 = 1 << 30;

/// The directory of `git-lfs` below the root of the repository, for submodules too.
const STORE: &str = ".git/lfs";
/// Git's message when the program is missing.
pub const NO_PROGRAM: &str = "'lfs' is not a git command";

/// A file that is a pointer in git.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointerFile {
    /// The path below the root of the repository.
    pub name: String,
    path: PathBuf,
    /// The pointer; `None` when it is invalid.
    contents: Option<Pointer>,
}

/// The reason why contents are missing.
#[derive(Debug, thiserror::Error)]
pub enum ContentsError<E: Error + 'static> {
    /// The program is missing.
    #[error(
        "the program git-lfs is not installed where this runs (Debian's package git-lfs; Pawl's own runner image has it)"
    )]
    NoProgram,
    /// The contents exceed the limit.
    #[error("they have {0} bytes in all, and at most {MAX_CONTENTS} are fetched")]
    TooLarge(u64),
    /// The server refused them, or git did not run.
    #[error(transparent)]
    Fetch(#[from] FetchError<E>),
    /// They could not be written.
    #[error("{name} cannot be written")]
    NotWritten {
        /// The file.
        name: String,
        /// The cause.
        #[source]
        error: io::Error,
    },
}

impl Repository {
    /// Replaces the pointers in a fetched revision in `root` and its submodules. Sends no request when there are no pointers.
    /// `env` is as for [`Repository::fetch`].
    ///
    /// # Errors
    /// Some contents were refused; others may be in place. Files that `.lfsconfig` excludes are no error.
    pub async fn fetch_contents<G: Git>(
        &self,
        git: &G,
        env: Vec<(OsString, OsString)>,
        root: &Path,
    ) -> Result<(), ContentsError<G::Error>> {
        let pointers = pointers(root);
        let Some(bytes) = size(&pointers) else {
            return Ok(());
        };
        if bytes > MAX_CONTENTS {
            return Err(ContentsError::TooLarge(bytes));
        }
        if let Some(store) = &self.large {
            return replace(&pointers, store);
        }
        let store = root.join(STORE);
        let env = self.env(env, &config(&store));
        let run = async |args: &[&str]| {
            git.run_git(args, &env, root)
                .await
                .map_err(FetchError::NotRun)
        };
        let mut ended = run(&["lfs", "fetch", "origin", "HEAD"]).await?;
        if ended.code != 0 && ended.output.contains(NO_PROGRAM) {
            return Err(ContentsError::NoProgram);
        }
        if fs::symlink_metadata(root.join(".gitmodules")).is_ok_and(|meta| meta.is_file()) {
            let inner = run(&[
                "submodule",
                "--quiet",
                "foreach",
                "--recursive",
                "git lfs fetch origin HEAD",
            ])
            .await?;
            ended = if ended.code == 0 { inner } else { ended };
        }
        // Downloaded contents are written even if others were refused.
        replace(&pointers, &store)?;
        let _ = fs::remove_dir_all(&store);
        if ended.code == 0 {
            Ok(())
        } else {
            Err(contents_refused(self.url().as_str(), &ended).into())
        }
    }
}

/// Writes the contents that a directory has in place of their pointers.
fn replace<E: Error>(pointers: &[PointerFile], store: &Path) -> Result<(), ContentsError<E>> {
    pointers.iter().try_for_each(|pointer| {
        pointer
            .replace(store)
            .map_err(|error| ContentsError::NotWritten {
                name: pointer.name.clone(),
                error,
            })
    })
}

/// The number of bytes to write: each content is downloaded once, and written for each of its pointers. `None` when no pointer is valid.
fn size(pointers: &[PointerFile]) -> Option<u64> {
    pointers
        .iter()
        .filter_map(|pointer| Some(pointer.contents.as_ref()?.size))
        .reduce(u64::saturating_add)
}

/// Additional settings of `git-lfs`. They precede the repository's `.lfsconfig`, from which the program takes URLs and
/// exclusions, and no programs.
pub fn config(store: &Path) -> [(&'static str, String); 5] {
    [
        ("lfs.storage", store.display().to_string()),
        ("lfs.basicTransfersOnly", "true".to_owned()),
        // The program would serve a `file:` URL from this machine's disk.
        ("lfs.standaloneTransferAgent", String::new()),
        ("lfs.skipDownloadErrors", "false".to_owned()),
        ("lfs.transfer.maxRetries", "3".to_owned()),
    ]
}

impl PointerFile {
    /// Removes the file, so that nothing reads the pointer as its content.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    /// Writes the contents in place, if they were downloaded whole.
    fn replace(&self, store: &Path) -> io::Result<()> {
        let Some(pointer) = &self.contents else {
            return Ok(());
        };
        let object = store.join("objects").join(pointer.place());
        if !fs::symlink_metadata(&object)
            .is_ok_and(|meta| meta.is_file() && meta.len() == pointer.size)
        {
            return Ok(());
        }
        let (mut from, mut sum, mut piece) =
            (File::open(&object)?, Sha256::new(), vec![0; 64 << 10]);
        while let count @ 1.. = from.read(&mut piece)? {
            sum.update(piece.get(..count).unwrap_or_default());
        }
        if hex::encode(sum.finalize()) != pointer.oid {
            return Ok(());
        }
        // Overwrites the file, which keeps its mode.
        let mut into = File::options()
            .write(true)
            .truncate(true)
            .open(&self.path)?;
        io::copy(&mut File::open(&object)?, &mut into).map(drop)
    }
}

/// The text in git for a large file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pointer {
    /// SHA-256 of the content, in 64 hex digits.
    pub oid: String,
    /// The size in bytes.
    pub size: u64,
}

impl Pointer {
    /// Parses a pointer; `None` for any other text.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text)
            .ok()
            .filter(|text| text.len() as u64 <= MAX_POINTER && is_pointer(text))?;
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let oid = value("oid sha256:")?;
        let is_sum = oid.len() == 64
            && oid
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        Some(Self {
            oid: is_sum.then(|| oid.to_owned())?,
            size: value("size ")?.parse().ok()?,
        })
    }

    /// The path of the content below `objects`.
    pub fn place(&self) -> PathBuf {
        let part = |range| self.oid.get(range).unwrap_or_default();
        PathBuf::from_iter([part(0..2), part(2..4), &self.oid])
    }
}

/// The pointers below the root of a repository, sorted by path. Empty when no `.gitattributes` enables LFS. An unreadable file does not
/// count as a pointer.
pub fn pointers(root: &Path) -> Vec<PointerFile> {
    let mut files = Vec::new();
    let mut asked = false;
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
                continue;
            };
            if kind.is_dir() && entry.file_name() != ".git" {
                dirs.push(path);
            } else if kind.is_file() && entry.file_name() == ".gitattributes" {
                asked = asked || read(&path, MAX_ATTRIBUTES).contains("filter=lfs");
            } else if kind.is_file() && entry.metadata().is_ok_and(|meta| meta.len() <= MAX_POINTER)
            {
                files.push(path);
            }
        }
    }
    if !asked {
        return Vec::new();
    }
    let pointer = |path: PathBuf| {
        let text = read(&path, MAX_POINTER);
        is_pointer(&text).then(|| PointerFile {
            name: path
                .strip_prefix(root)
                .unwrap_or(&path)
                .to_string_lossy()
                .into_owned(),
            contents: Pointer::parse(text.as_bytes()),
            path,
        })
    };
    let mut pointers: Vec<_> = files.into_iter().filter_map(pointer).collect();
    pointers.sort_by(|a, b| a.name.cmp(&b.name));
    pointers
}

/// Whether the program accepts a text as a pointer; it skips leading blanks.
fn is_pointer(text: &str) -> bool {
    let text = text.trim_start();
    FIRST.iter().any(|first| text.starts_with(first))
}

/// The beginning of a file.
fn read(path: &Path, most: u64) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::git_errors::Ended;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A whole id, or one of this digit.
    fn oid(digit: &str) -> String {
        digit.repeat(64 / digit.len())
    }

    fn pointer(digit: &str, size: u64) -> String {
        format!(
            "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {size}\n",
            oid(digit)
        )
    }

    #[test]
    fn pointers_need_lfs_attributes() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| write(dir.path(), name, text);
        let text = pointer("4", 12345);
        write("net/lambda.zip", &text);
        write(
            "net/main.tf",
            "# version https://git-lfs.github.com/spec/v1\n",
        );
        write("a.bin", &format!("{text}{}", "x".repeat(1024)));
        write(".git/b.bin", &text);
        assert!(pointers(dir.path()).is_empty(), "nobody asks for it");
        write(
            "net/.gitattributes",
            "*.zip filter=lfs diff=lfs merge=lfs -text\n",
        );
        let found = pointers(dir.path());
        assert_eq!(
            found
                .iter()
                .map(|pointer| &*pointer.name)
                .collect::<Vec<_>>(),
            ["net/lambda.zip"]
        );
        assert_eq!(
            found[0].contents,
            Some(Pointer {
                oid: "4".repeat(64),
                size: 12345
            })
        );
        // The program accepts this form, so it counts.
        let former = format!(
            "\n{}",
            text.replace("git-lfs.github.com", "hawser.github.com")
        );
        assert_eq!(Pointer::parse(former.as_bytes()), found[0].contents);
        for broken in [
            text.replace("444", "../"),
            text.replace("444", "44"),
            text.replace("size 1", "size -1"),
        ] {
            assert_eq!(Pointer::parse(broken.as_bytes()), None, "{broken}");
        }
    }

    /// A fake `git lfs`: downloads its contents, and exits with its status.
    struct Played<'a>(&'a [(&'a str, &'a str)], Ended, Mutex<Vec<String>>);

    impl Git for Played<'_> {
        type Error = io::Error;

        async fn run_git(
            &self,
            args: &[&str],
            env: &[(OsString, OsString)],
            dir: &Path,
        ) -> io::Result<Ended> {
            self.2.lock().unwrap().push(args.join(" "));
            let is_set = |value: &str| env.iter().any(|(_, own)| own == value);
            assert!(
                is_set("lfs.standaloneTransferAgent")
                    && is_set("core.hooksPath")
                    && is_set("credential.helper")
            );
            if args[0] != "lfs" {
                return Ok(Ended::default());
            }
            for (digit, text) in self.0 {
                let oid = oid(digit);
                write(
                    dir,
                    &format!(".git/lfs/objects/{}/{}/{oid}", &oid[..2], &oid[2..4]),
                    text,
                );
            }
            Ok(self.1.clone())
        }
    }

    async fn fetched(
        root: &Path,
        has: &[(&str, &str)],
        ended: Ended,
    ) -> (Result<(), ContentsError<io::Error>>, Vec<String>) {
        let played = Played(has, ended, Mutex::default());
        let repository = Repository::new::<io::Error>("https://h/r.git", "main").unwrap();
        let end = repository.fetch_contents(&played, Vec::new(), root).await;
        (end, played.2.into_inner().unwrap())
    }

    #[tokio::test]
    async fn contents_replace_their_pointers() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert!(
            fetched(root, &[], Ended::default()).await.1.is_empty(),
            "nobody is asked"
        );
        write(root, ".gitattributes", "*.zip filter=lfs\n");
        let sum = hex::encode(Sha256::digest("large"));
        write(root, "a.zip", &pointer(&sum, 5));
        write(root, "b.zip", &pointer("b", 5));
        write(root, "c.zip", &pointer("c", 5));
        let refused = Ended {
            code: 2,
            output: "batch response: [404] Object does not exist".into(),
            ..Ended::default()
        };
        // The content of b differs from its pointer, that of c is missing.
        let (end, asked) = fetched(root, &[(&sum, "large"), ("b", "other")], refused).await;
        let error = end.unwrap_err().to_string();
        assert!(error.contains("Object does not exist"), "{error}");
        assert_eq!(asked, ["lfs fetch origin HEAD"]);
        assert_eq!(fs::read_to_string(root.join("a.zip")).unwrap(), "large");
        assert_eq!(
            pointers(root)
                .iter()
                .map(|left| &*left.name)
                .collect::<Vec<_>>(),
            ["b.zip", "c.zip"]
        );
        assert!(!root.join(".git/lfs").exists(), "it is there once");

        write(root, ".gitmodules", "");
        let (end, asked) = fetched(root, &[], Ended::default()).await;
        assert!(
            end.is_ok() && asked[1].ends_with("foreach --recursive git lfs fetch origin HEAD"),
            "{asked:?}"
        );
    }

    #[tokio::test]
    async fn missing_contents_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), ".gitattributes", "*.zip filter=lfs\n");
        write(dir.path(), "a.zip", &pointer("a", 5));
        let none = "git: 'lfs' is not a git command. See 'git --help'.";
        let none = Ended {
            code: 1,
            output: none.into(),
            ..Ended::default()
        };
        assert!(matches!(
            fetched(dir.path(), &[], none).await.0,
            Err(ContentsError::NoProgram)
        ));
        write(dir.path(), "b.zip", &pointer("b", MAX_CONTENTS - 5));
        assert!(fetched(dir.path(), &[], Ended::default()).await.0.is_ok());
        // The same contents in two files are written twice: a small repository could fill a disk.
        write(dir.path(), "c.zip", &pointer("b", MAX_CONTENTS - 5));
        let (end, asked) = fetched(dir.path(), &[], Ended::default()).await;
        assert!(
            matches!(end, Err(ContentsError::TooLarge(bytes)) if bytes == 2 * MAX_CONTENTS - 5),
            "{end:?}"
        );
        assert!(asked.is_empty(), "{asked:?}");
        write(dir.path(), "d.zip", &pointer("d", u64::MAX));
        let (end, asked) = fetched(dir.path(), &[], Ended::default()).await;
        assert!(
            matches!(end, Err(ContentsError::TooLarge(u64::MAX))) && asked.is_empty(),
            "{end:?}"
        );
    }
}
