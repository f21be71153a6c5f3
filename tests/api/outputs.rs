//! Objects with outputs: what the datastore's account may write, and who may request them.

use anyhow::{Result, ensure};
use harness::{cluster::objects, wait};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::world::{PATIENCE, World, refused, run, tests};

tests! {
    Guarded: datastore_writes_only_objects_with_outputs,
    Guarded: datastore_reads_no_object,
    Guarded: run_author_needs_create_on_output_objects,
}

const ACCOUNT: &str = "system:serviceaccount:pawl-system:pawl-datastore";
const FOREIGN: &str = "only objects with outputs";

/// The datastore's client, and a namespace in which its policy is in force. Waits until a probe is refused.
async fn datastore(world: &World) -> Result<(Client, String)> {
    let namespace = world.namespace().await?;
    let client = world.access.impersonate(ACCOUNT, &[]).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let probe: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "probe"}}))?;
    let look = async || {
        let answer = maps.create(&PostParams { dry_run: true, ..PostParams::default() }, &probe).await;
        Ok(matches!(answer, Err(kube::Error::Api(status)) if status.message.contains("'pawl-outputs'")))
    };
    wait::until("the policy is in force", PATIENCE, look).await?;
    Ok((client, namespace))
}

fn object(kind: &str, name: &str, of: &str) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name,
        "labels": {"app.kubernetes.io/managed-by": "pawl", "pawl.run/outputs": "true"},
        "annotations": {"pawl.run/outputs-of": of}}, "data": {"id": "dnBjLTE="}});
    if kind == "Secret" {
        object["type"] = "pawl.run/outputs".into();
    }
    object
}

fn applied() -> PatchParams {
    PatchParams::apply("pawl-datastore").force()
}

async fn datastore_writes_only_objects_with_outputs(world: World) -> Result<()> {
    let (client, namespace) = datastore(&world).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let theirs_maps: Api<ConfigMap> = Api::namespaced(world.admin.clone(), &namespace);
    let theirs: Api<Secret> = Api::namespaced(world.admin.clone(), &namespace);
    // Its own objects, repeatedly.
    for id in ["dnBjLTE=", "dnBjLTI="] {
        let (mut map, mut secret) = (object("ConfigMap", "net", "net/default"), object("Secret", "net", "net/default"));
        map["data"]["id"] = id.into();
        secret["data"]["id"] = id.into();
        maps.patch("net", &applied(), &Patch::Apply(&map)).await?;
        secrets.patch("net", &applied(), &Patch::Apply(&secret)).await?;
    }
    let again = secrets.patch("net", &applied(), &Patch::Apply(&object("Secret", "net", "net/default"))).await?;
    ensure!(again.type_.as_deref() == Some("pawl.run/outputs"));
    // Objects of another stack.
    let other = object("ConfigMap", "net", "other/default");
    refused("another stack's", maps.patch("net", &applied(), &Patch::Apply(&other)).await, "of another stack")?;
    let other = object("Secret", "net", "other/default");
    refused("another stack's", secrets.patch("net", &applied(), &Patch::Apply(&other)).await, "of another stack")?;
    // Objects of users.
    let plain = json!({"metadata": {"name": "plain"}, "data": {"id": "eA=="}});
    objects::create(&theirs_maps, plain.clone()).await?;
    objects::create(&theirs, plain).await?;
    let map = object("ConfigMap", "plain", "net/default");
    refused("a ConfigMap", maps.patch("plain", &applied(), &Patch::Apply(&map)).await, FOREIGN)?;
    let secret = object("Secret", "plain", "net/default");
    refused("its type", secrets.patch("plain", &applied(), &Patch::Apply(&secret)).await, "field is immutable")?;
    refused("a Secret", objects::merge(&secrets, "plain", &json!({"data": {"id": "eQ=="}})).await, FOREIGN)?;
    // Refuses even a no-op dry run, because its response would contain the object.
    let nothing = Patch::Merge(json!({}));
    let tried = PatchParams { dry_run: true, ..PatchParams::default() };
    refused("an empty patch", secrets.patch("plain", &tried, &nothing).await, FOREIGN)?;
    refused("a deletion", secrets.delete("plain", &DeleteParams::default()).await, FOREIGN)?;
    refused("a deletion", maps.delete("plain", &DeleteParams::default()).await, FOREIGN)?;
    // It may not create a Secret of another type, nor drop the label of its own objects.
    let token = json!({"metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": "default"},
        "labels": {"app.kubernetes.io/managed-by": "pawl", "pawl.run/outputs": "true"}}, "type": "kubernetes.io/service-account-token"});
    refused("a token", secrets.create(&PostParams::default(), &serde_json::from_value(token)?).await, FOREIGN)?;
    refused("its label", objects::merge(&maps, "net", &json!({"metadata": {"labels": null}})).await, FOREIGN)?;
    maps.delete("net", &DeleteParams::default()).await?;
    secrets.delete("net", &DeleteParams::default()).await?;
    Ok(())
}

async fn datastore_reads_no_object(world: World) -> Result<()> {
    let (client, namespace) = datastore(&world).await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    refused("get", secrets.get("x").await, "cannot get resource")?;
    refused("list", secrets.list(&ListParams::default()).await, "cannot list resource")?;
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    refused("get", maps.get("x").await, "cannot get resource")
}

async fn run_author_needs_create_on_output_objects(world: World) -> Result<()> {
    let (_, namespace) = datastore(&world).await?;
    let bob = world.person("bob", &namespace, "pawl-author").await?;
    let runs: Api<crds::TerraformRun> = Api::namespaced(bob, &namespace);
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let asks = |outputs: Value| run("a", &json!({"outputs": outputs}));
    let map = asks(json!({"configMap": {"name": "net"}}))?;
    let both = asks(json!({"configMap": {"name": "net"}, "secret": {"name": "net"}}))?;
    refused("a ConfigMap", runs.create(&params, &map).await, "a ConfigMap needs the verb create")?;
    runs.create(&params, &asks(json!({"status": true}))?).await?;
    let role = json!({"metadata": {"name": "test-outputs"}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["net"], "verbs": ["create"]}]});
    objects::create(&Api::<k8s_openapi::api::rbac::v1::ClusterRole>::all(world.admin.clone()), role).await?;
    world.bind_user(&namespace, "test-outputs", "bob").await?;
    wait::until("bob may publish", PATIENCE, async || Ok(runs.create(&params, &map).await)).await?;
    refused("a Secret", runs.create(&params, &both).await, "a Secret needs the verb create")?;
    let other = asks(json!({"configMap": {"name": "other"}}))?;
    refused("another name", runs.create(&params, &other).await, "a ConfigMap needs the verb create")
}
