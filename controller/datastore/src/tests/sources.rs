//! Snapshots of repositories: writers, readers, and deletion.

use axum::{body::Body, http::Request};
use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crds::{
    RepositorySource, TerraformRepository, TerraformRepositorySpec,
    datastore::{
        FORBIDDEN, HEADER_DIGEST, INVALID, NOT_FOUND, REPLACED, REPOSITORY_NOT_ALLOWED,
        SOURCE_NOT_READY, Stored, UNAVAILABLE, WANTED_PATH, WRONG_DIGEST, snapshots_path,
    },
};

use super::{Answer, Lab, digest, noise, view};
use crate::{cluster::RunView, gc::sweep};

const UID: &str = "22222222-2222";
const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";

/// Sends a request of `controller sources`.
async fn of_sources(lab: &Lab, method: &str, uid: &str, rest: &str, body: &[u8]) -> Answer {
    let (path, digest) = (
        format!("{}{rest}", snapshots_path("team", uid)),
        digest(body),
    );
    let mut headers = vec![("authorization", "Bearer sources")];
    if method == "PUT" {
        headers.push((HEADER_DIGEST, &digest));
    }
    lab.send(method, &path, &headers, body.to_vec()).await
}

async fn store(lab: &Lab, uid: &str, body: &[u8]) {
    let answer = of_sources(lab, "PUT", uid, &format!("/{REVISION}"), body).await;
    assert_eq!(answer.code, 200, "{answer:?}");
}

fn repository(lab: &Lab, namespace: &str, uid: &str, allowed: &[&str]) {
    let spec = TerraformRepositorySpec {
        allowed_namespaces: allowed.iter().map(|name| (*name).to_owned()).collect(),
        ..TerraformRepositorySpec::default()
    };
    let mut repository = TerraformRepository::new("infra", spec);
    repository.metadata.namespace = Some(namespace.into());
    repository.metadata.uid = Some(uid.into());
    lab.cluster
        .repositories
        .lock()
        .unwrap()
        .insert((namespace.into(), "infra".into()), repository);
}

fn of(namespace: Option<&str>) -> RunView {
    let source = RepositorySource {
        git_ref: None,
        name: "infra".into(),
        namespace: namespace.map(Into::into),
        revision: REVISION.into(),
        path: ".".into(),
    };
    RunView {
        source: Some(Box::new(source)),
        ..view(1, true)
    }
}

#[tokio::test]
async fn snapshot_is_stored_once_listed_and_deleted() {
    let lab = Lab::new();
    let path = format!("/{REVISION}");
    assert_eq!(
        of_sources(&lab, "GET", UID, &format!("{path}/digest"), b"")
            .await
            .reason(),
        NOT_FOUND
    );
    let body = noise(300_000, 1);
    let stored = serde_json::to_value(Stored {
        digest: digest(&body),
        size: 300_000,
    })
    .unwrap();
    assert_eq!(
        of_sources(&lab, "PUT", UID, &path, &body).await.json(),
        stored
    );
    assert_eq!(
        of_sources(&lab, "PUT", UID, &path, &noise(300_000, 2))
            .await
            .json(),
        stored,
        "the first one stays"
    );
    assert_eq!(
        of_sources(&lab, "GET", UID, &format!("{path}/digest"), b"")
            .await
            .json(),
        stored
    );
    assert_eq!(
        of_sources(&lab, "GET", UID, "", b"").await.json(),
        json!([REVISION])
    );
    assert_eq!(
        of_sources(&lab, "GET", "33333333-3333", "", b"")
            .await
            .json(),
        json!([])
    );
    let blobs = lab
        .files()
        .iter()
        .filter(|path| path.to_string_lossy().contains("/blobs/"))
        .count();
    assert_eq!(blobs, 1, "{:?}", lab.files());
    for _ in 0..2 {
        assert_eq!(of_sources(&lab, "DELETE", UID, &path, b"").await.code, 200);
        assert!(lab.files().is_empty(), "{:?}", lab.files());
    }
    let other = digest(b"other");
    let headers = [
        ("authorization", "Bearer sources"),
        (HEADER_DIGEST, other.as_str()),
    ];
    let path = format!("{}{path}", snapshots_path("team", UID));
    assert_eq!(
        lab.send("PUT", &path, &headers, &b"x"[..]).await.reason(),
        WRONG_DIGEST
    );
    assert_eq!(
        lab.send("PUT", &path, &headers[..1], &b"x"[..])
            .await
            .reason(),
        INVALID
    );
}

