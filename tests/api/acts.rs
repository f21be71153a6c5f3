//! Acts of a person without `autoapprove` after which something would be applied without an approval: the table of design/0004.

use anyhow::{Context as _, Result, ensure};
use crds::{TerraformLayer, names};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

use crate::{
    scene::{Scene, Write},
    world::{World, plan, tests, user},
};

tests! {
    Guarded: act_that_starts_an_unapproved_run_needs_autoapprove,
    Guarded: deletion_that_destroys_unapproved_needs_autoapprove,
    Guarded: deleted_namespace_takes_every_layer,
    Guarded: garbage_collector_takes_no_layer_that_destroys_unapproved,
    Guarded: deletion_of_a_run_that_waits_needs_what_it_sets_off,
    Guarded: freezing_is_no_right_of_an_author,
}

const CHANGES: &str = "remediation Automatic needs the verb autoapprove";
const STARTS: &str = "runs of this layer need no approval";
const DESTROYS: &str = "the destroy of this layer needs no approval";
const ACCOUNTS: [(&str, &str); 2] = [
    ("namespace controller", "namespace-controller"),
    ("garbage collector", "generic-garbage-collector"),
];

/// Act, write, and the message without `autoapprove` on a layer whose runs approve themselves; none for an act that only stops, or sets off
/// nothing.
fn acts() -> Result<Vec<(String, Write, String)>> {
    let spec = |spec: Value| json!({"merge": {"spec": spec}});
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "0"}]);
    Ok(serde_json::from_value(json!([
        ["request a plan", {"annotate": {names::PLAN: "now"}}, STARTS],
        ["request a plan by a token", {"annotate": {names::PLAN: "x"}}, STARTS],
        ["resume", spec(json!({"suspend": false})), STARTS],
        ["resume by annotation", {"annotate": {names::SUSPEND: null}}, STARTS],
        ["resume by another value", {"annotate": {names::SUSPEND: "false"}}, STARTS],
        ["resume drift detection", spec(json!({"drift": {"suspend": false}})), STARTS],
        ["drift schedule", spec(json!({"drift": {"suspend": false, "schedule": "0 12 * * 5"}})), STARTS],
        ["drift interval while it is suspended", spec(json!({"drift": {"interval": "1h"}})), ""],
        ["further trigger paths", spec(json!({"triggerPaths": ["a/**"]})), STARTS],
        ["more retries", spec(json!({"maxRetries": 9})), STARTS],
        ["fewer retries", spec(json!({"maxRetries": 0})), ""],
        ["history", spec(json!({"runHistory": 9})), ""],
        ["age of history", spec(json!({"runHistoryAge": "24h"})), ""],
        ["history of applied runs", spec(json!({"appliedHistory": 9})), ""],
        ["age of applied runs", spec(json!({"appliedHistoryAge": "24h"})), ""],
        ["repository", spec(json!({"repository": {"name": "mine"}})), CHANGES],
        ["ref", spec(json!({"ref": "mine"})), CHANGES],
        ["path", spec(json!({"path": "mine"})), CHANGES],
        ["template", spec(json!({"template": {"workspace": "mine"}})), CHANGES],
        ["remediation", spec(json!({"remediation": {"onDelete": "Dry"}})), CHANGES],
        ["deletion policy", spec(json!({"deletionPolicy": "Destroy"})), CHANGES],
        ["label", {"merge": {"metadata": {"labels": {"team": "x"}}}}, ""],
        ["owner", {"merge": {"metadata": {"ownerReferences": owner}}}, ""],
        ["another finalizer", {"merge": {"metadata": {"finalizers": ["example.com/mine"]}}}, ""],
        ["confirm", {"annotate": {names::UNVERIFIED: null}}, CHANGES],
    ]))?)
}

async fn people(world: World) -> Result<Scene> {
    Scene::new(
        world,
        &[("bob", "pawl-author"), ("eve", "pawl-autoapprover")],
    )
    .await
}

