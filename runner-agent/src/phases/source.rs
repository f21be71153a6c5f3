//! The source of a run, fetched and checked by the crate `source`: how its git is started here, and what its errors are for a run.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use ::source::{Ended, FetchError, Git, Login, Refusal, Repository, SshFiles, TreeError};
use crds::{Failure, GitSource, Reason, text::clip};

use super::PhaseRunner;
use crate::{
    classify::{internal, not_run},
    files,
    ports::{Notice, Notices},
    process::{Command, Role, RunError},
    settings::nonce,
};

/// Writes files that are given one by one.
pub(super) fn write_files(files: &BTreeMap<String, impl AsRef<[u8]>>, root: &Path) -> Result<(), Failure> {
    ::source::write_files(files, root).map_err(|error| of_tree(&error))
}

/// The stack's directory within the source.
pub(super) fn stack(root: &Path, path: &str, at: &str) -> Result<PathBuf, Failure> {
    ::source::stack(root, path, at).map_err(|error| of_tree(&error))
}

/// Refuses links that lead out of the source.
pub(super) fn check_links(root: &Path) -> Result<(), Failure> {
    ::source::check_links(root).map_err(|error| of_tree(&error))
}

impl PhaseRunner {
    /// Fetches one revision into the source directory; the full id of the commit. What it is fetched with is gone before anything else is
    /// run.
    pub(super) async fn fetch_git(
        &self,
        git: &GitSource,
        credentials: &crds::Credentials,
        notices: &Notices,
    ) -> Result<String, Failure> {
        let mut repository = Repository::new(&git.url, &git.revision).map_err(|error| of_fetch(&error))?;
        let logins = self.logins_of_source(git, credentials, repository.url())?;
        repository = repository.with_logins(&logins).map_err(|error| of_fetch(&error))?;
        if let Some(secret) = &git.secret_ref {
            repository = self.with_authority(repository, &secret.name)?;
        }
        let keys = logins.iter().any(|login| login.identity.is_some()).then(|| self.hold_keys(&logins)).transpose()?;
        if let Some((dir, _)) = &keys {
            repository = repository.with_ssh(dir.clone());
        }
        let mut env = self.settings.inherited.clone();
        env.push(("HOME".into(), self.settings.home().into()));
        let _ = notices.send(Notice::Started("source"));
        let result = repository.fetch(self, env, &self.settings.source_dir()).await;
        let _ = notices.send(Notice::Ended("source", i32::from(result.is_err())));
        if let Some((_, keys)) = keys {
            keys.remove().map_err(|error| internal("the private key of the source cannot be removed", &error))?;
        }
        result.map_err(|error| of_fetch(&error))
    }

    /// Private keys where `ssh` reads them, until the fetch is over: in memory where the pod has such a place, so that no disk has them.
    fn hold_keys(&self, logins: &[Login]) -> Result<(PathBuf, SshFiles), Failure> {
        let name = format!(".pawl-{}", nonce());
        let memory = self.settings.scratch.iter().find(|dir| dir.ends_with("shm")).map(|dir| dir.join(&name));
        if let Some(dir) = memory
            && let Ok(files) = SshFiles::create(&dir, logins)
        {
            return Ok((dir, files));
        }
        let dir = self.settings.tmp().join(name);
        let files = SshFiles::create(&dir, logins);
        files.map(|files| (dir, files)).map_err(|error| internal("the private key of the source cannot be given to ssh", &error))
    }

    /// The same repository, with the authority that a Secret has.
    fn with_authority(&self, repository: Repository, secret: &str) -> Result<Repository, Failure> {
        let authority = self.settings.secrets.join(secret).join("ca.crt");
        if !authority.is_file() {
            return Ok(repository);
        }
        // Git is kept from the Secret as everybody is; an authority is no secret.
        let copy = self.settings.home().join("ca.crt");
        // In place of whatever a hook left there, be it a link.
        let copied = fs::read(authority).and_then(|text| files::create(&copy)?.write_all(&text));
        copied.map_err(|error| internal("ca.crt of the Secret cannot be copied", &error))?;
        Ok(repository.with_authority(copy))
    }

    /// Refuses a stack of which files are pointers, whose contents are not here; those of other directories are only told of.
    pub(super) async fn refuse_pointers(&self, root: &Path, stack: &Path) -> Result<(), Failure> {
        let all = ::source::lfs::pointers(root);
        let (own, others): (Vec<_>, Vec<_>) = all.iter().partition(|name| root.join(name).starts_with(stack));
        let listed = |names: &[&String]| {
            let first: Vec<_> = names.iter().take(5).map(|name| clip(name, 100)).collect();
            let more = names.len().saturating_sub(first.len());
            first.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
        };
        if !own.is_empty() {
            let message = format!(
                "git has only pointers to {}: their contents are with Git LFS and were not fetched; nothing was planned. Keep what the stack reads in git itself, or have the stack fetch it",
                listed(&own)
            );
            return Err(Reason::SourceInvalid.failure(message));
        }
        if !others.is_empty() {
            let text =
                format!("pawl: outside of the stack, these are pointers of Git LFS, which was not fetched: {}", listed(&others));
            self.log.line(&self.redactor.clean(&text)).await;
        }
        Ok(())
    }
}

