//! Revisions of repositories: the real datastore, whose API server is the in-memory run, and an attempt that takes its code from there.

use std::{fs, net::TcpListener, path::Path, process::Command, sync::Arc, time::Duration};

use crds::{FailureClass, RunResult, TerraformRepository, TerraformRepositorySpec, reason};
use datastore::{
    blob::sealed::Sealed,
    cluster::RunView,
    names::{LogKey, RunKey},
    objects::log::Logs,
    service::Service,
    testing::{FakeCluster, collect, open, write_key},
};
use datastore_client::{
    attempt::Content,
    sources::{RepositoryId, Sources},
};
use harness::wait;
use runner_agent::settings::{self, Settings};
use serde_json::{Value, json};
use serving::{
    auth::{Identity, PodIdentity},
    connections::{self, Limits},
    tls,
};
use source::snapshot::Header;
use tokio::sync::watch;
use tool_versions::Digest;

use crate::{
    common::{Attempt, GATE, PATIENCE, start, start_with},
    memory_api::MemoryApi,
};

const SOURCES: &str = "system:serviceaccount:pawl:pawl-sources";
const REPOSITORY: RepositoryId<'_> = RepositoryId {
    namespace: "team",
    uid: "uid-of-infra",
};

/// The pod of the run's attempt.
fn pod() -> Identity {
    let pod = PodIdentity {
        namespace: "team".into(),
        name: "vpc-xxxxx-a1".into(),
        uid: "pod-1".into(),
    };
    Identity {
        user: "system:serviceaccount:team:vpc".into(),
        pod: Some(pod),
        ..Identity::default()
    }
}

/// A datastore in this process.
pub(crate) struct Datastore {
    dir: tempfile::TempDir,
    cluster: Arc<FakeCluster>,
    url: String,
    authority: String,
    _stop: watch::Sender<bool>,
}

impl Datastore {
    /// Starts with the repository `infra` in the run's namespace, without snapshots.
    pub(crate) fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        for token in ["pod", "sources"] {
            fs::write(dir.path().join(token), token).unwrap();
        }
        fs::create_dir(dir.path().join("keys")).unwrap();
        write_key(&dir.path().join("keys"), "k1", 1);
        let sealed = opened(dir.path());
        let cluster = Arc::new(FakeCluster::default());
        cluster.token("pod", pod());
        cluster.token(
            "sources",
            Identity {
                user: SOURCES.into(),
                ..Identity::default()
            },
        );
        let (stop, stopped) = watch::channel(false);
        let service = Service::new(
            sealed,
            cluster.clone(),
            "system:serviceaccount:pawl:pawl-controller".into(),
            stopped.clone(),
        );
        let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let authority = signed.cert.pem();
        let files = tls::Files::of(
            authority.clone().into_bytes(),
            signed.signing_key.serialize_pem().into_bytes(),
        );
        let (_, config) = watch::channel(Arc::new(files.config(None).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!(
            "https://localhost:{}",
            listener.local_addr().unwrap().port()
        );
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let service = Arc::new(service.fed_by(Some(SOURCES.into())));
        let (router, limits) = (
            datastore::http::router(service),
            Limits {
                connections: 16,
                head: Duration::from_secs(60),
            },
        );
        tokio::spawn(connections::serve(
            router,
            || (),
            limits,
            listener,
            Some(config),
            stopped,
        ));
        fs::write(dir.path().join("ca.crt"), &authority).unwrap();
        let store = Self {
            dir,
            cluster,
            url,
            authority,
            _stop: stop,
        };
        store.repository("team", &[]);
        store
    }

    fn repository(&self, namespace: &str, allowed: &[&str]) {
        let allowed_namespaces = allowed.iter().map(|name| (*name).to_owned()).collect();
        let spec = TerraformRepositorySpec {
            allowed_namespaces,
            ..TerraformRepositorySpec::default()
        };
        let mut repository = TerraformRepository::new("infra", spec);
        repository.metadata.namespace = Some(namespace.into());
        repository.metadata.uid = Some(REPOSITORY.uid.into());
        self.cluster
            .repositories
            .lock()
            .unwrap()
            .insert((namespace.into(), "infra".into()), repository);
    }

    async fn put(&self, of: RepositoryId<'_>, revision: &str, snapshot: Vec<u8>) {
        let at = |name: &str| self.dir.path().join(name);
        let sources = Sources::new(&self.url, at("ca.crt"), at("sources"));
        let (size, digest) = (
            snapshot.len() as u64,
            format!("sha256:{}", Digest::of(&snapshot)),
        );
        assert_eq!(sources.digest(of, revision).await.unwrap(), None);
        let stored = sources
            .put(
                of,
                revision,
                Content {
                    body: snapshot.into(),
                    size,
                    digest,
                },
            )
            .await
            .unwrap();
        assert_eq!(sources.digest(of, revision).await.unwrap(), Some(stored));
        assert_eq!(sources.list(of).await.unwrap(), [revision]);
    }

    fn run(&self, revision: &str, more: &Value) -> Attempt {
        let mut repository =
            json!({"name": "infra", "revision": revision, "ref": "main", "path": "stacks/net"});
        repository
            .as_object_mut()
            .unwrap()
            .extend(more["repository"].as_object().cloned().unwrap_or_default());
        // A backend of its own: the tool is a script.
        let mut spec = json!({"stack": "net", "source": {"repository": repository},
            "backend": {"type": "http", "config": {"address": "http://state/x"}}});
        spec.as_object_mut()
            .unwrap()
            .extend(more["spec"].as_object().cloned().unwrap_or_default());
        start_with(&spec, &[], |settings, api| self.give(settings, api))
    }

    /// Configures an attempt to use it.
    pub(crate) fn give(&self, settings: &mut Settings, api: &MemoryApi) {
        let api = api.clone();
        let live = move || {
            RunView::of(&serde_json::from_value(api.state.lock().unwrap().object.clone()).unwrap())
        };
        *self.cluster.live.lock().unwrap() = Some(Box::new(live));
        let token = self.dir.path().join("pod");
        settings.store = Some(settings::Store {
            url: self.url.clone(),
            ca: self.authority.clone(),
            token,
        });
    }
}

impl Datastore {
    /// Forgets all runs, and so refuses their data.
    pub(crate) fn forget(&self) {
        *self.cluster.live.lock().unwrap() = None;
    }

