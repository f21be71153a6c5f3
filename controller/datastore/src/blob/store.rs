//! The underlying storage: a folder, or a bucket of S3, GCS or Azure. It uses two kinds of writes: create-if-absent for
//! small objects (the one primitive that all these stores share), and multipart uploads.

use std::{
    collections::HashMap,
    io::Read as _,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use object_store::{
    Error as StoreError, GetResultPayload, MultipartUpload, ObjectStore, ObjectStoreExt as _,
    PutMode, PutOptions, local::LocalFileSystem, prefix::PrefixStore,
};
use url::Url;

use crds::datastore::Problem;
use serving::problem::{corrupt, unavailable};

use crate::names::Name;

/// Timeout of a call for a small object, including the library's retries.
const CALL: Duration = Duration::from_secs(30);
/// Timeout of one part of a large object.
const PART: Duration = Duration::from_secs(120);
/// Part size of a large object in a bucket. S3 requires at least 5 MiB and at most 10,000 parts.
const REMOTE_PART: usize = 8 << 20;
/// Part size of a large object in a folder.
const LOCAL_PART: usize = 1 << 20;
/// Chunk size for reading files.
const READ: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("`{0}` is no URL of a store; file:///DIRECTORY, s3://, gs:// and az:// are")]
    Url(String),
    #[error("{path}: {source}")]
    Folder {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An entry of a listing.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: Name,
    /// Size as stored, in bytes.
    pub size: u64,
    pub modified: SystemTime,
}

impl Entry {
    /// Whether it is older than `age`, by its time of modification in the store.
    pub fn is_older(&self, age: Duration) -> bool {
        SystemTime::now()
            .duration_since(self.modified)
            .is_ok_and(|passed| passed > age)
    }
}

pub type ByteStream = BoxStream<'static, Result<Bytes, Problem>>;

#[derive(Clone)]
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    /// The folder, if the store is one.
    folder: Option<Arc<FilePath>>,
}

impl Store {
    /// Opens `file:///DIRECTORY` (created if missing; every write is synced before it is acknowledged),
    /// `s3://BUCKET/PREFIX`, `gs://…` or `az://…`. The last three read variables such as `AWS_ENDPOINT`, `GOOGLE_…`,
    /// `AZURE_…`.
    ///
    /// # Errors
    /// When URL or variables are invalid. Does not access the bucket.
    pub fn open(url: &str, variables: &HashMap<String, String>) -> Result<Self, OpenError> {
        let parsed = Url::parse(url).map_err(|_| OpenError::Url(url.to_owned()))?;
        if parsed.scheme() == "file" {
            let path = parsed
                .to_file_path()
                .map_err(|()| OpenError::Url(url.to_owned()))?;
            std::fs::create_dir_all(&path).map_err(|source| OpenError::Folder {
                path: path.clone(),
                source,
            })?;
            let local = LocalFileSystem::new_with_prefix(&path)?
                .with_fsync(true)
                .with_automatic_cleanup(true);
            return Ok(Self {
                inner: Arc::new(local),
                folder: Some(path.into()),
            });
        }
        if !matches!(
            parsed.scheme(),
            "s3" | "s3a" | "gs" | "az" | "azure" | "adl" | "abfs" | "abfss"
        ) {
            return Err(OpenError::Url(url.to_owned()));
        }
        let (store, prefix) = object_store::parse_url_opts(&parsed, variables)?;
        let store: Arc<dyn ObjectStore> = Arc::from(store);
        let inner = if prefix.as_ref().is_empty() {
            store
        } else {
            Arc::new(PrefixStore::new(store, prefix))
        };
        Ok(Self {
            inner,
            folder: None,
        })
    }

    /// Part size of a large object, in bytes.
    pub fn part_size(&self) -> usize {
        if self.folder.is_some() {
            LOCAL_PART
        } else {
            REMOTE_PART
        }
    }

