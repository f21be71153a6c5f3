//! Who may create and change layers, and runs in their name: the author of a layer needs the rights that its runs need.

use anyhow::{Context as _, Result, ensure};
use crds::{TerraformLayer, TerraformRepository, names};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    scene::Scene,
    world::{World, tests, user},
};

tests! {
    Guarded: author_of_a_layer_needs_the_rights_of_its_runs,
    Guarded: change_of_a_layer_needs_the_rights_of_its_runs,
    Guarded: unverified_layer_is_confirmed_with_the_rights_of_its_runs,
    Guarded: removing_finalizer_needs_control,
    Guarded: only_the_controller_creates_runs_of_a_layer,
    Guarded: roles_read_and_write_layers_and_repositories,
    Bare: template_is_held_to_the_rules_of_a_run,
}

/// A layer; `spec` is merged into its spec.
pub(crate) fn layer(name: &str, spec: &Value) -> Result<TerraformLayer> {
    let mut whole = json!({"repository": {"name": "infra"}});
    json_patch::merge(&mut whole, spec);
    Ok(TerraformLayer::new(name, serde_json::from_value(whole)?))
}

const LAYER: &str = "layer/net";
const AUTOMATIC: &str = "remediation Automatic needs the verb autoapprove on terraformruns";
const RUNS: &str = "needs the verb create on terraformruns";

/// Specs of a layer that need a right, and the message without it.
fn privileged() -> [(&'static str, Value, &'static str); 8] {
    let deployer = "with the ServiceAccount deployer needs the verb use on it";
    let reader = "with the ServiceAccount reader needs the verb use on it";
    let account = json!({"serviceAccountName": "deployer"});
    let plans = json!({"planServiceAccountName": "reader"});
    let role = json!({"aws": {"roleArn": "arn:aws:iam::111122223333:role/r"}});
    let cloud = json!({"template": {"credentials": role, "runner": account}});
    let map = json!({"template": {"outputs": {"configMap": {"name": "net"}}}});
    let secret = json!({"template": {"outputs": {"secret": {"name": "net"}}}});
    [
        (
            "commits",
            json!({"remediation": {"onCommit": "Automatic"}}),
            AUTOMATIC,
        ),
        (
            "drift",
            json!({"remediation": {"onDrift": "Automatic"}}),
            AUTOMATIC,
        ),
        (
            "deletion",
            json!({"remediation": {"onDelete": "Automatic"}}),
            AUTOMATIC,
        ),
        (
            "account",
            json!({"template": {"runner": account}}),
            deployer,
        ),
        (
            "plan-account",
            json!({"template": {"runner": plans}}),
            reader,
        ),
        ("cloud-account", cloud, deployer),
        (
            "config-map",
            map,
            "to a ConfigMap needs the verb create on it",
        ),
        ("secret", secret, "to a Secret needs the verb create on it"),
    ]
}

