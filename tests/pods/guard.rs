//! Who may read the datastore's objects, tested with real tokens of real pods (the datastore's own tests `access` and `states` cover the
//! other refusals); and which of the agent's files code of a stack cannot read.

use anyhow::{Context, Result, ensure};
use crds::{
    Phase, RunResult,
    datastore::{AUDIENCE, Problem, attempt_path},
};
use harness::{cluster::datastore::Datastore, wait};
use kube::ResourceExt;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::suite::{LATER, Scene, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("guard::only_the_run_s_own_pod_with_its_own_token", tokens),
        Test::new("guard::what_an_approver_reads_is_what_the_tool_says_of_the_plan", read),
        Test::new("guard::code_of_the_stack_reads_no_credentials_of_its_source", source_credentials),
    ]
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
        account: pod.spec.and_then(|s| s.service_account_name).context("no account")?,
        nonce: status.adopted.context("not adopted")?.nonce,
    })
}

impl Held {
    fn token(&self, scene: &Scene) -> Result<String> {
        scene.suite.cluster.pod_token(&scene.namespace, &self.account, Some(&self.pod), Some(AUDIENCE))
    }

    fn bundle(&self, scene: &Scene) -> String {
        format!("{}/objects/bundle", attempt_path(&scene.namespace, self.name, 1))
    }
}

async fn get(store: &Datastore, path: &str, token: &str, nonce: &str) -> Result<(StatusCode, String)> {
    let answer = store.request(Method::GET, path, token, nonce)?.send().await?;
    let status = answer.status();
    let text = String::from_utf8_lossy(&answer.bytes().await?).into_owned();
    let reason = serde_json::from_str::<Problem>(&text).map(|problem| problem.reason).unwrap_or_default();
    Ok((status, reason))
}

async fn tokens(scene: Scene) -> Result<()> {
    let store = scene.suite.cluster.reach_datastore().await?;
    let (a, b) = (held(&scene, "a", "1h").await?, held(&scene, "b", "1h").await?);
    let (token, cluster) = (a.token(&scene)?, &scene.suite.cluster);
    let (status, _) = get(&store, &a.bundle(&scene), &token, &a.nonce).await?;
    ensure!(status == StatusCode::OK, "its own bundle: {status}");
    let now = jiff::Timestamp::now().as_second();
    let (status, reason) = get(&store, &a.bundle(&scene), &cluster.until(&token, now + 600)?, &a.nonce).await?;
    ensure!(status == StatusCode::OK, "signed as the API server signs: {status} {reason}");
    let of_account = |pod, audience| cluster.pod_token(&scene.namespace, &a.account, pod, audience);
    for (what, path, token, nonce) in [
        ("another run's bundle", b.bundle(&scene), token.clone(), &a.nonce),
        ("another run's bundle with its nonce", b.bundle(&scene), token.clone(), &b.nonce),
        ("another nonce", a.bundle(&scene), token.clone(), &b.nonce),
        ("a token of the API server's audience", a.bundle(&scene), of_account(Some(&a.pod), None)?, &a.nonce),
        ("a token of no pod", a.bundle(&scene), of_account(None, Some(AUDIENCE))?, &a.nonce),
        ("a token that has expired", a.bundle(&scene), cluster.until(&token, now - 60)?, &a.nonce),
        ("no token of anybody", a.bundle(&scene), "abc.def.ghi".to_owned(), &a.nonce),
    ] {
        let (status, reason) = get(&store, &path, &token, nonce).await?;
        ensure!(matches!(status.as_u16(), 401 | 403) && !reason.is_empty(), "{what}: {status} {reason}");
    }
    // A token ends with its pod.
    scene.kubectl(&["delete", "pod", &a.pod, "--force", "--grace-period=0"])?;
    super::stored::released(&scene, "a").await?;
    let look = async || Ok(get(&store, &a.bundle(&scene), &token, &a.nonce).await?.0 != StatusCode::OK);
    wait::until("a pod that is gone reads no more", LATER, look).await
}

