//! Followed repositories, with the account and the rights that the chart gives `controller sources`: real git, real watches.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use crds::{
    TerraformLayer, TerraformRepository, TerraformRepositoryStatus as Status,
    clock::ServerClock,
    conditions,
    datastore::{Stored, WantedRevision},
    names,
};
use datastore_client::{RequestError, sources::Lists};
use futures::StreamExt as _;
use harness::{cluster::objects, guide, wait};
use k8s_openapi::api::{core::v1::Secret, discovery::v1::EndpointSlice};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use servers::{auth::Access, git::GitServer};
use serving::events::Events;
use sources::{
    api_server, follow::Follow, gc, git::Commands, github_app::Tokens, metrics::Metrics,
    mirror::Mirrors, server::Servers, slots::Slots, store::Snapshots, sync::Syncer, watch::Workers,
    worker::Shared,
};

use crate::world::{PATIENCE, World, tests};

tests! {
    Guarded: layer_gets_its_commits_and_no_redundant_write,
    Guarded: wanted_revision_is_stored_without_a_ref,
    Guarded: secret_is_read_only_where_a_namespace_binds,
    Guarded: api_servers_endpoints_are_read_by_name_only,
}

const ACCOUNT: &str = "system:serviceaccount:pawl-system:pawl-sources";

/// Counts snapshots instead of storing them.
#[derive(Default)]
struct Kept {
    all: Mutex<BTreeMap<String, Stored>>,
    wanted: Mutex<Vec<WantedRevision>>,
}

impl Kept {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Stored>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self) -> MutexGuard<'_, Vec<WantedRevision>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshots for Kept {
    async fn digest(
        &self,
        _: &str,
        _: &str,
        revision: &str,
    ) -> Result<Option<Stored>, RequestError> {
        Ok(self.all().get(revision).cloned())
    }

    async fn put(
        &self,
        _: &str,
        _: &str,
        revision: &str,
        file: &Path,
    ) -> Result<Stored, RequestError> {
        let size = file
            .metadata()
            .map_err(|error| RequestError::file(file, error))?
            .len();
        let stored = Stored {
            digest: format!("sha256:{}", "a".repeat(64)),
            size,
        };
        self.all().insert(revision.to_owned(), stored.clone());
        Ok(stored)
    }

    async fn list(&self, _: &str, _: &str) -> Result<Vec<String>, RequestError> {
        Ok(self.all().keys().cloned().collect())
    }

    async fn wanted(&self) -> Result<Lists, RequestError> {
        Ok(futures::stream::iter([Ok(Kept::wanted(self).clone())]).boxed())
    }

    async fn delete(&self, _: &str, _: &str, revision: &str) -> Result<(), RequestError> {
        self.all().remove(revision);
        Ok(())
    }
}

/// A followed namespace, and a Git server.
struct Scene {
    world: World,
    namespace: String,
    server: GitServer,
    shared: Arc<Shared<Kept>>,
    tasks: tokio::task::JoinSet<()>,
    _dirs: [tempfile::TempDir; 3],
}

impl Scene {
    async fn new(world: World) -> Result<Self> {
        let namespace = world.namespace().await?;
        let dirs = [
            tempfile::tempdir()?,
            tempfile::tempdir()?,
            tempfile::tempdir()?,
        ];
        let server = GitServer::start("127.0.0.1:0".parse()?, dirs[0].path()).await?;
        let servers = Servers {
            git: Commands::new(dirs[2].path(), Duration::from_secs(120)),
            mirrors: Arc::new(Mirrors::new(dirs[1].path(), 1 << 30)?),
            tokens: Tokens::default(),
            private: dirs[2].path().to_owned(),
        };
        let client = world.process("pawl-sources").await?;
        let shared = Arc::new(Shared {
            events: Events::new(client.clone(), "pawl-sources"),
            client,
            clock: ServerClock::default(),
            follow: Mutex::new(Follow::default()),
            wanted: Mutex::default(),
            syncer: Syncer {
                git: Box::new(servers),
                snapshots: Kept::default(),
            },
            slots: Slots::new(2),
            metrics: Arc::new(Metrics::awaiting(2)),
            secrets_role: "pawl-sources-secrets".to_owned(),
        });
        let workers = Arc::new(Workers::new(shared.clone()));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(workers.clone().watch(Some(namespace.clone())));
        tasks.spawn(workers.wanted());
        Ok(Self {
            world,
            namespace,
            server,
            shared,
            tasks,
            _dirs: dirs,
        })
    }

    fn layers(&self) -> Api<TerraformLayer> {
        Api::namespaced(self.world.admin.clone(), &self.namespace)
    }

    fn repositories(&self) -> Api<TerraformRepository> {
        Api::namespaced(self.world.admin.clone(), &self.namespace)
    }

