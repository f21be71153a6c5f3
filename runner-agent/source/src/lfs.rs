//! Files that git holds only pointers to, by Large File Storage. `git-lfs` fetches the contents into a directory of the repository and
//! nothing else; they are put in place here, over the pointers that were found, so that no link is ever written through.

use std::{
    error::Error,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use crate::{
    git::{Git, Repository},
    git_errors::{FetchError, contents_refused},
};

/// No pointer is longer, in bytes.
pub const MAX_POINTER: u64 = 1024;
/// How each begins: with one of the names that the program has, or has had.
const FIRST: [&str; 3] =
    ["version https://git-lfs.github.com/spec/", "version https://hawser.github.com/spec/", "version http://git-media.io/v/"];
/// The longest list of attributes that is read, in bytes.
const MAX_ATTRIBUTES: u64 = 1 << 20;
/// Files of more bytes in all are not fetched: as many as an archive may unpack to.
pub const MAX_CONTENTS: u64 = 1 << 30;

/// Where `git-lfs` keeps what it fetched, of submodules too, below the top of the repository.
const STORE: &str = ".git/lfs";
/// The words of git when it has no such program.
pub const NO_PROGRAM: &str = "'lfs' is not a git command";

/// A file that git has only a pointer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointerFile {
    /// Its path below the top of the repository.
    pub name: String,
    path: PathBuf,
    /// What it points to; none where it names no contents.
    contents: Option<Pointer>,
}

/// Why contents are not on disk.
#[derive(Debug, thiserror::Error)]
pub enum ContentsError<E: Error + 'static> {
    /// The program is not there.
    #[error("the program git-lfs is not installed where this runs (Debian's package git-lfs; Pawl's own runner image has it)")]
    NoProgram,
    /// They are more than is fetched.
    #[error("they have {0} bytes in all, and at most {MAX_CONTENTS} are fetched")]
    TooLarge(u64),
    /// The server did not give them, or git was not run.
    #[error(transparent)]
    Fetch(#[from] FetchError<E>),
    /// They could not be put in place.
    #[error("{name} cannot be written")]
    NotWritten {
        /// The file.
        name: String,
        /// Why.
        #[source]
        error: io::Error,
    },
}

impl Repository {
    /// Puts the contents that pointers name in place of them, in a revision that was fetched into `root`, and in its submodules. Nobody
    /// is asked where there are no pointers. `env` is as for [`Repository::fetch`].
    ///
    /// # Errors
    /// When some contents were refused; then others may be in place. What the repository leaves out by its `.lfsconfig` is no error.
    pub async fn fetch_contents<G: Git>(
        &self,
        git: &G,
        env: Vec<(OsString, OsString)>,
        root: &Path,
    ) -> Result<(), ContentsError<G::Error>> {
        let pointers = pointers(root);
        let Some(bytes) = size(&pointers) else { return Ok(()) };
        if bytes > MAX_CONTENTS {
            return Err(ContentsError::TooLarge(bytes));
        }
        let store = root.join(STORE);
        let env = self.env(env, &config(&store));
        let run = async |args: &[&str]| git.run_git(args, &env, root).await.map_err(FetchError::NotRun);
        // A name for the server, which the whole of a repository is fetched without.
        let mut ended = run(&["config", "remote.origin.url", self.url().as_str()]).await?;
        if ended.code == 0 {
            ended = run(&["lfs", "fetch", "origin", "HEAD"]).await?;
        }
        if ended.code != 0 && ended.output.contains(NO_PROGRAM) {
            return Err(ContentsError::NoProgram);
        }
        if fs::symlink_metadata(root.join(".gitmodules")).is_ok_and(|meta| meta.is_file()) {
            let inner = run(&["submodule", "--quiet", "foreach", "--recursive", "git lfs fetch origin HEAD"]).await?;
            ended = if ended.code == 0 { inner } else { ended };
        }
        // What was given is put in place, whatever was refused besides.
        for pointer in &pointers {
            pointer.replace(&store).map_err(|error| ContentsError::NotWritten { name: pointer.name.clone(), error })?;
        }
        let _ = fs::remove_dir_all(&store);
        if ended.code == 0 { Ok(()) } else { Err(contents_refused(self.url().as_str(), &ended).into()) }
    }
}

