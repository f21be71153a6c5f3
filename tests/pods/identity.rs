//! Tests the rights that code of a stack has in its pod, and the account under which it runs (`design/0016-tokens-and-accounts.md`).

use anyhow::{Context, Result, ensure};
use crds::{RunResult, names};
use harness::cluster::objects;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::suite::{SOON, Scene, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("identity::code_of_the_stack_reads_no_token", hidden),
        Test::new("identity::an_account_that_is_named_is_the_codes", named),
        Test::new("identity::plan_and_apply_have_accounts_of_their_own", apart),
        Test::new("identity::an_approval_does_not_keep_the_planning_pod", approved_early),
    ]
}

/// Reads the tokens, during the plan with the tool's functions and during the apply with a shell.
const CURIOUS: &str = r#"
locals {
  api   = "/var/run/secrets/kubernetes.io/serviceaccount/token"
  store = "/var/run/secrets/pawl.run/datastore/token"
}
resource "terraform_data" "a" {
  input = [for file in [local.api, local.store] : !fileexists(file) ? "absent" : can(file(file)) ? "open" : "closed"]
  provisioner "local-exec" {
    command = <<-EOT
      echo "planned ${join(" ", self.input)}"
      for file in ${local.api} ${local.store}; do
        if cat $file > /dev/null; then echo "$file open"; else echo "$file closed"; fi
      done
      if echo lie > /dev/termination-log; then echo "message open"; else echo "message closed"; fi
      if cat /proc/1/environ > /dev/null; then echo "memory open"; else echo "memory closed"; fi
      if cat /proc/1/root${local.api} > /dev/null; then echo "root open"; else echo "root closed"; fi
      mkdir -p /tmp/a /tmp/b && echo kept > /tmp/a/x && mv /tmp/a/x /tmp/b/x && cat /tmp/b/x
    EOT
  }
}
"#;

const API: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
const STORE: &str = "/var/run/secrets/pawl.run/datastore/token";

async fn curious(scene: &Scene, spec: Value) -> Result<String> {
    let mut whole = json!({"approval": {"mode": "Automatic"}});
    crate::suite::merge(&mut whole, spec);
    scene.real("a", CURIOUS, whole).await?;
    scene.ends("a", RunResult::Applied).await?;
    let log = scene.log("a").await?;
    for closed in [format!("{STORE} closed"), "message closed".into(), "memory closed".into(), "root closed".into()] {
        holds(&log, &closed)?;
    }
    // Ordinary operations still work: a file is moved between directories.
    holds(&log, "kept")?;
    Ok(log)
}

async fn hidden(scene: Scene) -> Result<()> {
    let log = curious(&scene, json!({})).await?;
    holds(&log, "planned closed closed")?;
    holds(&log, &format!("{API} closed"))
}

async fn named(scene: Scene) -> Result<()> {
    let log = curious(&scene, json!({"runner": {"serviceAccountName": "default"}})).await?;
    holds(&log, "planned open closed")?;
    holds(&log, &format!("{API} open"))
}

async fn accounts(scene: &Scene) -> Result<Value> {
    let api: Api<ServiceAccount> = Api::namespaced(scene.suite.client.clone(), &scene.namespace);
    for name in ["reader", "deployer"] {
        objects::create(&api, json!({"metadata": {"name": name}})).await?;
    }
    Ok(json!({"runner": {"planServiceAccountName": "reader", "serviceAccountName": "deployer"}}))
}

/// Attempt and account of each pod of a run, in order.
async fn pods(scene: &Scene, name: &str) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for pod in scene.pod_names(name).await? {
        let pod = scene.pods().get(&pod).await?;
        let number = pod.labels().get(names::LABEL_ATTEMPT).cloned().context("a pod without attempt")?;
        found.push((number, pod.spec.and_then(|spec| spec.service_account_name).unwrap_or_default()));
    }
    found.sort();
    Ok(found)
}

fn of_two() -> Vec<(String, String)> {
    [("1", "reader"), ("2", "deployer")].map(|(number, account)| (number.to_owned(), account.to_owned())).to_vec()
}

async fn apart(scene: Scene) -> Result<()> {
    let spec = accounts(&scene).await?;
    scene.scripted("a", json!({}), spec).await?;
    // The plan has no approval yet, and its pod has left.
    scene.until("a", "released", SOON, |run| run.status.as_ref().is_some_and(left)).await?;
    let status = scene.approved("a").await?;
    ensure!(pods(&scene, "a").await? == of_two(), "{:?}", pods(&scene, "a").await?);
    ensure!(status.claim.context("no claim")?.attempt == 2 && scene.starts("a", "plan") == 1 && scene.starts("a", "apply") == 1);
    Ok(())
}

fn left(status: &crds::TerraformRunStatus) -> bool {
    status.phase == Some(crds::Phase::AwaitingApproval) && status.attempt.as_ref().is_some_and(|attempt| !attempt.open)
}

async fn approved_early(scene: Scene) -> Result<()> {
    let spec = accounts(&scene).await?;
    scene.scripted("a", json!({}), spec).await?;
    // As early as possible: often before the pod is gone.
    let status = scene.approved("a").await?;
    ensure!(pods(&scene, "a").await? == of_two(), "{:?}", pods(&scene, "a").await?);
    ensure!(status.claim.context("no claim")?.attempt == 2 && scene.starts("a", "apply") == 1);
    Ok(())
}