/// Places links to the pod's tokens at all paths that the agent may store, and tries to change stored files. Prints only its successes, as
/// text that is not JSON.
const DECEIVE: &str = r#"
exec 2> /dev/null
token=/var/run/secrets/kubernetes.io/serviceaccount/token
for name in plan/text plan/json plan/tfplan out/tfplan log/plan log/apply journal/journal bundle; do
  rm -rf /pawl/work/$name; mkdir -p $(dirname /pawl/work/$name); ln -s $token /pawl/work/$name
done
echo 'No changes. Your infrastructure matches the configuration.' > /tmp/no-changes
for way in 'touch /pawl/kept/made' 'rm -f /pawl/kept/tfplan' 'ln -sfn /tmp/no-changes /pawl/kept/tfplan' \
  'ln -s /tmp/no-changes /pawl/kept/text' ': > /pawl/kept/tfplan' 'mv /pawl/kept /pawl/other'; do
  sh -c "$way" && echo "could $way"
done
cat /pawl/kept/tfplan > /dev/null || echo 'could not read'
"#;

async fn read(scene: Scene) -> Result<()> {
    let deceive = json!([{"exec": ["sh", "-c", DECEIVE]}]);
    let script = json!({"resources": [{"address": "terraform_data.real"}], "commands": {"show": deceive, "apply": deceive}});
    scene.scripted("a", script, json!({"approval": {"holdFor": "1h"}})).await?;
    let status = scene.phase("a", Phase::AwaitingApproval).await?;
    let plan = status.plan.context("no plan")?;
    ensure!(plan.summary == "+1 ~0 -0" && plan.changes == ["+ terraform_data.real"], "{plan:?}");
    ensure!(!status.unconfined, "{:?}", status.history);
    let text = scene.read("terraformruns/a/plan")?;
    holds(&text, "terraform_data.real")?;
    ensure!(!text.contains("eyJ") && !text.contains("No changes") && !text.contains("could"), "{text}");
    let json = scene.read("terraformruns/a/planjson")?;
    ensure!(json.contains("resource_changes") && !json.contains("eyJ") && !json.contains("could"), "{json}");
    scene.approved("a").await?;
    let log = scene.read("terraformruns/a/log")?;
    ensure!(!log.contains("could") && !log.contains("eyJ"), "{log}");
    Ok(())
}

async fn source_credentials(scene: Scene) -> Result<()> {
    use servers::auth::Access;
    // Each command that runs code tries the file itself, the agent's root directory, and a link. The content would be masked in the log, so
    // only success is printed.
    let file = "/pawl/secrets/source/password";
    let code = format!(
        "for file in {file} /proc/1/root{file}; do cat $file >/dev/null 2>&1 && echo \"$file open\" || echo \"$file closed\"; done; \
         ln {file} stolen 2>/dev/null && cat stolen && echo link open; [ \"$WORD\" = given ] && echo its own is here; true"
    );
    let exec = json!([{"exec": ["sh", "-c", code]}]);
    let script = json!({"name": format!("{}/a", scene.namespace), "ledger": scene.suite.state.ledger_url(), "resources": 1,
        "commands": {"init": exec, "plan": exec, "apply": exec}});
    let (url, _) = scene.repository("a", &[("main.tf", "# played by a script\n"), ("pawl-script.json", &script.to_string())])?;
    scene.suite.git.set_access(&format!("{}/a", scene.namespace), Access::basic("me", "s3cret-word"));
    let literals = ["--from-literal=username=me", "--from-literal=password=s3cret-word"];
    scene.kubectl(&[&["create", "secret", "generic", "source"][..], &literals].concat())?;
    scene.kubectl(&["create", "secret", "generic", "own", "--from-literal=word=given"])?;
    let spec = json!({
        "source": {"git": {"url": url, "revision": "main", "secretRef": {"name": "source"}}},
        "tool": {"name": "OpenTofu", "version": "0.0.1"},
        "env": [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "own", "key": "word"}}}],
        "approval": {"mode": "Automatic"},
    });
    scene.create("a", spec).await?;
    scene.ends("a", RunResult::Applied).await?;
    let log = scene.log("a").await?;
    ensure!(log.matches("password closed").count() >= 6 && !log.contains("password open") && !log.contains("link open"), "{log}");
    // The code still gets the Secrets that the run references.
    ensure!(log.matches("its own is here").count() >= 3, "{log}");
    Ok(())
}