impl Git for PhaseRunner {
    type Error = RunError;

    async fn run_git(&self, args: &[&str], env: &[(OsString, OsString)], dir: &Path) -> Result<Ended, RunError> {
        let command = Command {
            program: "git".into(),
            args: args.iter().map(OsString::from).collect(),
            env: env.to_vec(),
            dir: dir.to_path_buf(),
            role: Role::Other,
        };
        let (notices, _) = tokio::sync::mpsc::unbounded_channel();
        let mut events = self.events(dir, &notices).quiet();
        let exit = self.children.run(&command, &mut events).await?;
        let output = self.redactor.redact(&events.said().tail.join("\n")).into_owned();
        Ok(Ended { code: exit.code, signal: exit.signal, told: exit.told, output })
    }
}

/// What an error of fetching is for a run.
fn of_fetch(error: &FetchError<RunError>) -> Failure {
    let reason = match error {
        FetchError::NotRun(error) => return not_run("git", error),
        FetchError::IllegalUrl => {
            return Reason::InvalidSpec.failure(format!("source.git.url cannot be used: {error}"));
        }
        FetchError::IllegalRevision(_) => Reason::RevisionNotFound,
        FetchError::LineBreak => Reason::SourceUnauthorized,
        FetchError::Killed(_) => Reason::ToolKilled,
        FetchError::UnknownCommit(_) => Reason::AgentFault,
        FetchError::Refused { refusal, .. } => match refusal {
            Refusal::Unauthorized => Reason::SourceUnauthorized,
            Refusal::HostKey => Reason::HostKeyNotKnown,
            Refusal::NoRepository => Reason::RepositoryNotFound,
            Refusal::NoRevision => Reason::RevisionNotFound,
            Refusal::Invalid => Reason::SourceInvalid,
            Refusal::DiskFull => Reason::DiskFull,
            Refusal::Unreachable => Reason::SourceUnreachable,
        },
    };
    reason.failure(error.to_string())
}

/// What an error of a source on disk is for a run.
fn of_tree(error: &TreeError) -> Failure {
    let reason = match error {
        TreeError::OutsideFile(_) | TreeError::OutsideLink(_) => Reason::SourceInvalid,
        TreeError::NoStack { .. } => Reason::PathNotFound,
        TreeError::Io { what, error } => return internal(what, error),
    };
    reason.failure(error.to_string())
}

#[cfg(test)]
mod tests {
    use crds::{FailureClass, reason};

    use super::*;
    use crate::phases::tests::{settings, work};

    #[test]
    fn an_error_of_the_source_is_a_failure_of_the_run_in_the_same_words() {
        let message = || "http://h/r.git has no such revision x: fatal".to_owned();
        let failure = of_fetch(&FetchError::Refused { refusal: Refusal::NoRevision, message: message() });
        assert_eq!((failure.class, failure.reason.as_str()), (FailureClass::Configuration, reason::REVISION_NOT_FOUND));
        assert_eq!(failure.message, message());
        let failure = of_fetch(&FetchError::NotRun(RunError::Stopped));
        assert_eq!(
            (failure.reason.as_str(), failure.message.as_str()),
            (reason::TERMINATED, "git not started: the attempt is being stopped")
        );
        let full = std::io::Error::from_raw_os_error(28);
        let failure = of_tree(&TreeError::Io { what: "main.tf cannot be written".into(), error: full });
        assert_eq!((failure.class, failure.reason.as_str()), (FailureClass::Transient, reason::DISK_FULL));
        assert!(failure.message.starts_with("main.tf cannot be written: No space left"), "{}", failure.message);
    }

    #[test]
    fn keys_are_held_in_memory_where_there_is_such_a_place() {
        let dir = tempfile::tempdir().unwrap();
        let memory = dir.path().join("shm");
        let mut settings = settings(dir.path());
        fs::create_dir_all(settings.tmp()).unwrap();
        settings.scratch = vec![dir.path().join("tmp"), memory.clone()];
        let work = work(settings);
        let (place, files) = work.hold_keys(&[]).unwrap();
        assert!(place.starts_with(work.settings.tmp()), "there is none: {}", place.display());
        files.remove().unwrap();
        fs::create_dir(&memory).unwrap();
        let (place, files) = work.hold_keys(&[]).unwrap();
        assert!(place.starts_with(&memory) && place.join("config").is_file());
        // An attempt that is told to end drops it.
        drop(files);
        assert!(fs::read_dir(&memory).unwrap().next().is_none() && fs::read_dir(work.settings.tmp()).unwrap().next().is_none());
    }

    #[tokio::test]
    async fn a_stack_of_pointers_is_refused_and_one_beside_them_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let work = work(settings(dir.path()));
        let root = dir.path().join("src");
        for (name, text) in [
            (".gitattributes", "*.zip filter=lfs\n"),
            ("net/main.tf", ""),
            ("app/code.zip", "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n"),
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert!(work.refuse_pointers(&root, &root.join("net")).await.is_ok());
        for stack in ["app", ""] {
            let failure = work.refuse_pointers(&root, &root.join(stack)).await.unwrap_err();
            assert_eq!(failure.reason, reason::SOURCE_INVALID);
            assert!(failure.message.starts_with("git has only pointers to app/code.zip: "), "{}", failure.message);
        }
    }
}
