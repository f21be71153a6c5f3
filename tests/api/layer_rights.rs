//! Who may create and change layers, and runs in their name: the author of a layer needs the rights that its runs need.

use anyhow::{Context as _, Result};
use crds::{TerraformLayer, TerraformRepository, TerraformRun, names};
use k8s_openapi::api::rbac::v1::Role;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::world::{Test, World, refused, run};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("layer_rights::what_a_layer_asks_for_is_asked_of_its_maker", true, created),
        Test::new("layer_rights::a_change_of_what_its_runs_do_is_admitted_like_a_creation_and_others_are_free", true, changed),
        Test::new("layer_rights::an_unverified_layer_is_confirmed_by_who_may_make_it", true, confirmed),
        Test::new("layer_rights::the_finalizer_needs_control", true, finalizer),
        Test::new("layer_rights::only_the_controller_makes_runs_of_a_layer", true, marks),
        Test::new("layer_rights::roles_read_and_write_layers_and_repositories", true, roles),
        Test::new("layer_rights::a_template_is_held_to_the_rules_of_a_run", false, template),
    ]
}

/// A layer; `spec` is merged into its spec.
pub(crate) fn layer(name: &str, spec: &Value) -> Result<TerraformLayer> {
    let mut whole = json!({"repository": {"name": "infra"}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    Ok(TerraformLayer::new(name, serde_json::from_value(whole)?))
}

const CONTROLLER: &str = "system:serviceaccount:pawl-system:pawl-controller";
const AUTOMATIC: &str = "remediation Automatic needs the verb autoapprove on terraformruns";

/// Fields of a layer that need a right, and the message without it.
fn asked() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("commits", json!({"remediation": {"onCommit": "Automatic"}}), AUTOMATIC),
        ("drift", json!({"remediation": {"onDrift": "Automatic"}}), AUTOMATIC),
        ("deletion", json!({"remediation": {"onDelete": "Automatic"}}), AUTOMATIC),
        (
            "an account",
            json!({"template": {"runner": {"serviceAccountName": "deployer"}}}),
            "with the ServiceAccount deployer needs the verb use on it",
        ),
        (
            "an account of plans",
            json!({"template": {"runner": {"planServiceAccountName": "reader"}}}),
            "with the ServiceAccount reader needs the verb use on it",
        ),
        (
            "a cloud's account",
            json!({"template": {"credentials": {"aws": {"roleArn": "arn:aws:iam::111122223333:role/r"}},
                "runner": {"serviceAccountName": "deployer"}}}),
            "with the ServiceAccount deployer needs the verb use on it",
        ),
        (
            "a ConfigMap",
            json!({"template": {"outputs": {"configMap": {"name": "net"}}}}),
            "to a ConfigMap needs the verb create on it",
        ),
        ("a Secret", json!({"template": {"outputs": {"secret": {"name": "net"}}}}), "to a Secret needs the verb create on it"),
    ]
}

struct Scene {
    namespace: String,
    /// An author, with all verbs on layers and `create` on runs.
    bob: Api<TerraformLayer>,
    /// A user who also holds the rights that `asked` lists.
    eve: Api<TerraformLayer>,
    /// A user who may write layers but not create runs.
    dan: Api<TerraformLayer>,
    controller: Api<TerraformLayer>,
}

