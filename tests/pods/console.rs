//! The web console in a real browser, with the rights of an approver (`controller/ui/e2e`).

use std::process::Command;

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult};
use harness::cluster::NAMESPACE;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use serde_json::json;
use servers::port_forward::forward;
use tokio::net::TcpListener;

use crate::suite::{Scene, Test};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(
        "console::person_approves_in_a_browser",
        approves_in_a_browser,
    )]
}

const MAIN: &str = r#"resource "terraform_data" "vpc" { input = "10.0.0.0/16" }
resource "terraform_data" "subnet" {
  count = 2
  input = "10.0.${count.index}.0/24 of ${terraform_data.vpc.id}"
}
"#;

async fn approves_in_a_browser(scene: Scene) -> Result<()> {
    let namespace = &scene.namespace;
    scene.kubectl(&["create", "serviceaccount", "carol"])?;
    let account = format!("--serviceaccount={namespace}:carol");
    for role in ["pawl-author", "pawl-approver"] {
        let role_name = format!("--clusterrole={role}");
        scene.kubectl(&["create", "rolebinding", role, &role_name, &account])?;
    }
    let token = scene.kubectl(&["create", "token", "carol"])?;
    for run in ["network", "other"] {
        scene.real(run, MAIN, json!({})).await?;
        scene.phase(run, Phase::AwaitingApproval).await?;
    }
    let url = forwarded(&scene).await?;
    let ui = xtask::ui::directory();
    xtask::ui::install()?;
    let pictures = ui.join("pictures");
    let mut journey = Command::new("node");
    journey
        .args(["--test", "--test-reporter=tap", "e2e/journey.test.mjs"])
        .current_dir(&ui)
        .envs([
            ("PAWL_URL", url.as_str()),
            ("PAWL_TOKEN", token.trim()),
            ("PAWL_NAMESPACE", namespace),
            ("RUN", "network"),
            ("DENIED", "other"),
        ])
        .env("PICTURES", &pictures);
    let output = tokio::task::spawn_blocking(move || journey.output())
        .await?
        .context("node does not start")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{text}");
    let applied = scene.ends("network", RunResult::Applied).await?;
    let approval = applied.approval.context("no approval")?;
    ensure!(approval.by == format!("system:serviceaccount:{namespace}:carol"));
    ensure!(approval.comment.as_deref() == Some("read in the browser"));
    scene.ends("other", RunResult::Rejected).await.map(drop)
}

/// The console at a loopback address, as by `kubectl port-forward`.
async fn forwarded(scene: &Scene) -> Result<String> {
    let services: Api<Service> = Api::namespaced(scene.suite.client.clone(), NAMESPACE);
    let service = services.get("pawl-web").await?.spec.context("no spec")?;
    let console = format!("{}:80", service.cluster_ip.context("no address")?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(forward(listener, move || Some(console.clone())));
    Ok(url)
}
