//! Downloads a revision of a repository from the datastore, without credentials, and makes the tree of the commit as from a server.

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use ::source::snapshot::{self, UnpackError};
use crds::{
    Failure, Reason, RepositorySource, TerraformRunSpec,
    datastore::{self as words, causes},
    names,
};

use super::{
    PhaseRunner,
    fetch::Fetched,
    git_source::{Commit, of_fetch},
};
use crate::{
    api::backoff,
    classify::{OrInternal as _, is_disk_full},
    datastore::{Client, RequestError, failure, retry_for},
    files::Scratch,
    ports::{Notice, Notices},
    process::RunError,
    settings::nonce,
};

/// Time limit for retries while the datastore is unavailable or the revision is not stored yet. At most half of Setup's timeout, so that
/// the run fails with this error and not with the deadline.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time limit for unpacking and comparing.
const UNPACKING: Duration = Duration::from_secs(240);
/// Bytes between two progress notices.
const TELL: usize = 1 << 20;

impl PhaseRunner {
    /// Fetches the revision into an empty directory.
    pub(super) async fn fetch_repository(
        &self,
        spec: &TerraformRunSpec,
        repository: &RepositorySource,
        root: &Path,
        notices: &Notices,
    ) -> Result<Fetched, Failure> {
        let Some(remote) = &self.remote else {
            let message = "source.repository needs a datastore, which has the revisions of repositories; name the repository in source.git";
            return Err(Reason::InvalidSpec.failure(message));
        };
        let patience = PATIENCE.min(spec.timeouts.setup.0 / 2);
        let taken = self.take_revision(&remote.client, repository, patience, root, notices);
        let Commit { id, without } = self.fetching(taken, notices).await?;
        let short: String = id.chars().take(7).collect();
        let of = repository.git_ref.as_ref();
        let of = of.map(|name| format!(" of {name}")).unwrap_or_default();
        Ok(Fetched {
            source: format!("repository {} {short}{of}", repository.name),
            revision: Some(id),
            without,
        })
    }

    async fn take_revision(
        &self,
        client: &Client,
        repository: &RepositorySource,
        patience: Duration,
        source: &Path,
        notices: &Notices,
    ) -> Result<Commit, Failure> {
        let packed = self
            .receive_snapshot(client, repository, patience, notices)
            .await?;
        let failed = "the revision cannot be unpacked";
        let scratch = self.settings.tmp().join(format!(".pawl-{}", nonce()));
        fs::create_dir(&scratch).or_internal(failed)?;
        let (dir, revision) = (scratch.clone(), repository.revision.clone());
        let unpacked = tokio::task::spawn_blocking(move || {
            snapshot::unpack(packed.file(), &dir, &revision, Instant::now() + UNPACKING)
        });
        let unpacked = unpacked.await.or_internal(failed)?;
        let _ = notices.send(Notice::Happened);
        let unpacked = unpacked.map_err(|error| of_unpack(&error, repository))?;
        let root = self.make_top(source, unpacked.url())?;
        let mut env = self.settings.inherited.clone();
        env.push(("HOME".into(), self.settings.home().into()));
        let made = unpacked
            .fetch(self, env, repository.git_ref.as_deref(), &root)
            .await;
        fs::remove_dir_all(&scratch).or_internal(failed)?;
        let (fetched, contents) = made.map_err(|error| of_unpack(&error, repository))?;
        Ok(self.committed(fetched, contents).await)
    }

    /// Waits until the revision is stored, and downloads it.
    async fn receive_snapshot(
        &self,
        client: &Client,
        repository: &RepositorySource,
        patience: Duration,
        notices: &Notices,
    ) -> Result<Scratch, Failure> {
        let (begun, mut tries) = (Instant::now(), 0);
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            let error = match retry_for(left, || get_snapshot(client, &self.settings.kept, notices))
                .await
            {
                Ok(packed) => return Ok(packed),
                Err(error) => error,
            };
            let wait = backoff(tries + 1);
            if !error.is(words::SOURCE_NOT_READY) || begun.elapsed() + wait > patience {
                return Err(of_request(&error, repository));
            }
            if tries == 0 {
                self.say(format!("{}; it is waited for", error.why())).await;
            }
            tries += 1;
            let _ = notices.send(Notice::Happened);
            tokio::time::sleep(wait).await;
        }
    }
}