    /// Creates a small object; false when the name exists. After a lost response, the existing object may be this one.
    ///
    /// # Errors
    /// `Unavailable`; it may have been created.
    pub async fn create(&self, name: &Name, content: Vec<u8>) -> Result<bool, Problem> {
        let options = PutOptions::from(PutMode::Create);
        match within(
            CALL,
            self.inner.put_opts(name.path(), content.into(), options),
        )
        .await
        {
            Ok(_) => Ok(true),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => Ok(false),
            Err(error) => Err(unavailable("the store", &error)),
        }
    }

    /// Creates or replaces a small object.
    ///
    /// # Errors
    /// `Unavailable`; it may have been written.
    pub async fn overwrite(&self, name: &Name, content: Vec<u8>) -> Result<(), Problem> {
        let written = within(CALL, self.inner.put(name.path(), content.into())).await;
        written
            .map(drop)
            .map_err(|error| unavailable("the store", &error))
    }

    /// Starts a large object. It is invisible until it is completed.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn upload(&self, name: &Name) -> Result<Upload, Problem> {
        let parts = within(CALL, self.inner.put_multipart(name.path())).await;
        Ok(Upload {
            parts: parts.map_err(|error| unavailable("the store", &error))?,
            sending: None,
        })
    }

    /// Reads a small object; `None` when it does not exist.
    ///
    /// # Errors
    /// `Unavailable`; `Corrupt` when it is larger than `limit` bytes.
    pub async fn read(&self, name: &Name, limit: u64) -> Result<Option<Bytes>, Problem> {
        let call = async {
            let found = self.inner.get(name.path()).await?;
            if found.meta.size > limit {
                return Ok(None);
            }
            found.bytes().await.map(Some)
        };
        match within(CALL, call).await {
            Ok(Some(bytes)) => Ok(Some(bytes)),
            Ok(None) => Err(corrupt(format!(
                "{name} is larger than what was written there"
            ))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(unavailable("the store", &error)),
        }
    }

    /// Reads an object of any size; `None` when it does not exist.
    ///
    /// # Errors
    /// `Unavailable`, also in the stream.
    pub async fn stream(&self, name: &Name) -> Result<Option<ByteStream>, Problem> {
        match within(CALL, self.inner.get(name.path())).await {
            Ok(found) => Ok(Some(match found.payload {
                GetResultPayload::File(file, _) => file_stream(file),
                GetResultPayload::Stream(stream) => stream
                    .map_err(|error| unavailable("the store", &error))
                    .boxed(),
            })),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(unavailable("the store", &error)),
        }
    }

    /// All objects below a name, unordered.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn list(&self, below: &Name) -> Result<Vec<Entry>, Problem> {
        let listing = self.inner.list(Some(below.path())).map_ok(|meta| Entry {
            name: Name::listed(meta.location),
            size: meta.size,
            modified: meta.last_modified.into(),
        });
        within(PART, listing.try_collect())
            .await
            .map_err(|error| unavailable("the store", &error))
    }

    /// The segments directly below a name: those with further objects below, sorted, and those that are objects.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn children(&self, below: &Name) -> Result<(Vec<String>, Vec<String>), Problem> {
        let listed = within(PART, self.inner.list_with_delimiter(Some(below.path()))).await;
        let listed = match listed {
            Ok(listed) => listed,
            Err(StoreError::NotFound { .. }) => return Ok((Vec::new(), Vec::new())),
            Err(error) => return Err(unavailable("the store", &error)),
        };
        let last = |path: &object_store::path::Path| path.filename().map(str::to_owned);
        let mut directories: Vec<String> = listed.common_prefixes.iter().filter_map(last).collect();
        let mut objects: Vec<String> = listed
            .objects
            .iter()
            .filter_map(|meta| last(&meta.location))
            .collect();
        directories.sort_unstable();
        objects.sort_unstable();
        Ok((directories, objects))
    }

    /// Deletes an object. A missing object is no error.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn delete(&self, name: &Name) -> Result<(), Problem> {
        match within(CALL, self.inner.delete(name.path())).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(unavailable("the store", &error)),
        }
    }

    /// Removes temporary files of killed writes from a folder when they are older than `age`; returns their number. The
    /// store's library writes to `NAME#1` first and hides these files from listings.
    pub async fn remove_leftovers(&self, age: Duration) -> usize {
        let Some(folder) = self.folder.clone() else {
            return 0;
        };
        tokio::task::spawn_blocking(move || leftovers(&folder, age))
            .await
            .unwrap_or_default()
    }
}