    /// A phase's log as another replica of the datastore reads it.
    async fn log(&self, phase: &'static str) -> String {
        let key = LogKey {
            run: RunKey::new("team", "uid-1").unwrap(),
            attempt: 1,
            phase,
        };
        let logs = Arc::new(Logs::new(opened(self.dir.path())));
        let index = logs.index(&key).await.unwrap();
        String::from_utf8(collect(logs.read(&key, &index, 0)).await.unwrap()).unwrap()
    }
}

/// The store in the directory of a datastore.
fn opened(dir: &Path) -> Sealed {
    open(&dir.join("data"), &dir.join("keys"))
}

/// The snapshot of a commit with these files, and its id.
fn snapshot(files: &[(&str, &str)]) -> (String, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let git = |dir: &Path| {
        let mut git = Command::new("git");
        git.current_dir(dir)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1");
        for who in ["AUTHOR", "COMMITTER"] {
            git.env(format!("GIT_{who}_NAME"), "a")
                .env(format!("GIT_{who}_EMAIL"), "a@b");
        }
        git
    };
    let run = |args: &[&str]| {
        let ended = git(dir.path()).args(args).output().unwrap();
        assert!(
            ended.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&ended.stderr)
        );
        String::from_utf8(ended.stdout).unwrap().trim().to_owned()
    };
    run(&["init", "-q", "."]);
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    run(&["add", "-A"]);
    run(&["commit", "-q", "-m", "x"]);
    let revision = run(&["rev-parse", "HEAD"]);
    let header = Header {
        remotes: vec![(
            "https://git.invalid/team/infra-live.git".into(),
            revision.clone(),
        )],
        ..Header::default()
    };
    let (mut packed, of) = (Vec::new(), dir.path().join(".git"));
    let scratch = of.join("scratch");
    source::snapshot::pack(git(dir.path()), &of, header, &[], &scratch, &mut packed).unwrap();
    (revision, packed)
}

/// All names below a directory.
fn stored(dir: &Path) -> String {
    String::from_utf8(Command::new("find").arg(dir).output().unwrap().stdout).unwrap()
}

