//! `controller sources` as a process: the real worker of a repository, on lagging watches, with a simulated Git server, mirrors and
//! snapshots.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use ::controller::cluster::clock::Timed;
use crds::{Reason, TerraformLayer, TerraformRepository, datastore::Stored, names};
use datastore_client::{RequestError, sources::Lists};
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use played::{
    User,
    store::{Key, LAYERS},
};
use serde::Deserialize;
use serde_json::json;
use serving::events::Events;
use sources::{
    credentials::Secrets,
    failure::Problem,
    follow::{Follow, View},
    metrics::Metrics,
    refs::Listing,
    server::{Git, Remote},
    slots::Slots,
    store::Snapshots,
    sync::Syncer,
    tree::Tree,
    walk::{Ask, Known, understood},
    worker,
};
use tempfile::NamedTempFile;
use tokio::{sync::Notify, time::sleep};

use crate::{
    agent::memory,
    http::Server,
    layers::REPOSITORIES,
    world::{NS, Process, Shared, Trouble, World, clock, date, millis, now},
};

/// The one repository of a life, with one branch.
pub(crate) const REPOSITORY: &str = "infra";
pub(crate) const URL: &str = "https://git.example.com/infra";

/// The content of the Git server, and the stored snapshots.
#[derive(Default)]
pub(crate) struct Forge {
    /// Commits in order: id, and content of the layer's directory.
    commits: Vec<(String, u8)>,
    snapshots: BTreeSet<String>,
}

impl Forge {
    /// Number and content of a commit.
    pub(crate) fn commit(&self, revision: &str) -> Option<(usize, u8)> {
        let at = self.commits.iter().position(|(id, _)| id == revision)?;
        Some((at, self.commits[at].1))
    }

    /// The newest commit of the branch.
    pub(crate) fn head(&self) -> Option<&(String, u8)> {
        self.commits.last()
    }

    pub(crate) fn has_snapshot(&self, revision: &str) -> bool {
        self.snapshots.contains(revision)
    }
}

/// Pushes a commit, with or without a webhook.
pub(crate) fn push(world: &mut World, content: u8, is_told: bool) {
    let number = world.forge.commits.len() + 1;
    world
        .forge
        .commits
        .push((format!("{number:040x}"), content));
    if is_told {
        let key = Key::of(REPOSITORIES, NS, REPOSITORY);
        let told = json!({names::RECONCILE: number.to_string()});
        let _ = world.annotate(&User::with("server", &[]), &key, &told);
    }
}

/// Access of one process to the world.
#[derive(Clone)]
struct Reaches {
    shared: Shared,
    process: Process,
}

impl Reaches {
    /// Sends a request to the Git server, or reads from the mirror.
    async fn git<T: Send + 'static>(
        &self,
        what: &'static str,
        operation: impl FnOnce(&Forge) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let answer = self
            .shared
            .request(
                &self.process,
                || format!("git: {what}"),
                move |world| Ok(operation(&world.forge)),
            )
            .await;
        answer
            .map_err(|_| Problem::new(Reason::SourceUnreachable, "the Git server does not answer"))
    }

    async fn snapshots<T: Send + 'static>(
        &self,
        what: &'static str,
        operation: impl FnOnce(&mut BTreeSet<String>) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        let answer = self.shared.request(
            &self.process,
            || format!("datastore: snapshots {what}"),
            move |world| {
                if millis() < world.data.away_until {
                    return Err(Trouble::Lost);
                }
                Ok(operation(&mut world.forge.snapshots))
            },
        );
        answer
            .await
            .map_err(|_| RequestError::unanswered("the connection was lost"))
    }
}

fn stored(revision: &str) -> Stored {
    Stored {
        digest: format!("sha256:{revision}"),
        size: 1,
    }
}

impl Snapshots for Reaches {
    async fn digest(
        &self,
        _: &str,
        _: &str,
        revision: &str,
    ) -> Result<Option<Stored>, RequestError> {
        let revision = revision.to_owned();
        self.snapshots("HEAD", move |snapshots| {
            snapshots.contains(&revision).then(|| stored(&revision))
        })
        .await
    }

    async fn put(
        &self,
        _: &str,
        _: &str,
        revision: &str,
        _: &Path,
    ) -> Result<Stored, RequestError> {
        let revision = revision.to_owned();
        self.snapshots("PUT", move |snapshots| {
            let stored = stored(&revision);
            snapshots.insert(revision);
            stored
        })
        .await
    }

    async fn list(&self, _: &str, _: &str) -> Result<Vec<String>, RequestError> {
        self.snapshots("LIST", |snapshots| snapshots.iter().cloned().collect())
            .await
    }

    async fn wanted(&self) -> Result<Lists, RequestError> {
        Ok(Box::pin(futures::stream::pending()))
    }

    async fn delete(&self, _: &str, _: &str, revision: &str) -> Result<(), RequestError> {
        let revision = revision.to_owned();
        self.snapshots("DELETE", move |snapshots| snapshots.remove(&revision))
            .await
            .map(|_| ())
    }
}

impl Git for Reaches {
    fn reach<'a>(
        &'a self,
        _: &'a View,
        _: Secrets,
        _: Timestamp,
    ) -> BoxFuture<'a, Result<Box<dyn Remote>, Problem>> {
        Box::pin(async { Ok(Box::new(self.clone()) as Box<dyn Remote>) })
    }

    fn forget(&self, _: &str) {}

    fn make_room(&self) {}
}

impl Remote for Reaches {
    fn url(&self) -> &str {
        URL
    }