async fn act_that_starts_an_unapproved_run_needs_autoapprove(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    let acts = acts()?;
    let touched = |field: &str| {
        acts.iter().any(|(_, write, _)| {
            write
                .get("merge")
                .is_some_and(|patch| patch["spec"].get(field).is_some())
        })
    };
    let definition = crds::crd::terraform_layer();
    let fields = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        .as_object()
        .context("no schema")?
        .keys();
    let missing: Vec<_> = fields.filter(|field| !touched(field)).collect();
    ensure!(
        missing.is_empty(),
        "fields of a layer without an act: {missing:?}"
    );
    let stopped = json!({"suspend": true, "drift": {"suspend": true}});
    for (name, remediation, starts, changes) in [
        ("commit", json!({"onCommit": "Automatic"}), true, true),
        ("drift", json!({"onDrift": "Automatic"}), true, true),
        ("delete", json!({"onDelete": "Automatic"}), false, true),
        ("manual", json!({}), false, false),
    ] {
        let mut spec = stopped.clone();
        spec["remediation"] = remediation;
        let layer = format!("layer/{name}");
        let rows = json!([
            ["creation", "eve", {"create": {"spec": spec, "metadata": {"annotations": {names::SUSPEND: "true"}}}}, ""],
            ["mark", "controller", {"annotate": {names::UNVERIFIED: "why"}}, ""],
        ]);
        scene.rows(&layer, rows).await?;
        scene.dry_run = true;
        for (act, write, message) in &acts {
            let applies = match message.as_str() {
                STARTS => starts,
                CHANGES => changes,
                _ => false,
            };
            let message = if applies { message } else { "" };
            let rows = json!([[act, "bob", write, message], [act, "eve", write, ""]]);
            // The last remediation that is Automatic may be taken away.
            if !(act == "remediation" && name == "delete") {
                scene.rows(&layer, rows).await?;
            }
        }
        scene.dry_run = false;
    }
    let works = json!({"remediation": {"onCommit": "Automatic"}});
    let rows = json!([
        ["creation", "eve", {"create": {"spec": works}}, ""],
        ["drift interval", "bob", {"merge": {"spec": {"drift": {"interval": "1m"}}}}, STARTS],
        ["stop drift detection", "bob", {"merge": {"spec": {"drift": {"suspend": true}}}}, ""],
        ["suspend", "bob", {"merge": {"spec": {"suspend": true}}}, ""],
        ["suspend by annotation", "bob", {"annotate": {names::SUSPEND: "true"}}, ""],
        // The controller replaces a request by its token.
        ["request", "eve", {"annotate": {names::PLAN: "now"}}, ""],
        ["token", "controller", {"annotate": {names::PLAN: "20260101T000000Z-abcde"}}, ""],
        ["resume", "controller", {"merge": {"spec": {"suspend": false}}}, STARTS],
        ["withdraw the request", "bob", {"annotate": {names::PLAN: null}}, ""],
    ]);
    scene.rows("layer/works", rows).await
}

/// The destroy of the layer is `remediation`.
fn destroys(remediation: &str) -> Value {
    json!({"spec": {"deletionPolicy": "Destroy", "remediation": {"onDelete": remediation}}})
}

