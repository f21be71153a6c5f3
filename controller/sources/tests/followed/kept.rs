//! The datastore and the agent of the tests: keeps snapshots, and makes trees of them.

use std::{
    ffi::OsString,
    fs::{self, File},
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

use crds::datastore::Stored;
use datastore_client::{RequestError, sources::Lists};
use futures::StreamExt as _;
use servers::local_git::LocalGit;
use source::snapshot;
use sources::store::Snapshots;

/// Stores snapshots in a directory. The tree of each is made and thereby verified on arrival.
pub(crate) struct Kept {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) puts: Mutex<Vec<String>>,
}

impl Kept {
    fn archive(&self, revision: &str) -> std::path::PathBuf {
        self.dir.path().join(format!("{revision}.tar"))
    }

    /// Makes the tree of a snapshot, as the agent does for a layer of a ref.
    pub(crate) async fn tree(
        &self,
        revision: &str,
        git_ref: Option<&str>,
        to: &Path,
    ) -> source::Fetched {
        let (scratch, until) = (
            tempfile::tempdir().unwrap(),
            Instant::now() + Duration::from_secs(600),
        );
        let file = File::open(self.archive(revision)).unwrap();
        let unpacked =
            snapshot::unpack::<std::io::Error>(file, scratch.path(), revision, until).unwrap();
        let (fetched, contents) = unpacked.fetch(&LocalGit, env(), git_ref, to).await.unwrap();
        contents.unwrap();
        fetched
    }
}

/// The environment of an agent's git.
pub(crate) fn env() -> Vec<(OsString, OsString)> {
    [
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/nowhere"),
        ("no_proxy", "*"),
    ]
    .map(|(key, value)| (key.into(), value.into()))
    .into()
}

impl Snapshots for Kept {
    async fn digest(
        &self,
        _: &str,
        _: &str,
        revision: &str,
    ) -> Result<Option<Stored>, RequestError> {
        let there = self.dir.path().join(revision).is_dir();
        Ok(there.then(|| Stored {
            digest: format!("sha256:{revision}"),
            size: 1,
        }))
    }

    async fn put(
        &self,
        _: &str,
        _: &str,
        revision: &str,
        file: &Path,
    ) -> Result<Stored, RequestError> {
        let to = self.dir.path().join(revision);
        fs::create_dir(&to).unwrap();
        fs::copy(file, self.archive(revision)).unwrap();
        self.tree(revision, None, &to).await;
        self.puts.lock().unwrap().push(revision.to_owned());
        Ok(Stored {
            digest: format!("sha256:{revision}"),
            size: 1,
        })
    }

    async fn list(&self, _: &str, _: &str) -> Result<Vec<String>, RequestError> {
        Ok(self.puts.lock().unwrap().clone())
    }

    async fn wanted(&self) -> Result<Lists, RequestError> {
        Ok(futures::stream::empty().boxed())
    }

    async fn delete(&self, _: &str, _: &str, revision: &str) -> Result<(), RequestError> {
        fs::remove_dir_all(self.dir.path().join(revision)).unwrap();
        Ok(())
    }
}
