//! Successful runs: with the scripted tool to count executions, with real OpenTofu and Terraform to check output.

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult};
use serde_json::json;

use crate::suite::{SOON, Scene, TIMEOUT, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("operations::an_automatic_run_is_applied_once_in_one_pod", automatic),
        Test::new("operations::destroy_destroys", destroy),
        Test::new("operations::a_refresh_says_what_drifted_and_changes_nothing", refresh),
        Test::new("operations::an_automatic_run_waits_where_it_would_destroy", harmless),
        Test::new("operations::variables_reach_the_tool_with_their_types", variables),
        Test::new("operations::real_opentofu_from_git_over_http", git),
        Test::new("operations::a_private_repository_by_password_and_by_token", private_git),
        Test::new("operations::a_provider_from_the_mirror", provider),
        Test::new("operations::a_workspace_is_created", workspace),
        Test::new("operations::a_rerun_makes_one_fresh_run", rerun),
    ]
}

const AUTOMATIC: &str = "Automatic";

async fn automatic(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({"resources": 3, "apply_ms": 100}), json!({"approval": {"mode": AUTOMATIC}})).await?;
    let status = scene.ends("a", RunResult::Applied).await?;
    ensure!(scene.starts("a", "plan") == 1 && scene.starts("a", "apply") == 1 && scene.starts("a", "init") == 1);
    ensure!(scene.pod_names("a").await?.len() == 1);
    let plan = status.plan.context("no plan")?;
    ensure!(plan.summary == "+3 ~0 -0" && plan.counts.add == 3 && plan.changes.len() == 3, "{plan:?}");
    let claim = status.claim.context("no claim")?;
    ensure!(claim.checksum == plan.checksum);
    ensure!(status.approval.context("no approval")?.by == "automatic");
    let steps: Vec<_> = status.steps.iter().map(|s| s.name.as_str()).collect();
    ensure!(["init", "plan", "apply"].iter().all(|s| steps.contains(s)), "{steps:?}");
    ensure!(status.steps.iter().all(|s| s.finished_at.is_some() && s.exit_code.is_some()), "{:?}", status.steps);
    let condition = |type_: &str| scene.kubectl(&["wait", "--for", &format!("condition={type_}"), TIMEOUT, "tfrun/a"]);
    for type_ in ["Finished", "Succeeded", "Planned", "Approved"] {
        condition(type_)?;
    }
    let columns = scene.kubectl(&["get", "tfrun", "a"])?;
    for word in ["Apply", "Succeeded", "Applied", "+3 ~0 -0"] {
        holds(&columns, word)?;
    }
    Ok(())
}

