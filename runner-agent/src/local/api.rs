//! A run stored in a file: the API server for one local process. Applies patches with their tests. Also acts as the controller, so
//! it records approvals.

use std::{
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock},
};

use crds::{ApprovalRecord, TerraformRun, TerraformRunStatus, names, whole_seconds};
use futures::{Stream, stream};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::screen::Teller;
use crate::{
    api::patch,
    guard,
    ports::{Api, ApiError, Seen},
};

#[derive(Clone, Debug)]
pub struct FileApi {
    stored: Arc<Mutex<Stored>>,
    changed: watch::Sender<u64>,
    teller: Arc<OnceLock<Teller>>,
}

#[derive(Debug)]
struct Stored {
    run: TerraformRun,
    version: u64,
    path: PathBuf,
}

impl FileApi {
    /// Creates a run that is written to `path` now and at each change.
    pub fn create(path: &Path, run: TerraformRun) -> io::Result<Self> {
        let api = Self {
            stored: Arc::new(Mutex::new(Stored {
                run,
                version: 0,
                path: path.to_owned(),
            })),
            changed: watch::Sender::new(0),
            teller: Arc::default(),
        };
        api.change(|_| ())?;
        Ok(api)
    }

    /// Prints the run's history through `teller`. A write of the attempt is acknowledged only when its history line is printed, so
    /// no later output of the attempt precedes it.
    pub fn told_by(&self, teller: Teller) {
        let _ = self.teller.set(teller);
    }

    pub fn run(&self) -> TerraformRun {
        self.lock().run.clone()
    }

    pub fn status(&self) -> TerraformRunStatus {
        self.lock().run.status.clone().unwrap_or_default()
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Changes the run as a client other than the attempt.
    pub fn change<T>(&self, change: impl FnOnce(&mut TerraformRun) -> T) -> io::Result<T> {
        let mut stored = self.lock();
        let mut run = stored.run.clone();
        let result = change(&mut run);
        let written = self.commit(&mut stored, run);
        drop(stored);
        drop(written?);
        Ok(result)
    }

    /// Sets an annotation, as a user does in a cluster.
    pub fn annotate(&self, name: &str, value: &str) -> io::Result<()> {
        self.change(|run| {
            run.metadata
                .annotations
                .get_or_insert_default()
                .insert(name.to_owned(), value.to_owned());
        })
    }

    /// Sets a user's approval of a plan, and its record.
    pub fn approve(&self, checksum: &str, by: &str) -> io::Result<()> {
        self.annotate(names::APPROVE, checksum)?;
        self.change(|run| {
            run.status.get_or_insert_default().approval = Some(ApprovalRecord {
                checksum: Some(checksum.to_owned()),
                by: by.to_owned(),
                comment: None,
                at: whole_seconds(Timestamp::now()),
            });
        })
    }

    fn lock(&self) -> MutexGuard<'_, Stored> {
        guard(&self.stored)
    }

    /// Writes to disk first: an acknowledged claim and its outcome must survive a crash, so they are synced. Other writes may be
    /// lost in a power failure, since such a run has changed nothing.
    fn commit(&self, stored: &mut Stored, mut run: TerraformRun) -> io::Result<News<'_>> {
        let version = stored.version + 1;
        run.metadata.resource_version = Some(version.to_string());
        let counts = |run: &TerraformRun| {
            run.status
                .as_ref()
                .map(|status| (status.claim.is_some(), status.is_terminal()))
        };
        let durable =
            counts(&run).is_some_and(|(claimed, _)| claimed) && counts(&run) != counts(&stored.run);
        write(&stored.path, &run, durable)?;
        (stored.run, stored.version) = (run, version);
        Ok(News {
            changed: &self.changed,
            version,
        })
    }
}

/// Notifies watchers of a written version when dropped.
struct News<'a> {
    changed: &'a watch::Sender<u64>,
    version: u64,
}

impl Drop for News<'_> {
    fn drop(&mut self) {
        self.changed
            .send_modify(|version| *version = self.version.max(*version));
    }
}

/// Replaces the file atomically. With `durable`, the new content is on disk afterwards.
fn write(path: &Path, run: &TerraformRun, durable: bool) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    let mut text = serde_json::to_vec_pretty(run)?;
    text.push(b'\n');
    file.write_all(&text)?;
    if durable {
        file.sync_all()?;
    }
    std::fs::rename(&fresh, path)?;
    if durable && let Some(dir) = path.parent() {
        // Sync the rename, which changes the directory.
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

pub fn read(path: &Path) -> io::Result<TerraformRun> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

fn refused(code: u16, text: &dyn std::fmt::Display) -> ApiError {
    ApiError {
        code: Some(code),
        text: text.to_string(),
        after: None,
    }
}

impl Api for FileApi {
    async fn get(&self) -> Result<TerraformRun, ApiError> {
        Ok(self.run())
    }

    async fn patch(&self, operations: Vec<Value>) -> Result<TerraformRun, ApiError> {
        let (_news, run) = self.patched(operations)?;
        if let (Some(teller), Some(status)) = (self.teller.get(), &run.status) {
            teller.tell(status).await;
        }
        Ok(run)
    }

    async fn watch(
        &self,
        version: &str,
    ) -> Result<impl Stream<Item = Seen> + Send + 'static, ApiError> {
        let from = version.parse::<u64>().unwrap_or_default();
        Ok(stream::unfold(
            (self.clone(), self.changes(), from),
            |(this, mut changes, from)| async move {
                changes.wait_for(|version| *version > from).await.ok()?;
                let (run, version) = {
                    let stored = this.lock();
                    (stored.run.clone(), stored.version)
                };
                Some((Seen::Run(Arc::new(run)), (this, changes, version)))
            },
        ))
    }
}

impl FileApi {
    /// Applies a patch to the run and writes the result.
    fn patched(&self, operations: Vec<Value>) -> Result<(News<'_>, TerraformRun), ApiError> {
        let mut stored = self.lock();
        let mut object = serde_json::to_value(&stored.run).map_err(|error| refused(500, &error))?;
        // An empty status is not serialised, but patches add to it.
        if object["status"].is_null() {
            object["status"] = json!({});
        }
        patch(&mut object, operations).map_err(|error| refused(422, &error))?;
        let run: TerraformRun =
            serde_json::from_value(object).map_err(|error| refused(422, &error))?;
        let (before, after) = (
            stored.run.status.clone().unwrap_or_default(),
            run.status.clone().unwrap_or_default(),
        );
        if before.claim.is_some() && before.claim != after.claim {
            return Err(refused(422, &"a claim never changes"));
        }
        if before.is_terminal() {
            return Err(refused(422, &"the run has ended"));
        }
        let news = self
            .commit(&mut stored, run)
            .map_err(|error| refused(500, &error))?;
        Ok((news, stored.run.clone()))
    }
}