    async fn repository(&self, secret: Option<&str>) -> Result<()> {
        let mut spec = json!({"url": self.server.url("stacks"), "interval": "1h"});
        if let Some(secret) = secret {
            spec["secretRef"] = json!({"name": secret});
        }
        objects::create(
            &self.repositories(),
            json!({"metadata": {"name": "r"}, "spec": spec}),
        )
        .await?;
        Ok(())
    }

    async fn layer(&self, name: &str, path: &str) -> Result<()> {
        let spec = json!({"repository": {"name": "r"}, "path": path});
        objects::create(
            &self.layers(),
            json!({"metadata": {"name": name}, "spec": spec}),
        )
        .await?;
        Ok(())
    }

    /// Writes a request, and waits until it is handled.
    async fn request(&self, word: &str) -> Result<TerraformRepository> {
        objects::merge(
            &self.repositories(),
            "r",
            &json!({"metadata": {"annotations": {names::RECONCILE: word}}}),
        )
        .await?;
        self.until("answered", |status| {
            status.last_handled_reconcile.as_deref() == Some(word)
        })
        .await
    }

    async fn until(&self, what: &str, is: impl Fn(&Status) -> bool) -> Result<TerraformRepository> {
        let is = |repository: &TerraformRepository| repository.status.as_ref().is_some_and(&is);
        wait::object(&self.repositories(), "r", what, PATIENCE, is).await
    }

    /// The version of the repository.
    async fn version(&self) -> Result<Option<String>> {
        Ok(self.repositories().get("r").await?.resource_version())
    }

    async fn revision(&self, layer: &str) -> Result<Option<String>> {
        let layer = self.layers().get(layer).await?;
        Ok(layer
            .status
            .and_then(|status| status.source)
            .map(|source| source.revision))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.tasks.abort_all();
    }
}

/// Whether the condition Ready has this status, and this reason if it is not empty.
fn ready(status: &Status, is: &str, reason: &str) -> bool {
    let mut ready = status
        .conditions
        .iter()
        .filter(|condition| condition.type_ == conditions::READY);
    ready.any(|condition| {
        condition.status == is && (reason.is_empty() || condition.reason == reason)
    })
}

/// Whether a ref is at this commit.
fn knows(status: &Status, commit: &str) -> bool {
    let mut commits = status.refs.iter().filter_map(|known| known.commit.as_ref());
    commits.any(|known| known.revision == commit)
}

async fn layer_gets_its_commits_and_no_redundant_write(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    let repo = scene.server.create("stacks")?;
    let first = repo.commit(
        "main",
        &[("app/main.tf", "# one\n"), ("other/main.tf", "# one\n")],
    )?;
    scene.repository(None).await?;
    scene
        .until("ready without a layer", |status| ready(status, "True", ""))
        .await?;
    scene.layer("app", "app").await?;
    scene.layer("other", "other").await?;
    scene
        .until("at its first commit", |status| knows(status, &first))
        .await?;
    // The second layer may have been created after the poll for the first.
    wait::until("the other layer is told", PATIENCE, async || {
        scene.revision("other").await
    })
    .await?;
    ensure!(scene.revision("app").await? == Some(first.clone()));

    // Two requests without a new commit: the second updates only the handled request.
    let before = scene.request("1").await?;
    let layer = scene.layers().get("app").await?.resource_version();
    let after = scene.request("2").await?;
    let mut expected = before.status.clone().context("no status")?;
    expected.last_handled_reconcile = Some("2".to_owned());
    ensure!(after.status == Some(expected), "{:?}", after.status);
    ensure!(
        scene.layers().get("app").await?.resource_version() == layer,
        "a layer was written without anything new"
    );
    let settled = scene.version().await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure!(
        scene.version().await? == settled,
        "it is written again and again"
    );

    let second = repo.commit("main", &[("other/main.tf", "# two\n")])?;
    let known = scene.request("3").await?;
    ensure!(
        known
            .status
            .as_ref()
            .is_some_and(|status| knows(status, &second)),
        "{:?}",
        known.status
    );
    ensure!(
        scene.revision("other").await? == Some(second)
            && scene.revision("app").await? == Some(first)
    );
    ensure!(
        scene.layers().get("app").await?.resource_version() == layer,
        "a commit of another layer was written to this one"
    );
    Ok(())
}

