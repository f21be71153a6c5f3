//! Fetches and checks a run's git source with the crate `source`: starts its git, and maps its errors to failures of the run.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
};

use ::source::{
    Ended, FetchError, Fetched, Git, Login, Repository, SshFiles, TreeError, Url, Used,
    lfs::{ContentsError, PointerFile},
};
use crds::{Failure, GitSource, Reason, text::clip};

use super::PhaseRunner;
use crate::{
    classify::{OrInternal as _, internal, not_run},
    files,
    ports::{Notice, Notices},
    process::{Command, Role, RunError, stream},
    settings::nonce,
};

pub(super) fn write_files(
    files: &BTreeMap<String, impl AsRef<[u8]>>,
    root: &Path,
) -> Result<(), Failure> {
    ::source::write_files(files, root).map_err(|error| of_tree(&error))
}

/// The stack's directory within the source.
pub(super) fn stack(root: &Path, path: &str, at: &str) -> Result<PathBuf, Failure> {
    ::source::stack(root, path, at).map_err(|error| of_tree(&error))
}

/// A fetched commit.
pub(super) struct Commit {
    /// Its full ID.
    pub(super) id: String,
    /// Why contents of large files are missing, if any are.
    pub(super) without: Option<Failure>,
}

impl PhaseRunner {
    /// Fetches one revision into the source directory. Removes private keys before any other command runs.
    pub(super) async fn fetch_git(
        &self,
        git: &GitSource,
        credentials: &crds::Credentials,
        source: &Path,
        notices: &Notices,
    ) -> Result<Commit, Failure> {
        let mut repository =
            Repository::new(&git.url, &git.revision).map_err(|error| of_fetch(&error))?;
        let logins = self.logins_of_source(git, credentials, repository.url())?;
        repository = repository
            .with_logins(&logins)
            .map_err(|error| of_fetch(&error))?;
        for (n, login) in logins.iter().enumerate() {
            if let Some(authority) = &login.authority {
                // Git, like every command, cannot read the Secret's directory, so it gets a copy of the authority, which is not secret.
                let file = self.settings.home().join(format!("ca-{n}.crt"));
                // Replaces any file or link that a hook left there.
                files::write(&file, authority)
                    .or_internal("ca.crt of a Secret cannot be copied")?;
                repository = repository.with_authority(&login.scope(), file);
            }
        }
        let keys = logins
            .iter()
            .any(|login| login.identity.is_some())
            .then(|| self.hold_keys(&logins))
            .transpose()?;
        if let Some((dir, _)) = &keys {
            repository = repository.with_ssh(dir.clone());
        }
        let mut env = self.settings.inherited.clone();
        env.push(("HOME".into(), self.settings.home().into()));
        let _ = notices.send(Notice::Started("source"));
        let root = self.make_top(source, repository.url())?;
        let result = repository.fetch(self, env.clone(), &root).await;
        let contents = if result.is_ok() {
            repository.fetch_contents(self, env, &root).await
        } else {
            Ok(())
        };
        let _ = notices.send(Notice::Ended("source", i32::from(result.is_err())));
        if let Some((_, keys)) = keys {
            keys.remove()
                .or_internal("the private key of the source cannot be removed")?;
        }
        let fetched = result.map_err(|error| of_fetch(&error))?;
        Ok(self.committed(fetched, contents).await)
    }

    /// Writes private keys for `ssh` until the fetch is over: in memory if the pod has such a file system, so that no disk stores
    /// them.
    fn hold_keys(&self, logins: &[Login]) -> Result<(PathBuf, SshFiles), Failure> {
        let name = format!(".pawl-{}", nonce());
        let memory = self
            .settings
            .scratch
            .iter()
            .find(|dir| dir.ends_with("shm"))
            .map(|dir| dir.join(&name));
        if let Some(dir) = memory
            && let Ok(files) = SshFiles::create(&dir, logins, "")
        {
            return Ok((dir, files));
        }
        let dir = self.settings.tmp().join(name);
        let files = SshFiles::create(&dir, logins, "");
        files
            .map(|files| (dir, files))
            .or_internal("the private key of the source cannot be given to ssh")
    }

    /// Creates the directory of a repository, named as that of its clone.
    pub(super) fn make_top(&self, source: &Path, url: &Url) -> Result<PathBuf, Failure> {
        let failed = "the directory of the source cannot be made";
        files::write(&self.settings.top_file(), url.clone_dir()).or_internal(failed)?;
        let root = source.join(url.clone_dir());
        fs::create_dir(&root).or_internal(failed)?;
        Ok(root)
    }

    /// The commit of a fetched tree. Logs the submodules that stay empty.
    pub(super) async fn committed(
        &self,
        fetched: Fetched,
        contents: Result<(), ContentsError<RunError>>,
    ) -> Commit {
        if !fetched.empty.is_empty() {
            let text = format!("these submodules stay empty: {}", listed(&fetched.empty));
            self.say(text).await;
        }
        Commit {
            id: fetched.commit,
            without: contents.err().map(|error| of_contents(&error)),
        }
    }