fn good() -> (String, Vec<u8>) {
    snapshot(&[("stacks/net/main.tf", "locals {}\n"), ("README.md", "x")])
}

#[tokio::test]
async fn token_renewed_during_the_apply_is_used() {
    crate::common::alone();
    let store = Datastore::start();
    let (revision, packed) = good();
    store.put(REPOSITORY, &revision, packed).await;
    let spec = json!({"stack": "net", "source": {"repository": {"name": "infra", "revision": revision, "path": "stacks/net"}},
        "backend": {"type": "http", "config": {"address": "http://state/x"}}});
    let mut a = start_with(&spec, &[("APPLY", GATE)], |settings, api| {
        store.give(settings, api);
    });
    a.until_ran("apply").await;
    // As the kubelet does, long before an apply of hours ends.
    store.cluster.token("renewed", pod());
    store.cluster.expire("pod");
    fs::write(store.dir.path().join("pod"), "renewed").unwrap();
    store.cluster.reviewed.lock().unwrap().clear();
    a.open();
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
    assert!(
        store
            .cluster
            .reviewed
            .lock()
            .unwrap()
            .contains(&"renewed".to_owned()),
        "{:?}",
        store.cluster.reviewed
    );
    assert!(
        stored(&store.dir.path().join("data")).contains("/result"),
        "what comes behind the apply is there"
    );
}

/// A reader that follows a log gets each line at once, and not only when more lines follow.
#[tokio::test]
async fn each_line_is_stored_before_the_next() {
    crate::common::alone();
    let store = Datastore::start();
    let says = "for n in 1 2 3 4 5; do echo \"line $n of $phase\"; until [ -e $LEDGER.$phase.$n ] || [ ! -e $LEDGER ]; do sleep 0.02; done; done";
    let (plan, apply) = (
        format!("phase=plan; {says}"),
        format!("phase=apply; {says}"),
    );
    let spec = json!({"stack": "net", "backend": {"type": "http", "config": {"address": "http://state/x"}}});
    let mut a = start_with(
        &spec,
        &[("PLAN", &plan), ("APPLY", &apply)],
        |settings, api| store.give(settings, api),
    );
    for phase in ["plan", "apply"] {
        for n in 1..=5 {
            let line = format!("line {n} of {phase}\n");
            wait::until("its line can be read", PATIENCE, async || {
                Ok(if store.log(phase).await.contains(&line) {
                    Ok(())
                } else {
                    Err(format!(": {line}{}", a.log()))
                })
            })
            .await
            .unwrap();
            fs::write(a.dir.path().join(format!("ledger.{phase}.{n}")), "").unwrap();
        }
    }
    assert_eq!(a.end().await, 0, "{}", a.log());
    assert_eq!(a.api.status().result, Some(RunResult::Applied));
}

#[tokio::test]
async fn revision_is_awaited_verified_and_applied() {
    crate::common::alone();
    let store = Datastore::start();
    let (revision, packed) = good();
    let mut a = store.run(&revision, &json!({}));
    a.until_said(&format!(
        "revision {revision} of TerraformRepository infra is not stored yet; it is waited for"
    ))
    .await;
    store.put(REPOSITORY, &revision, packed).await;
    let status = a.ends(0).await;
    assert_eq!(status.result, Some(RunResult::Applied));
    assert_eq!(status.plan.unwrap().revision, Some(revision.clone()));
    let setup = status
        .history
        .into_iter()
        .find(|line| line.contains("Setup"))
        .unwrap_or_default();
    assert!(
        setup.contains(&format!("repository infra {} of main", &revision[..7])),
        "{setup}"
    );
}

#[tokio::test]
async fn repository_of_another_namespace_must_allow_runs() {
    crate::common::alone();
    let store = Datastore::start();
    let (revision, packed) = good();
    let elsewhere = RepositoryId {
        namespace: "platform",
        ..REPOSITORY
    };
    store.put(elsewhere, &revision, packed).await;
    let of = json!({"repository": {"namespace": "platform"}});
    for allowed in [None, Some("other")] {
        if let Some(allowed) = allowed {
            store.repository("platform", &[allowed]);
        }
        let mut a = store.run(&revision, &of);
        let failure = a
            .fails(FailureClass::Policy, reason::REPOSITORY_NOT_ALLOWED)
            .await;
        assert!(
            failure.message.contains("names team in allowedNamespaces") && a.ledger().is_empty(),
            "{failure:?}"
        );
    }
    store.repository("platform", &["other", "team"]);
    let mut a = store.run(&revision, &of);
    a.ends(0).await;
}

