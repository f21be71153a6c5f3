//! The repository of the demo, and a run of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use crds::{TerraformRun, datastore::StateId};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::servers::Servers;
use harness::cluster::Cluster;
use harness::cluster::objects;
use servers::repo::Repo;

pub(super) const NAMESPACE: &str = "demo";
pub(super) const REPOSITORY: &str = "infrastructure";
/// The directory of the run.
const DIRECTORY: &str = "network";
/// The layer, and its directory.
pub(super) const LAYER: &str = "greeting";
const STACK: &str = include_str!("../../fixtures/stacks/demo/main.tf");

/// Commits the stack. It contains the demo's number, so that each demo has a change.
pub(super) fn commit(servers: &Servers, number: u32) -> Result<String> {
    let values = ("demo", format!("generation = {number}\n"));
    committed(servers, DIRECTORY, STACK, &values)
}

/// Commits the layer's directory with this text.
pub(super) fn greet(servers: &Servers, text: &str) -> Result<String> {
    let main = include_str!("../../fixtures/layers/greeting/main.tf");
    let values = ("greeting", format!("greeting = {}\n", json!(text)));
    committed(servers, LAYER, main, &values)
}

fn committed(
    servers: &Servers,
    directory: &str,
    main: &str,
    values: &(&str, String),
) -> Result<String> {
    let repo = Repo::create(&servers.repository(REPOSITORY))?;
    let [code, variables] = [
        format!("{directory}/main.tf"),
        format!("{directory}/{}.auto.tfvars", values.0),
    ];
    let files = [
        (code.as_str(), main),
        (variables.as_str(), values.1.as_str()),
    ];
    repo.commit("main", &files)
        .context("cannot commit to the demo's repository; `cargo demo --fresh` begins anew")
}

/// Creates the namespace if missing.
pub(super) async fn namespace(client: &Client) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    if namespaces.get_opt(NAMESPACE).await?.is_none() {
        objects::namespace(client, NAMESPACE).await?;
    }
    Ok(())
}

/// The number of the next demo: one more than the highest number of a run.
pub(super) async fn next_number(client: &Client) -> Result<u32> {
    let runs = Api::<TerraformRun>::namespaced(client.clone(), NAMESPACE)
        .list(&ListParams::default())
        .await?;
    let number = |run: &TerraformRun| {
        run.name_any()
            .rsplit_once('-')
            .and_then(|(_, number)| number.parse::<u32>().ok())
    };
    Ok(runs.iter().filter_map(number).max().unwrap_or(0) + 1)
}

pub(super) async fn create_run(
    client: &Client,
    servers: &Servers,
    number: u32,
) -> Result<TerraformRun> {
    // Needs neither a backend nor a cloud: the state is in Pawl's datastore.
    let spec = json!({
        "source": {"git": {"url": servers.git_url(REPOSITORY), "revision": "main", "path": DIRECTORY}},
        "tool": {"name": "OpenTofu"},
    });
    let run = TerraformRun::new(&format!("network-{number}"), serde_json::from_value(spec)?);
    let runs = Api::namespaced(client.clone(), NAMESPACE);
    runs.create(&PostParams::default(), &run)
        .await
        .context("cannot create the run; `cargo demo --fresh` begins anew")
}

/// The run's source, for people.
pub(super) fn origin(servers: &Servers) -> String {
    format!("{} //{DIRECTORY}", servers.git_url(REPOSITORY))
}

/// The outputs of the stack in its state.
pub(super) fn outputs(cluster: &Cluster, run: &TerraformRun) -> Result<BTreeMap<String, Value>> {
    let id = StateId::of(&run.name_any(), &run.spec);
    let path = format!(
        "/apis/read.pawl.run/v1alpha1/namespaces/{NAMESPACE}/states/{}/download",
        id.stack
    );
    let text = cluster.kubectl(&["get", "--raw", &path])?;
    let state: Value =
        serde_json::from_str(&text).context("the datastore has no state of the stack")?;
    let outputs = state["outputs"].as_object().into_iter().flatten();
    Ok(outputs
        .map(|(name, output)| (name.clone(), output["value"].clone()))
        .collect())
}