async fn deletion_that_destroys_unapproved_needs_autoapprove(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    // A finalizer, so that the layer stays until its objects are destroyed.
    let held = json!({"metadata": {"finalizers": [names::LAYER_FINALIZER]}});
    let mut unapproved = destroys("Automatic");
    unapproved["metadata"] = held["metadata"].clone();
    let orphans =
        json!({"spec": {"remediation": {"onDelete": "Automatic", "onCommit": "Automatic"}}});
    scene
        .rows(
            "layer/auto",
            json!([["creation", "eve", {"create": unapproved}, ""]]),
        )
        .await?;
    scene.dry_run = true;
    let rows = json!([
        ["deletion", "bob", {"delete": ""}, DESTROYS],
        ["deletion", "eve", {"delete": ""}, ""],
    ]);
    scene.rows("layer/auto", rows).await?;
    scene.dry_run = false;
    let collection = json!([{"apiGroups": ["pawl.run"], "resources": ["terraformlayers"], "verbs": ["deletecollection"]}]);
    scene
        .world
        .grant(&scene.namespace, "all", &collection, &user("bob"))
        .await?;
    scene
        .refuses("bob", "layer/auto", json!({"delete all": ""}), DESTROYS)
        .await?;
    for (name, layer) in [
        ("manual", destroys("Manual")),
        ("dry", destroys("Dry")),
        ("orphan", orphans),
    ] {
        let rows = json!([["creation", "eve", {"create": layer}, ""], ["deletion", "bob", {"delete": ""}, ""]]);
        scene.rows(&format!("layer/{name}"), rows).await?;
    }
    // While it is deleted, onDelete decides.
    let rows = json!([
        ["suspension", "bob", {"merge": {"spec": {"suspend": true}}}, ""],
        ["deletion", "eve", {"delete": ""}, ""],
        ["resume", "bob", {"merge": {"spec": {"suspend": false}}}, STARTS],
        ["request", "bob", {"annotate": {names::PLAN: "now"}}, STARTS],
        ["approval needed", "bob", {"merge": {"spec": {"remediation": {"onDelete": "Manual"}}}}, ""],
        ["resume", "bob", {"merge": {"spec": {"suspend": false}}}, ""],
    ]);
    scene.rows("layer/auto", rows).await
}

/// Adds the real accounts of the controller manager, with the ClusterRoles that the API server binds to them.
async fn controllers(scene: &mut Scene) -> Result<()> {
    for (name, account) in ACCOUNTS {
        let user = format!("system:serviceaccount:kube-system:{account}");
        let groups = [
            "system:serviceaccounts",
            "system:serviceaccounts:kube-system",
            "system:authenticated",
        ];
        let client = scene.world.access.impersonate(&user, &groups).await?;
        scene.add(name, client);
    }
    Ok(())
}

