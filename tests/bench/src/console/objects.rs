//! Creates repositories, layers and runs with realistic statuses, each in one write.

use anyhow::{Context, Result};
use crds::{TerraformLayer, TerraformRepository, TerraformRun, names};
use harness::cluster::ControlPlane;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::serde::{Serialize, de::DeserializeOwned};
use kube::Client;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::Options;
use crate::scale::{IN_FORCE, all_of, apply};

/// Layers of a namespace.
const OF_A_NAMESPACE: usize = 100;

pub(super) fn namespace(layer: usize) -> String {
    format!("team-{:03}", layer / OF_A_NAMESPACE)
}

pub(super) fn run_name(number: usize, layers: usize) -> (String, String) {
    let layer = number % layers;
    let name = format!("{}-{:05}", layer_name(layer), number / layers);
    (namespace(layer), name)
}

fn layer_name(layer: usize) -> String {
    let what = [
        "network",
        "database",
        "kubernetes-cluster",
        "dns-zones",
        "monitoring",
    ];
    format!("{}-{layer:05}", what[layer % what.len()])
}

/// Stores all objects. Meanwhile no policies are in force, and the definitions have neither rules nor the subresource `status`.
pub(super) async fn create(plane: &ControlPlane, options: &Options) -> Result<()> {
    let definitions = [
        crds::crd::terraform_layer(),
        crds::crd::terraform_run(),
        crds::crd::terraform_repository(),
    ];
    let plain = definitions.clone().map(|mut definition| {
        let version = &mut definition["spec"]["versions"][0];
        version["subresources"].take();
        version["schema"]["openAPIV3Schema"]["x-kubernetes-validations"].take();
        definition
    });
    tokio::task::block_in_place(|| {
        plane.kubectl(&["delete", "validatingadmissionpolicybindings", "--all"])?;
        plain
            .iter()
            .try_for_each(|it| apply(plane, &it.to_string()))
    })?;
    tokio::time::sleep(IN_FORCE).await;
    let admin = plane.client().await?;
    let namespaces = (0..options.layers.div_ceil(OF_A_NAMESPACE)).map(|number| {
        let name = namespace(number * OF_A_NAMESPACE);
        (None, json!({"metadata": {"name": name}}))
    });
    all::<Namespace>(&admin, namespaces).await?;
    let repositories = (0..options.layers).step_by(20).map(|layer| {
        let url = format!("https://git.example.com/team/{}.git", repository(layer));
        (
            Some(namespace(layer)),
            json!({"metadata": {"name": repository(layer)}, "spec": {"url": url}}),
        )
    });
    all::<TerraformRepository>(&admin, repositories).await?;
    let now = Timestamp::now();
    let layers = (0..options.layers).map(|number| (Some(namespace(number)), layer(number, now)));
    all::<TerraformLayer>(&admin, layers).await?;
    let runs = (0..options.runs).map(|number| {
        let (namespace, name) = run_name(number, options.layers);
        (
            Some(namespace),
            run(&name, number, number % options.layers, now),
        )
    });
    all::<TerraformRun>(&admin, runs).await?;
    tokio::task::block_in_place(|| {
        definitions
            .iter()
            .try_for_each(|it| apply(plane, &it.to_string()))
    })?;
    tokio::time::sleep(IN_FORCE).await;
    Ok(())
}

async fn all<K>(
    admin: &Client,
    objects: impl Iterator<Item = (Option<String>, Value)>,
) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    let create = |(namespace, mut object): (Option<String>, Value)| async move {
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let url = K::url_path(&(), namespace.as_deref());
        let request = kube::core::Request::new(url);
        let request = request.create(&PostParams::default(), serde_json::to_vec(&object)?)?;
        let made: kube::Result<Value> = admin.request(request).await;
        made.map(drop)
            .with_context(|| object["metadata"]["name"].to_string())
    };
    all_of(objects.map(create)).await
}

fn repository(layer: usize) -> String {
    format!("infrastructure-{:03}", layer / 20)
}

fn ago(now: Timestamp, minutes: usize) -> String {
    let ago = SignedDuration::from_mins(i64::try_from(minutes).unwrap_or_default());
    (now - ago).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn revision(number: usize) -> String {
    format!(
        "{:040x}",
        (number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    )
}

fn layer(number: usize, now: Timestamp) -> Value {
    let (status, reason, message) = match number % 40 {
        0 => ("False", "RunFailed", "the last run failed"),
        1 | 2 => ("False", "DriftFound", "the objects differ from the code"),
        3 => ("False", "NotApplied", "the last plan was not applied"),
        _ => ("True", "UpToDate", "the objects match the code"),
    };
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": ago(now, number % 9000), "observedGeneration": 1})
    };
    let conditions = [
        condition("Ready", status, reason),
        condition("Reconciling", "False", reason),
        condition("Stalled", "False", reason),
    ];
    json!({
        "metadata": {"name": layer_name(number)},
        "spec": {"repository": {"name": repository(number)}, "path": format!("live/production/eu-central-1/{}", layer_name(number)), "ref": "main"},
        "status": {"observedGeneration": 1, "conditions": conditions, "revision": revision(number / 20), "lastResult": "NoChanges"},
    })
}

fn run(name: &str, number: usize, layer: usize, now: Timestamp) -> Value {
    let created = ago(now, number % 20_000);
    let (phase, result, add) = match number % 100 {
        0 => ("AwaitingApproval", Value::Null, 3),
        1..=4 => ("Failed", json!("Failed"), 0),
        5..=20 => ("Succeeded", json!("Applied"), 2),
        _ => ("Succeeded", json!("NoChanges"), 0),
    };
    let plan = json!({"checksum": format!("sha256:{:064x}", number), "attempt": 1, "summary": format!("+{add} ~0 -0"), "add": add, "change": 0,
        "destroy": 0, "import": 0, "replace": 0, "forget": 0, "outputs": 0, "tool": "OpenTofu 1.10.6",
        "revision": revision(layer / 20), "createdAt": created, "platform": "linux_amd64"});
    let step = |name: &str| json!({"name": name, "attempt": 1, "startedAt": created, "finishedAt": created, "exitCode": 0});
    let mut run = json!({
        "metadata": {"name": name, "labels": {names::LABEL_LAYER: layer_name(layer)}, "annotations": {names::TRIGGER: "Commit"}},
        "spec": {"stack": layer_name(layer), "source": {"repository": {"name": repository(layer), "revision": revision(layer / 20), "path": format!("live/production/eu-central-1/{}", layer_name(layer))}}},
        "status": {"phase": phase, "result": result, "message": "ended", "startTime": created,
            "completionTime": result.as_str().map(|_| created.clone()), "plan": plan, "steps": [step("init"), step("plan")],
            "history": ["09:00:00  Setup  0.1s  repository; OpenTofu 1.10.6", "09:00:01  Init  0.1s  backend http, workspace default",
                "09:00:02  Plan  0.1s  planned"]},
    });
    if let Some(status) = run["status"].as_object_mut() {
        status.retain(|_, value| !value.is_null());
    }
    run
}
