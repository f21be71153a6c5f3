//! Mirrors: bare, shallow copies of repositories, which may be lost at any time. Commits are fetched by their ids, and
//! objects are read by their ids.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crds::Reason;
use source::{Repository, clone::is_refused, listing, snapshot, submodules, url::is_revision};

use crate::{
    failure::Problem,
    git::{Commands, GitError, Limit, Most, Output, size},
    tree::{Entry, Tree},
    walk::{Ask, Known, understood},
};

/// Maximum size of a tree listing, and the number of files and directories that a snapshot may have.
const MAX_TREE: Most = Most {
    bytes: listing::MAX_LISTING,
    records: snapshot::LIMITS.entries,
};
/// Maximum size of code in one read, in bytes.
const MAX_CODE: usize = 256 << 20;
/// Maximum size of a commit object, in bytes.
const MAX_COMMIT: usize = 1 << 20;
/// Number of fetched commits after which a mirror is recreated, which is cheaper than a git gc.
const MAX_COMMITS: usize = 200;
/// Interval of size checks during a fetch.
const LOOK: Duration = Duration::from_secs(1);

/// The directory of all mirrors.
#[derive(Debug)]
pub struct Mirrors {
    root: PathBuf,
    /// Maximum total size, in bytes.
    limit: u64,
    uses: Mutex<BTreeMap<String, Use>>,
}

#[derive(Clone, Debug)]
struct Use {
    last: Instant,
    busy: bool,
    commits: usize,
    /// Size in bytes at the last check; `None` when it has grown since.
    size: Option<u64>,
}

impl Mirrors {
    /// Mirrors below a directory, which is created and emptied: another process may have left incomplete data.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn new(root: &Path, limit: u64) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        for entry in fs::read_dir(root)? {
            let path = entry?.path();
            if path.is_dir() {
                fs::remove_dir_all(path)?;
            } else {
                fs::remove_file(path)?;
            }
        }
        Ok(Self {
            root: root.to_owned(),
            limit,
            uses: Mutex::default(),
        })
    }

    pub fn dir(&self, uid: &str) -> PathBuf {
        self.root.join(uid)
    }

    /// Marks a mirror as in use until the returned guard is dropped.
    pub fn uses(this: &Arc<Self>, uid: &str) -> Busy {
        let mut uses = this.lock();
        let used = uses.entry(uid.to_owned()).or_insert(Use {
            last: Instant::now(),
            busy: true,
            commits: 0,
            size: None,
        });
        used.busy = true;
        drop(uses);
        Busy(this.clone(), uid.to_owned())
    }

    pub fn remove(&self, uid: &str) {
        let mut uses = self.lock();
        match uses.get_mut(uid) {
            Some(used) if used.busy => (used.commits, used.size) = (0, None),
            _ => drop(uses.remove(uid)),
        }
        drop(uses);
        let _ = fs::remove_dir_all(self.dir(uid));
    }

    /// Deletes mirrors that are too large or have too many commits, then the least recently used ones until the rest
    /// fits.
    pub fn make_room(&self) {
        let mut all: Vec<(String, Use, u64)> = self
            .lock()
            .iter_mut()
            .map(|(uid, used)| {
                let size = *used.size.get_or_insert_with(|| size(&self.root.join(uid)));
                (uid.clone(), used.clone(), size)
            })
            .collect();
        all.sort_by_key(|(_, used, _)| used.last);
        let mut total: u64 = all.iter().map(|(.., size)| size).sum();
        for (uid, used, size) in all {
            if !used.busy && (total > self.limit || used.commits > MAX_COMMITS) {
                tracing::debug!(mirror = uid, size, "deleted");
                self.remove(&uid);
                total = total.saturating_sub(size);
            }
        }
    }

    /// Records a fetch into a mirror.
    fn grows(&self, uid: &str) {
        if let Some(used) = self.lock().get_mut(uid) {
            (used.commits, used.size) = (used.commits + 1, None);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Use>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Protects a mirror in use from deletion.
pub struct Busy(Arc<Mirrors>, String);

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(used) = self.0.lock().get_mut(&self.1) {
            (used.busy, used.last) = (false, Instant::now());
        }
    }
}

/// A mirror with the access to its server.
pub struct Mirror<'a> {
    pub mirrors: &'a Mirrors,
    /// UID of the repository.
    pub uid: &'a str,
    pub git: &'a Commands,
    /// Its server, with credentials.
    pub repository: &'a Repository,
}

