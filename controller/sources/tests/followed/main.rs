//! Follows repositories with real git, from servers that the test starts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on ends here"
)]

mod hostile;
mod kept;
mod large;
mod private;
mod ways;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use crds::{LayerSource, TerraformLayer, TerraformRepository, TerraformRepositoryStatus, names};
use jiff::Timestamp;
use serde_json::{Value, json};
use sources::{
    addresses::Addresses,
    failure::Problem,
    follow::{Follow, Key, View},
    git::Commands,
    github_app::Tokens,
    mirror::Mirrors,
    proxy::Outbound,
    schedule::{Cause, Memory, Tries},
    server::Servers,
    status::{self, Seen},
    store::Snapshots,
    sync::Syncer,
};

use kept::{Kept, env};
use servers::{
    auth::Access,
    git::{Failure, GitServer},
    repo::{Change, Repo},
};

/// A repository on a server, its objects in the cluster, and a follower.
pub(crate) struct World {
    pub(crate) server: GitServer,
    pub(crate) repo: Repo,
    syncer: Syncer<Kept>,
    memory: Memory,
    repository: TerraformRepository,
    layers: BTreeMap<String, TerraformLayer>,
    /// The Secrets of `spec.credentials`.
    further: sources::credentials::Secrets,
    now: Timestamp,
    version: u64,
    /// Number of status writes.
    writes: usize,
    dirs: [tempfile::TempDir; 3],
}

impl World {
    async fn new(layers: &[(&str, Value)]) -> Self {
        Self::with(layers, async |repos| {
            GitServer::start("127.0.0.1:0".parse().unwrap(), repos)
                .await
                .unwrap()
        })
        .await
    }

    /// Like `new`, with a custom server.
    pub(crate) async fn with(
        layers: &[(&str, Value)],
        start: impl AsyncFnOnce(&Path) -> GitServer,
    ) -> Self {
        let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let server = start(dirs[0].path()).await;
        let repo = server.create("team/stacks").unwrap();
        let kept = Kept {
            dir: tempfile::tempdir().unwrap(),
            puts: Mutex::default(),
        };
        let denied = ["127.0.0.2/32".parse().unwrap()];
        let addresses = Addresses::new(&denied, &[], true);
        let outbound = Outbound::start(addresses, "/controller").await.unwrap();
        let mut git = Commands::new(dirs[2].path(), Duration::from_secs(120));
        if let Some(path) = large::path() {
            git = git.with_path(&path);
        }
        git.outbound = Some(outbound.clone());
        let servers = Servers {
            git,
            mirrors: Arc::new(Mirrors::new(dirs[1].path(), 1 << 30).unwrap()),
            tokens: Tokens::trusting(None, outbound),
            private: dirs[2].path().to_owned(),
        };
        let syncer = Syncer {
            git: Box::new(servers),
            snapshots: kept,
        };
        let spec = json!({"url": server.url("team/stacks")});
        let mut repository = TerraformRepository::new("r", serde_json::from_value(spec).unwrap());
        (repository.metadata.namespace, repository.metadata.uid) =
            (Some("ns".into()), Some("uid".into()));
        let now = Timestamp::from_second(1_900_000_000).unwrap();
        let mut world = Self {
            server,
            repo,
            syncer,
            memory: Memory::new(now),
            repository,
            layers: BTreeMap::new(),
            further: BTreeMap::new(),
            now,
            version: 0,
            writes: 0,
            dirs,
        };
        for (name, spec) in layers {
            world.layer(name, spec);
        }
        world
    }

    fn layer(&mut self, name: &str, spec: &Value) {
        let mut all = json!({"repository": {"name": "r"}});
        all.as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        let mut layer = TerraformLayer::new(name, serde_json::from_value(all).unwrap());
        layer.metadata.namespace = Some("ns".into());
        layer.status = self
            .layers
            .get(name)
            .and_then(|before| before.status.clone());
        self.layers.insert(name.to_owned(), layer);
    }