#[tokio::test]
async fn only_the_sources_process_stores_snapshots() {
    let mut lab = Lab::new();
    let base = snapshots_path("team", UID);
    let body_digest = digest(b"x");
    let asks = [
        ("PUT", format!("/{REVISION}")),
        ("GET", format!("/{REVISION}/digest")),
        ("GET", String::new()),
        ("DELETE", format!("/{REVISION}")),
    ];
    for (method, rest) in &asks {
        for token in ["Bearer pod-1", "Bearer controller"] {
            let headers = [
                ("authorization", token),
                (HEADER_DIGEST, body_digest.as_str()),
            ];
            let answer = lab
                .send(method, &format!("{base}{rest}"), &headers, &b"x"[..])
                .await;
            assert_eq!(
                answer.brief(),
                "403 Forbidden",
                "{method} {rest} by {token}"
            );
        }
    }
    assert_eq!(lab.send("GET", &base, &[], Body::empty()).await.code, 401);
    assert_eq!(
        lab.of_pod("sources", "GET", 1, "source", b"")
            .await
            .reason(),
        FORBIDDEN,
        "nor does it read what pods do"
    );
    // Without a configured user of `controller sources`, an empty name matches nobody.
    std::sync::Arc::get_mut(&mut lab.service).unwrap().sources = None;
    assert_eq!(
        of_sources(&lab, "GET", UID, "", b"").await.reason(),
        FORBIDDEN
    );
}

#[tokio::test]
async fn run_reads_the_revision_of_its_own_spec() {
    let lab = Lab::new();
    assert_eq!(lab.get("source").await.reason(), INVALID, "it names none");
    lab.cluster.set(of(None));
    let missing = lab.get("source").await;
    let message = "there is no TerraformRepository infra in namespace team";
    assert_eq!(
        (missing.code, missing.problem().message.as_str()),
        (404, message)
    );
    repository(&lab, "team", UID, &[]);
    let missing = lab.get("source").await;
    assert_eq!(missing.brief(), "404 SourceNotReady");
    assert!(
        missing.problem().message.ends_with("is not stored yet"),
        "{missing:?}"
    );
    let body = noise(300_000, 1);
    store(&lab, UID, &body).await;
    let read = lab.get("source").await;
    assert!(read.body.as_deref() == Some(body.as_slice()));
    assert_eq!(read.headers[HEADER_DIGEST], digest(&body).as_str());
    // A recreated repository has nothing of its predecessor.
    repository(&lab, "team", "33333333-3333", &[]);
    assert_eq!(lab.get("source").await.reason(), SOURCE_NOT_READY);
    repository(&lab, "team", UID, &[]);
    lab.cluster.set(RunView {
        attempt: view(1, false).attempt,
        ..of(None)
    });
    assert_eq!(
        lab.get("source").await.reason(),
        REPLACED,
        "the attempt is closed"
    );
    lab.cluster.set(of(None));
    lab.cluster
        .down
        .store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(lab.get("source").await.reason(), UNAVAILABLE);
}

#[tokio::test]
async fn only_missing_revisions_that_a_run_may_read_are_wanted() {
    let lab = Lab::new();
    let wanted = || serde_json::to_value(lab.service.wanted.list()).unwrap();
    lab.cluster.set(of(Some("platform")));
    repository(&lab, "platform", "33333333-3333", &[]);
    lab.asks("pod-1", &[("GET source", b"", "403 RepositoryNotAllowed")])
        .await;
    assert_eq!(wanted(), json!([]));
    lab.cluster.set(of(None));
    repository(&lab, "team", UID, &[]);
    lab.asks("pod-1", &[("GET source", b"", "404 SourceNotReady")])
        .await;
    assert_eq!(
        wanted(),
        json!([{"namespace": "team", "uid": UID, "revision": REVISION}])
    );
    store(&lab, UID, &noise(1000, 1)).await;
    assert_eq!(wanted(), json!([]));
}