impl Mirror<'_> {
    pub fn dir(&self) -> PathBuf {
        self.mirrors.dir(self.uid)
    }

    /// Whether it has a commit with its whole tree.
    pub async fn has(&self, commit: &str) -> bool {
        let reference = format!("{}^{{tree}}", kept(commit));
        let found = self
            .local(
                &["rev-parse", "--verify", "--quiet", &reference],
                Vec::new(),
                4096,
            )
            .await;
        found.is_ok_and(|output| output.ended.code == 0)
    }

    /// Fetches a commit by its id, if it is missing. From a server that does not serve commits by id, fetches
    /// everything.
    ///
    /// # Errors
    /// Why the commit is still missing.
    pub async fn fetch(&self, url: &str, commit: &str) -> Result<(), Problem> {
        if commit.len() != 40 {
            let message = format!(
                "{url} is a SHA-256 repository, which is not supported; no snapshot was made"
            );
            return Err(Problem::new(Reason::SourceInvalid, message));
        }
        if self.has(commit).await {
            return Ok(());
        }
        let was_there = self.dir().join("HEAD").is_file();
        let mut fetched = self.fetch_into(url, commit).await;
        if was_there
            && self.is_own(url)
            && fetched
                .as_ref()
                .is_err_and(|problem| problem.reason == Reason::SourceUnreachable)
        {
            // The mirror may be damaged: a stale lock, or a missing object.
            self.mirrors.remove(self.uid);
            fetched = self.fetch_into(url, commit).await;
        }
        fetched
    }

    async fn fetch_into(&self, url: &str, commit: &str) -> Result<(), Problem> {
        self.init().await?;
        let wanted = format!("{commit}:{}", kept(commit));
        let common = [
            "fetch",
            "--quiet",
            "--no-recurse-submodules",
            "--no-write-fetch-head",
        ];
        let mut shallow = common.to_vec();
        if url == self.repository.url().as_str() {
            // The tags of the commit follow it, as in a clone. An older one of the same name would stay.
            let _ = fs::remove_dir_all(self.dir().join("refs/tags"));
        } else {
            shallow.push("--no-tags");
        }
        shallow.extend(["--depth=1", "--", url, &wanted]);
        let mut output = self.remote(url, &shallow).await?;
        if output.ended.code != 0 && is_refused(&output.ended.output) {
            let all = [
                "--no-tags",
                "--",
                url,
                "+refs/heads/*:refs/pawl-all/heads/*",
                "+refs/tags/*:refs/pawl-all/tags/*",
            ];
            let full: Vec<&str> = common.into_iter().chain(all).collect();
            output = self.remote(url, &full).await?;
            if output.ended.code == 0 {
                let noted = self
                    .local(&["update-ref", &kept(commit), commit], Vec::new(), 4096)
                    .await?;
                if noted.ended.code != 0 {
                    return Err(Problem::new(
                        Reason::RevisionNotFound,
                        format!("{url} has no commit {commit}"),
                    ));
                }
            }
        }
        if output.ended.code == 0 {
            return Ok(());
        }
        Err(Problem::refused(
            url,
            self.is_own(url),
            commit,
            &output.ended,
        ))
    }

    /// The tags of a commit, each with the id of its object.
    ///
    /// # Errors
    /// When the mirror cannot be read.
    pub async fn tags(&self, commit: &str) -> Result<Vec<(String, String)>, Problem> {
        let at = format!("--points-at={commit}");
        let ask = [
            "for-each-ref",
            "--count=100",
            &at,
            "--format=%(objectname) %(refname:strip=2)",
            "refs/tags",
        ];
        let listing = self.read(&ask, Vec::new(), MAX_COMMIT).await?;
        Ok(String::from_utf8_lossy(&listing)
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(_, name)| is_revision(name))
            .map(|(id, name)| (name.to_owned(), id.to_owned()))
            .collect())
    }

    /// The object of a commit.
    ///
    /// # Errors
    /// When the mirror does not have it.
    pub async fn commit(&self, commit: &str) -> Result<Vec<u8>, Problem> {
        self.read(&["cat-file", "commit", commit], Vec::new(), MAX_COMMIT)
            .await
    }

    /// The tree of a commit.
    ///
    /// # Errors
    /// When the mirror does not have it, or it is too large to be checked out.
    pub async fn tree(&self, url: &str, commit: &str) -> Result<Tree, Problem> {
        let list: Vec<&str> = listing::LIST.into_iter().chain([commit]).collect();
        let refused = |limit: &str| {
            let message = listing::too_large(url, commit, limit);
            Problem::new(Reason::SourceInvalid, message)
        };
        let asked = self
            .git
            .output(&list, &self.git.local(), &self.dir(), Vec::new(), MAX_TREE)
            .await;
        if let Err(GitError::TooMuch(_, limit)) = &asked {
            return Err(refused(&match limit {
                Limit::Bytes(_) => format!("{} MiB of paths", listing::MAX_LISTING >> 20),
                limit => limit.to_string(),
            }));
        }
        let listing = self.told(asked.map_err(|error| local_problem(&error))?)?;
        listing::within(&*listing, &listing::LIMITS).map_err(|limit| refused(&limit))?;
        Tree::parse(&listing).map_err(|message| Problem::new(Reason::SourceInvalid, message))
    }

    /// Reads blobs, each in the requested form, into `known`.
    ///
    /// # Errors
    /// When the mirror lacks one.
    pub async fn blobs(
        &self,
        wanted: &BTreeSet<(String, Ask)>,
        known: &mut Known,
    ) -> Result<(), Problem> {
        let texts = self.texts(wanted.iter().map(|(id, _)| id.as_str()));
        let texts = texts.await?;
        // Parsing needs a large stack per file and takes time.
        let wanted = wanted.clone();
        let read = tokio::task::spawn_blocking(move || {
            let each = |(id, ask): (String, Ask)| {
                let blob = understood(&ask, texts.get(&id).map(Vec::as_slice).unwrap_or_default());
                ((id, ask), blob)
            };
            wanted.into_iter().map(each).collect::<Known>()
        });
        known.extend(
            read.await
                .map_err(|error| Problem::new(Reason::AgentFault, error.to_string()))?,
        );
        Ok(())
    }

    /// The content of blobs, by id.
    ///
    /// # Errors
    /// When the mirror lacks one.
    pub async fn texts(
        &self,
        ids: impl Iterator<Item = &str>,
    ) -> Result<BTreeMap<String, Vec<u8>>, Problem> {
        let ids: BTreeSet<&str> = ids.collect();
        let input = ids
            .iter()
            .fold(String::new(), |text, id| text + id + "\n")
            .into_bytes();
        let output = self
            .read(&["cat-file", "--batch", "--buffer"], input, MAX_CODE)
            .await?;
        let texts = batch(&output).filter(|texts| ids.iter().all(|id| texts.contains_key(*id)));
        let Some(texts) = texts else {
            self.mirrors.remove(self.uid);
            return Err(Problem::new(
                Reason::AgentFault,
                "the mirror lacks a file of a commit that it has; it is fetched anew",
            ));
        };
        Ok(texts
            .into_iter()
            .map(|(id, text)| (id.to_owned(), text.to_vec()))
            .collect())
    }

    /// The values of a git configuration file in the tree of a commit, as pairs; none without the file, or for a link.
    ///
    /// # Errors
    /// When git cannot parse it.
    pub async fn config(
        &self,
        commit: &str,
        tree: &Tree,
        path: &str,
    ) -> Result<Vec<(String, String)>, Problem> {
        if tree.at(path).is_none_or(Entry::is_link) {
            return Ok(Vec::new());
        }
        let blob = format!("--blob={commit}:{path}");
        let output = self
            .local(&["config", &blob, "-z", "--list"], Vec::new(), MAX_COMMIT)
            .await?;
        if output.ended.code != 0 {
            let message = format!(
                "{path} is not understood by git: {}",
                output.ended.output.trim()
            );
            return Err(Problem::new(Reason::SourceInvalid, message));
        }
        Ok(submodules::pairs(&output.stdout))
    }

    async fn init(&self) -> Result<(), Problem> {
        let dir = self.dir();
        if dir.join("HEAD").is_file() {
            return Ok(());
        }
        let _ = fs::remove_dir_all(&dir);
        let fault = |error: &io::Error| {
            let full = error.kind() == io::ErrorKind::StorageFull;
            let reason = if full {
                Reason::DiskFull
            } else {
                Reason::AgentFault
            };
            Problem::new(
                reason,
                format!("the mirror {} cannot be made: {error}", dir.display()),
            )
        };
        fs::create_dir_all(&dir).map_err(|error| fault(&error))?;
        let output = self
            .local(
                &["init", "--quiet", "--bare", "--template=", "."],
                Vec::new(),
                4096,
            )
            .await?;
        if output.ended.code != 0 {
            return Err(fault(&io::Error::other(output.ended.output)));
        }
        Ok(())
    }

    /// The output of a local command.
    pub(crate) async fn read(
        &self,
        args: &[&str],
        input: Vec<u8>,
        most: impl Into<Most>,
    ) -> Result<Vec<u8>, Problem> {
        self.told(self.local(args, input, most).await?)
    }

    /// The output of a local command that ended.
    fn told(&self, output: Output) -> Result<Vec<u8>, Problem> {
        if output.ended.code == 0 {
            return Ok(output.stdout);
        }
        // Recreate the mirror, whatever is wrong with it.
        self.mirrors.remove(self.uid);
        let message = format!(
            "the mirror cannot be read, and is fetched anew: {}",
            output.ended.output.trim()
        );
        Err(Problem::new(Reason::AgentFault, message))
    }

    pub(crate) async fn local(
        &self,
        args: &[&str],
        input: Vec<u8>,
        most: impl Into<Most>,
    ) -> Result<Output, Problem> {
        let dir = self.dir();
        // A missing directory would give the same error as a missing git.
        if !dir.is_dir() {
            return Err(Problem::new(
                Reason::AgentFault,
                "the mirror is gone, and is fetched anew",
            ));
        }
        self.git
            .output(args, &self.git.local(), &dir, input, most)
            .await
            .map_err(|error| local_problem(&error))
    }

    /// Contacts a server, and aborts when the mirror becomes too large.
    pub(crate) async fn remote(&self, url: &str, args: &[&str]) -> Result<Output, Problem> {
        let dir = self.dir();
        self.mirrors.grows(self.uid);
        let env = self.git.towards(url, self.repository);
        let watched = async {
            loop {
                tokio::time::sleep(LOOK).await;
                if size(&dir) > self.mirrors.limit {
                    return GitError::TooLarge(self.mirrors.limit >> 20);
                }
            }
        };
        let output = tokio::select! {
            output = self.git.output(args, &env, &dir, Vec::new(), MAX_COMMIT) => output,
            error = watched => Err(error),
        };
        output.map_err(|error| {
            self.mirrors.remove(self.uid);
            match error {
                GitError::TooLong { .. } if !self.is_own(url) => {
                    Problem::no_repository(url, &error.to_string())
                }
                error => Problem::from(&error),
            }
        })
    }

    /// Whether a URL leads to the repository's own server: the same scheme, user, host and port.
    fn is_own(&self, url: &str) -> bool {
        server(url) == server(self.repository.url().as_str())
    }
}