#[tokio::test]
async fn unavailable_revision_fails_before_the_tool_starts() {
    crate::common::alone();
    let store = Datastore::start();
    let (revision, _) = good();
    // The agent waits for half of Setup's timeout.
    let short = json!({"spec": {"timeouts": {"setup": "4s"}}});
    let mut a = store.run(&revision, &short);
    let failure = a
        .fails(FailureClass::Transient, reason::SOURCE_NOT_READY)
        .await;
    assert!(
        failure
            .message
            .contains("kubectl describe tfrepo.pawl.run/infra")
            && a.ledger().is_empty(),
        "{failure:?}"
    );
    // The snapshot of another commit with this one's name, and one with a changed byte.
    let (other, foreign) = snapshot(&[("stacks/net/main.tf", "locals { evil = 1 }\n")]);
    assert_ne!(other, revision);
    store.put(REPOSITORY, &revision, foreign).await;
    let mut a = store.run(&revision, &json!({}));
    let failure = a
        .fails(FailureClass::Integrity, reason::SOURCE_CORRUPT)
        .await;
    assert!(
        failure
            .message
            .contains(&format!("the snapshot is of commit {other}"))
            && a.ledger().is_empty(),
        "{failure:?}"
    );
    let source =
        json!({"stack": "net", "source": {"repository": {"name": "infra", "revision": revision}}});
    let mut a = start(&source, &[]);
    let failure = a
        .fails(FailureClass::Configuration, reason::INVALID_SPEC)
        .await;
    assert!(
        failure
            .message
            .starts_with("source.repository needs a datastore"),
        "{failure:?}"
    );
}

/// The state's key is often computed from the name of the repository, so that of `src` would be another, empty state.
#[tokio::test]
async fn git_answers_in_a_layers_run_as_in_a_clone() {
    crate::common::alone();
    let store = Datastore::start();
    let (revision, packed) = good();
    store.put(REPOSITORY, &revision, packed).await;
    let asks = "for q in 'rev-parse --show-toplevel' 'rev-parse --abbrev-ref HEAD' 'rev-parse HEAD' 'remote get-url origin' 'rev-parse --show-prefix'; do
        echo \"answer $(git $q | sed 's|.*/src/|/|')\"; done";
    let mut a = start_with(
        &json!({"stack": "net", "backend": {"type": "http", "config": {"address": "http://state/x"}},
            "source": {"repository": {"name": "infra", "revision": revision, "ref": "main", "path": "stacks/net"}}}),
        &[("PLAN", asks), ("APPLY", asks)],
        |settings, api| store.give(settings, api),
    );
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
    a.until_said("pawl: applied").await;
    let log = a.log();
    let answers = log
        .lines()
        .filter_map(|line| Some(line.split_once("answer ")?.1));
    let url = "https://git.invalid/team/infra-live.git";
    let expected = ["/infra-live", "main", &revision, url, "stacks/net/"];
    assert_eq!(
        answers.collect::<Vec<_>>(),
        [expected, expected].concat(),
        "{log}"
    );
}

#[tokio::test]
async fn stack_with_pointers_of_lfs_is_refused() {
    crate::common::alone();
    let store = Datastore::start();
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 1\n",
        "a".repeat(64)
    );
    let (revision, packed) = snapshot(&[
        (".gitattributes", "*.zip filter=lfs\n"),
        ("stacks/net/main.tf", ""),
        ("stacks/net/code.zip", &pointer),
    ]);
    store.put(REPOSITORY, &revision, packed).await;
    let mut a = store.run(&revision, &json!({}));
    let failure = a
        .fails(FailureClass::Configuration, reason::SOURCE_INVALID)
        .await;
    assert!(
        failure
            .message
            .starts_with("git has only pointers to stacks/net/code.zip"),
        "{failure:?}"
    );
}
