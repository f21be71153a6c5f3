//! The tree of `git clone --depth=1 --recurse-submodules`, and what git answers in it. The only way to a tree: from a server, and from the
//! directories of a snapshot.

use std::{
    error::Error,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Component, Path, PathBuf},
};

use crate::{
    git::{Git, Repository},
    git_errors::{FetchError, Refusal, refused},
    listing::{Gitlink, LIMITS, LIST, too_large, within},
    submodules::{self, Submodule},
    url::is_commit,
};

/// The ref of a fetched revision, until the checkout.
const FETCHED: &str = "refs/pawl/fetched";
/// The largest `.gitmodules`, and the longest answer about `HEAD`, in bytes.
const MAX_TEXT: u64 = 1 << 20;

/// A fetched revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// The full commit id.
    pub commit: String,
    /// The submodules that stay empty, as by git, each with the reason.
    pub empty: Vec<String>,
}

/// One repository of the tree: the source, or a submodule.
struct Place {
    /// Its path in the tree; empty for the source.
    at: String,
    dir: PathBuf,
    git_dir: PathBuf,
    url: String,
    revision: String,
}

impl Repository {
    /// Fetches the revision and its submodules into an empty directory. `env` is the additional environment: home and proxy.
    ///
    /// # Errors
    /// The revision is not there. The directory may have a part of it.
    pub async fn fetch<G: Git>(
        &self,
        git: &G,
        env: Vec<(OsString, OsString)>,
        root: &Path,
    ) -> Result<Fetched, FetchError<G::Error>> {
        let env = self.env(env, &[]);
        let mut fetched = Fetched::default();
        let mut left = vec![Place {
            at: String::new(),
            dir: root.to_owned(),
            git_dir: root.join(".git"),
            url: self.url().as_str().to_owned(),
            revision: self.revision().to_owned(),
        }];
        let mut count = 0;
        while let Some(place) = left.pop() {
            let told = |error| named(&place.at, error);
            let (commit, links) = place.checked_out(git, &env).await.map_err(told)?;
            let mut found = place.submodules(git, &env, links).await.map_err(told)?;
            if place.at.is_empty() {
                fetched.commit = commit;
            }
            let below = |path: &str| {
                if place.at.is_empty() {
                    path.to_owned()
                } else {
                    format!("{}/{path}", place.at)
                }
            };
            fetched
                .empty
                .extend(found.empty.iter().map(|path| below(path)));
            // The last one is taken first.
            found.fetched.reverse();
            for submodule in found.fetched {
                count += 1;
                if count > submodules::MAX {
                    return Err(invalid(format!(
                        "it has more than {} submodules",
                        submodules::MAX
                    )));
                }
                place.registers(&submodule).map_err(FetchError::Files)?;
                left.push(Place {
                    at: below(&submodule.path),
                    dir: place.dir.join(&submodule.path),
                    // A name of the repository is no path of ours.
                    git_dir: root.join(".git/modules").join(count.to_string()),
                    url: submodule.url,
                    revision: submodule.commit,
                });
            }
        }
        Ok(fetched)
    }
}

