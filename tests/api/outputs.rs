//! Objects with outputs: what the datastore's account may write, and who may request them.

use anyhow::{Result, ensure};
use crds::{TerraformRepository, clock::ServerClock};
use datastore::cluster::{Cluster as _, Kube};
use harness::cluster::objects;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::{
    scene::Scene,
    world::{World, tests, user},
};

tests! {
    Guarded: datastore_writes_only_objects_with_outputs,
    Guarded: datastore_writes_data_of_its_own_secrets,
    Guarded: datastore_reads_no_object,
    Guarded: datastore_lists_what_its_sweep_compares,
    Guarded: run_author_needs_create_on_output_objects,
}

const ACCOUNT: &str = "system:serviceaccount:pawl-system:pawl-datastore";
const FOREIGN: &str = "only objects with outputs";

/// A scene with the client `datastore`, in which its policy is in force.
async fn datastore(world: World) -> Result<Scene> {
    let mut scene = Scene::new(world, &[]).await?;
    scene.add(
        "datastore",
        scene.world.access.impersonate(ACCOUNT, &[]).await?,
    );
    scene
        .refuses(
            "datastore",
            "configmap/probe",
            json!({"create": {}}),
            "'pawl-outputs'",
        )
        .await?;
    Ok(scene)
}

/// An object with outputs of a stack.
fn object(kind: &str, stack: &str, id: &str) -> Value {
    let mut object = json!({"metadata": {"labels": labels(), "annotations": {"pawl.run/outputs-of": stack}}, "data": {"id": id}});
    if kind == "secret" {
        object["type"] = "pawl.run/outputs".into();
    }
    object
}

fn labels() -> Value {
    json!({"app.kubernetes.io/managed-by": "pawl", "pawl.run/outputs": "true"})
}

async fn datastore_writes_only_objects_with_outputs(world: World) -> Result<()> {
    let scene = datastore(world).await?;
    let of_account = json!({"metadata": {"labels": labels(), "annotations": {"kubernetes.io/service-account.name": "default"}},
        "type": "kubernetes.io/service-account-token"});
    for kind in ["configmap", "secret"] {
        let mine = |stack: &str| object(kind, stack, "dnBjLTE=");
        let rows = json!([
            ["its own object", "datastore", {"apply": mine("net/default")}, ""],
            ["its own object again", "datastore", {"apply": object(kind, "net/default", "dnBjLTI=")}, ""],
            ["its own object, unchanged", "datastore", {"apply": mine("net/default")}, ""],
            ["another stack's object", "datastore", {"apply": mine("other/default")}, "of another stack"],
            ["its label", "datastore", {"merge": {"metadata": {"labels": null}}}, FOREIGN],
        ]);
        scene.rows(&format!("{kind}/net"), rows).await?;
        // The type of a Secret never changes.
        let applied = if kind == "secret" {
            "field is immutable"
        } else {
            FOREIGN
        };
        let rows = json!([
            ["creation", "admin", {"create": {"data": {"id": "eA=="}}}, ""],
            ["apply", "datastore", {"apply": mine("net/default")}, applied],
            ["change", "datastore", {"merge": {"data": {"id": "eQ=="}}}, FOREIGN],
            // Refused even as a no-op, because the response would contain the object.
            ["empty patch", "datastore", {"merge": {}}, FOREIGN],
            ["deletion", "datastore", {"delete": ""}, FOREIGN],
        ]);
        scene.rows(&format!("{kind}/plain"), rows).await?;
        let rows = json!([["creation without labels", "datastore", {"create": {"data": {"id": "eA=="}}}, FOREIGN]]);
        scene.rows(&format!("{kind}/unlabelled"), rows).await?;
    }
    let rows = json!([["a token", "datastore", {"create": of_account}, FOREIGN]]);
    scene.rows("secret/token", rows).await?;
    let secret: Api<Secret> = Api::namespaced(scene.world.admin.clone(), &scene.namespace);
    ensure!(secret.get("net").await?.type_.as_deref() == Some("pawl.run/outputs"));
    for object in ["configmap/net", "secret/net"] {
        let rows = json!([["deletion", "datastore", {"delete": ""}, ""]]);
        scene.rows(object, rows).await?;
    }
    Ok(())
}

