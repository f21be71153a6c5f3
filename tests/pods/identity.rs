//! Accounts of a run's pods, and the token of one that code may use (`design/0016-tokens-and-accounts.md`). `hostile` covers the others.

use anyhow::{Context, Result, ensure};
use crds::{RunResult, names};
use harness::cluster::objects;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::{
    stored::released,
    suite::{LATER, Scene, Test, holds},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("identity::named_account_is_open_to_code", named),
        Test::new("identity::plan_and_apply_have_separate_accounts", apart),
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

async fn named(scene: Scene) -> Result<()> {
    scene
        .real(
            "a",
            CURIOUS,
            json!({"approval": {"mode": "Automatic"}, "runner": {"serviceAccountName": "default"}}),
        )
        .await?;
    scene.ends("a", RunResult::Applied).await?;
    let log = scene.log("a").await?;
    let (api, store) = (format!("{API} open"), format!("{STORE} closed"));
    // The last word is of an ordinary operation: a file is moved between directories.
    for part in [
        "planned open closed",
        &api,
        &store,
        "message closed",
        "memory closed",
        "root closed",
        "kept",
    ] {
        holds(&log, part)?;
    }
    Ok(())
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
        let number = pod
            .labels()
            .get(names::LABEL_ATTEMPT)
            .cloned()
            .context("a pod without attempt")?;
        found.push((
            number,
            pod.spec
                .and_then(|spec| spec.service_account_name)
                .unwrap_or_default(),
        ));
    }
    found.sort();
    Ok(found)
}

async fn apart(scene: Scene) -> Result<()> {
    let spec = accounts(&scene).await?;
    let of_two = [("1", "reader"), ("2", "deployer")]
        .map(|(number, account)| (number.to_owned(), account.to_owned()));
    for name in ["late", "early"] {
        scene.scripted(name, json!({}), spec.clone()).await?;
    }
    // Approved as soon as it waits, often before its pod is gone; and without a pod.
    scene.approve("early").await?;
    released(&scene, "late").await?;
    scene.approve("late").await?;
    for name in ["early", "late"] {
        let status = scene.ends_within(name, RunResult::Applied, LATER).await?;
        ensure!(
            pods(&scene, name).await? == of_two,
            "{:?}",
            pods(&scene, name).await?
        );
        ensure!(status.claim.context("no claim")?.attempt == 2);
        ensure!(
            scene.starts(name, "plan") == 1 && scene.starts(name, "apply") == 1,
            "{name}"
        );
    }
    Ok(())
}
