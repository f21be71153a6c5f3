//! Unpacks a snapshot, and makes the tree of its commit.

use std::{
    collections::BTreeMap,
    error::Error,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::Instant,
};

use crds::text::clip;
use tool_versions::{Kind, archive};

use super::{HEADER, Header, LARGE, LIMITS, MAX_HEADER, PACK, VERSION};
use crate::{
    clone::Fetched,
    git::{Git, Repository},
    git_errors::{FetchError, Refusal},
    lfs::ContentsError,
    url::{Url, is_commit, is_revision},
};

/// An unpacked snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked {
    dir: PathBuf,
    header: Header,
    url: Url,
    commit: String,
}

/// The reason why there is no tree.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError<E: Error + 'static> {
    /// It is not the tree of that commit, or no snapshot.
    #[error("{0}")]
    Integrity(String),
    /// The disk failed.
    #[error("{0}")]
    Storage(String),
    /// The tree was refused, in the same words as from a server.
    #[error(transparent)]
    Fetch(#[from] FetchError<E>),
}

/// Unpacks the snapshot of a commit, by its full id, into an empty directory without other writers, before a deadline.
///
/// # Errors
/// It is none. The content of the directory is then undefined.
pub fn unpack<E: Error>(
    archive: impl io::Read + io::Seek,
    dir: &Path,
    revision: &str,
    until: Instant,
) -> Result<Unpacked, UnpackError<E>> {
    let name = format!("snapshot of {}", clip(revision, 64));
    archive::unpack(&name, archive, &LIMITS, until, dir).map_err(|error| match error.kind {
        Kind::Storage => UnpackError::Storage(error.text),
        Kind::Configuration | Kind::Contradiction | Kind::Unavailable | Kind::Integrity => {
            UnpackError::Integrity(error.text)
        }
    })?;
    let path = dir.join(HEADER);
    let is_file =
        fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_HEADER);
    if !is_file {
        return Err(integrity("not a snapshot: its description is missing"));
    }
    let text = fs::read(&path).map_err(|error| storage(HEADER, &error))?;
    let header: Header = serde_json::from_slice(&text).map_err(|error| {
        integrity(format!(
            "not a snapshot: its description is malformed: {error}"
        ))
    })?;
    if header.version != VERSION {
        return Err(integrity(format!(
            "the snapshot has format version {}; this release reads {VERSION}",
            header.version
        )));
    }
    let commit = header.remotes.first().map(|(_, commit)| commit.as_str());
    if commit != Some(revision) {
        let commit = clip(commit.unwrap_or("none"), 64);
        return Err(of_another(&commit, revision));
    }
    let is_legal = header
        .remotes
        .iter()
        .all(|(url, commit)| Url::parse(url).is_some() && is_commit(commit))
        && header
            .tags
            .iter()
            .all(|(name, id)| is_revision(name) && is_commit(id))
        && header.head.iter().all(|name| is_revision(name));
    let url = header.remotes.first().and_then(|(url, _)| Url::parse(url));
    match url.filter(|_| is_legal) {
        Some(url) => Ok(Unpacked {
            dir: dir.to_owned(),
            header,
            url,
            commit: revision.to_owned(),
        }),
        None => Err(integrity("the snapshot names what git has no name for")),
    }
}

impl Unpacked {
    /// The URL of the repository.
    pub const fn url(&self) -> &Url {
        &self.url
    }

    /// Makes the tree in an empty directory, as of the ref that led to the commit, and replaces the pointers whose contents the snapshot has. `env` is
    /// as for [`Repository::fetch`].
    ///
    /// # Errors
    /// There is no tree. The directory may have a part of it.
    pub async fn fetch<G: Git>(
        &self,
        git: &G,
        env: Vec<(OsString, OsString)>,
        git_ref: Option<&str>,
        root: &Path,
    ) -> Result<(Fetched, Result<(), ContentsError<G::Error>>), UnpackError<G::Error>> {
        let (url, commit) = (self.url.as_str(), self.commit.as_str());
        let (revision, remotes) = self
            .remotes(git_ref)
            .map_err(|error| storage("the objects", &error))?;
        let repository = Repository::new(url, &revision)?
            .from_local(remotes.into_iter().collect(), self.dir.join(LARGE));
        let first = self.remote(0);
        let index = ["index-pack", "objects/pack/pack-1.pack"];
        let indexed = git
            .run_git(&index, &repository.env(env.clone(), &[]), &first)
            .await
            .map_err(FetchError::NotRun)?;
        if indexed.told || indexed.signal.is_some() {
            return Err(crate::git_errors::refused(url, commit, &indexed).into());
        }
        if indexed.code != 0 {
            let said = clip(indexed.output.trim(), 300);
            return Err(if said.contains("No space left") {
                UnpackError::Storage(said)
            } else {
                integrity(format!("its objects are damaged: {said}"))
            });
        }
        let fetched = match repository.fetch(git, env.clone(), root).await {
            // Nothing else is asked than the snapshot.
            Err(FetchError::Refused { refusal, message })
                if !matches!(refusal, Refusal::Invalid | Refusal::DiskFull) =>
            {
                return Err(integrity(message));
            }
            other => other?,
        };
        if fetched.commit != commit {
            return Err(of_another(&fetched.commit, commit));
        }
        let contents = repository.fetch_contents(git, env, root).await;
        Ok((fetched, contents))
    }