#[tokio::test]
async fn controller_asks_for_the_revision_of_a_run_that_has_no_pod() {
    let lab = Lab::new();
    let run = RunView {
        attempt: None,
        ..of(None)
    };
    let path = format!("/source/{}", run.name);
    lab.cluster.set(run);
    repository(&lab, "team", UID, &[]);
    let missing = lab.of_controller("GET", &path).await;
    assert_eq!(missing.brief(), "404 SourceNotReady");
    assert_eq!(lab.service.wanted.list().len(), 1);
    store(&lab, UID, &noise(1000, 1)).await;
    assert_eq!(lab.of_controller("GET", &path).await.code, 200);
    assert_eq!(lab.of_controller("GET", "/source/another").await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn wanted_stream_ends_with_the_token() {
    let lab = Lab::new();
    for token in ["Bearer pod-1", "Bearer controller"] {
        let refused = lab
            .send(
                "GET",
                WANTED_PATH,
                &[("authorization", token)],
                Body::empty(),
            )
            .await;
        assert_eq!(refused.reason(), FORBIDDEN, "{token}");
    }
    let request = Request::builder()
        .uri(WANTED_PATH)
        .header("authorization", "Bearer sources")
        .body(Body::empty());
    let answer = super::answer(&lab.service, request.unwrap(), None).await;
    let mut lines = answer.into_body().into_data_stream();
    let begun = tokio::time::Instant::now();
    let mut line = async || {
        lines
            .next()
            .await
            .map(|line| String::from_utf8(line.unwrap().to_vec()).unwrap())
    };
    assert_eq!(line().await.as_deref(), Some("[]\n"));
    lab.cluster.set(of(None));
    repository(&lab, "team", UID, &[]);
    assert_eq!(lab.get("source").await.reason(), SOURCE_NOT_READY);
    let told = line().await.unwrap();
    assert!(
        told.contains(REVISION) && begun.elapsed().is_zero(),
        "at once: {told}"
    );
    store(&lab, UID, &noise(1000, 1)).await;
    assert_eq!(
        (line().await.as_deref(), begun.elapsed().as_secs()),
        (Some("[]\n"), 10),
        "and again"
    );
    while line().await.is_some() {}
    assert_eq!(begun.elapsed().as_secs(), 60);
}

#[tokio::test]
async fn foreign_repository_is_hidden_unless_it_allows_the_namespace() {
    let lab = Lab::new();
    lab.cluster.set(of(Some("platform")));
    let nobody = lab.get("source").await;
    assert_eq!(nobody.brief(), "403 RepositoryNotAllowed");
    repository(&lab, "platform", UID, &["other"]);
    assert_eq!(
        lab.get("source").await.problem(),
        nobody.problem(),
        "that it is there is not told"
    );
    let path = format!("{}/{REVISION}", snapshots_path("platform", UID));
    let sum = digest(b"x");
    let headers = [
        ("authorization", "Bearer sources"),
        (HEADER_DIGEST, sum.as_str()),
    ];
    assert_eq!(lab.send("PUT", &path, &headers, &b"x"[..]).await.code, 200);
    assert_eq!(
        lab.get("source").await.problem(),
        nobody.problem(),
        "nor what it has"
    );
    repository(&lab, "platform", UID, &["other", "team"]);
    assert_eq!(lab.get("source").await.text(), "x");
    // The run's own namespace has another repository of that name.
    lab.cluster.set(of(None));
    repository(&lab, "team", "33333333-3333", &[]);
    assert_eq!(lab.get("source").await.reason(), SOURCE_NOT_READY);
    lab.cluster.set(of(Some("platform")));
    repository(&lab, "platform", UID, &[]);
    assert_eq!(
        lab.get("source").await.reason(),
        REPOSITORY_NOT_ALLOWED,
        "at once"
    );
}

#[tokio::test]
async fn deleted_repository_is_swept_after_a_day() {
    let lab = Lab::new();
    repository(&lab, "team", UID, &[]);
    store(&lab, UID, &noise(300_000, 1)).await;
    // A record of format 1.
    let record = lab.file("snapshots-2");
    let of_repository = record.parent().unwrap().parent().unwrap();
    std::fs::create_dir(of_repository.join("snapshots")).unwrap();
    std::fs::write(of_repository.join("snapshots/old"), "x").unwrap();
    let start = Timestamp::now();
    let at = |hours: i64| start + SignedDuration::from_hours(hours);
    let before = lab.files();
    for hours in [0, 100, 5000] {
        sweep(&lab.service, at(hours)).await.unwrap();
    }
    assert_eq!(lab.files(), before, "it is there");
    repository(&lab, "team", "33333333-3333", &[]);
    sweep(&lab.service, at(0)).await.unwrap();
    sweep(&lab.service, at(23)).await.unwrap();
    assert_eq!(
        lab.files().len(),
        before.len() + 1,
        "marked: {:?}",
        lab.files()
    );
    lab.cluster
        .down
        .store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(sweep(&lab.service, at(50)).await.is_err());
    lab.cluster
        .down
        .store(false, std::sync::atomic::Ordering::Relaxed);
    sweep(&lab.service, at(25)).await.unwrap();
    assert!(lab.files().is_empty(), "{:?}", lab.files());
}