fn leftovers(folder: &FilePath, age: Duration) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let mut removed = 0;
    for entry in entries.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            removed += leftovers(&entry.path(), age);
            continue;
        }
        let name = entry.file_name();
        let staged = name
            .to_str()
            .and_then(|name| name.rsplit_once('#'))
            .is_some_and(|(_, number)| number.parse::<u64>().is_ok());
        let old = meta
            .modified()
            .ok()
            .and_then(|at| at.elapsed().ok())
            .is_some_and(|elapsed| elapsed >= age);
        if staged && old && std::fs::remove_file(entry.path()).is_ok() {
            removed += 1;
        }
    }
    removed
}

/// Reads a file in chunks of [`READ`] bytes. The library's own chunks have 8 KiB and cost a thread switch each.
fn file_stream(file: std::fs::File) -> ByteStream {
    let stream = futures::stream::try_unfold(file, |mut file| async move {
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = Vec::with_capacity(READ);
            let read = file.by_ref().take(READ as u64).read_to_end(&mut buffer);
            read.map(|_| (buffer, file))
        });
        match read.await {
            Ok(Ok((buffer, _))) if buffer.is_empty() => Ok(None),
            Ok(Ok((buffer, file))) => Ok(Some((Bytes::from(buffer), file))),
            Ok(Err(error)) => Err(unavailable("the store", &error)),
            Err(error) => Err(unavailable("the store", &error)),
        }
    });
    stream.boxed()
}

/// Runs a call with a timeout. A timeout becomes an error of the store's library.
async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(StoreError::Generic {
            store: "store",
            source: Box::new(elapsed),
        }),
    }
}

/// A large object in progress. When dropped before [`Self::complete`], nothing visible remains.
pub struct Upload {
    parts: Box<dyn MultipartUpload>,
    /// The previous part, which is sent while the next one is filled.
    sending: Option<tokio::task::JoinHandle<Result<(), StoreError>>>,
}

impl Upload {
    /// Sends a part. All parts except the last have [`Store::part_size`] bytes.
    ///
    /// # Errors
    /// `Unavailable`, also for the previous part.
    pub async fn part(&mut self, content: Vec<u8>) -> Result<(), Problem> {
        self.settle().await?;
        self.sending = Some(tokio::spawn(within(
            PART,
            self.parts.put_part(content.into()),
        )));
        Ok(())
    }

    /// Makes the complete object visible.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn complete(mut self) -> Result<(), Problem> {
        self.settle().await?;
        let completed = within(PART, self.parts.complete()).await;
        completed
            .map(drop)
            .map_err(|error| unavailable("the store", &error))
    }

    pub async fn abort(mut self) {
        // If this fails, the sweep, or the bucket's rule for incomplete uploads, cleans up.
        let _ = self.settle().await;
        if let Err(error) = within(CALL, self.parts.abort()).await {
            tracing::debug!(%error, "an upload could not be aborted");
        }
    }

    async fn settle(&mut self) -> Result<(), Problem> {
        match self.sending.take() {
            None => Ok(()),
            Some(sending) => match sending.await {
                Ok(sent) => sent.map_err(|error| unavailable("the store", &error)),
                Err(error) => Err(unavailable("the store", &error)),
            },
        }
    }
}