impl Scene {
    async fn new(world: &World) -> Result<Self> {
        let namespace = world.namespace().await?;
        let roles: Api<Role> = Api::namespaced(world.admin.clone(), &namespace);
        for (name, rules) in [
            (
                "owner",
                json!([{"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["deployer", "reader"], "verbs": ["use"]},
                    {"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["create"]}]),
            ),
            (
                "layers",
                json!([{"apiGroups": ["pawl.run"], "resources": ["terraformlayers"], "verbs": ["get", "create", "patch", "delete"]}]),
            ),
        ] {
            let role = serde_json::from_value(json!({"metadata": {"name": name}, "rules": rules}))?;
            roles.create(&PostParams::default(), &role).await?;
        }
        world.access.kubectl(&["create", "rolebinding", "-n", &namespace, "eve", "--role=owner", "--user=eve"])?;
        world.access.kubectl(&["create", "rolebinding", "-n", &namespace, "dan", "--role=layers", "--user=dan"])?;
        let bob = world.person("bob", &namespace, "pawl-author").await?;
        // Waits for the last binding.
        let eve = world.person("eve", &namespace, "pawl-autoapprover").await?;
        let dan = world.person("dan", &namespace, "pawl-viewer").await?;
        let controller = world.access.impersonate(CONTROLLER, &[]).await?;
        let of = |client: Client| Api::namespaced(client, &namespace);
        Ok(Self { bob: of(bob), eve: of(eve), dan: of(dan), controller: of(controller), namespace })
    }
}

async fn create(layers: &Api<TerraformLayer>, name: &str, spec: &Value) -> Result<kube::Result<TerraformLayer>> {
    Ok(layers.create(&PostParams::default(), &layer(name, spec)?).await)
}

async fn merge(layers: &Api<TerraformLayer>, name: &str, patch: Value) -> kube::Result<TerraformLayer> {
    layers.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

async fn created(world: World) -> Result<()> {
    let scene = Scene::new(&world).await?;
    create(&scene.bob, "plain", &json!({})).await?.context("what asks for nothing")?;
    create(&scene.bob, "destroys", &json!({"deletionPolicy": "Destroy"})).await?.context("destroying, when somebody approves")?;
    let needs = "needs the verb create on terraformruns";
    for (what, spec) in [("at all", json!({})), ("that destroys", json!({"deletionPolicy": "Destroy"}))] {
        refused(what, create(&scene.dan, "runs", &spec).await?, needs)?;
    }
    for (n, (what, spec, text)) in asked().into_iter().enumerate() {
        refused(what, create(&scene.bob, &format!("asks-{n}"), &spec).await?, text)?;
        create(&scene.eve, &format!("asks-{n}"), &spec).await?.with_context(|| format!("{what}, with the right"))?;
    }
    let root = json!({"template": {"runner": {"serviceAccountName": "root"}}});
    refused("another account", create(&scene.eve, "root", &root).await?, "ServiceAccount root needs the verb use")
}

async fn changed(world: World) -> Result<()> {
    let scene = Scene::new(&world).await?;
    create(&scene.bob, "manual", &json!({})).await?.context("manual")?;
    for (what, spec, text) in asked() {
        refused(what, merge(&scene.bob, "manual", json!({"spec": spec})).await, text)?;
    }
    merge(&scene.bob, "manual", json!({"spec": {"path": "other", "remediation": {"onDrift": "Dry"}}}))
        .await
        .context("its path")?;
    refused(
        "without a right to runs",
        merge(&scene.dan, "manual", json!({"spec": {"ref": "x"}})).await,
        "needs the verb create",
    )?;
    // In an Automatic layer, a change of the applied content needs the same right as the mode.
    let spec = json!({"remediation": {"onCommit": "Automatic"}, "template": {"runner": {"serviceAccountName": "deployer"}}});
    create(&scene.eve, "automatic", &spec).await?.context("automatic")?;
    for change in [
        json!({"ref": "mine"}),
        json!({"path": "mine"}),
        json!({"repository": {"name": "mine"}}),
        json!({"template": {"variables": [{"name": "a", "value": 1}]}}),
        json!({"remediation": {"onDrift": "Dry"}}),
        json!({"deletionPolicy": "Destroy"}),
    ] {
        refused(&change.to_string(), merge(&scene.bob, "automatic", json!({"spec": change})).await, AUTOMATIC)?;
    }
    let less = json!({"spec": {"remediation": {"onCommit": "Manual"}}});
    refused("with its account still", merge(&scene.bob, "automatic", less).await, "ServiceAccount deployer needs the verb use")?;
    // Whether and when its runs are made needs no further right.
    for free in [
        json!({"metadata": {"annotations": {names::PLAN: "now", names::SUSPEND: "true"}, "labels": {"team": "x"}}}),
        json!({"spec": {"suspend": true, "runHistory": 9, "maxRetries": 1, "drift": {"suspend": true}, "triggerPaths": ["a/**"]}}),
    ] {
        for who in [&scene.bob, &scene.dan, &scene.controller] {
            merge(who, "automatic", free.clone()).await.with_context(|| free.to_string())?;
        }
    }
    refused("by the controller", merge(&scene.controller, "automatic", json!({"spec": {"ref": "mine"}})).await, AUTOMATIC)?;
    let none = json!({"spec": {"remediation": {"onCommit": "Manual"}, "template": null}});
    merge(&scene.bob, "automatic", none).await.context("one that asks for nothing any more")?;
    Ok(())
}

async fn confirmed(world: World) -> Result<()> {
    let scene = Scene::new(&world).await?;
    create(&scene.eve, "net", &json!({"remediation": {"onCommit": "Automatic"}})).await?.context("net")?;
    let mark = |word: Option<&str>| json!({"metadata": {"annotations": {names::UNVERIFIED: word}}});
    let text = "pawl.run/unverified is set by the controller";
    refused("by somebody", merge(&scene.eve, "net", mark(Some("x"))).await, text)?;
    merge(&scene.controller, "net", mark(Some("why"))).await.context("by the controller")?;
    refused("changed", merge(&scene.eve, "net", mark(Some("x"))).await, text)?;
    merge(&scene.bob, "net", json!({"metadata": {"annotations": {names::PLAN: "now"}}})).await.context("something else")?;
    refused("removed by who may not make it", merge(&scene.bob, "net", mark(None)).await, AUTOMATIC)?;
    refused("removed by the controller", merge(&scene.controller, "net", mark(None)).await, AUTOMATIC)?;
    merge(&scene.eve, "net", mark(None)).await.context("removed by who may make it")?;
    Ok(())
}

async fn finalizer(world: World) -> Result<()> {
    let scene = Scene::new(&world).await?;
    create(&scene.eve, "net", &json!({"remediation": {"onDelete": "Automatic"}, "deletionPolicy": "Destroy"}))
        .await?
        .context("net")?;
    let set = |list: Value| json!({"metadata": {"finalizers": list}});
    merge(&scene.controller, "net", set(json!([names::LAYER_FINALIZER]))).await.context("set")?;
    for deleted in [false, true] {
        if deleted {
            scene.bob.delete("net", &DeleteParams::default()).await?;
        }
        for who in [&scene.bob, &scene.eve] {
            refused("by somebody", merge(who, "net", set(json!([]))).await, "pawl.run/layer is removed by the controller")?;
        }
    }
    merge(&scene.controller, "net", set(json!([]))).await.context("verb control")?;
    Ok(())
}

async fn marks(world: World) -> Result<()> {
    let scene = Scene::new(&world).await?;
    let runs = |client: Client| -> Api<TerraformRun> { Api::namespaced(client, &scene.namespace) };
    let (controller, eve) = (runs(scene.controller.clone().into_client()), runs(scene.eve.clone().into_client()));
    let spec = json!({"approval": {"mode": "Automatic"}, "runner": {"serviceAccountName": "root"}, "outputs": {"secret": {"name": "net"}}});
    let text = "say which layer a run is of, and are written by the controller";
    for (n, (label, key)) in [
        (true, names::LABEL_LAYER),
        (true, names::LABEL_LAYER_UID),
        (false, names::TRIGGER),
        (false, names::CONTENT),
        (false, names::SETTINGS),
    ]
    .into_iter()
    .enumerate()
    {
        let mark = Some([(key.to_owned(), "x".to_owned())].into());
        let mut plain = run(&format!("plain-{n}"), &json!({}))?;
        eve.create(&PostParams::default(), &plain).await?;
        let place = if label { "labels" } else { "annotations" };
        let patch = |word: Option<&str>| Patch::Merge(json!({"metadata": {place: {key: word}}}));
        let name = plain.metadata.name.clone().unwrap_or_default();
        refused("set afterwards", eve.patch(&name, &PatchParams::default(), &patch(Some("x"))).await, text)?;
        controller.patch(&name, &PatchParams::default(), &patch(Some("x"))).await.context("by the controller")?;
        refused("changed", eve.patch(&name, &PatchParams::default(), &patch(Some("y"))).await, text)?;
        refused("taken away", eve.patch(&name, &PatchParams::default(), &patch(None)).await, text)?;
        plain.metadata.name = Some(format!("made-{n}"));
        let mut asks = run(&format!("asks-{n}"), &spec)?;
        let place = |run: &mut TerraformRun| {
            if label { run.metadata.labels.clone_from(&mark) } else { run.metadata.annotations.clone_from(&mark) }
        };
        place(&mut plain);
        place(&mut asks);
        refused("made by somebody", eve.create(&PostParams::default(), &plain).await, text)?;
        controller.create(&PostParams::default(), &asks).await.with_context(|| format!("by the controller, with {key}"))?;
    }
    // Without a layer, the controller needs the same rights as any user.
    let unmarked = run("unmarked", &spec)?;
    refused("the controller", controller.create(&PostParams::default(), &unmarked).await, "needs the verb autoapprove")
}

async fn roles(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let repository = |name: &str| -> Result<TerraformRepository> {
        Ok(TerraformRepository::new(name, serde_json::from_value(json!({"url": "https://example.com/infra.git"}))?))
    };
    for (role, writes, hosts) in [
        ("pawl-viewer", false, false),
        ("pawl-approver", false, false),
        ("pawl-author", true, false),
        ("pawl-autoapprover", true, false),
        ("pawl-repository-admin", false, true),
    ] {
        let person = world.person(role, &namespace, role).await?;
        let layers: Api<TerraformLayer> = Api::namespaced(person.clone(), &namespace);
        let repositories: Api<TerraformRepository> = Api::namespaced(person, &namespace);
        repositories.list(&ListParams::default()).await.with_context(|| format!("{role} reads repositories"))?;
        let made = layers.create(&PostParams::default(), &layer(role, &json!({}))?).await;
        if writes {
            made.with_context(|| format!("{role} makes a layer"))?;
            layers.list(&ListParams::default()).await.with_context(|| format!("{role} reads layers"))?;
        } else {
            refused(role, made, "cannot create resource \"terraformlayers\"")?;
        }
        let made = repositories.create(&PostParams::default(), &repository(role)?).await;
        if hosts {
            made.with_context(|| format!("{role} makes a repository"))?;
        } else {
            refused(role, made, "cannot create resource \"terraformrepositories\"")?;
        }
    }
    let controller = world.access.impersonate(CONTROLLER, &[]).await?;
    let layers: Api<TerraformLayer> = Api::namespaced(controller.clone(), &namespace);
    let status = Patch::Merge(json!({"status": {"state": "Idle"}}));
    layers.patch_status("pawl-author", &PatchParams::default(), &status).await.context("the controller's status")?;
    Api::<TerraformRepository>::all(controller).list(&ListParams::default()).await.context("the controller's repositories")?;
    Ok(())
}

async fn template(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let layers: Api<TerraformLayer> = Api::namespaced(world.admin.clone(), &namespace);
    for (what, credentials) in [
        ("aws", json!({"roleArn": "arn:aws:iam::111122223333:role/r"})),
        ("gcp", json!({"workloadIdentityProvider": "projects/1/locations/global/workloadIdentityPools/p/providers/k"})),
        (
            "azure",
            json!({"clientId": "00000000-0000-4000-8000-000000000001", "tenantId": "00000000-0000-4000-8000-000000000002"}),
        ),
        ("vault", json!({"address": "https://vault.example.com"})),
    ] {
        let spec = |runner: Value| json!({"template": {"credentials": {what: credentials}, "runner": runner}});
        for (n, runner) in [json!({}), json!({"planServiceAccountName": "reader"})].into_iter().enumerate() {
            let made = create(&layers, &format!("{what}-{n}"), &spec(runner)).await?;
            refused(what, made, "need runner.serviceAccountName")?;
        }
        let named = spec(json!({"serviceAccountName": "deployer"}));
        create(&layers, what, &named).await?.with_context(|| format!("{what} with an account"))?;
    }
    let plans =
        |remediation: Value| json!({"template": {"runner": {"planServiceAccountName": "reader"}}, "remediation": remediation});
    for (n, on) in ["onCommit", "onDrift", "onDelete"].into_iter().enumerate() {
        let made = create(&layers, &format!("plans-{n}"), &plans(json!({on: "Automatic"}))).await?;
        refused(on, made, "planServiceAccountName needs a remediation without Automatic")?;
    }
    create(&layers, "plans", &plans(json!({"onDrift": "Dry"}))).await?.context("without Automatic")?;
    let repositories: Api<kube::api::DynamicObject> =
        Api::namespaced_with(world.admin.clone(), &namespace, &kube::api::ApiResource::erase::<TerraformRepository>(&()));
    let strict = PostParams::default();
    let object = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRepository", "metadata": {"name": "r"},
        "spec": {"url": "https://example.com/r.git", "defaults": {"outputs": {"secret": {"name": "x"}}}}});
    let made = repositories.create(&strict, &serde_json::from_value(object)?).await?;
    anyhow::ensure!(
        made.data["spec"]["defaults"]["outputs"].is_null(),
        "a repository publishes in other namespaces: {}",
        made.data
    );
    Ok(())
}
