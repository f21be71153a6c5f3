//! Who may read the datastore's objects, tested with real tokens of real pods (the datastore's own tests `access` and `states` cover the
//! other refusals).

use anyhow::{Context, Result, ensure};
use crds::{
    Phase,
    datastore::{AUDIENCE, Problem, attempt_path},
};
use harness::{cluster::datastore::Datastore, wait};
use kube::ResourceExt;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::suite::{LATER, Scene, Test};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(
        "guard::only_the_own_pod_and_token_read_a_bundle",
        tokens,
    )]
}

/// A run in its hold, its pod's account, and its nonce.
struct Held {
    name: &'static str,
    pod: String,
    account: String,
    nonce: String,
}

async fn held(scene: &Scene, name: &'static str, hold: &str) -> Result<Held> {
    // An account of the namespace, which outlives the attempt, so its token stays valid.
    let spec = json!({"approval": {"holdFor": hold}, "runner": {"serviceAccountName": "default"}});
    scene.scripted(name, json!({}), spec).await?;
    let status = scene.phase(name, Phase::AwaitingApproval).await?;
    let pod = scene.pod(name).await?;
    Ok(Held {
        name,
        pod: pod.name_any(),
        account: pod
            .spec
            .and_then(|s| s.service_account_name)
            .context("no account")?,
        nonce: status.adopted.context("not adopted")?.nonce,
    })
}

impl Held {
    fn token(&self, scene: &Scene) -> Result<String> {
        scene.suite.cluster.pod_token(
            &scene.namespace,
            &self.account,
            Some(&self.pod),
            Some(AUDIENCE),
        )
    }

    fn bundle(&self, scene: &Scene) -> String {
        format!(
            "{}/objects/bundle",
            attempt_path(&scene.namespace, self.name, 1)
        )
    }
}

async fn get(
    store: &Datastore,
    path: &str,
    token: &str,
    nonce: &str,
) -> Result<(StatusCode, String)> {
    let answer = store
        .request(Method::GET, path, token, nonce)?
        .send()
        .await?;
    let status = answer.status();
    let text = String::from_utf8_lossy(&answer.bytes().await?).into_owned();
    let reason = serde_json::from_str::<Problem>(&text)
        .map(|problem| problem.reason)
        .unwrap_or_default();
    Ok((status, reason))
}

async fn tokens(scene: Scene) -> Result<()> {
    let store = scene.suite.cluster.reach_datastore().await?;
    let (a, b) = (
        held(&scene, "a", "1h").await?,
        held(&scene, "b", "1h").await?,
    );
    let (token, cluster) = (a.token(&scene)?, &scene.suite.cluster);
    let (status, _) = get(&store, &a.bundle(&scene), &token, &a.nonce).await?;
    ensure!(status == StatusCode::OK, "its own bundle: {status}");
    let now = jiff::Timestamp::now().as_second();
    let (status, reason) = get(
        &store,
        &a.bundle(&scene),
        &cluster.until(&token, now + 600)?,
        &a.nonce,
    )
    .await?;
    ensure!(
        status == StatusCode::OK,
        "signed as the API server signs: {status} {reason}"
    );
    let of_account = |pod, audience| cluster.pod_token(&scene.namespace, &a.account, pod, audience);
    for (what, path, token, nonce) in [
        (
            "another run's bundle",
            b.bundle(&scene),
            token.clone(),
            &a.nonce,
        ),
        (
            "another run's bundle with its nonce",
            b.bundle(&scene),
            token.clone(),
            &b.nonce,
        ),
        ("another nonce", a.bundle(&scene), token.clone(), &b.nonce),
        (
            "a token of the API server's audience",
            a.bundle(&scene),
            of_account(Some(&a.pod), None)?,
            &a.nonce,
        ),
        (
            "a token of no pod",
            a.bundle(&scene),
            of_account(None, Some(AUDIENCE))?,
            &a.nonce,
        ),
        (
            "a token that has expired",
            a.bundle(&scene),
            cluster.until(&token, now - 60)?,
            &a.nonce,
        ),
        (
            "no token of anybody",
            a.bundle(&scene),
            "abc.def.ghi".to_owned(),
            &a.nonce,
        ),
    ] {
        let (status, reason) = get(&store, &path, &token, nonce).await?;
        ensure!(
            matches!(status.as_u16(), 401 | 403) && !reason.is_empty(),
            "{what}: {status} {reason}"
        );
    }
    // A token ends with its pod.
    scene.kubectl(&["delete", "pod", &a.pod, "--force", "--grace-period=0"])?;
    super::stored::released(&scene, "a").await?;
    let look =
        async || Ok(get(&store, &a.bundle(&scene), &token, &a.nonce).await?.0 != StatusCode::OK);
    wait::until("a pod that is gone reads no more", LATER, look).await
}
