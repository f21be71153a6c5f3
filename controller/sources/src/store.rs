//! Packs and stores snapshots.

use std::{
    fs::File,
    io::{self, BufWriter, Read as _},
    path::{Path, PathBuf},
};

use crds::{
    Reason,
    datastore::{Stored, causes},
    digest::hex_digest,
    text::clip,
};
use datastore_client::{
    RequestError,
    attempt::Content,
    sources::{Lists, RepositoryId, Sources},
};
use sha2::{Digest as _, Sha256};
use source::{
    lfs::Pointer,
    snapshot::{self, Header, PackError},
};
use tempfile::NamedTempFile;
use tokio_util::io::ReaderStream;

use crate::{failure::Problem, git::Commands};

/// Storage of snapshots, by namespace and UID of the repository, and by commit.
pub trait Snapshots: Send + Sync {
    /// Digest and size of a commit's snapshot.
    fn digest(
        &self,
        namespace: &str,
        uid: &str,
        revision: &str,
    ) -> impl Future<Output = Result<Option<Stored>, RequestError>> + Send;
    /// Stores a snapshot. The same commit has the same content.
    fn put(
        &self,
        namespace: &str,
        uid: &str,
        revision: &str,
        file: &Path,
    ) -> impl Future<Output = Result<Stored, RequestError>> + Send;
    /// The commits with a stored snapshot.
    fn list(
        &self,
        namespace: &str,
        uid: &str,
    ) -> impl Future<Output = Result<Vec<String>, RequestError>> + Send;
    /// The revisions that runs of all repositories wait for, as a stream.
    fn wanted(&self) -> impl Future<Output = Result<Lists, RequestError>> + Send;
    fn delete(
        &self,
        namespace: &str,
        uid: &str,
        revision: &str,
    ) -> impl Future<Output = Result<(), RequestError>> + Send;
}

/// The datastore at `https://HOST[:PORT]`. Reads the files for each request.
pub fn datastore(url: &str, authority: PathBuf, token: PathBuf) -> Sources {
    Sources::new(url, authority, token)
}

impl Snapshots for Sources {
    async fn digest(
        &self,
        namespace: &str,
        uid: &str,
        revision: &str,
    ) -> Result<Option<Stored>, RequestError> {
        self.digest(RepositoryId { namespace, uid }, revision).await
    }

    async fn put(
        &self,
        namespace: &str,
        uid: &str,
        revision: &str,
        file: &Path,
    ) -> Result<Stored, RequestError> {
        let fault = |error| RequestError::file(file, error);
        let path = file.to_owned();
        let read = tokio::task::spawn_blocking(move || sum(&path))
            .await
            .map_err(|error| fault(io::Error::other(error)))?;
        let (digest, size) = read.map_err(fault)?;
        let stream = ReaderStream::with_capacity(
            tokio::fs::File::open(file).await.map_err(fault)?,
            256 << 10,
        );
        let content = Content {
            body: reqwest::Body::wrap_stream(stream),
            size,
            digest,
        };
        self.put(RepositoryId { namespace, uid }, revision, content)
            .await
    }

    async fn list(&self, namespace: &str, uid: &str) -> Result<Vec<String>, RequestError> {
        self.list(RepositoryId { namespace, uid }).await
    }

    async fn wanted(&self) -> Result<Lists, RequestError> {
        self.wanted().await
    }

    async fn delete(&self, namespace: &str, uid: &str, revision: &str) -> Result<(), RequestError> {
        self.delete(RepositoryId { namespace, uid }, revision).await
    }
}

/// Digest and size of a file.
fn sum(path: &Path) -> io::Result<(String, u64)> {
    let (mut file, mut digest, mut size, mut piece) =
        (File::open(path)?, Sha256::new(), 0, vec![0; 256 << 10]);
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Ok((hex_digest(&digest.finalize()), size));
        }
        digest.update(piece.get(..count).unwrap_or_default());
        size += count as u64;
    }
}

/// The problem for an error of the datastore.
pub fn unkept(error: &RequestError) -> Problem {
    let reason = match error {
        RequestError::Refused(_) => Reason::DatastoreRefused,
        RequestError::File { .. } | RequestError::Authority(_) | RequestError::Unanswered(_) => {
            Reason::DatastoreUnavailable
        }
    };
    Problem::new(
        reason,
        format!("the snapshot is not stored: {}", causes(error)),
    )
}

/// Packs the commits of a mirror, with the contents of large files, into a file in the mirror's directory.
///
/// # Errors
/// When they cannot be packed.
pub async fn packed(
    git: &Commands,
    mirror: &Path,
    header: Header,
    large: Vec<Pointer>,
) -> Result<NamedTempFile, Problem> {
    let fault = |error: &dyn std::fmt::Display| {
        Problem::new(
            Reason::AgentFault,
            format!("the snapshot cannot be made: {error}"),
        )
    };
    let fresh = || NamedTempFile::new_in(mirror).map_err(|error| fault(&error));
    let (file, scratch, dir) = (fresh()?, fresh()?, mirror.to_owned());
    let into = file.reopen().map_err(|error| fault(&error))?;
    let command = git.command();
    let packed = tokio::task::spawn_blocking(move || {
        let into = BufWriter::new(into);
        snapshot::pack(command, &dir, header, &large, scratch.path(), into)
    });
    let packed = packed.await.map_err(|error| fault(&error))?;
    packed.map_err(|error| unpacked(&error))?;
    Ok(file)
}

fn unpacked(error: &PackError) -> Problem {
    let reason = match error {
        PackError::Write(error) if error.kind() == io::ErrorKind::StorageFull => Reason::DiskFull,
        PackError::NotRun(_) | PackError::Mirror(_) | PackError::Write(_) => Reason::AgentFault,
    };
    Problem::new(
        reason,
        format!("no snapshot is made of it: {}", clip(&causes(error), 500)),
    )
}