    fn view(&mut self) -> View {
        self.version += 1;
        self.repository.metadata.resource_version = Some(self.version.to_string());
        let mut follow = Follow::default();
        follow.repository(self.repository.clone());
        for layer in self.layers.values() {
            follow.layer(layer);
        }
        let key: Key = ("ns".into(), "r".into());
        follow.view(&key).unwrap()
    }

    /// Checks, and writes the result as the worker does; returns the layers with news.
    async fn look(&mut self) -> Vec<String> {
        self.look_for(Cause::Interval, Ok(None)).await
    }

    pub(crate) async fn look_for(
        &mut self,
        cause: Cause,
        secret: Result<Option<(String, sources::credentials::Data)>, Problem>,
    ) -> Vec<String> {
        let secrets = secret.map(|own| {
            let name = own
                .as_ref()
                .map(|(name, _)| crds::SecretName { name: name.clone() });
            self.repository.spec.secret_ref = name;
            own.into_iter().chain(self.further.clone()).collect()
        });
        let view = self.view();
        self.memory.meets(&view);
        self.now += jiff::SignedDuration::from_mins(5);
        let mut found = self
            .syncer
            .look(&view, secrets, &self.memory, cause, self.now)
            .await;
        let mut told = Vec::new();
        for (layer, source) in std::mem::take(&mut found.sources) {
            let known = self.layers.get_mut(&layer.key.1).unwrap();
            known.status.get_or_insert_default().source = Some(source);
            told.push(layer.key.1.clone());
        }
        let old = self.repository.status.clone().unwrap_or_default();
        let next = status::next(
            &old,
            &found.look,
            |problem| problem.next_step("ns", "r", true),
            self.now,
        );
        if next != old {
            self.repository.status = Some(next);
            self.writes += 1;
        }
        for (name, seen) in &found.look.refs {
            if let Seen::Failed(_) = seen {
                self.memory.refs.insert(
                    name.clone(),
                    Tries {
                        at: self.now,
                        times: 1,
                    },
                );
            }
        }
        self.memory.looked = Some(self.now);
        self.memory.answered.extend(found.answered);
        told
    }

    pub(crate) fn status(&self) -> &TerraformRepositoryStatus {
        self.repository.status.as_ref().unwrap()
    }

    /// Commits files on a branch.
    pub(crate) fn commit(&self, branch: &str, files: &[(&str, &str)]) -> String {
        self.repo.commit(branch, files).unwrap()
    }

    /// A file in the snapshot of a commit.
    fn read(&self, commit: &str, path: &str) -> String {
        fs::read_to_string(self.syncer.snapshots.dir.path().join(commit).join(path)).unwrap()
    }

    /// Status, reason and message of a condition.
    pub(crate) fn condition(&self, type_: &str) -> [&str; 3] {
        let found = self
            .status()
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_)
            .unwrap();
        [&found.status, &found.reason, &found.message]
    }

    fn source(&self, layer: &str) -> LayerSource {
        self.layers[layer].status.clone().unwrap().source.unwrap()
    }

    pub(crate) fn revision(&self, git_ref: &str) -> String {
        let known = self
            .status()
            .refs
            .iter()
            .find(|known| known.name == git_ref)
            .unwrap();
        known.commit.clone().unwrap().revision
    }

    fn puts(&self) -> usize {
        self.syncer.snapshots.puts.lock().unwrap().len()
    }
}

const APP: &str = "module \"a\" {\n  source = \"../../modules/a\"\n}\n";