    /// Leaves out of the source, and names in the log, what no stack can use: links out of it, and LFS pointers. Refuses them where this stack
    /// uses them; `without` is the reason why contents are missing.
    pub(super) async fn leave_out(
        &self,
        root: &Path,
        stack: &Path,
        without: Option<Failure>,
    ) -> Result<(), Failure> {
        let (used, pointers) = (Used::by(root, stack), ::source::lfs::pointers(root));
        let (own, others): (Vec<PointerFile>, Vec<PointerFile>) = pointers
            .into_iter()
            .partition(|pointer| used.has(&root.join(&pointer.name)));
        let names = |pointers: &[PointerFile]| {
            let names: Vec<_> = pointers.iter().map(|pointer| &pointer.name).collect();
            listed(&names)
        };
        let why = without.as_ref().map_or(
            "the server gave none, or .lfsconfig leaves them out",
            |failure| failure.message.as_str(),
        );
        if !own.is_empty() {
            let message = format!(
                "git has only pointers to {}: their contents are with Git LFS and were not fetched: {why}; nothing was planned",
                names(&own)
            );
            let refused = Reason::SourceInvalid.failure(String::new());
            return Err(Failure {
                message,
                ..without.unwrap_or(refused)
            });
        }
        let links = used.leave_out_links().map_err(|error| of_tree(&error))?;
        if !links.is_empty() {
            self.say(format!(
                "these links lead out of the source and are left out: {}",
                listed(&links)
            ))
            .await;
        }
        if !others.is_empty() {
            for pointer in &others {
                let failed = "a pointer of Git LFS cannot be left out";
                pointer.remove().or_internal(failed)?;
            }
            self.say(format!(
                "these files are left out, since they are only pointers of Git LFS ({why}): {}",
                names(&others)
            ))
            .await;
        }
        Ok(())
    }
}

/// The first names, and the number of others.
fn listed(names: &[impl AsRef<str>]) -> String {
    let shown = names.iter().take(5).map(|name| clip(name.as_ref(), 100));
    let first = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(5) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

impl Git for PhaseRunner {
    type Error = RunError;

    async fn run_git(
        &self,
        args: &[&str],
        env: &[(OsString, OsString)],
        dir: &Path,
    ) -> Result<Ended, RunError> {
        let command = git(args, env, dir);
        let (notices, _) = tokio::sync::mpsc::unbounded_channel();
        let mut events = self.events(dir, &notices).quiet();
        let exit = self.children.run(&command, &mut events).await?;
        let output = self
            .redactor
            .redact(&events.said().tail.join("\n"))
            .into_owned();
        Ok(Ended {
            code: exit.code,
            signal: exit.signal,
            told: exit.told,
            output,
        })
    }

    async fn read_git<T: Send + 'static>(
        &self,
        args: &[&str],
        env: &[(OsString, OsString)],
        dir: &Path,
        read: fn(File) -> T,
    ) -> Result<Option<T>, RunError> {
        let command = git(args, env, dir);
        let (reader, writer) = stream(&command.role).map_err(RunError::Spawn)?;
        // The pipe closes with the reader, and a signal ends git.
        let found = tokio::task::spawn_blocking(move || read(File::from(reader)));
        let (notices, _) = tokio::sync::mpsc::unbounded_channel();
        let mut events = self.events(dir, &notices).quiet();
        self.children
            .run_into(&command, writer, &mut events)
            .await?;
        Ok(found.await.ok())
    }
}

fn git(args: &[&str], env: &[(OsString, OsString)], dir: &Path) -> Command {
    Command {
        program: "git".into(),
        args: args.iter().map(OsString::from).collect(),
        env: env.to_vec(),
        dir: dir.to_path_buf(),
        role: Role::Other,
    }
}

pub(super) fn of_fetch(error: &FetchError<RunError>) -> Failure {
    match error.reason() {
        Ok(Reason::InvalidSpec) => {
            Reason::InvalidSpec.failure(format!("source.git.url cannot be used: {error}"))
        }
        Ok(reason) => reason.failure(error.to_string()),
        Err(error) => not_run("git", error),
    }
}

fn of_contents(error: &ContentsError<RunError>) -> Failure {
    match error {
        ContentsError::NoProgram | ContentsError::TooLarge(_) => {
            Reason::SourceInvalid.failure(error.to_string())
        }
        ContentsError::Fetch(error) => of_fetch(error),
        ContentsError::NotWritten { error: fault, .. } => internal(&error.to_string(), fault),
    }
}