/// The problem of a local command, whose input is the repository and not a server.
fn local_problem(error: &GitError) -> Problem {
    match error {
        GitError::TooLong { .. } => Problem::new(Reason::SourceInvalid, error.to_string()),
        error => Problem::from(error),
    }
}

/// The part of a URL before the path.
fn server(url: &str) -> &str {
    let end = url.find("://").map_or_else(
        || url.find(':'),
        |at| Some(at + 3 + url.get(at + 3..)?.find('/')?),
    );
    end.and_then(|end| url.get(..end)).unwrap_or(url)
}

/// The ref that retains a commit, so that later ones are fetched as deltas.
fn kept(commit: &str) -> String {
    format!("refs/pawl/{commit}")
}

/// The objects printed by `git cat-file --batch`, by id; `None` for unexpected output.
fn batch(output: &[u8]) -> Option<BTreeMap<&str, &[u8]>> {
    let (mut found, mut rest) = (BTreeMap::new(), output);
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let mut words = std::str::from_utf8(rest.get(..end)?).ok()?.split(' ');
        let (id, kind) = (words.next()?, words.next()?);
        rest = rest.get(end + 1..)?;
        if kind == "missing" {
            continue;
        }
        let size: usize = words.next()?.parse().ok()?;
        found.insert(id, rest.get(..size)?);
        rest = rest.get(size + 1..)?;
    }
    Some(found)
}

#[cfg(test)]
mod tests;
