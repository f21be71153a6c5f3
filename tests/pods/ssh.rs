//! Sources and modules by ssh, from a real sshd, as in the guide.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use crds::{Phase, TerraformRepository};
use harness::guide;
use kube::{Api, api::PostParams};
use serde_json::json;
use servers::{repo::Change, ssh::SshServer, webhook};

use crate::{
    layers::Layers,
    suite::{Scene, Test},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(
        "ssh::source_with_submodules_and_modules_is_fetched",
        as_the_guide_says,
    )]
}

/// The repository in the guide.
const REPOSITORY: &str = "git@git.example.com:platform/stacks.git";

/// A server that pods reach, and the directory of its repositories. An scp-style URL implies port 22; port 0 selects a free port.
async fn server(scene: &Scene, port: u16) -> Result<(SshServer, tempfile::TempDir)> {
    let (ip, repos) = (IpAddr::V4(scene.suite.cluster.host()), tempfile::tempdir()?);
    let root = repos.path().to_owned();
    let server = tokio::task::spawn_blocking(move || SshServer::start_at((ip, port).into(), &root))
        .await??;
    Ok((server, repos))
}

async fn as_the_guide_says(scene: Scene) -> Result<()> {
    let (server, _repos) = server(&scene, 22).await?;
    let part = "resource \"terraform_data\" \"part\" {}\n";
    let own = server
        .create("platform/own")?
        .commit("main", &[("main.tf", part)])?;
    server
        .create("platform/module")?
        .commit("main", &[("main.tf", part)])?;
    // No ssh key or setting is left when code of the stack runs.
    let main = "module \"own\" {\n  source = \"./own\"\n}\n\nlocals {\n  left = fileset(\"/dev/shm\", \"**\")\n}\n\n\
        resource \"terraform_data\" \"seen\" {\n  lifecycle {\n    precondition {\n      condition     = length(local.left) == 0\n      error_message = \"something lies there\"\n    }\n  }\n}\n";
    let far = format!(
        "module \"far\" {{\n  source = \"git::{}\"\n}}\n",
        server.long_url("platform/module")
    );
    server.create("platform/stacks")?.commit_changes(
        "main",
        &[
            Change::File("network/main.tf", main.as_bytes()),
            Change::File("service/main.tf", far.as_bytes()),
            Change::File(
                ".gitmodules",
                b"[submodule \"own\"]\n\tpath = network/own\n\turl = ../own.git\n",
            ),
            Change::Submodule("network/own", &own),
        ],
    )?;
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("id_ed25519"), server.key("identity")?)?;
    std::fs::write(dir.path().join("known_hosts"), server.known_hosts()?)?;
    let namespaced = |text: String| text.replace("-n prod", &format!("-n {}", scene.namespace));
    let paste = format!(
        "set -e; cd '{}'\n{}",
        dir.path().display(),
        namespaced(guide::block("ssh secret")?)
    );
    scene.paste(&paste)?;

    let host = scene.suite.cluster.host().to_string();
    for (name, block, summary) in [
        ("network", "ssh.yaml", "+2"),
        ("service", "modules.yaml", "+1"),
    ] {
        let manifest = guide::block(block)?
            .replace(
                "namespace: prod",
                &format!("namespace: {}", scene.namespace),
            )
            .replace(&format!("generateName: {name}-"), &format!("name: {name}"))
            .replace(REPOSITORY, &server.url("platform/stacks"))
            .replace("git.example.com", &host);
        std::fs::write(dir.path().join(block), manifest)?;
        scene.kubectl(&[
            "create",
            "-f",
            &dir.path().join(block).display().to_string(),
        ])?;
        let plan = scene
            .phase(name, Phase::AwaitingApproval)
            .await?
            .plan
            .context("no plan")?;
        ensure!(plan.summary.starts_with(summary), "{plan:?}");
        ensure!(
            !serde_json::to_string(&scene.get(name).await?)?.contains("PRIVATE KEY"),
            "the run holds a key"
        );
    }
    // The same repository, followed with the same Secret: its layer's pod needs neither.
    webhook::bind(&scene.suite.cluster, &scene.namespace, "pawl-sources").await?;
    let spec = json!({"url": server.url("platform/stacks"), "secretRef": {"name": "git-ssh"}});
    let repository = TerraformRepository::new("infrastructure", serde_json::from_value(spec)?);
    Api::namespaced(scene.suite.client.clone(), &scene.namespace)
        .create(&PostParams::default(), &repository)
        .await?;
    let layers = Layers::of(&scene)?;
    layers.layer("followed", json!({"path": "network"})).await?;
    let planned = layers
        .until("followed", "planned", |status| status.pending.is_some())
        .await?;
    ensure!(
        planned
            .pending
            .is_some_and(|pending| pending.summary.is_some_and(|text| text.starts_with("+2"))),
        "another plan"
    );
    Ok(())
}
