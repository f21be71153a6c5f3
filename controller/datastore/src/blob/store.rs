//! The bytes below everything: a folder, or a bucket of S3, GCS or Azure. Two kinds of writes: a small object that is created
//! if nobody did (the one primitive that all these stores have), and a large one in parts.

use std::{
    collections::HashMap,
    io::Read as _,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream::BoxStream};
use object_store::{
    Error as StoreError, GetResultPayload, MultipartUpload, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions,
    local::LocalFileSystem, prefix::PrefixStore,
};
use url::Url;

use crds::datastore::Problem;
use serving::problem::{corrupt, unavailable};

use crate::names::Name;

/// How long a call about a small object may take, retries of the store's library included.
const CALL: Duration = Duration::from_secs(30);
/// How long one part of a large object may take.
const PART: Duration = Duration::from_secs(120);
/// The part of a large object in a bucket: the least that S3 takes is 5 MiB, the most are 10,000 parts.
const REMOTE_PART: usize = 8 << 20;
/// The part of a large object in a folder.
const LOCAL_PART: usize = 1 << 20;
/// How much of a file is read at once.
const READ: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("`{0}` is no URL of a store; file:///DIRECTORY, s3://, gs:// and az:// are")]
    Url(String),
    #[error("{path}: {source}")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Something that the store listed.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: Name,
    /// Bytes as stored.
    pub size: u64,
    pub modified: SystemTime,
}

impl Entry {
    /// Whether it was written longer ago, in the store's time.
    pub fn is_older(&self, age: Duration) -> bool {
        SystemTime::now().duration_since(self.modified).is_ok_and(|passed| passed > age)
    }
}

pub type ByteStream = BoxStream<'static, Result<Bytes, Problem>>;

#[derive(Clone)]
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    /// The folder, when it is one.
    folder: Option<Arc<FilePath>>,
}

impl Store {
    /// Opens `file:///DIRECTORY` (made when it is missing; every write is synced before it is acknowledged), `s3://BUCKET/PREFIX`,
    /// `gs://…` or `az://…`. The last three take what they need from variables, such as `AWS_ENDPOINT`, `GOOGLE_…`, `AZURE_…`.
    ///
    /// # Errors
    /// When the URL or the variables make no store. A bucket is not asked for yet.
    pub fn open(url: &str, variables: &HashMap<String, String>) -> Result<Self, OpenError> {
        let parsed = Url::parse(url).map_err(|_| OpenError::Url(url.to_owned()))?;
        if parsed.scheme() == "file" {
            let path = parsed.to_file_path().map_err(|()| OpenError::Url(url.to_owned()))?;
            std::fs::create_dir_all(&path).map_err(|source| OpenError::Folder { path: path.clone(), source })?;
            let local = LocalFileSystem::new_with_prefix(&path)?.with_fsync(true).with_automatic_cleanup(true);
            return Ok(Self { inner: Arc::new(local), folder: Some(path.into()) });
        }
        if !matches!(parsed.scheme(), "s3" | "s3a" | "gs" | "az" | "azure" | "adl" | "abfs" | "abfss") {
            return Err(OpenError::Url(url.to_owned()));
        }
        let (store, prefix) = object_store::parse_url_opts(&parsed, variables)?;
        let store: Arc<dyn ObjectStore> = Arc::from(store);
        let inner = if prefix.as_ref().is_empty() { store } else { Arc::new(PrefixStore::new(store, prefix)) };
        Ok(Self { inner, folder: None })
    }

    /// The part of a large object, in bytes.
    pub fn part_size(&self) -> usize {
        if self.folder.is_some() { LOCAL_PART } else { REMOTE_PART }
    }

    /// Creates a small object; false when one of that name exists, which may be this very one after a lost answer.
    ///
    /// # Errors
    /// `Unavailable`; it may have been created.
    pub async fn create(&self, name: &Name, content: Vec<u8>) -> Result<bool, Problem> {
        let options = PutOptions::from(PutMode::Create);
        match within(CALL, self.inner.put_opts(name.path(), content.into(), options)).await {
            Ok(_) => Ok(true),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => Ok(false),
            Err(error) => Err(unavailable("the store", &error)),
        }
    }

    /// Writes a small object, whatever is there.
    ///
    /// # Errors
    /// `Unavailable`; it may have been written.
    pub async fn overwrite(&self, name: &Name, content: Vec<u8>) -> Result<(), Problem> {
        let written = within(CALL, self.inner.put(name.path(), content.into())).await;
        written.map(drop).map_err(|error| unavailable("the store", &error))
    }