impl Place {
    /// Fetches and checks out the revision. Returns its commit and the submodules in its tree.
    async fn checked_out<G: Git>(
        &self,
        git: &G,
        env: &[(OsString, OsString)],
    ) -> Result<(String, Vec<Gitlink>), FetchError<G::Error>> {
        let (url, revision, dir) = (self.url.as_str(), self.revision.as_str(), &*self.dir);
        let run = async |args: &[&str]| {
            git.run_git(args, env, dir)
                .await
                .map_err(FetchError::NotRun)
        };
        let place = format!("--separate-git-dir={}", self.git_dir.display());
        let mut init = vec!["init", "--quiet", "--template=", "."];
        if !self.at.is_empty() {
            self.make_submodule().map_err(FetchError::Files)?;
            init.insert(3, &place);
        }
        let init = run(&init).await?;
        if init.code != 0 {
            return Err(refused(url, revision, &init));
        }
        if !self.at.is_empty() {
            self.links_its_git_dir().map_err(FetchError::Files)?;
        }
        self.configures(&format!("[remote \"origin\"]\n\turl = {}\n", quoted(url)))
            .map_err(FetchError::Files)?;
        let wanted = format!("+{revision}:{FETCHED}");
        // Tags of the fetched commit follow.
        let quiet = ["fetch", "--quiet", "--no-recurse-submodules"];
        let shallow = [&quiet[..], &["--depth=1", "--", url, &wanted]].concat();
        let shallow = run(&shallow).await?;
        let mut target = "FETCH_HEAD";
        if shallow.code != 0 {
            // Some servers serve only commits at the head of a branch, and some no shallow clones.
            let said = &shallow.output;
            let worth_it = !shallow.told
                && (is_commit(revision) && is_refused(said) || said.contains("shallow"));
            if !worth_it {
                return Err(refused(url, revision, &shallow));
            }
            let mut full = [&quiet[..], &["--no-tags", "--", url]].concat();
            if is_commit(revision) {
                full.extend([
                    "+refs/heads/*:refs/pawl/heads/*",
                    "+refs/tags/*:refs/pawl/tags/*",
                ]);
                target = revision;
            } else {
                full.push(&wanted);
            }
            let full = run(&full).await?;
            if full.code != 0 {
                return Err(refused(url, revision, &full));
            }
        }
        let list: Vec<&str> = LIST.into_iter().chain([target]).collect();
        let listed = git
            .read_git(&list, env, dir, |listing| within(listing, &LIMITS))
            .await
            .map_err(FetchError::NotRun)?;
        let links = listed
            .unwrap_or_else(|| Ok(Vec::new()))
            .map_err(|limit| invalid(too_large(url, revision, &limit)))?;
        let branch = self.branch(git, env).await?;
        let checkout: &[&str] = match &branch {
            Some(name) => &["checkout", "--quiet", "--force", "-B", name, target, "--"],
            None => &["checkout", "--quiet", "--force", "--detach", target, "--"],
        };
        let checkout = run(checkout).await?;
        if checkout.code != 0 {
            return Err(if is_commit(target) && !checkout.told {
                FetchError::Refused {
                    refusal: Refusal::NoRevision,
                    message: format!("there is no commit {target} in {url}"),
                }
            } else {
                refused(url, revision, &checkout)
            });
        }
        let commit = self.head();
        if !is_commit(&commit) {
            return Err(FetchError::UnknownCommit(commit));
        }
        self.ends(branch.as_deref(), &commit)
            .map_err(FetchError::Files)?;
        Ok((commit, links))
    }

    /// The branch that the revision is; `None` for a tag, a commit or another ref.
    async fn branch<G: Git>(
        &self,
        git: &G,
        env: &[(OsString, OsString)],
    ) -> Result<Option<String>, FetchError<G::Error>> {
        if is_commit(&self.revision) {
            return Ok(None);
        }
        let fetched = text(&self.git_dir.join("FETCH_HEAD"));
        let named = fetched.lines().find_map(|line| {
            let (_, what) = line.split_once("\t\tbranch '")?;
            Some(what.split_once("' of ")?.0.to_owned())
        });
        if named.is_some() || self.revision != "HEAD" {
            return Ok(named);
        }
        let ask = ["ls-remote", "--symref", "--", &self.url, "HEAD"];
        let read = |answer: File| {
            let mut text = String::new();
            let _ = answer.take(MAX_TEXT).read_to_string(&mut text);
            text.lines().find_map(head_of)
        };
        let told = git.read_git(&ask, env, &self.dir, read).await;
        Ok(told.map_err(FetchError::NotRun)?.flatten())
    }

    /// The submodules of the checked-out commit.
    async fn submodules<G: Git>(
        &self,
        git: &G,
        env: &[(OsString, OsString)],
        links: Vec<Gitlink>,
    ) -> Result<submodules::Submodules, FetchError<G::Error>> {
        if links.is_empty() {
            return Ok(submodules::Submodules::default());
        }
        let is_file =
            fs::symlink_metadata(self.dir.join(".gitmodules")).is_ok_and(|meta| meta.is_file());
        let mut config = Vec::new();
        if is_file {
            let ask = ["config", "--file", ".gitmodules", "-z", "--list"];
            let read = |answer: File| {
                let mut bytes = Vec::new();
                let _ = answer.take(MAX_TEXT).read_to_end(&mut bytes);
                submodules::pairs(&bytes)
            };
            let read = git.read_git(&ask, env, &self.dir, read).await;
            config = read.map_err(FetchError::NotRun)?.unwrap_or_default();
        }
        submodules::of(&self.url, links, &config).map_err(invalid)
    }