/// The provider treats an expired rotation as deleted: drift without an external change.
async fn refresh(scene: Scene) -> Result<()> {
    let at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(10);
    let main = format!(
        "terraform {{\n  required_providers {{\n    time = {{\n      source = \"hashicorp/time\"\n    }}\n  }}\n}}\n\
         resource \"time_rotating\" \"key\" {{\n  rotation_rfc3339 = \"{}\"\n}}\n",
        at.strftime("%Y-%m-%dT%H:%M:%SZ")
    );
    let stack = |operation: &str| {
        json!({"source": {"inline": {"files": {"main.tf": main}}}, "backend": scene.backend("rotating"), "operation": operation,
            "approval": {"mode": AUTOMATIC}})
    };
    scene.create("made", stack("Apply")).await?;
    let made = scene.ends("made", RunResult::Applied).await?;
    while jiff::Timestamp::now() <= at {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    scene.create("looked", stack("RefreshOnly")).await?;
    let status = scene.ends("looked", RunResult::Drifted).await?;
    let plan = status.plan.context("no plan")?;
    ensure!(plan.changes == ["! time_rotating.key (deleted outside of the code)"] && plan.counts.drifted == 1, "{plan:?}");
    ensure!(status.claim.is_none() && status.lease.is_none(), "it claims nothing");
    holds(&status.message.unwrap_or_default(), "what exists differs from the state: +0 ~0 -0, 1 drifted")?;
    ensure!(made.claim.is_some());
    Ok(())
}

async fn harmless(scene: Scene) -> Result<()> {
    let stack = |objects: &[&str]| {
        let blocks: Vec<_> = objects.iter().map(|name| format!("resource \"terraform_data\" \"{name}\" {{}}\n")).collect();
        let main = blocks.concat();
        json!({"source": {"inline": {"files": {"main.tf": main}}}, "backend": scene.backend("some"),
            "approval": {"mode": AUTOMATIC, "automaticWhen": {}}})
    };
    scene.create("adds", stack(&["a", "b"])).await?;
    let status = scene.ends("adds", RunResult::Applied).await?;
    ensure!(status.history.iter().all(|line| !line.contains("AwaitingApproval")), "{:#?}", status.history);
    scene.create("removes", stack(&["a"])).await?;
    scene.phase("removes", Phase::AwaitingApproval).await?;
    let status = scene.approved("removes").await?;
    ensure!(status.approval.context("no approval")?.checksum.is_some(), "a person approved");
    Ok(())
}

async fn destroy(scene: Scene) -> Result<()> {
    let spec = json!({"approval": {"mode": AUTOMATIC}, "backend": scene.backend("stack")});
    scene.scripted("make", json!({"resources": 2}), spec.clone()).await?;
    scene.ends("make", RunResult::Applied).await?;
    let mut spec = spec;
    spec["operation"] = "Destroy".into();
    scene.scripted("destroy", json!({"resources": 2}), spec).await?;
    let status = scene.ends("destroy", RunResult::Destroyed).await?;
    ensure!(status.plan.context("no plan")?.summary == "+0 ~0 -2");
    let state = scene.suite.state.current(&format!("{}/stack", scene.namespace)).context("no state")?;
    ensure!(state["resources"].as_array().is_none_or(Vec::is_empty), "{state}");
    Ok(())
}

async fn variables(scene: Scene) -> Result<()> {
    scene.kubectl(&["create", "secret", "generic", "db", "--from-literal=password=correct-horse-battery"])?;
    scene.kubectl(&["create", "configmap", "place", "--from-literal=region=north"])?;
    let main = r#"
        variable "list" { type = list(number) }
        variable "object" { type = object({ on = bool, name = string }) }
        variable "password" {
          type      = string
          sensitive = true
        }
        variable "region" { type = string }
        resource "terraform_data" "a" { input = { sum = sum(var.list), on = var.object.on, region = var.region } }
        output "sum" { value = terraform_data.a.output.sum }
        output "length" { value = nonsensitive(length(var.password)) }
        output "leak" { value = nonsensitive(var.password) }
    "#;
    let spec = json!({"approval": {"mode": AUTOMATIC}, "variables": [
        {"name": "list", "value": [1, 2, 39]},
        {"name": "object", "value": {"on": true, "name": "x"}},
        {"name": "password", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
        {"name": "region", "valueFrom": {"configMapKeyRef": {"name": "place", "key": "region"}}},
    ]});
    scene.real("a", main, spec).await?;
    scene.ends("a", RunResult::Applied).await?;
    let state = scene.suite.state.current(&format!("{}/a", scene.namespace)).context("no state")?;
    ensure!(state["outputs"]["sum"]["value"] == 42 && state["outputs"]["length"]["value"] == 21, "{state}");
    // Even an output with the secret does not reveal it in the log or the status.
    let log = scene.log("a").await?;
    ensure!(!log.contains("correct-horse"), "the log holds a secret:\n{log}");
    let run = serde_json::to_string(&scene.get("a").await?)?;
    ensure!(!run.contains("correct-horse"), "the run holds a secret");
    Ok(())
}

const HELLO: &str = "resource \"terraform_data\" \"hello\" {\n  input = \"hello\"\n}\n\noutput \"said\" {\n  value = terraform_data.hello.output\n}\n";

async fn git(scene: Scene) -> Result<()> {
    let (url, sha) = scene.repository("stacks", &[("network/main.tf", HELLO), ("network/.opentofu-version", "1.10.6\n")])?;
    let spec = json!({"source": {"git": {"url": url, "revision": "main", "path": "network"}}, "approval": {"mode": AUTOMATIC}});
    scene.create("a", spec.clone()).await?;
    let status = scene.ends("a", RunResult::Applied).await?;
    let plan = status.plan.context("no plan")?;
    ensure!(plan.revision.as_deref() == Some(sha.as_str()) && plan.tool == "OpenTofu 1.10.6", "{plan:?}");
    let history = status.history.join("\n");
    holds(&history, &format!("git {} of main", &sha[..7]))?;
    holds(&history, ".opentofu-version")?;
    // By its full commit id, for which not every server serves a shallow clone.
    let mut by_sha = spec;
    by_sha["source"]["git"]["revision"] = sha.clone().into();
    by_sha["backend"] = scene.backend("a");
    scene.create("again", by_sha).await?;
    scene.ends("again", RunResult::NoChanges).await?;
    let log = scene.log("a").await?;
    holds(&log, "terraform_data.hello will be created")?;
    holds(&log, "terraform_data.hello: Creation complete")
}

async fn private_git(scene: Scene) -> Result<()> {
    use servers::auth::Access;
    for (name, access, literals) in [
        ("basic", Access::basic("me", "s3cret-word"), vec!["--from-literal=username=me", "--from-literal=password=s3cret-word"]),
        ("bearer", Access::Bearer("t0ken-of-mine".into()), vec!["--from-literal=bearerToken=t0ken-of-mine"]),
    ] {
        let (url, _) = scene.repository(name, &[("main.tf", HELLO)])?;
        scene.suite.git.set_access(&format!("{}/{name}", scene.namespace), access);
        scene.kubectl(&[&["create", "secret", "generic", name][..], &literals].concat())?;
        let git = json!({"url": url, "revision": "main", "secretRef": {"name": name}});
        scene.create(name, json!({"source": {"git": git}, "operation": "Plan"})).await?;
        scene.ends(name, RunResult::Planned).await?;
        let refused = format!("{name}-refused");
        scene.create(&refused, json!({"source": {"git": {"url": url, "revision": "main"}}, "operation": "Plan"})).await?;
        scene.fails(&refused, crds::FailureClass::Credentials, crds::reason::SOURCE_UNAUTHORIZED, SOON).await?;
    }
    Ok(())
}

async fn provider(scene: Scene) -> Result<()> {
    let main = "terraform {\n  required_providers {\n    time = {\n      source = \"hashicorp/time\"\n    }\n  }\n}\n\nresource \"time_sleep\" \"a\" {\n  create_duration = \"1s\"\n}\n";
    scene.real("a", main, json!({"approval": {"mode": AUTOMATIC}})).await?;
    scene.ends("a", RunResult::Applied).await.map(drop)
}

async fn workspace(scene: Scene) -> Result<()> {
    // The http backend has only one workspace; the `kubernetes` backend has many, with the rights of the pod.
    for args in [
        &["create", "serviceaccount", "states"][..],
        &["create", "role", "states", "--verb=*", "--resource=secrets,leases.coordination.k8s.io"],
        &["create", "rolebinding", "states", "--role=states", &format!("--serviceaccount={}:states", scene.namespace)],
    ] {
        scene.kubectl(args)?;
    }
    let main = "resource \"terraform_data\" \"a\" {\n  input = terraform.workspace\n}\n";
    let run = json!({"source": {"inline": {"files": {"main.tf": main}}}, "tool": {"name": "OpenTofu", "version": "1.10.6"},
        "workspace": "staging", "approval": {"mode": AUTOMATIC}, "runner": {"serviceAccountName": "states"}, "backend":
        {"type": "kubernetes", "config": {"secret_suffix": "a", "namespace": scene.namespace, "in_cluster_config": true}}});
    for (name, result) in [("a", RunResult::Applied), ("b", RunResult::NoChanges)] {
        scene.create_bare(name, run.clone()).await?;
        scene.ends(name, result).await?;
    }
    let mut typo = run.clone();
    (typo["workspace"], typo["operation"]) = ("typo".into(), "Plan".into());
    scene.create_bare("typo", typo).await?;
    scene.fails("typo", crds::FailureClass::Configuration, crds::reason::INVALID_SPEC, SOON).await?;
    ensure!(scene.kubectl(&["get", "secret", "tfstate-typo-a"]).is_err(), "a plan made a workspace");
    scene.kubectl(&["get", "secret", "tfstate-staging-a"]).map(drop)
}

async fn rerun(scene: Scene) -> Result<()> {
    scene
        .scripted("a", json!({"resources": 1}), json!({"approval": {"mode": AUTOMATIC}, "backend": scene.backend("stack")}))
        .await?;
    scene.ends("a", RunResult::Applied).await?;
    let uid = scene.get("a").await?.metadata.uid.context("no uid")?;
    scene.annotate("a", &[(crds::names::RERUN, Some("true"))]).await?;
    let name = crds::names::rerun_name("a", &uid);
    let taken_off = |run: &crds::TerraformRun| run.metadata.annotations.iter().all(|all| !all.contains_key(crds::names::RERUN));
    scene.until("a", "ready to be asked once more", SOON, taken_off).await?;
    let once_more = scene.annotate("a", &[(crds::names::RERUN, Some("true"))]).await;
    ensure!(once_more.is_err_and(|error| format!("{error:#}").contains(&format!("run {name} already answers this request"))));
    let found = scene.until("a", "answered", SOON, |r| r.status.as_ref().is_some_and(|s| s.rerun.is_some())).await?;
    ensure!(found.status.and_then(|s| s.rerun).as_deref() == Some(name.as_str()));
    let fresh =
        scene.until(&name, "ended", SOON, |r| r.status.as_ref().is_some_and(crds::TerraformRunStatus::is_terminal)).await?;
    // The same spec with the stack name that an inline source gets from its first run.
    let mut same = scene.get("a").await?.spec;
    same.stack = Some("a".to_owned());
    ensure!(fresh.spec == same);
    ensure!(fresh.status.is_some_and(|s| s.phase == Some(Phase::Succeeded)));
    ensure!(scene.runs().list(&kube::api::ListParams::default()).await?.items.len() == 2);
    Ok(())
}