    /// Begins a large object. Nothing can be seen of it until it is completed.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn upload(&self, name: &Name) -> Result<Upload, Problem> {
        let parts = within(CALL, self.inner.put_multipart(name.path())).await;
        Ok(Upload { parts: parts.map_err(|error| unavailable("the store", &error))?, sending: None })
    }

    /// Reads a small object whole; none when there is none.
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
            Ok(None) => Err(corrupt(format!("{name} is larger than what was written there"))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(unavailable("the store", &error)),
        }
    }

    /// Reads an object of any size; none when there is none.
    ///
    /// # Errors
    /// `Unavailable`, also in the stream.
    pub async fn stream(&self, name: &Name) -> Result<Option<ByteStream>, Problem> {
        match within(CALL, self.inner.get(name.path())).await {
            Ok(found) => Ok(Some(match found.payload {
                GetResultPayload::File(file, _) => file_stream(file),
                GetResultPayload::Stream(stream) => stream.map_err(|error| unavailable("the store", &error)).boxed(),
            })),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(unavailable("the store", &error)),
        }
    }

    /// Everything below a name, in no order.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn list(&self, below: &Name) -> Result<Vec<Entry>, Problem> {
        let listing = self.inner.list(Some(below.path())).map_ok(|meta| Entry {
            name: Name::listed(meta.location),
            size: meta.size,
            modified: meta.last_modified.into(),
        });
        within(PART, listing.try_collect()).await.map_err(|error| unavailable("the store", &error))
    }

    /// The next segments below a name that have something below them, sorted; and those that are objects.
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
        let mut objects: Vec<String> = listed.objects.iter().filter_map(|meta| last(&meta.location)).collect();
        directories.sort_unstable();
        objects.sort_unstable();
        Ok((directories, objects))
    }

    /// Deletes an object; one that is not there is deleted already.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn delete(&self, name: &Name) -> Result<(), Problem> {
        match within(CALL, self.inner.delete(name.path())).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(unavailable("the store", &error)),
        }
    }

    /// Removes what writes that were killed left in a folder, when it is older than `age`; returns how many files that were. The
    /// store's library writes to `NAME#1` first, and lists nothing of that kind.
    pub async fn remove_leftovers(&self, age: Duration) -> usize {
        let Some(folder) = self.folder.clone() else { return 0 };
        tokio::task::spawn_blocking(move || leftovers(&folder, age)).await.unwrap_or_default()
    }
}

fn leftovers(folder: &FilePath, age: Duration) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let mut removed = 0;
    for entry in entries.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            removed += leftovers(&entry.path(), age);
            continue;
        }
        let name = entry.file_name();
        let staged =
            name.to_str().and_then(|name| name.rsplit_once('#')).is_some_and(|(_, number)| number.parse::<u64>().is_ok());
        let old = meta.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|elapsed| elapsed >= age);
        if staged && old && std::fs::remove_file(entry.path()).is_ok() {
            removed += 1;
        }
    }
    removed
}

/// A file in pieces of [`READ`] bytes; the library's own are of 8 KiB, with a change of threads for each.
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

/// A call with a bound; what it says is the store library's error.
async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(StoreError::Generic { store: "store", source: Box::new(elapsed) }),
    }
}

/// A large object that is being written. Dropped before [`Self::complete`], nothing is left of it that can be seen.
pub struct Upload {
    parts: Box<dyn MultipartUpload>,
    /// The part before, on its way while the next is filled.
    sending: Option<tokio::task::JoinHandle<Result<(), StoreError>>>,
}

impl Upload {
    /// Sends a part; all but the last have [`Store::part_size`] bytes.
    ///
    /// # Errors
    /// `Unavailable`, also of the part before.
    pub async fn part(&mut self, content: Vec<u8>) -> Result<(), Problem> {
        self.settle().await?;
        self.sending = Some(tokio::spawn(within(PART, self.parts.put_part(content.into()))));
        Ok(())
    }

    /// Makes the object visible, whole.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn complete(mut self) -> Result<(), Problem> {
        self.settle().await?;
        let completed = within(PART, self.parts.complete()).await;
        completed.map(drop).map_err(|error| unavailable("the store", &error))
    }

    pub async fn abort(mut self) {
        // What fails here is left to the sweep, or to the bucket's own rule for uploads that nobody completed.
        let _ = self.settle().await;
        if let Err(error) = within(CALL, self.parts.abort()).await {
            tracing::debug!(%error, "an upload could not be given up");
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

/// All of a stream; for tests and small things.
///
/// # Errors
/// Those of the stream.
pub async fn collect(stream: impl Stream<Item = Result<Bytes, Problem>>) -> Result<Vec<u8>, Problem> {
    stream
        .try_fold(Vec::new(), |mut all, piece| async move {
            all.extend_from_slice(&piece);
            Ok(all)
        })
        .await
}