/// An application with modules, and an unrelated one.
const FILES: &[(&str, &str)] = &[
    ("README.md", "one\n"),
    ("stacks/app/main.tf", APP),
    ("stacks/app/old.tf", "# old\n"),
    ("stacks/other/main.tf", "# other\n"),
    (
        "modules/a/main.tf",
        "module \"b\" {\n  source = \"../b\"\n}\n",
    ),
    ("modules/b/main.tf", "# b\n"),
    ("shared/tags.json", "{}\n"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layer_gets_only_relevant_commits() {
    let app = json!({"path": "stacks/app", "triggerPaths": ["shared/**"]});
    let mut world = World::new(&[("app", app), ("other", json!({"path": "stacks/other"}))]).await;
    let first = world.commit("main", FILES);
    assert_eq!(world.look().await, ["app", "other"]);
    let source = world.source("app");
    assert_eq!(
        (source.revision.as_str(), source.missing.as_deref()),
        (first.as_str(), None)
    );
    assert_eq!(world.read(&first, "stacks/app/main.tf"), APP);
    let commit = world.status().refs[0].commit.clone().unwrap();
    assert_eq!(
        commit.author.as_deref(),
        Some("Pawl Tests <tests@pawl.invalid>")
    );
    assert_eq!(
        (commit.subject.as_deref(), commit.digest),
        (Some("Change 7 paths"), Some(format!("sha256:{first}")))
    );

    // Without news, nothing is written or fetched.
    let (writes, asked) = (world.writes, world.server.requests("team/stacks"));
    assert!(world.look().await.is_empty());
    assert_eq!((world.writes, world.puts()), (writes, 1));
    assert!(
        world.server.requests("team/stacks") - asked <= 2,
        "it was asked for its refs only"
    );

    // Burrito 11.3, Burrito 11.4: each layer gets exactly the commit that changed its content. Burrito 11.10: deletions and renames are
    // relevant.
    let steps: [(&str, &[Change<'_>], &[&str]); 7] = [
        ("of no layer", &[Change::File("README.md", b"two\n")], &[]),
        (
            "its own",
            &[Change::File("stacks/app/old.tf", b"# two\n")],
            &["app"],
        ),
        (
            "a nested module",
            &[Change::File("modules/b/main.tf", b"# b two\n")],
            &["app"],
        ),
        (
            "a trigger path",
            &[Change::File("shared/tags.json", b"{\"a\": 1}\n")],
            &["app"],
        ),
        (
            "a deletion",
            &[Change::Delete("stacks/app/old.tf")],
            &["app"],
        ),
        (
            "a rename",
            &[
                Change::Delete("stacks/other/main.tf"),
                Change::File("stacks/other/all.tf", b"# other\n"),
            ],
            &["other"],
        ),
        (
            "both",
            &[
                Change::File("modules/a/x.tf", b""),
                Change::File("stacks/other/y.tf", b""),
            ],
            &["app", "other"],
        ),
    ];
    for (what, changes, told) in steps {
        let commit = world.repo.commit_changes("main", changes).unwrap();
        assert_eq!(world.look().await, told, "{what}");
        for layer in told {
            assert_eq!(world.source(layer).revision, commit, "{what}");
        }
        assert_eq!(world.revision("main"), commit);
    }
    assert_eq!(world.puts(), 8);

    // Several commits at once: the last one is planned and includes the others.
    world.commit("main", &[("modules/a/x.tf", "# x\n")]);
    let last = world.commit("main", &[("README.md", "three\n")]);
    assert_eq!(world.look().await, ["app"]);
    assert_eq!(world.source("app").revision, last);
    assert_eq!(world.read(&last, "modules/a/x.tf"), "# x\n");
}

/// A stack and 63 modules, each called by the one before, are followed; one module more is named, and from then on each commit counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chain_of_modules_is_followed_to_its_limit() {
    let mut world = World::new(&[("app", json!({"path": "m0"}))]).await;
    let called = |next: usize| format!("module \"m\" {{\n  source = \"../m{next}\"\n}}\n");
    let chain: Vec<_> = (0..64)
        .map(|n| {
            let text = if n < 63 { called(n + 1) } else { String::new() };
            (format!("m{n}/main.tf"), text)
        })
        .collect();
    let chain: Vec<_> = chain
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    world.commit("main", &chain);
    assert_eq!(world.look().await, ["app"]);
    assert!(world.source("app").not_followed.is_empty());
    world.commit("main", &[("README.md", "of no layer\n")]);
    assert!(world.look().await.is_empty());
    let last = world.commit("main", &[("m63/main.tf", "# last\n")]);
    assert_eq!(world.look().await, ["app"]);
    assert_eq!(world.source("app").revision, last);

    world.commit("main", &[("m63/main.tf", &called(64)), ("m64/main.tf", "")]);
    assert_eq!(world.look().await, ["app"]);
    assert_eq!(
        world.source("app").not_followed,
        ["modules or links in a chain longer than 64: each commit counts"]
    );
    let beside = world.commit("main", &[("README.md", "beside\n")]);
    assert_eq!(world.look().await, ["app"]);
    assert_eq!(world.source("app").revision, beside);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_mirror_and_force_push_lose_nothing() {
    let mut world = World::new(&[("app", json!({"path": "stacks/app"}))]).await;
    let first = world.commit("main", FILES);
    world.look().await;
    let content = world.source("app").content;
    // The mirror is lost between two checks, and between two fetches.
    fs::remove_dir_all(world.dirs[1].path().join("uid")).unwrap();
    let second = world.commit("main", &[("README.md", "two\n")]);
    assert!(
        world.look().await.is_empty(),
        "the content is what it was, without a history to say so"
    );
    assert_eq!(
        (
            world.revision("main"),
            world.source("app").content,
            world.source("app").revision
        ),
        (second.clone(), content, first.clone())
    );

    // The branch restarts from the first commit, with other content.
    world.repo.reset("main", Some(&first)).unwrap();
    let forced = world.commit("main", &[("stacks/app/main.tf", "# forced\n")]);
    assert_eq!(world.look().await, ["app"]);
    assert_eq!(world.source("app").revision, forced);

    // An incomplete mirror is not a permanent failure.
    let dir = world.dirs[1].path().join("uid");
    fs::remove_dir_all(dir.join("objects")).unwrap();
    fs::create_dir(dir.join("objects")).unwrap();
    let last = world.commit("main", &[("stacks/app/main.tf", "# last\n")]);
    for _ in 0..3 {
        world.look_for(Cause::Request, Ok(None)).await;
    }
    assert_eq!(world.source("app").revision, last, "{:?}", world.status());
}

/// Burrito 11.12: one failing ref was retried every ten seconds forever, and hid the others' errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_branch_does_not_stop_the_others() {
    let layers = [
        ("good", json!({"path": "stacks/app"})),
        ("gone", json!({"path": "stacks/app", "ref": "feature"})),
        ("fixed", json!({"path": "stacks/other"})),
    ];
    let mut world = World::new(&layers).await;
    let first = world.commit("main", FILES);
    world.layer("fixed", &json!({"path": "stacks/other", "ref": first}));
    let feature = world.commit("feature", FILES);
    assert_eq!(world.look().await.len(), 3);
    world.repo.reset("feature", None).unwrap();
    let second = world.commit("main", &[("stacks/app/main.tf", "# two\n")]);
    assert_eq!(world.look().await, ["good"]);
    assert_eq!(
        (world.revision("main"), world.revision(&first)),
        (second, first)
    );
    let known = world
        .status()
        .refs
        .iter()
        .find(|known| known.name == "feature")
        .unwrap();
    let failure = known.failure.clone().unwrap();
    assert_eq!(
        (failure.reason.as_str(), failure.times),
        ("RevisionNotFound", 1),
        "{}",
        failure.message
    );
    assert_eq!(
        world.source("gone").revision,
        feature,
        "the layer keeps what it has"
    );
    // Checked along with the others, the failing ref costs nothing and is not counted early.
    world.now -= jiff::SignedDuration::from_secs(299);
    let writes = world.writes;
    world.look().await;
    assert_eq!(world.writes, writes);
    let back = world.commit("feature", &[("stacks/app/main.tf", "# back\n")]);
    assert_eq!(world.look().await, ["gone"]);
    assert_eq!(world.revision("feature"), back);
    assert_eq!(
        world.condition("Ready")[0],
        "True",
        "{:?}",
        world.condition("Ready")
    );
}

/// Burrito 11.11: a transient error ended polling. Here a failed check has a successor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_is_reported_once_and_recovers() {
    let mut world = World::new(&[("app", json!({"path": "stacks/app"}))]).await;
    let first = world.commit("main", FILES);
    world.server.fail("team/stacks", Failure::Status(503));
    world.look().await;
    assert_eq!(
        world.condition("Synced")[..2],
        ["False", "SourceUnreachable"]
    );
    let writes = world.writes;
    world.look().await;
    assert_eq!(world.writes, writes, "the same outage");
    world.server.fail("team/stacks", Failure::None);
    world
        .server
        .set_access("team/stacks", Access::basic("robot", "s3cret"));
    world.look().await;
    assert_eq!(
        world.condition("Synced")[..2],
        ["False", "SourceUnauthorized"]
    );
    let secret = BTreeMap::from([
        ("username".to_owned(), b"robot".to_vec()),
        ("password".to_owned(), b"s3cret".to_vec()),
    ]);
    assert_eq!(
        world
            .look_for(Cause::Interval, Ok(Some(("git".into(), secret))))
            .await,
        ["app"]
    );
    assert_eq!(
        (world.condition("Synced")[0], world.revision("main")),
        ("True", first)
    );
    let said = serde_json::to_string(world.status()).unwrap();
    assert!(!said.contains("s3cret"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_paths_lost_snapshots_and_submodules_are_handled() {
    let mut world = World::new(&[("app", json!({"path": "stack/app", "ref": "v1"}))]).await;
    let module = world.server.create("team/module").unwrap();
    let commit = module.commit("main", &[("main.tf", "# module\n")]).unwrap();
    module.commit("main", &[("main.tf", "# newer\n")]).unwrap();
    let gitmodules = b"[submodule \"m\"]\n\tpath = modules/m\n\turl = ../module.git\n";
    world.commit("v1", FILES);
    let changes = [
        Change::File(".gitmodules", gitmodules),
        Change::Submodule("modules/m", &commit),
    ];
    let first = world.repo.commit_changes("v1", &changes).unwrap();
    assert_eq!(world.look().await, ["app"]);
    let source = world.source("app");
    let missing = source.missing.unwrap();
    assert!(
        missing.starts_with(
            "stack/app is not in the repository; at its top it has: modules, shared, stacks"
        ),
        "{missing}"
    );
    assert_eq!(world.read(&first, "modules/m/main.tf"), "# module\n");
    // The layer uses another path: its content is determined from the mirror.
    world.layer("app", &json!({"path": "stacks/app", "ref": "v1"}));
    assert_eq!(world.look().await, ["app"]);
    assert_eq!((world.source("app").missing, world.puts()), (None, 1));

    // The datastore lost the snapshot: a request restores it.
    world.syncer.snapshots.delete("", "", &first).await.unwrap();
    world.repository.metadata.annotations =
        Some([(names::RECONCILE.to_owned(), "1".to_owned())].into());
    world.look_for(Cause::Request, Ok(None)).await;
    assert_eq!(
        (
            world.puts(),
            world.status().last_handled_reconcile.as_deref()
        ),
        (2, Some("1"))
    );

    let evil = b"[submodule \"m\"]\n\tpath = modules/m\n\turl = file:///etc\n";
    world
        .repo
        .commit_changes("v1", &[Change::File(".gitmodules", evil)])
        .unwrap();
    assert!(world.look().await.is_empty());
    let failure = world.status().refs[0].failure.clone().unwrap();
    assert_eq!(failure.reason, "SourceInvalid", "{}", failure.message);
    assert!(
        failure.message.contains("modules/m leads to file:///etc"),
        "{}",
        failure.message
    );
    assert_eq!(
        world.revision("v1"),
        first,
        "a commit without a snapshot is not published"
    );
}