async fn datastore_writes_data_of_its_own_secrets(world: World) -> Result<()> {
    const KEYRING: &str = "secret/pawl-datastore-keyring";
    let elsewhere = datastore(world.clone()).await?;
    let rows = json!([
        ["creation", "admin", {"create": {}}, ""],
        ["a Secret of its name elsewhere", "datastore", {"merge": {"data": {"id": "eA=="}}}, FOREIGN],
    ]);
    elsewhere.rows(KEYRING, rows).await?;
    let mut scene = Scene::within(world, "pawl-system".to_owned()).await?;
    scene.add(
        "datastore",
        scene.world.access.impersonate(ACCOUNT, &[]).await?,
    );
    let rows = json!([
        ["creation", "admin", {"create": {}}, ""],
        ["a ConfigMap of its name", "datastore", {"merge": {"data": {"id": "x"}}}, FOREIGN],
    ]);
    scene.rows("configmap/pawl-datastore-keyring", rows).await?;
    scene.dry_run = true;
    let rows = json!([
        ["data", "datastore", {"merge": {"data": {"id": "eA=="}}}, ""],
        ["deletion", "datastore", {"delete": ""}, FOREIGN],
    ]);
    scene.rows(KEYRING, rows).await?;
    let rows = json!([
        ["data", "datastore", {"merge": {"data": {"store": "eA=="}}}, ""],
        ["deletion", "datastore", {"delete": ""}, FOREIGN],
    ]);
    scene.dry_run = false;
    scene.rows("secret/pawl-datastore-identity", rows).await
}

async fn datastore_reads_no_object(world: World) -> Result<()> {
    let scene = datastore(world).await?;
    for kind in ["configmap", "secret"] {
        let rows = json!([
            ["get", "datastore", {"get": ""}, "cannot get resource"],
            ["list", "datastore", {"list": null}, "cannot list resource"],
        ]);
        scene.rows(&format!("{kind}/x"), rows).await?;
    }
    Ok(())
}

/// Without the right to list, a sweep reads every run, and keeps what deleted repositories left.
async fn datastore_lists_what_its_sweep_compares(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let run = world.create(&namespace, "net", &json!({})).await?;
    let repositories: Api<TerraformRepository> = Api::namespaced(world.admin.clone(), &namespace);
    let spec = json!({"url": "https://git.example.org/net"});
    let net = json!({"metadata": {"name": "net"}, "spec": spec});
    let repository = objects::create(&repositories, net).await?;
    let datastore = Kube::new(
        world.process("pawl-datastore").await?,
        ServerClock::default(),
    );
    let runs = datastore.uids(&namespace).await?;
    ensure!(runs == run.uid().into_iter().collect(), "{runs:?}");
    let there = datastore.repositories(&namespace).await?;
    ensure!(there == repository.uid().into_iter().collect(), "{there:?}");
    Ok(())
}

async fn run_author_needs_create_on_output_objects(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[("bob", "pawl-author")]).await?;
    scene.dry_run = true;
    let asks = |outputs: Value| json!({"spec": {"outputs": outputs}});
    let map = json!({"configMap": {"name": "net"}});
    let both = json!({"configMap": {"name": "net"}, "secret": {"name": "net"}});
    let other = json!({"configMap": {"name": "other"}});
    let (needs_map, needs_secret) = (
        "a ConfigMap needs the verb create",
        "a Secret needs the verb create",
    );
    let rows = json!([
        ["a ConfigMap", "bob", {"create": asks(map.clone())}, needs_map],
        ["only the status", "bob", {"create": asks(json!({"status": true}))}, ""],
    ]);
    scene.rows("a", rows).await?;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["net"], "verbs": ["create"]}]);
    scene
        .world
        .grant(&scene.namespace, "outputs", &rules, &user("bob"))
        .await?;
    scene
        .eventually("bob", "a", json!({"create": asks(map)}))
        .await?;
    let rows = json!([
        ["a Secret", "bob", {"create": asks(both)}, needs_secret],
        ["another name", "bob", {"create": asks(other)}, needs_map],
    ]);
    scene.rows("a", rows).await
}