    fn remote(&self, number: usize) -> PathBuf {
        self.dir.join("remotes").join(number.to_string())
    }

    /// Makes a bare repository for each URL, and the revision to fetch from the first.
    fn remotes(&self, git_ref: Option<&str>) -> io::Result<(String, BTreeMap<String, PathBuf>)> {
        let Header {
            head,
            tags,
            remotes,
            ..
        } = &self.header;
        let commit = self.commit.as_str();
        let has_tag = |name: &str| tags.iter().any(|(own, _)| own == name);
        // A branch is only a name here: the snapshot is of its commit.
        let (revision, branch) = match git_ref {
            Some("HEAD") if head.is_some() => ("HEAD", head.as_deref()),
            Some(name) if name == "HEAD" || is_commit(name) || !is_revision(name) => (commit, None),
            Some(name) if has_tag(name) => (name, None),
            Some(name) => match name.strip_prefix("refs/") {
                Some(rest) => (name, rest.strip_prefix("heads/")),
                None => (name, Some(name)),
            },
            None => (commit, None),
        };
        let mut packed: Vec<(String, &str)> = tags
            .iter()
            .map(|(name, id)| (format!("refs/tags/{name}"), id.as_str()))
            .collect();
        let at = branch.map(|name| format!("refs/heads/{name}"));
        let other = (revision.starts_with("refs/") && at.is_none()).then(|| revision.to_owned());
        packed.extend(at.iter().chain(&other).map(|name| (name.clone(), commit)));
        // The sort keeps the object of an annotated tag before the commit.
        packed.sort_by(|a, b| a.0.cmp(&b.0));
        packed.dedup_by(|a, b| a.0 == b.0);
        let packed: String = packed
            .iter()
            .flat_map(|(name, id)| [id, " ", name, "\n"])
            .collect();
        let shallow: String = remotes
            .iter()
            .flat_map(|(_, commit)| [commit, "\n"])
            .collect();
        let mut made = BTreeMap::new();
        for (number, (url, commit)) in remotes.iter().enumerate() {
            if made.contains_key(url) {
                continue;
            }
            let dir = self.remote(number);
            for below in ["objects/pack", "objects/info", "refs"] {
                fs::create_dir_all(dir.join(below))?;
            }
            fs::write(dir.join("config"), BARE)?;
            fs::write(dir.join("shallow"), &shallow)?;
            let head = match &at {
                Some(name) if number == 0 => format!("ref: {name}\n"),
                _ => format!("{commit}\n"),
            };
            fs::write(dir.join("HEAD"), head)?;
            if number == 0 {
                fs::write(dir.join("packed-refs"), &packed)?;
                fs::rename(self.dir.join(PACK), dir.join("objects/pack/pack-1.pack"))?;
            } else {
                let others = self.remote(0).join("objects");
                fs::write(
                    dir.join("objects/info/alternates"),
                    format!("{}\n", others.display()),
                )?;
            }
            made.insert(url.clone(), dir);
        }
        Ok((revision.to_owned(), made))
    }
}

/// The configuration of a bare repository that serves each of its commits.
const BARE: &str = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[uploadpack]\n\tallowAnySHA1InWant = true\n";

fn of_another<E: Error>(commit: &str, wanted: &str) -> UnpackError<E> {
    integrity(format!(
        "the snapshot is of commit {commit}, not of {wanted}"
    ))
}

fn integrity<E: Error>(what: impl Into<String>) -> UnpackError<E> {
    UnpackError::Integrity(what.into())
}

fn storage<E: Error>(what: &str, error: &io::Error) -> UnpackError<E> {
    UnpackError::Storage(format!("{what} of the snapshot: {error}"))
}