fn of_tree(error: &TreeError) -> Failure {
    let reason = match error {
        TreeError::OutsideFile(_) | TreeError::OutsideLink(_) => Reason::SourceInvalid,
        TreeError::NoStack { .. } => Reason::PathNotFound,
        TreeError::Io { what, error } if files::is_of_the_file(error) => {
            return Reason::SourceInvalid.failure(format!("{what}: {error}"));
        }
        TreeError::Io { what, error } => return internal(what, error),
    };
    reason.failure(error.to_string())
}

#[cfg(test)]
mod tests {
    use ::source::Refusal;
    use crds::{FailureClass, reason};

    use super::*;
    use crate::phases::tests::{settings, work};

    #[test]
    fn source_errors_map_to_failures_with_the_same_message() {
        let message = || "http://h/r.git has no such revision x: fatal".to_owned();
        let failure = of_fetch(&FetchError::Refused {
            refusal: Refusal::NoRevision,
            message: message(),
        });
        assert_eq!(
            (failure.class, failure.reason.as_str()),
            (FailureClass::Configuration, reason::REVISION_NOT_FOUND)
        );
        assert_eq!(failure.message, message());
        let failure = of_fetch(&FetchError::NotRun(RunError::Stopped));
        assert_eq!(
            (failure.reason.as_str(), failure.message.as_str()),
            (
                reason::TERMINATED,
                "git not started: the attempt is being stopped"
            )
        );
        // EACCES, ENOTDIR, ENAMETOOLONG, ELOOP.
        for code in [13, 20, 36, 40] {
            let failure = of_tree(&TreeError::Io {
                what: "net cannot be read".into(),
                error: std::io::Error::from_raw_os_error(code),
            });
            assert_eq!(
                failure.reason,
                reason::SOURCE_INVALID,
                "{}",
                failure.message
            );
            assert!(failure.message.starts_with("net cannot be read: "));
        }
        let full = std::io::Error::from_raw_os_error(28);
        let failure = of_tree(&TreeError::Io {
            what: "main.tf cannot be written".into(),
            error: full,
        });
        assert_eq!(
            (failure.class, failure.reason.as_str()),
            (FailureClass::Transient, reason::DISK_FULL)
        );
        assert!(
            failure
                .message
                .starts_with("main.tf cannot be written: No space left"),
            "{}",
            failure.message
        );
    }

    #[test]
    fn keys_are_written_to_memory_if_available() {
        let dir = tempfile::tempdir().unwrap();
        let memory = dir.path().join("shm");
        let mut settings = settings(dir.path());
        fs::create_dir_all(settings.tmp()).unwrap();
        settings.scratch = vec![dir.path().join("tmp"), memory.clone()];
        let work = work(settings);
        let (place, files) = work.hold_keys(&[]).unwrap();
        assert!(
            place.starts_with(work.settings.tmp()),
            "there is none: {}",
            place.display()
        );
        files.remove().unwrap();
        fs::create_dir(&memory).unwrap();
        let (place, files) = work.hold_keys(&[]).unwrap();
        assert!(place.starts_with(&memory) && place.join("config").is_file());
        // An interrupted attempt drops it.
        drop(files);
        assert!(
            fs::read_dir(&memory).unwrap().next().is_none()
                && fs::read_dir(work.settings.tmp()).unwrap().next().is_none()
        );
    }

    #[tokio::test]
    async fn only_a_stack_that_uses_pointers_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let work = work(settings(dir.path()));
        let root = dir.path().join("src");
        for (name, text) in [
            (".gitattributes", "*.zip filter=lfs\n"),
            ("net/main.tf", ""),
            ("user/main.tf", "x = file(\"../app/code.zip\")"),
            (
                "app/code.zip",
                "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n",
            ),
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = root.canonicalize().unwrap();
        let away = || {
            of_contents(&ContentsError::Fetch(FetchError::Refused {
                refusal: Refusal::Unreachable,
                message: "away".into(),
            }))
        };
        let none = || of_contents(&ContentsError::NoProgram);
        for (stack, without, reason, text) in [
            (
                "app",
                None,
                reason::SOURCE_INVALID,
                "the server gave none, or .lfsconfig leaves them out; nothing was planned",
            ),
            (
                "user",
                Some(away()),
                reason::SOURCE_UNREACHABLE,
                "were not fetched: away; nothing was planned",
            ),
            (
                "app",
                Some(none()),
                reason::SOURCE_INVALID,
                "the program git-lfs is not installed where this runs",
            ),
        ] {
            let failure = work
                .leave_out(&root, &root.join(stack), without)
                .await
                .unwrap_err();
            assert_eq!(failure.reason, reason);
            let message = failure.message;
            assert!(
                message.starts_with("git has only pointers to app/code.zip: ")
                    && message.contains(text),
                "{message}"
            );
        }
        work.leave_out(&root, &root.join("net"), None)
            .await
            .unwrap();
        assert!(
            !root.join("app/code.zip").exists(),
            "nothing reads a pointer as content"
        );
    }
}