async fn deleted_namespace_takes_every_layer(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    controllers(&mut scene).await?;
    for (name, remediation) in [("a", "Automatic"), ("b", "Manual"), ("c", "Automatic")] {
        let rows = json!([["creation", "eve", {"create": destroys(remediation)}, ""]]);
        scene.rows(&format!("layer/{name}"), rows).await?;
    }
    scene.dry_run = true;
    let rows = json!([["a moment before the API server knows", "namespace controller", {"delete": ""}, ""]]);
    scene.rows("layer/a", rows).await?;
    scene.dry_run = false;
    let namespaces: Api<Namespace> = Api::all(scene.world.admin.clone());
    namespaces
        .delete(&scene.namespace, &DeleteParams::default())
        .await?;
    // Nothing is destroyed there, whoever deletes.
    scene
        .eventually("bob", "layer/a", json!({"delete": ""}))
        .await?;
    let rows = json!([["deletion of all", "namespace controller", {"delete all": ""}, ""]]);
    scene.rows("layer/b", rows).await?;
    let layers: Api<TerraformLayer> = Api::namespaced(scene.world.admin.clone(), &scene.namespace);
    let left = layers.list(&kube::api::ListParams::default()).await?.items;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

async fn garbage_collector_takes_no_layer_that_destroys_unapproved(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    controllers(&mut scene).await?;
    for (name, remediation, message) in [("auto", "Automatic", DESTROYS), ("manual", "Manual", "")]
    {
        let rows = json!([
            ["creation", "eve", {"create": destroys(remediation)}, ""],
            ["deletion", "garbage collector", {"delete": ""}, message],
        ]);
        scene.rows(&format!("layer/{name}"), rows).await?;
    }
    // The policy admits its other writes: finalizers and references of owners.
    let finalizers = json!({"finalizers": ["foregroundDeletion"]});
    let rows = json!([["finalizer", "garbage collector", {"merge": {"metadata": finalizers}}, ""]]);
    scene.rows("layer/auto", rows).await
}

async fn deletion_of_a_run_that_waits_needs_what_it_sets_off(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    controllers(&mut scene).await?;
    for (name, verbs) in [
        ("may delete", json!(["delete"])),
        ("may deny", json!(["delete", "deletecollection", "patch"])),
    ] {
        let rules =
            json!([{"apiGroups": ["pawl.run"], "resources": ["terraformruns"], "verbs": verbs}]);
        let role = name.replace(' ', "-");
        scene
            .world
            .grant(&scene.namespace, &role, &rules, &user(name))
            .await?;
        scene.add(name, scene.world.access.impersonate(name, &[]).await?);
    }
    let [denies, again] = ["denies its plan", "the layer plans anew once it is deleted"];
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "0"}]);
    let bounds = json!({"mode": "Automatic", "automaticWhen": {"maxDestroy": 0}});
    let labels = json!({"labels": {names::LABEL_LAYER: "net", names::LABEL_LAYER_UID: "uid"}});
    for (run, metadata, approval, author, layers) in [
        ("plain", json!({}), json!({}), "", false),
        ("of-layer", labels.clone(), json!({}), "", true),
        ("in-bounds", labels, bounds, again, true),
    ] {
        let spec = json!({"approval": approval});
        let rows = json!([
            ["creation", "controller", {"create": {"metadata": metadata, "spec": spec}}, ""],
            ["begin", "admin", {"status": {"phase": "Pending"}}, ""],
        ]);
        scene.rows(run, rows).await?;
        scene.dry_run = true;
        scene
            .eventually("may delete", run, json!({"delete": ""}))
            .await?;
        scene.dry_run = false;
        let agent = scene.open(run, 1).await?;
        agent.plans(1).await?;
        let mut plan = plan(1, 'a');
        plan["destroy"] = 1.into();
        agent
            .status(&json!({"phase": "AwaitingApproval", "plan": plan}))
            .await?;
        scene.dry_run = true;
        let [anew, further] = if layers {
            [again, "gets no further owner"]
        } else {
            [""; 2]
        };
        let rows = json!([
            ["deletion", "may delete", {"delete": ""}, denies],
            ["deletion", "may deny", {"delete": ""}, anew],
            ["deletion of all", "may deny", {"delete all": ""}, anew],
            ["owner that is gone", "may deny", {"merge": {"metadata": {"ownerReferences": owner}}}, further],
            ["deletion", "bob", {"delete": ""}, author],
            ["deletion", "eve", {"delete": ""}, ""],
            ["deletion", "garbage collector", {"delete": ""}, ""],
            ["deletion", "namespace controller", {"delete": ""}, ""],
        ]);
        scene.rows(run, rows).await?;
        scene.dry_run = false;
        let rows = json!([["denial", "bob", {"annotate": {names::DENY: "no"}}, ""], ["deletion", "may delete", {"delete": ""}, ""]]);
        scene.rows(run, rows).await?;
    }
    Ok(())
}

async fn freezing_is_no_right_of_an_author(world: World) -> Result<()> {
    let roles = [
        "pawl-author",
        "pawl-autoapprover",
        "pawl-approver",
        "pawl-repository-admin",
        "edit",
        "admin",
    ];
    let namespace = world.namespace().await?;
    for role in roles {
        world.bind_user(&namespace, role, role).await?;
        let client = world.access.impersonate(role, &[]).await?;
        let namespaces: Api<Namespace> = Api::all(client);
        for patch in [
            json!({"metadata": {"annotations": {names::FREEZE: null}}}),
            json!({"metadata": {"labels": {names::FOUR_EYES: null}}}),
        ] {
            let answer = namespaces
                .patch(
                    &namespace,
                    &kube::api::PatchParams::default(),
                    &kube::api::Patch::Merge(patch),
                )
                .await;
            crate::world::refused(role, answer, "cannot patch resource \"namespaces\"")?;
        }
    }
    Ok(())
}
