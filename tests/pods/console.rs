//! The web console in a real browser (`controller/ui/e2e`): by mouse, behind nginx, logged in with Gitea; by keys, logged in by a token.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult};
use harness::{
    cluster::{
        NAMESPACE,
        access::issuer,
        control_plane::free_ports,
        objects,
        pki::{Identity, Pair, Pki},
    },
    wait,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Secret, Service},
};
use kube::{Api, ResourceExt as _, api::DeleteParams};
use serde_json::{Value, json};
use servers::{
    gitea::Gitea,
    nginx::{self, BASE, Nginx},
    port_forward::forward,
};
use tokio::net::TcpListener;

use crate::{
    recovery,
    suite::{LATER, SOON, Scene, Test},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(
        "console::people_act_in_a_browser_by_mouse_and_by_keys",
        journey,
    )]
}

const MAIN: &str = r#"resource "terraform_data" "vpc" { input = "10.0.0.0/16" }
resource "terraform_data" "subnet" {
  count = 2
  input = "10.0.${count.index}.0/24 of ${terraform_data.vpc.id}"
}
"#;
/// The tool prints the command as well, which has none of the words that it prints.
const LIVE: &str = r#"resource "terraform_data" "slow" {
  provisioner "local-exec" { command = "echo slow-$((1)); sleep 8; echo slow-$((2))" }
}
"#;
const PASSWORD: &str = "correct horse";
const ROLES: [&str; 2] = ["pawl-author", "pawl-approver"];
/// Each pass has its own person and runs.
const PASSES: [&str; 2] = ["mouse", "keys"];

async fn journey(scene: Scene) -> Result<()> {
    let namespace = &scene.namespace;
    let tools = Gitea::tools()?.context("gitea is not built")?;
    let host = scene.suite.cluster.host();
    let directory = tempfile::tempdir()?;
    let pki = Pki::bare(directory.path(), "journey")?;
    let (address, loopback) = (host.to_string(), "127.0.0.1");
    let pair = pki.issue(Identity {
        file: "journey",
        user: "journey",
        group: "journey",
        hosts: &[&address, loopback],
    })?;
    let gitea = Gitea::start_tls(&tools, host.into(), &pair, &pki.authority()).await?;
    gitea.person("ada", PASSWORD).await?;
    let (ada, carol) = (
        "oidc:2".to_owned(),
        format!("system:serviceaccount:{namespace}:carol"),
    );
    scene.kubectl(&["create", "serviceaccount", "carol"])?;
    for role in ROLES {
        let (name, of) = (format!("journey-{role}"), format!("--clusterrole={role}"));
        let (user, account) = (
            format!("--user={ada}"),
            format!("--serviceaccount={namespace}:carol"),
        );
        scene.kubectl(&["create", "rolebinding", &name, &of, &user, &account])?;
    }
    let token = scene.kubectl(&["create", "token", "carol"])?;
    runs(&scene, directory.path()).await?;
    let behind = Behind::start(&scene, &gitea, &pki, &pair).await;
    let acted = match &behind {
        Ok(behind) => {
            let live = |by: &str| directory.path().join(format!("live-{by}.json"));
            let passes = json!([
                {"by": "mouse", "url": behind.url, "user": "ada", "password": PASSWORD, "me": ada, "live": live("mouse")},
                {"by": "keys", "url": forwarded(&scene).await?, "token": token.trim(), "me": carol, "live": live("keys")},
            ]);
            browse(&scene, &passes, gitea.url()).await
        }
        Err(error) => Err(anyhow::anyhow!("no console behind nginx: {error:#}")),
    };
    Behind::remove(&scene).await?;
    acted.with_context(|| behind.map_or_else(|_| gitea.log(), |it| it.nginx.log()))?;
    for (by, person) in PASSES.into_iter().zip([ada, carol]) {
        let applied = scene
            .ends(&format!("live-{by}"), RunResult::Applied)
            .await?;
        let approval = applied.approval.context("no approval")?;
        ensure!(approval.by == person, "{approval:?}");
        ensure!(approval.comment.as_deref() == Some("read in the browser"));
        scene
            .ends(&format!("denied-{by}"), RunResult::Rejected)
            .await?;
        scene
            .ends(&format!("waits-{by}"), RunResult::Canceled)
            .await?;
        let again = scene.recovery_of(&format!("lost-{by}")).await?;
        scene.phase(&again, Phase::AwaitingApproval).await?;
    }
    Ok(())
}

/// The runs that each pass acts on, and the manifest of the one that it creates.
async fn runs(scene: &Scene, directory: &Path) -> Result<()> {
    for by in PASSES {
        for name in ["waits", "denied"] {
            let name = format!("{name}-{by}");
            scene.real(&name, MAIN, json!({})).await?;
            scene.phase(&name, Phase::AwaitingApproval).await?;
        }
        recovery::lost(scene, &format!("lost-{by}"), &format!("net-{by}")).await?;
        let name = format!("live-{by}");
        let manifest = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun", "metadata": {"name": name}, "spec": {
            "source": {"inline": {"files": {"main.tf": LIVE}}}, "tool": {"name": "OpenTofu", "version": "1.10.6"},
            "backend": scene.backend(&name)}});
        std::fs::write(directory.join(format!("{name}.json")), manifest.to_string())?;
    }
    Ok(())
}