/// How many bytes are written in place of pointers: contents are fetched once, and written for each pointer to them. None where none names
/// contents.
fn size(pointers: &[PointerFile]) -> Option<u64> {
    pointers.iter().filter_map(|pointer| Some(pointer.contents.as_ref()?.size)).reduce(u64::saturating_add)
}

/// What `git-lfs` is told besides. It goes before the repository's own `.lfsconfig`, of which the program takes where to ask and what to
/// leave out, and no programs.
pub fn config(store: &Path) -> [(&'static str, String); 5] {
    [
        ("lfs.storage", store.display().to_string()),
        ("lfs.basicTransfersOnly", "true".to_owned()),
        // A URL by `file:` would be answered by a program of its own, which copies from this machine's disk.
        ("lfs.standaloneTransferAgent", String::new()),
        ("lfs.skipDownloadErrors", "false".to_owned()),
        ("lfs.transfer.maxRetries", "3".to_owned()),
    ]
}

impl PointerFile {
    /// Puts the contents in its place, if they were fetched.
    fn replace(&self, store: &Path) -> io::Result<()> {
        let Some(pointer) = &self.contents else { return Ok(()) };
        let object = store.join("objects").join(pointer.place());
        if !fs::symlink_metadata(&object).is_ok_and(|meta| meta.is_file() && meta.len() == pointer.size) {
            return Ok(());
        }
        // Over the file, which keeps its mode.
        let mut into = File::options().write(true).truncate(true).open(&self.path)?;
        io::copy(&mut File::open(&object)?, &mut into).map(drop)
    }
}

/// What stands in git for a large file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pointer {
    /// SHA-256 of its content, in 64 hexadecimal digits.
    pub oid: String,
    /// Its bytes.
    pub size: u64,
}

impl Pointer {
    /// Reads one; none when it is something else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() as u64 <= MAX_POINTER && is_pointer(text))?;
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
pub fn pointers(root: &Path) -> Vec<PointerFile> {
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
    let pointer = |path: PathBuf| {
        let text = read(&path, MAX_POINTER);
        is_pointer(&text).then(|| PointerFile {
            name: path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned(),
            contents: Pointer::parse(text.as_bytes()),
            path,
        })
    };
    let mut pointers: Vec<_> = files.into_iter().filter_map(pointer).collect();
    pointers.sort_by(|a, b| a.name.cmp(&b.name));
    pointers
}

/// Whether the program takes a text for a pointer; it passes over what is blank before it.
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

    fn pointer(digit: &str, size: u64) -> String {
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {size}\n", digit.repeat(64))
    }