/// Downloads the snapshot to a scratch file in a directory.
async fn get_snapshot(
    client: &Client,
    dir: &Path,
    notices: &Notices,
) -> Result<Scratch, RequestError> {
    let mut response = client.source().await?;
    let local = |error: io::Error| RequestError::file(dir, error);
    let scratch = Scratch::create(dir).map_err(local)?;
    let mut file = tokio::fs::File::from_std(scratch.file().try_clone().map_err(local)?);
    let mut untold = 0;
    while let Some(chunk) = response.chunk().await? {
        tokio::io::AsyncWriteExt::write_all(&mut file, &chunk)
            .await
            .map_err(local)?;
        untold += chunk.len();
        if untold >= TELL {
            untold = 0;
            let _ = notices.send(Notice::Happened);
        }
    }
    tokio::io::AsyncWriteExt::flush(&mut file)
        .await
        .map_err(local)?;
    Ok(scratch)
}

/// Maps a response of the datastore to a failure of the run.
fn of_request(error: &RequestError, repository: &RepositorySource) -> Failure {
    let RepositorySource {
        name,
        namespace,
        revision,
        ..
    } = repository;
    let RequestError::Refused(problem) = error else {
        return failure("the revision could not be taken", error);
    };
    match problem.reason.as_str() {
        words::SOURCE_NOT_READY => {
            let at = namespace
                .as_ref()
                .map(|namespace| format!(" -n {namespace}"))
                .unwrap_or_default();
            let message = format!(
                "{}; `controller sources` has not stored it. Its last report on the repository: kubectl describe{at} {}/{name}",
                problem.message,
                names::KUBECTL_REPOSITORY
            );
            Reason::SourceNotReady.failure(message)
        }
        words::REPOSITORY_NOT_ALLOWED => Reason::RepositoryNotAllowed.failure(&problem.message),
        words::CORRUPT => Reason::SourceCorrupt.failure(format!(
            "revision {revision} of {name} cannot be read: {}",
            causes(error)
        )),
        _ => failure("the revision could not be taken", error),
    }
}

/// Maps an unpack error to a failure of the run.
fn of_unpack(error: &UnpackError<RunError>, repository: &RepositorySource) -> Failure {
    let RepositorySource { name, revision, .. } = repository;
    match error {
        UnpackError::Storage(text) if is_disk_full(text) => Reason::DiskFull.failure(text),
        UnpackError::Storage(text) => Reason::AgentFault.failure(text),
        UnpackError::Fetch(error) => of_fetch(error),
        UnpackError::Integrity(text) => Reason::SourceCorrupt.failure(format!(
            "the snapshot that the datastore has for revision {revision} of repository {name} is another one: {text}; nothing was planned"
        )),
    }
}

#[cfg(test)]
mod tests {
    use crds::{FailureClass, datastore::Problem, reason};

    use super::*;

    #[test]
    fn each_response_maps_to_a_reason_with_a_hint() {
        let repository = |namespace: Option<&str>| RepositorySource {
            name: "infra".into(),
            namespace: namespace.map(str::to_owned),
            revision: "a".repeat(40),
            git_ref: None,
            path: ".".into(),
        };
        let refused = |reason: &str| {
            let message = "revision a is not stored yet".into();
            RequestError::Refused(Problem {
                reason: reason.into(),
                message,
                ..Problem::default()
            })
        };
        for (asked, class, reason) in [
            (
                words::SOURCE_NOT_READY,
                FailureClass::Transient,
                reason::SOURCE_NOT_READY,
            ),
            (
                words::REPOSITORY_NOT_ALLOWED,
                FailureClass::Policy,
                reason::REPOSITORY_NOT_ALLOWED,
            ),
            (
                words::CORRUPT,
                FailureClass::Integrity,
                reason::SOURCE_CORRUPT,
            ),
            (
                words::KEY_MISSING,
                FailureClass::Integrity,
                reason::KEY_MISSING,
            ),
            (
                words::FORBIDDEN,
                FailureClass::Credentials,
                reason::DATASTORE_REFUSED,
            ),
        ] {
            let failure = of_request(&refused(asked), &repository(None));
            assert_eq!(
                (failure.class, failure.reason.as_str()),
                (class, reason),
                "{asked}: {failure:?}"
            );
        }
        let message = of_request(
            &refused(words::SOURCE_NOT_READY),
            &repository(Some("platform")),
        )
        .message;
        assert!(
            message.starts_with("revision a is not stored yet; `controller sources`"),
            "{message}"
        );
        assert!(
            message.ends_with("kubectl describe -n platform tfrepo.pawl.run/infra"),
            "{message}"
        );
        let full =
            UnpackError::Storage("x of the snapshot: No space left on device (os error 28)".into());
        assert_eq!(
            of_unpack(&full, &repository(None)).reason,
            reason::DISK_FULL
        );
        let other = of_unpack(
            &UnpackError::Integrity("the snapshot has other files".into()),
            &repository(None),
        );
        assert_eq!(
            (other.class, other.reason.as_str()),
            (FailureClass::Integrity, reason::SOURCE_CORRUPT)
        );
    }
}