/// `bob` has all verbs on layers and `create` on runs, `eve` the rights that [`privileged`] lists as well. `dan` may write layers but not
/// create runs.
async fn people(world: World) -> Result<Scene> {
    let mut scene = Scene::new(world, &[]).await?;
    let uses = json!([
        {"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["deployer", "reader"], "verbs": ["use"]},
        {"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["create"]}]);
    let writes = json!([{"apiGroups": ["pawl.run"], "resources": ["terraformlayers"], "verbs": ["create", "patch", "delete"]}]);
    scene
        .world
        .grant(&scene.namespace, "layers", &writes, &user("dan"))
        .await?;
    scene
        .world
        .grant(&scene.namespace, "owner", &uses, &user("eve"))
        .await?;
    // Each waits until the API server knows the role, which is the last one.
    for (name, role) in [
        ("bob", "pawl-author"),
        ("eve", "pawl-autoapprover"),
        ("dan", "pawl-viewer"),
    ] {
        scene.person(name, role).await?;
    }
    Ok(scene)
}

async fn author_of_a_layer_needs_the_rights_of_its_runs(world: World) -> Result<()> {
    let scene = people(world).await?;
    let destroys = json!({"spec": {"deletionPolicy": "Destroy"}});
    let rows = json!([["no right", "bob", {"create": {}}, ""]]);
    scene.rows("layer/plain", rows).await?;
    let rows = json!([["destroys when approved", "bob", {"create": destroys}, ""]]);
    scene.rows("layer/destroys", rows).await?;
    let rows = json!([
        ["no right to runs", "dan", {"create": {}}, RUNS],
        ["destroys, no right to runs", "dan", {"create": destroys}, RUNS],
    ]);
    scene.rows("layer/runs", rows).await?;
    for (name, spec, message) in privileged() {
        let rows = json!([
            ["without the right", "bob", {"create": {"spec": spec}}, message],
            ["with the right", "eve", {"create": {"spec": spec}}, ""],
        ]);
        scene.rows(&format!("layer/{name}"), rows).await?;
    }
    let root = json!({"template": {"runner": {"serviceAccountName": "root"}}});
    let message = "ServiceAccount root needs the verb use";
    let rows = json!([["another account", "eve", {"create": {"spec": root}}, message]]);
    scene.rows("layer/root", rows).await
}

async fn change_of_a_layer_needs_the_rights_of_its_runs(world: World) -> Result<()> {
    let scene = people(world).await?;
    let rows = json!([["creation", "bob", {"create": {}}, ""]]);
    scene.rows("layer/manual", rows).await?;
    for (name, spec, message) in privileged() {
        let rows = json!([[name, "bob", {"merge": {"spec": spec}}, message]]);
        scene.rows("layer/manual", rows).await?;
    }
    let free = json!({"path": "other", "remediation": {"onDrift": "Dry"}});
    let rows = json!([
        ["its path", "bob", {"merge": {"spec": free}}, ""],
        ["no right to runs", "dan", {"merge": {"spec": {"ref": "x"}}}, RUNS],
    ]);
    scene.rows("layer/manual", rows).await?;
    // In an Automatic layer, a change of the applied content needs the same right as the mode.
    let deployer = json!({"runner": {"serviceAccountName": "deployer"}});
    let automatic = json!({"remediation": {"onCommit": "Automatic"}, "template": deployer});
    let variables = json!([{"name": "a", "value": 1}]);
    let rows = json!([
        ["creation", "eve", {"create": {"spec": automatic}}, ""],
        ["ref", "bob", {"merge": {"spec": {"ref": "mine"}}}, AUTOMATIC],
        ["path", "bob", {"merge": {"spec": {"path": "mine"}}}, AUTOMATIC],
        ["repository", "bob", {"merge": {"spec": {"repository": {"name": "mine"}}}}, AUTOMATIC],
        ["variables", "bob", {"merge": {"spec": {"template": {"variables": variables}}}}, AUTOMATIC],
        ["drift", "bob", {"merge": {"spec": {"remediation": {"onDrift": "Dry"}}}}, AUTOMATIC],
        ["deletion", "bob", {"merge": {"spec": {"deletionPolicy": "Destroy"}}}, AUTOMATIC],
        ["with its account still", "bob", {"merge": {"spec": {"remediation": {"onCommit": "Manual"}}}},
            "ServiceAccount deployer needs the verb use"],
    ]);
    scene.rows(LAYER, rows).await?;
    // To stop it needs no further right. `acts` has all that starts its runs.
    let metadata = json!({"annotations": {names::SUSPEND: "true"}, "labels": {"team": "x"}});
    let spec =
        json!({"suspend": true, "runHistory": 9, "maxRetries": 1, "drift": {"suspend": true}});
    for who in ["bob", "dan", "controller"] {
        let rows = json!([
            ["annotations and labels", who, {"merge": {"metadata": metadata}}, ""],
            ["stops", who, {"merge": {"spec": spec}}, ""],
        ]);
        scene.rows(LAYER, rows).await?;
    }
    let none = json!({"remediation": {"onCommit": "Manual"}, "template": null});
    let rows = json!([
        ["ref", "controller", {"merge": {"spec": {"ref": "mine"}}}, AUTOMATIC],
        ["needs no right any more", "bob", {"merge": {"spec": none}}, ""],
    ]);
    scene.rows(LAYER, rows).await
}

async fn unverified_layer_is_confirmed_with_the_rights_of_its_runs(world: World) -> Result<()> {
    let scene = people(world).await?;
    let by_controller = "pawl.run/unverified is set by the controller";
    let rows = json!([
        ["creation", "eve", {"create": {"spec": {"remediation": {"onCommit": "Automatic"}}}}, ""],
        ["set", "eve", {"annotate": {names::UNVERIFIED: "x"}}, by_controller],
        ["set", "controller", {"annotate": {names::UNVERIFIED: "why"}}, ""],
        ["changed", "eve", {"annotate": {names::UNVERIFIED: "x"}}, by_controller],
        ["another annotation", "bob", {"annotate": {names::SUSPEND: "true"}}, ""],
        ["removed without the right", "bob", {"annotate": {names::UNVERIFIED: null}}, AUTOMATIC],
        ["removed", "controller", {"annotate": {names::UNVERIFIED: null}}, AUTOMATIC],
        ["removed with the right", "eve", {"annotate": {names::UNVERIFIED: null}}, ""],
    ]);
    scene.rows(LAYER, rows).await
}

async fn removing_finalizer_needs_control(world: World) -> Result<()> {
    let scene = people(world).await?;
    let spec = json!({"remediation": {"onDelete": "Automatic"}, "deletionPolicy": "Destroy"});
    let (set, unset) = (
        json!({"finalizers": [names::LAYER_FINALIZER]}),
        json!({"finalizers": []}),
    );
    let by_controller = "pawl.run/layer is removed by the controller";
    let rows = json!([
        ["creation", "eve", {"create": {"spec": spec}}, ""],
        ["set", "controller", {"merge": {"metadata": set}}, ""],
        ["removed", "bob", {"merge": {"metadata": unset}}, by_controller],
        ["removed", "eve", {"merge": {"metadata": unset}}, by_controller],
        ["deletion", "eve", {"delete": ""}, ""],
        ["removed after deletion", "bob", {"merge": {"metadata": unset}}, by_controller],
        ["removed after deletion", "eve", {"merge": {"metadata": unset}}, by_controller],
        ["removed with the verb", "controller", {"merge": {"metadata": unset}}, ""],
    ]);
    scene.rows(LAYER, rows).await
}

async fn only_the_controller_creates_runs_of_a_layer(world: World) -> Result<()> {
    let scene = people(world).await?;
    let spec = json!({"approval": {"mode": "Automatic"}, "runner": {"serviceAccountName": "root"},
        "outputs": {"secret": {"name": "net"}}});
    let by_controller = "say which layer a run is of, and are written by the controller";
    for (n, (kind, key)) in [
        ("labels", names::LABEL_LAYER),
        ("labels", names::LABEL_LAYER_UID),
        ("annotations", names::TRIGGER),
        ("annotations", names::CONTENT),
        ("annotations", names::SETTINGS),
        ("annotations", names::APPLIED),
        ("annotations", names::LAYER_SPEC),
        ("annotations", names::PLAN),
    ]
    .into_iter()
    .enumerate()
    {
        let mark = json!({kind: {key: "x"}});
        let rows = json!([
            ["creation", "eve", {"create": {}}, ""],
            ["set afterwards", "eve", {"merge": {"metadata": mark}}, by_controller],
            ["set", "controller", {"merge": {"metadata": mark}}, ""],
            ["changed", "eve", {"merge": {"metadata": {kind: {key: "y"}}}}, by_controller],
            ["removed", "eve", {"merge": {"metadata": {kind: {key: null}}}}, by_controller],
        ]);
        scene.rows(&format!("plain-{n}"), rows).await.context(key)?;
        let rows = json!([
            ["created with it", "eve", {"create": {"metadata": mark}}, by_controller],
            ["created with it", "controller", {"create": {"spec": spec, "metadata": mark}}, ""],
        ]);
        scene.rows(&format!("made-{n}"), rows).await.context(key)?;
    }
    // Without a layer, the controller needs the same rights as any user.
    let rows = json!([["no layer", "controller", {"create": {"spec": spec}}, "needs the verb autoapprove"]]);
    scene.rows("unmarked", rows).await
}

async fn roles_read_and_write_layers_and_repositories(world: World) -> Result<()> {
    let roles = [
        ("pawl-viewer", false, false),
        ("pawl-approver", false, false),
        ("pawl-author", true, false),
        ("pawl-autoapprover", true, false),
        ("pawl-repository-admin", false, true),
    ];
    let people = roles.map(|(role, ..)| (role, role));
    let scene = Scene::new(world, &people).await?;
    for (role, writes, hosts) in roles {
        let layers = if writes {
            ""
        } else {
            "cannot create resource \"terraformlayers\""
        };
        let repositories = if hosts {
            ""
        } else {
            "cannot create resource \"terraformrepositories\""
        };
        let rows = json!([["creation", role, {"create": {}}, layers]]);
        scene.rows(&format!("layer/{role}"), rows).await?;
        let rows = json!([
            ["creation", role, {"create": {}}, repositories],
            ["list", role, {"list": null}, ""],
        ]);
        scene.rows(&format!("repository/{role}"), rows).await?;
        if writes {
            scene
                .rows(LAYER, json!([["list", role, {"list": null}, ""]]))
                .await?;
        }
    }
    let rows = json!([["status", "controller", {"status": {"state": "Idle"}}, ""]]);
    scene.rows("layer/pawl-author", rows).await?;
    let controller = scene
        .world
        .access
        .impersonate(crate::world::CONTROLLER, &[])
        .await?;
    let repositories: Api<TerraformRepository> = Api::all(controller);
    repositories
        .list(&ListParams::default())
        .await
        .context("the controller's repositories")?;
    Ok(())
}

async fn template_is_held_to_the_rules_of_a_run(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    let provider = "projects/1/locations/global/workloadIdentityPools/p/providers/k";
    let id = |last: u8| format!("00000000-0000-4000-8000-00000000000{last}");
    for (cloud, credentials) in [
        (
            "aws",
            json!({"roleArn": "arn:aws:iam::111122223333:role/r"}),
        ),
        ("gcp", json!({"workloadIdentityProvider": provider})),
        ("azure", json!({"clientId": id(1), "tenantId": id(2)})),
        ("vault", json!({"address": "https://vault.example.com"})),
    ] {
        let with = |runner: Value| json!({"spec": {"template": {"credentials": {cloud: credentials}, "runner": runner}}});
        let needs = "need runner.serviceAccountName";
        let rows = json!([
            ["no account", "admin", {"create": with(json!({}))}, needs],
            ["only to plan", "admin", {"create": with(json!({"planServiceAccountName": "reader"}))}, needs],
            ["an account", "admin", {"create": with(json!({"serviceAccountName": "deployer"}))}, ""],
        ]);
        scene.rows(&format!("layer/{cloud}"), rows).await?;
    }
    let plans = |remediation: Value| json!({"spec": {"template": {"runner": {"planServiceAccountName": "reader"}}, "remediation": remediation}});
    let manual = "planServiceAccountName needs a remediation without Automatic";
    let rows = json!([
        ["commits", "admin", {"create": plans(json!({"onCommit": "Automatic"}))}, manual],
        ["drift", "admin", {"create": plans(json!({"onDrift": "Automatic"}))}, manual],
        ["deletion", "admin", {"create": plans(json!({"onDelete": "Automatic"}))}, manual],
        ["without Automatic", "admin", {"create": plans(json!({"onDrift": "Dry"}))}, ""],
    ]);
    scene.rows("layer/plans", rows).await?;
    let triggers = |path: &str| json!({"create": {"spec": {"triggerPaths": ["modules/**", path]}}});
    let named = "spec.triggerPaths[1]: Invalid value: \"string\": a trigger path is relative to the top of the repository";
    let rows = json!([
        ["above", "admin", triggers("../x"), named],
        ["above within", "admin", triggers("a/../b/*"), named],
        ["backslash", "admin", triggers(r"modules\a"), named],
        ["from the top", "admin", triggers("/a/..b/**"), ""],
    ]);
    scene.rows("layer/triggers", rows).await?;
    let repositories: Api<DynamicObject> = Api::namespaced_with(
        scene.world.admin.clone(),
        &scene.namespace,
        &ApiResource::erase::<TerraformRepository>(&()),
    );
    let object = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRepository", "metadata": {"name": "r"},
        "spec": {"url": "https://example.com/r.git", "defaults": {"outputs": {"secret": {"name": "x"}}}}});
    let made = repositories
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    ensure!(
        made.data["spec"]["defaults"]["outputs"].is_null(),
        "outputs in other namespaces: {}",
        made.data
    );
    Ok(())
}