    fn listing<'a>(&'a self, _: &'a [&str]) -> BoxFuture<'a, Result<Listing, Problem>> {
        let listed = |forge: &Forge| {
            forge
                .head()
                .map(|(id, _)| format!("{id}\trefs/heads/main"))
                .unwrap_or_default()
        };
        Box::pin(async move { Ok(Listing::parse(&self.git("ls-remote", listed).await?)) })
    }

    fn tree<'a>(&'a self, commit: &'a str) -> BoxFuture<'a, Result<Tree, Problem>> {
        let commit = commit.to_owned();
        Box::pin(async move {
            let found = self
                .git("fetch", move |forge| forge.commit(&commit))
                .await?;
            let (_, content) = found
                .ok_or_else(|| Problem::new(Reason::RevisionNotFound, "there is no such commit"))?;
            let tree = Tree::parse(format!("100644 blob {content:040x} 1\tnet/main.tf").as_bytes());
            tree.map_err(|error| Problem::new(Reason::SourceInvalid, error))
        })
    }

    fn commit<'a>(&'a self, commit: &'a str) -> BoxFuture<'a, Result<Vec<u8>, Problem>> {
        let number = self
            .shared
            .lock()
            .forge
            .commit(commit)
            .map_or(0, |(number, _)| number);
        let object = format!(
            "tree t\nauthor A <a@b> {number} +0000\ncommitter A <a@b> {number} +0000\n\ncommit {number}\n"
        );
        Box::pin(async move { Ok(object.into_bytes()) })
    }

    fn blobs<'a>(
        &'a self,
        wanted: &'a BTreeSet<(String, Ask)>,
        known: &'a mut Known,
    ) -> BoxFuture<'a, Result<(), Problem>> {
        known.extend(
            wanted
                .iter()
                .map(|(id, ask)| ((id.clone(), ask.clone()), understood(ask, b""))),
        );
        Box::pin(async { Ok(()) })
    }

    fn pack<'a>(
        &'a self,
        _: &'a str,
        _: &'a Tree,
    ) -> BoxFuture<'a, Result<(NamedTempFile, Option<String>), Problem>> {
        Box::pin(async { Ok((NamedTempFile::new_in(memory()).unwrap(), None)) })
    }
}

/// Restarts the process after each death, without memory.
pub(crate) async fn supervise(shared: Shared) {
    loop {
        let process = Process::new("sources", User::with("sources", &[]));
        shared.lock().sources = Some(process.clone());
        let life = tokio::spawn(live(shared.clone(), process.clone()));
        process.death().await;
        life.abort();
        shared.lock().note("   sources died");
        shared.pause(2_000).await;
    }
}

async fn live(shared: Shared, process: Process) {
    let seed = shared.lock().schedule.seed;
    let clock = clock(seed, &format!("{} {}", process.name, millis()));
    let listed = loop {
        let sent = clock.sent();
        let listed = shared
            .request(
                &process,
                || "list".into(),
                |world| Ok((world.store.version(), now())),
            )
            .await;
        if let Ok((version, at)) = listed {
            clock.answered(sent, date(at).as_bytes());
            break version;
        }
        sleep(Duration::from_millis(700)).await;
    };
    let reaches = Reaches {
        shared: shared.clone(),
        process: process.clone(),
    };
    let server = Server {
        shared: shared.clone(),
        process: process.clone(),
    };
    let client = Client::new(Timed::new(server, clock.clone()), "default");
    let all = Arc::new(worker::Shared {
        events: Events::new(client.clone(), "pawl-sources"),
        client,
        clock,
        follow: Mutex::new(Follow::default()),
        wanted: Mutex::default(),
        syncer: Syncer {
            git: Box::new(reaches.clone()),
            snapshots: reaches,
        },
        slots: Slots::new(1),
        metrics: Arc::new(Metrics::awaiting(0)),
        secrets_role: String::new(),
    });
    for repository in shared.lock().store.list(REPOSITORIES, NS, "") {
        all.follow()
            .repository(TerraformRepository::deserialize(&*repository).unwrap());
    }
    for layer in shared.lock().store.list(LAYERS, NS, "") {
        all.follow()
            .layer(&TerraformLayer::deserialize(&*layer).unwrap());
    }
    let (wake, changes, mut seen, mut work) =
        (Arc::new(Notify::new()), shared.changes(), listed, None);
    loop {
        let key = (NS.to_owned(), REPOSITORY.to_owned());
        if work.is_none() && all.follow().view(&key).is_some() {
            let task = tokio::spawn(worker::run(key, all.clone(), wake.clone()));
            work = Some(EndsWith(task.abort_handle()));
        }
        changes.after(seen).await;
        let late = {
            let mut world = shared.lock();
            (1 + world.chance.below(8)).max(world.api_away_until.saturating_sub(millis()))
        };
        sleep(Duration::from_millis(late)).await;
        process.live().await;
        let fresh = shared.lock().store.since(seen).to_vec();
        for change in fresh {
            seen = change.version;
            match (change.key.resource.as_str(), change.deleted) {
                (REPOSITORIES, _) => drop(
                    all.follow()
                        .repository(TerraformRepository::deserialize(&*change.object).unwrap()),
                ),
                (LAYERS, false) => drop(
                    all.follow()
                        .layer(&TerraformLayer::deserialize(&*change.object).unwrap()),
                ),
                (LAYERS, true) => drop(
                    all.follow()
                        .without_layer(&(NS.to_owned(), change.key.name)),
                ),
                _ => continue,
            }
            wake.notify_one();
        }
    }
}

/// A task that ends with the task that waits for it.
struct EndsWith(tokio::task::AbortHandle);

impl Drop for EndsWith {
    fn drop(&mut self) {
        self.0.abort();
    }
}