    #[test]
    fn pointers_are_found_where_the_repository_asks_for_large_files() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| write(dir.path(), name, text);
        let text = pointer("4", 12345);
        write("net/lambda.zip", &text);
        write("net/main.tf", "# version https://git-lfs.github.com/spec/v1\n");
        write("a.bin", &format!("{text}{}", "x".repeat(1024)));
        write(".git/b.bin", &text);
        assert!(pointers(dir.path()).is_empty(), "nobody asks for it");
        write("net/.gitattributes", "*.zip filter=lfs diff=lfs merge=lfs -text\n");
        let found = pointers(dir.path());
        assert_eq!(found.iter().map(|pointer| &*pointer.name).collect::<Vec<_>>(), ["net/lambda.zip"]);
        assert_eq!(found[0].contents, Some(Pointer { oid: "4".repeat(64), size: 12345 }));
        // What the program fetches as well counts as well.
        let former = format!("\n{}", text.replace("git-lfs.github.com", "hawser.github.com"));
        assert_eq!(Pointer::parse(former.as_bytes()), found[0].contents);
        for broken in [text.replace("444", "../"), text.replace("444", "44"), text.replace("size 1", "size -1")] {
            assert_eq!(Pointer::parse(broken.as_bytes()), None, "{broken}");
        }
    }

    /// Plays `git lfs`: fetches what it has, and ends so.
    struct Played<'a>(&'a [(&'a str, &'a str)], Ended, Mutex<Vec<String>>);

    impl Git for Played<'_> {
        type Error = io::Error;

        async fn run_git(&self, args: &[&str], env: &[(OsString, OsString)], dir: &Path) -> io::Result<Ended> {
            self.2.lock().unwrap().push(args.join(" "));
            let is_set = |value: &str| env.iter().any(|(_, own)| own == value);
            assert!(is_set("lfs.standaloneTransferAgent") && is_set("core.hooksPath") && is_set("credential.helper"));
            if args[0] != "lfs" {
                return Ok(Ended::default());
            }
            for (digit, text) in self.0 {
                let oid = digit.repeat(64);
                write(dir, &format!(".git/lfs/objects/{}/{}/{oid}", &oid[..2], &oid[2..4]), text);
            }
            Ok(self.1.clone())
        }
    }

    async fn fetched(root: &Path, has: &[(&str, &str)], ended: Ended) -> (Result<(), ContentsError<io::Error>>, Vec<String>) {
        let played = Played(has, ended, Mutex::default());
        let repository = Repository::new::<io::Error>("https://h/r.git", "main").unwrap();
        let end = repository.fetch_contents(&played, Vec::new(), root).await;
        (end, played.2.into_inner().unwrap())
    }

    #[tokio::test]
    async fn contents_are_put_in_place_of_their_pointers() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert!(fetched(root, &[], Ended::default()).await.1.is_empty(), "nobody is asked");
        write(root, ".gitattributes", "*.zip filter=lfs\n");
        write(root, "a.zip", &pointer("a", 5));
        write(root, "b.zip", &pointer("b", 5));
        write(root, "c.zip", &pointer("c", 5));
        let refused = Ended { code: 2, output: "batch response: [404] Object does not exist".into(), ..Ended::default() };
        // Of b other bytes came than the pointer says, and of c none.
        let (end, asked) = fetched(root, &[("a", "large"), ("b", "no")], refused).await;
        let error = end.unwrap_err().to_string();
        assert!(error.contains("Object does not exist"), "{error}");
        assert_eq!(asked, ["config remote.origin.url https://h/r.git", "lfs fetch origin HEAD"]);
        assert_eq!(fs::read_to_string(root.join("a.zip")).unwrap(), "large");
        assert_eq!(pointers(root).iter().map(|left| &*left.name).collect::<Vec<_>>(), ["b.zip", "c.zip"]);
        assert!(!root.join(".git/lfs").exists(), "it is there once");

        write(root, ".gitmodules", "");
        let (end, asked) = fetched(root, &[], Ended::default()).await;
        assert!(end.is_ok() && asked[2].ends_with("foreach --recursive git lfs fetch origin HEAD"), "{asked:?}");
    }

    #[tokio::test]
    async fn what_cannot_be_fetched_is_said() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), ".gitattributes", "*.zip filter=lfs\n");
        write(dir.path(), "a.zip", &pointer("a", 5));
        let none = "git: 'lfs' is not a git command. See 'git --help'.";
        let none = Ended { code: 1, output: none.into(), ..Ended::default() };
        assert!(matches!(fetched(dir.path(), &[], none).await.0, Err(ContentsError::NoProgram)));
        write(dir.path(), "b.zip", &pointer("b", MAX_CONTENTS - 5));
        assert!(fetched(dir.path(), &[], Ended::default()).await.0.is_ok());
        // The same contents in two files are written twice: a small repository would fill a disk.
        write(dir.path(), "c.zip", &pointer("b", MAX_CONTENTS - 5));
        let (end, asked) = fetched(dir.path(), &[], Ended::default()).await;
        assert!(matches!(end, Err(ContentsError::TooLarge(bytes)) if bytes == 2 * MAX_CONTENTS - 5), "{end:?}");
        assert!(asked.is_empty(), "{asked:?}");
        write(dir.path(), "d.zip", &pointer("d", u64::MAX));
        let (end, asked) = fetched(dir.path(), &[], Ended::default()).await;
        assert!(matches!(end, Err(ContentsError::TooLarge(u64::MAX))) && asked.is_empty(), "{end:?}");
    }
}
