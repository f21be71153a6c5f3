//! The source of a run, fetched and checked by the crate `source`: how its git is started here, and what its errors are for a run.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use ::source::{Credentials, Ended, FetchError, Git, Refusal, Repository, TreeError};
use crds::{Failure, GitSource, Reason};

use super::{PodWork, inputs};
use crate::{
    classify::{internal, not_run},
    ports::{Notice, Notices},
    process::{Command, Role, RunError},
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

impl PodWork {
    /// Fetches one revision into the source directory; the full id of the commit.
    pub(super) async fn fetch_git(&self, git: &GitSource, notices: &Notices) -> Result<String, Failure> {
        let mut repository = Repository::new(&git.url, &git.revision).map_err(|error| of_fetch(&error))?;
        if let Some(secret) = &git.secret_ref {
            repository = self.with_secret(repository, &secret.name)?;
        }
        let mut env = self.settings.inherited.clone();
        env.push(("HOME".into(), self.settings.home().into()));
        let _ = notices.send(Notice::Started("source"));
        let result = repository.fetch(self, env, &self.settings.source_dir()).await;
        let _ = notices.send(Notice::Ended("source", i32::from(result.is_err())));
        result.map_err(|error| of_fetch(&error))
    }

    /// The same repository, asked with what a Secret holds.
    fn with_secret(&self, mut repository: Repository, secret: &str) -> Result<Repository, Failure> {
        let dir = self.settings.secrets.join(secret);
        let no_secret = |message: String| Reason::SecretNotFound.failure(message);
        if inputs::is_empty(&dir) {
            return Err(no_secret(format!("Secret {secret} does not exist or is empty; source.git.secretRef wants it")));
        }
        let credentials = Credentials::of(|name| inputs::mounted(&dir, name));
        let authority = Some(dir.join("ca.crt")).filter(|file| file.is_file());
        if credentials.is_none() && authority.is_none() {
            return Err(no_secret(format!("Secret {secret} has none of the keys username and password, bearerToken, ca.crt")));
        }
        if let Some(credentials) = credentials {
            credentials.secrets().iter().for_each(|text| self.redactor.add(text));
            repository = repository.with_credentials(&credentials).map_err(|error: FetchError<RunError>| match error {
                FetchError::LineBreak => {
                    Reason::SourceUnauthorized.failure(format!("Secret {secret} holds a line break within a credential"))
                }
                error => of_fetch(&error),
            })?;
        }
        if let Some(authority) = authority {
            // Git is kept from the Secret as everybody is; an authority is no secret.
            let copy = self.settings.home().join("ca.crt");
            fs::copy(authority, &copy).map_err(|error| internal("ca.crt of the Secret cannot be copied", &error))?;
            repository = repository.with_authority(copy);
        }
        Ok(repository)
    }
}

impl Git for PodWork {
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
            let message = "source.git.url is not an http or https URL without credentials";
            return Reason::InvalidSpec.failure(message);
        }
        FetchError::IllegalRevision(_) => Reason::RevisionNotFound,
        FetchError::LineBreak => Reason::SourceUnauthorized,
        FetchError::Killed(_) => Reason::ToolKilled,
        FetchError::UnknownCommit(_) => Reason::AgentFault,
        FetchError::Refused { refusal, .. } => match refusal {
            Refusal::Unauthorized => Reason::SourceUnauthorized,
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
}
