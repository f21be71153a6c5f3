//! What the datastore refuses, asked with real tokens of real pods; and what code of a stack cannot read of the agent's own.

use anyhow::{Context, Result, ensure};
use crds::{
    Phase, RunResult,
    datastore::{AUDIENCE, HEADER_DIGEST, MAX_APPEND, Problem, attempt_path},
};
use kube::ResourceExt;
use reqwest::{Method, StatusCode};
use serde_json::json;
use tests::cluster::datastore::Datastore;

use crate::suite::{LATER, Scene, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("guard::only_the_run_s_own_pod_with_its_own_token", tokens),
        Test::new("guard::a_replaced_attempt_writes_nothing", replaced),
        Test::new("guard::hostile_requests_are_refused", hostile),
        Test::new("guard::a_state_is_written_behind_the_claim_only", unclaimed),
        Test::new("guard::what_an_approver_reads_is_what_the_tool_says_of_the_plan", read),
        Test::new("guard::code_of_the_stack_reads_no_credentials_of_its_source", source_credentials),
    ]
}

/// A run that holds, its pod's account, its nonce.
struct Held {
    name: &'static str,
    pod: String,
    account: String,
    nonce: String,
}

async fn held(scene: &Scene, name: &'static str, hold: &str) -> Result<Held> {
    // An account of the namespace, which outlives the attempt: its token goes on being one.
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
    let of_account = |pod, audience| cluster.pod_token(&scene.namespace, &a.account, pod, audience);
    for (what, path, token, nonce) in [
        ("another run's bundle", b.bundle(&scene), token.clone(), &a.nonce),
        ("another run's bundle with its nonce", b.bundle(&scene), token.clone(), &b.nonce),
        ("another nonce", a.bundle(&scene), token.clone(), &b.nonce),
        ("a token of the API server's audience", a.bundle(&scene), of_account(Some(&a.pod), None)?, &a.nonce),
        ("a token of no pod", a.bundle(&scene), of_account(None, Some(AUDIENCE))?, &a.nonce),
        ("no token of anybody", a.bundle(&scene), "abc.def.ghi".to_owned(), &a.nonce),
    ] {
        let (status, reason) = get(&store, &path, &token, nonce).await?;
        ensure!(matches!(status.as_u16(), 401 | 403) && !reason.is_empty(), "{what}: {status} {reason}");
    }
    // A token dies with its pod.
    scene.kubectl(&["delete", "pod", &a.pod, "--force", "--grace-period=0"])?;
    super::stored::released(&scene, "a").await?;
    let started = std::time::Instant::now();
    while get(&store, &a.bundle(&scene), &token, &a.nonce).await?.0 == StatusCode::OK {
        ensure!(started.elapsed() < LATER, "a pod that is gone still reads");
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    Ok(())
}

async fn replaced(scene: Scene) -> Result<()> {
    let store = scene.suite.cluster.reach_datastore().await?;
    let a = held(&scene, "a", "3s").await?;
    let token = a.token(&scene)?;
    super::stored::released(&scene, "a").await?;
    // For pieces of a log, and for them alone, the datastore looks at the run once a second.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let path = format!("{}/log/apply?offset=0", attempt_path(&scene.namespace, "a", 1));
    let answer = store.request(Method::PUT, &path, &token, &a.nonce)?.body("late").send().await?;
    ensure!(answer.status() == StatusCode::FORBIDDEN, "a late line of the log: {}", answer.status());
    let path = format!("{}/objects/result", attempt_path(&scene.namespace, "a", 1));
    let digest = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    let request = store.request(Method::PUT, &path, &token, &a.nonce)?.header(HEADER_DIGEST, digest).body("{}");
    let answer = request.send().await?;
    ensure!(answer.status() == StatusCode::FORBIDDEN, "a late result: {}", answer.status());
    let info = json!({"ID": "11111111-2222", "Operation": "OperationTypeApply", "Who": "late"}).to_string();
    for (rest, body) in [("lock", info.as_str()), ("state?lock=11111111-2222", "{}")] {
        let path = format!("{}/{rest}", attempt_path(&scene.namespace, "a", 1));
        let request = store.request(Method::PUT, &path, &token, &a.nonce)?.header(HEADER_DIGEST, digest).body(body.to_owned());
        let answer = request.send().await?;
        ensure!(answer.status() == StatusCode::FORBIDDEN, "a late {rest}: {}", answer.status());
    }
    Ok(())
}

async fn hostile(scene: Scene) -> Result<()> {
    let store = scene.suite.cluster.reach_datastore().await?;
    let a = held(&scene, "a", "1h").await?;
    let token = a.token(&scene)?;
    let own = attempt_path(&scene.namespace, "a", 1);
    for path in [
        format!("{own}/objects/..%2f..%2f..%2fb%2fa1%2fbundle"),
        format!("{own}/objects/%2e%2e"),
        format!("{own}/objects/bundle%00"),
        format!("/v1/namespaces/{}%2f../runs/a/attempts/1/objects/bundle", scene.namespace),
        format!("{}/objects/bundle", attempt_path(&scene.namespace, "a", 0)),
        format!("/v1/namespaces/{}/runs/a/attempts/99999999999/objects/bundle", scene.namespace),
        format!("/v1/namespaces/{}/uids/x/claim", scene.namespace),
        "/apis/read.pawl.run/v1alpha1/namespaces/default/states".to_owned(),
    ] {
        let (status, _) = get(&store, &path, &token, &a.nonce).await?;
        ensure!(matches!(status.as_u16(), 400 | 401 | 403 | 404), "{path}: {status}");
    }
    let uid = scene.get("a").await?.uid().unwrap_or_default();
    let path = format!("/v1/namespaces/{}/uids/{uid}", scene.namespace);
    let answer = store.request(Method::DELETE, &path, &token, &a.nonce)?.send().await?;
    ensure!(matches!(answer.status().as_u16(), 401 | 403), "a pod deleted what is kept: {}", answer.status());
    // Too large, and a claim that nobody made.
    let large = vec![b'x'; usize::try_from(MAX_APPEND)? + 1];
    let answer = store.request(Method::PUT, &format!("{own}/log/apply?offset=0"), &token, &a.nonce)?.body(large).send().await;
    ensure!(answer.is_err() || answer.is_ok_and(|a| a.status() == StatusCode::PAYLOAD_TOO_LARGE));
    let claim = json!({"checksum": format!("sha256:{}", "a".repeat(64)), "attempt": 1, "podUID": "x", "nonce": a.nonce, "at": "2026-01-01T00:00:00Z"});
    let answer = store.request(Method::PUT, &format!("{own}/claim"), &token, &a.nonce)?.body(claim.to_string()).send().await?;
    ensure!(answer.status().is_client_error(), "a claim that the run does not have: {}", answer.status());
    // It is as it was.
    let (status, _) = get(&store, &a.bundle(&scene), &token, &a.nonce).await?;
    ensure!(status == StatusCode::OK);
    Ok(())
}

async fn unclaimed(scene: Scene) -> Result<()> {
    let store = scene.suite.cluster.reach_datastore().await?;
    let a = held(&scene, "a", "1h").await?;
    let (token, own) = (a.token(&scene)?, attempt_path(&scene.namespace, "a", 1));
    let ask = async |method: Method, rest: &str, body: &str| -> Result<(StatusCode, String)> {
        let request = store.request(method, &format!("{own}/{rest}"), &token, &a.nonce)?.body(body.to_owned());
        let answer = request.send().await?;
        Ok((answer.status(), answer.text().await?))
    };
    // The lock is had before the claim: a plan needs it.
    let info = json!({"ID": "11111111-2222", "Operation": "OperationTypePlan", "Who": "code of the stack"}).to_string();
    let (status, _) = ask(Method::PUT, "lock", &info).await?;
    ensure!(status == StatusCode::OK, "the lock: {status}");
    for lock in ["11111111-2222", "another"] {
        let (status, text) = ask(Method::PUT, &format!("state?lock={lock}"), "{}").await?;
        ensure!(status == StatusCode::FORBIDDEN && !text.contains("code of the stack"), "{lock}: {status} {text}");
    }
    let (status, _) = ask(Method::GET, "state", "").await?;
    ensure!(status == StatusCode::NO_CONTENT, "something was written: {status}");
    let (status, _) = ask(Method::DELETE, "lock?lock=11111111-2222", "").await?;
    ensure!(status == StatusCode::OK, "the lock given back: {status}");
    Ok(())
}

/// Puts links to the pod's tokens wherever the agent might keep something, and tries to change what it keeps. It prints only what it
/// could do, which would be no JSON.
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
    ensure!(scene.approve("a").await?.status.success());
    scene.ends("a", crds::RunResult::Applied).await?;
    let log = scene.read("terraformruns/a/log")?;
    ensure!(!log.contains("could") && !log.contains("eyJ"), "{log}");
    Ok(())
}

async fn source_credentials(scene: Scene) -> Result<()> {
    use tests::servers::auth::Access;
    // In each command that runs code, the file itself, by the agent's own root, and by a link. What is read would be masked in the log.
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
    // What the run says of Secrets the code is given as ever.
    ensure!(log.matches("its own is here").count() >= 3, "{log}");
    Ok(())
}