/// Runs the journey.
async fn browse(scene: &Scene, passes: &Value, provider: &str) -> Result<()> {
    let (ui, access) = (xtask::ui::directory(), &scene.suite.cluster);
    xtask::ui::install()?;
    let mut journey = Command::new("node");
    journey
        .args(["--test", "--test-reporter=tap", "e2e/journey.test.mjs"])
        .current_dir(&ui)
        .env("PASSES", passes.to_string())
        .env("PAWL_NAMESPACE", &scene.namespace)
        .env("PROVIDER", provider)
        .env("KUBECTL", &access.kubectl)
        .env("KUBECONFIG", &access.kubeconfig)
        .env("PICTURES", ui.join("pictures"));
    let output = tokio::task::spawn_blocking(move || journey.output())
        .await?
        .context("node does not start")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{text}");
    Ok(())
}

/// A second server of the cluster, whose people log in with Gitea and come through nginx.
struct Behind {
    nginx: Nginx,
    url: String,
}

impl Behind {
    async fn start(scene: &Scene, gitea: &Gitea, pki: &Pki, pair: &Pair) -> Result<Self> {
        let port = free_ports(1)?[0];
        let url = format!("https://127.0.0.1:{port}{BASE}");
        let (id, secret) = gitea.client(&format!("{url}/login/oidc/callback")).await?;
        let name = name(scene);
        let client = &scene.suite.client;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let texts = json!({"clientSecret": secret, "ca.crt": pki.authority()});
        objects::create(
            &secrets,
            json!({"metadata": {"name": name}, "stringData": texts}),
        )
        .await?;
        let servers: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let mut server = serde_json::to_value(servers.get("pawl-server").await?)?;
        server["metadata"] = json!({"name": name});
        server["status"] = Value::Null;
        let spec = &mut server["spec"];
        spec["selector"] = json!({"matchLabels": {"console": name}});
        spec["template"]["metadata"] = json!({"labels": {"console": name}});
        let pod = &mut spec["template"]["spec"];
        push(
            &mut pod["volumes"],
            json!({"name": "login", "secret": {"secretName": name}}),
        );
        let container = &mut pod["containers"][0];
        let mount = json!({"name": "login", "mountPath": "/login", "readOnly": true});
        push(&mut container["volumeMounts"], mount);
        for flag in [
            format!("--url={url}"),
            "--behind-tls-proxy=0.0.0.0/0".to_owned(),
            format!("--oidc-issuer={}", gitea.url()),
            format!("--oidc-client-id={id}"),
            "--oidc-client-secret-file=/login/clientSecret".to_owned(),
            "--oidc-ca=/login/ca.crt".to_owned(),
        ] {
            push(&mut container["args"], flag.into());
        }
        objects::create(&servers, server).await?;
        let look = async || {
            let mut pods = scene.system_pods(&format!("console={name}")).await?;
            let pod = pods.pop().unwrap_or_default();
            let status = pod.status.clone().unwrap_or_default();
            let mut conditions = status.conditions.iter().flatten();
            let ready = conditions.any(|it| it.type_ == "Ready" && it.status == "True");
            let address = status.pod_ip.clone().filter(|_| ready);
            Ok(address.ok_or_else(|| format!("{}: {status:?}", pod.name_any())))
        };
        let address = wait::until("the second server is ready", SOON, look).await?;
        trust(scene, gitea, &id, pki).await?;
        let proxy = nginx::Settings::default();
        let nginx = Nginx::start(port, pair, &format!("{address}:8444"), proxy)?;
        Ok(Self { nginx, url })
    }

    async fn remove(scene: &Scene) -> Result<()> {
        let (client, name, now) = (&scene.suite.client, name(scene), DeleteParams::default());
        let servers: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let _ = servers.delete(&name, &now).await;
        let _ = secrets.delete(&name, &now).await;
        scene.suite.cluster.trust(&[])
    }
}

fn name(scene: &Scene) -> String {
    format!("console-{}", scene.namespace)
}

fn push(list: &mut Value, item: Value) {
    if list.is_null() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

/// Lets the API server trust Gitea, and waits until it read its file again.
async fn trust(scene: &Scene, gitea: &Gitea, client: &str, pki: &Pki) -> Result<()> {
    let reloads = || -> Result<String> {
        let metrics = scene.kubectl(&["get", "--raw", "/metrics"])?;
        let name = "apiserver_authentication_config_controller_automatic_reloads_total{";
        let lines = metrics.lines().filter(|line| line.starts_with(name));
        Ok(lines
            .filter(|line| line.contains("success"))
            .collect::<String>())
    };
    let before = reloads()?;
    let trusted = issuer(gitea.url(), client, &pki.authority());
    scene.suite.cluster.trust(&[trusted])?;
    let look = async || {
        let now = reloads()?;
        Ok((now != before).then_some(()).ok_or(now))
    };
    wait::until("the API server trusts Gitea", LATER, look).await
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
