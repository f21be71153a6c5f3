//! Snapshots of repositories: the tree of each requested commit, by the repository's UID. A repository recreated under
//! the same name does not get its predecessor's snapshots.

use std::time::Duration;

use bytes::Bytes;
use futures::Stream;

use crds::datastore::{MAX_SOURCE, Problem, Stored};

use super::{Object, Record, Slot, prune, read_once, write_once};
use crate::{
    blob::sealed::Sealed,
    names::{self, Name, RepositoryKey},
};

pub struct Snapshots {
    sealed: Sealed,
}

impl Snapshots {
    pub fn new(sealed: Sealed) -> Self {
        Self { sealed }
    }

    /// Stores the snapshot of a commit and returns the stored one. The first write wins: the commit determines the
    /// content, and the reader verifies it; another release may have packed it into different bytes.
    ///
    /// # Errors
    /// Those of the content; `WrongDigest`, `TooLarge`, `Unavailable`.
    pub async fn put(
        &self,
        of: &RepositoryKey,
        revision: &str,
        digest: &str,
        content: impl Stream<Item = Result<Bytes, Problem>>,
    ) -> Result<Stored, Problem> {
        let slot = Slot {
            name: of.snapshot(revision),
            blob: of.blob(revision, &names::random()),
            limit: MAX_SOURCE,
        };
        write_once(&self.sealed, slot, digest, content, |_| Ok(()))
            .await
            .map(|(stored, _)| stored)
    }

    /// Reads the snapshot of a commit; `None` when it does not exist.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`. Errors after the start are in the content's stream.
    pub async fn get(&self, of: &RepositoryKey, revision: &str) -> Result<Option<Object>, Problem> {
        read_once(&self.sealed, &of.snapshot(revision), &of.blobs()).await
    }

    /// Digest and size of a commit's snapshot; `None` when it does not exist.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn stored(
        &self,
        of: &RepositoryKey,
        revision: &str,
    ) -> Result<Option<Stored>, Problem> {
        Ok(self
            .sealed
            .read::<Record>(&of.snapshot(revision))
            .await?
            .map(|(record, _)| record.stored))
    }

    /// The commits with a stored snapshot.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn list(&self, of: &RepositoryKey) -> Result<Vec<String>, Problem> {
        self.sealed
            .store()
            .children(&of.snapshots())
            .await
            .map(|(_, names)| names)
    }

    /// Deletes the snapshot of a commit, the record first, so that it never references a deleted blob.
    ///
    /// # Errors
    /// `Unavailable`; its blob may remain, for the sweep.
    pub async fn delete(&self, of: &RepositoryKey, revision: &str) -> Result<(), Problem> {
        let name = of.snapshot(revision);
        let Some((record, _)) = self.sealed.read::<Record>(&name).await? else {
            return Ok(());
        };
        self.sealed.store().delete(&name).await?;
        match record.blob {
            Some(blob) => {
                self.sealed
                    .store()
                    .delete(&names::below(&of.blobs(), &blob))
                    .await
            }
            None => Ok(()),
        }
    }

    /// Deletes all data of a repository.
    ///
    /// # Errors
    /// `Unavailable`; some may be deleted.
    pub async fn delete_all(&self, of: &RepositoryKey) -> Result<(), Problem> {
        // The records first, so that none references a deleted blob; then also those of format 1.
        for place in [of.snapshots(), of.prefix()] {
            for entry in self.sealed.store().list(&place).await? {
                self.sealed.store().delete(&entry.name).await?;
            }
        }
        Ok(())
    }

    /// Deletes unreferenced blobs older than `age` and returns their number. A blob's name contains its record.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`; some may be deleted.
    pub async fn prune(&self, of: &RepositoryKey, age: Duration) -> Result<usize, Problem> {
        let record =
            |blob: &str| Some(of.snapshot(&names::revision(blob.split('-').next()?).ok()?));
        prune(&self.sealed, &of.blobs(), age, record).await
    }
}

/// The UIDs of a namespace's repositories with stored data.
///
/// # Errors
/// `Unavailable`.
pub async fn of_namespace(sealed: &Sealed, namespace: &str) -> Result<Vec<String>, Problem> {
    let top: Name = names::below(&names::top("repositories"), namespace);
    sealed.store().children(&top).await.map(|(uids, _)| uids)
}