    /// The commit of `HEAD`.
    fn head(&self) -> String {
        let head = text(&self.git_dir.join("HEAD"));
        let commit = match head.trim().strip_prefix("ref: ") {
            Some(name) => text(&self.git_dir.join(name)),
            None => head,
        };
        commit.trim().to_owned()
    }

    /// Leaves what a clone has: the branch at its origin, and no history.
    fn ends(&self, branch: Option<&str>, commit: &str) -> io::Result<()> {
        if let Some(name) = branch {
            let head = format!("refs/heads/{name}");
            let origin = format!("refs/remotes/origin/{name}");
            self.configures(&format!(
                "[remote \"origin\"]\n\tfetch = {}\n[branch {}]\n\tremote = origin\n\tmerge = {}\n",
                quoted(&format!("+{head}:{origin}")),
                quoted(name),
                quoted(&head)
            ))?;
            self.writes(&origin, &format!("{commit}\n"))?;
            if self.revision == "HEAD" {
                self.writes("refs/remotes/origin/HEAD", &format!("ref: {origin}\n"))?;
            }
        }
        let _ = fs::remove_dir_all(self.git_dir.join("refs/pawl"));
        if !self.git_dir.join("shallow").exists() {
            self.writes("shallow", &format!("{commit}\n"))?;
        }
        Ok(())
    }

    /// Makes the directory of a submodule, whose path in the tree may be hostile.
    fn make_submodule(&self) -> io::Result<()> {
        let top = self
            .dir
            .ancestors()
            .nth(Path::new(&self.at).components().count());
        let mut dir = top.unwrap_or(&self.dir).to_owned();
        for part in Path::new(&self.at).components() {
            let Component::Normal(name) = part else {
                return Err(io::ErrorKind::NotADirectory.into());
            };
            dir.push(name);
            match fs::symlink_metadata(&dir) {
                Ok(meta) if meta.is_dir() => {}
                Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
                Err(_) => fs::create_dir(&dir)?,
            }
        }
        let modules = self.git_dir.parent().unwrap_or(&self.git_dir);
        fs::create_dir_all(modules)
    }

    /// Replaces the absolute path of a submodule's git directory.
    fn links_its_git_dir(&self) -> io::Result<()> {
        let number = self.git_dir.file_name().unwrap_or_default().display();
        let up = "../".repeat(Path::new(&self.at).components().count());
        fs::write(
            self.dir.join(".git"),
            format!("gitdir: {up}.git/modules/{number}\n"),
        )?;
        self.configures(&format!(
            "[core]\n\tworktree = {}\n",
            quoted(&format!("../../../{}", self.at))
        ))
    }

    /// Names a submodule in the configuration, as `git submodule init` does.
    fn registers(&self, submodule: &Submodule) -> io::Result<()> {
        self.configures(&format!(
            "[submodule {}]\n\tactive = true\n\turl = {}\n",
            quoted(&submodule.name),
            quoted(&submodule.url)
        ))
    }

    /// Appends to the configuration of the clone.
    fn configures(&self, lines: &str) -> io::Result<()> {
        fs::create_dir_all(&self.git_dir)?;
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.git_dir.join("config"));
        file?.write_all(lines.as_bytes())
    }

    fn writes(&self, name: &str, text: &str) -> io::Result<()> {
        let path = self.git_dir.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&self.git_dir))?;
        fs::write(path, text)
    }
}

/// The branch of a line of `git ls-remote --symref` about `HEAD`.
pub fn head_of(line: &str) -> Option<String> {
    let name = line
        .strip_prefix("ref: refs/heads/")?
        .strip_suffix("\tHEAD")?;
    Some(name.to_owned())
}

/// Quotes a value or a subsection for git's configuration.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Whether the server serves only commits that a ref points to, or only with history.
pub fn is_refused(text: &str) -> bool {
    [
        "not our ref",
        "unadvertised object",
        "couldn't find remote ref",
        "does not allow request",
        "remote error",
        "shallow",
    ]
    .iter()
    .any(|part| text.contains(part))
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn invalid<E: Error>(message: String) -> FetchError<E> {
    FetchError::Refused {
        refusal: Refusal::Invalid,
        message,
    }
}

/// The error of a submodule, which names it.
fn named<E: Error>(at: &str, error: FetchError<E>) -> FetchError<E> {
    match error {
        FetchError::Refused { refusal, message } if !at.is_empty() => FetchError::Refused {
            refusal,
            message: submodules::named(at, &message),
        },
        other => other,
    }
}