async fn wanted_revision_is_stored_without_a_ref(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    let repo = scene.server.create("stacks")?;
    let first = repo.commit("main", &[("main.tf", "# one\n")])?;
    let second = repo.commit("main", &[("main.tf", "# two\n")])?;
    let feature = repo.commit("feature", &[("main.tf", "# three\n")])?;
    scene.repository(None).await?;
    scene.layer("app", ".").await?;
    let before = scene
        .until("at the layer's ref", |status| !status.refs.is_empty())
        .await?;
    let of = |revision: &str| WantedRevision {
        namespace: scene.namespace.clone(),
        uid: before.uid().unwrap_or_default(),
        revision: revision.to_owned(),
    };
    let nowhere = "0".repeat(40);
    let snapshots = &scene.shared.syncer.snapshots;
    *Kept::wanted(snapshots) = [&nowhere, &first, &feature].map(|r| of(r)).into();
    for revision in [&first, &feature] {
        let look = async || Ok(snapshots.digest("", "", revision).await?);
        wait::until(format!("{revision} is stored"), PATIENCE, look).await?;
    }
    // An unknown revision in a run does not affect the repository's status.
    ensure!(
        scene.version().await? == before.resource_version(),
        "the repository was written"
    );
    ensure!(snapshots.digest("", "", &nowhere).await?.is_none());

    // Burrito 11.20: unneeded snapshots are deleted, and no earlier. A ref points to one, and an open run references another.
    let source = json!({"stack": "app", "source": {"repository": {"name": "r", "revision": feature, "path": "."}}});
    let runs = scene.world.runs(&scene.namespace);
    objects::create(
        &runs,
        json!({"metadata": {"name": "needs"}, "spec": source}),
    )
    .await?;
    let every = Duration::from_millis(200);
    let sweeps = tokio::spawn(gc::run(
        scene.shared.clone(),
        vec![Some(scene.namespace.clone())],
        every,
    ));
    let gone = async |revision: &str| {
        let look = async || Ok(snapshots.digest("", "", revision).await?.is_none());
        wait::until(format!("{revision} goes"), PATIENCE, look).await
    };
    gone(&first).await?;
    let mut wanted = [second, feature.clone()];
    wanted.sort();
    ensure!(snapshots.list("", "").await? == wanted);
    runs.delete("needs", &DeleteParams::default()).await?;
    gone(&feature).await?;
    sweeps.abort();
    Ok(())
}

async fn secret_is_read_only_where_a_namespace_binds(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    scene
        .server
        .create("stacks")?
        .commit("main", &[("main.tf", "# one\n")])?;
    // As in the guide.
    scene
        .server
        .set_access("stacks", Access::basic("pawl", "glpat-example"));
    let files = tempfile::tempdir()?;
    let here = |name: &str| -> Result<String> {
        Ok(guide::block(name)?.replace("-n prod", &format!("-n {}", scene.namespace)))
    };
    for file in ["ca.crt", "id_ed25519", "known_hosts", "app.pem"] {
        std::fs::write(files.path().join(file), file)?;
    }
    scene.world.paste(&format!(
        "cd '{}'\n{}",
        files.path().display(),
        here("repository secrets")?
    ))?;
    scene.layer("app", ".").await?;
    scene.repository(Some("infra-git")).await?;
    let repository = scene
        .until("without the right", |status| {
            ready(status, "False", "SecretForbidden")
        })
        .await?;
    let said = serde_json::to_string(&repository.status)?;
    ensure!(
        said.contains("pawl-sources-secrets") && !said.contains("glpat"),
        "{said}"
    );
    scene.world.paste(&here("bind sources")?)?;
    // A failure is retried without a request.
    scene
        .until("ready", |status| ready(status, "True", ""))
        .await?;
    let secrets: Api<Secret> = Api::namespaced(
        scene.world.access.impersonate(ACCOUNT, &[]).await?,
        &scene.namespace,
    );
    ensure!(
        secrets.list(&ListParams::default()).await.is_err(),
        "it lists Secrets"
    );
    ensure!(
        secrets.get("infra-git").await.is_ok() && secrets.get("infra-ssh").await.is_err(),
        "it reads a Secret without the right, or not with it"
    );
    Ok(())
}

async fn api_servers_endpoints_are_read_by_name_only(world: World) -> Result<()> {
    let slices = |client| Api::<EndpointSlice>::namespaced(client, "default");
    for name in ["kubernetes", "other"] {
        // This API server writes none, since its address is loopback.
        let slice = json!({
            "metadata": {"name": name}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.9.8.7"]}, {"addresses": ["10.9.8.8"]}],
            "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
        });
        objects::create(&slices(world.admin.clone()), slice).await?;
    }
    let read = api_server::endpoints(&world.process("pawl-sources").await?).await?;
    ensure!(
        read == ["10.9.8.7:6443".parse()?, "10.9.8.8:6443".parse()?],
        "{read:?}"
    );
    let others = slices(world.access.impersonate(ACCOUNT, &[]).await?);
    ensure!(
        others.get("other").await.is_err() && others.list(&ListParams::default()).await.is_err(),
        "it reads another"
    );
    Ok(())
}
