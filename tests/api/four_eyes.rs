//! Four eyes: in a labelled namespace the requesters of a run are named, and none of them may approve it (design/0004).

use anyhow::{Result, ensure};
use crds::{TerraformLayer, names};
use harness::{cluster::objects, wait};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use serde_json::{Value, json};

use crate::{
    chart,
    layers::Controller,
    scene::{RUN, Scene, approval, record, withdrawal},
    world::{Agent, PATIENCE, World, plan, sum, tests},
};

tests! {
    Guarded: requester_of_a_run_may_not_approve_it,
    Guarded: run_of_a_layer_is_approved_by_none_of_its_requesters,
    Guarded: requester_of_a_layer_is_kept_until_an_apply,
    Guarded: run_of_too_many_requesters_is_approved_by_none,
    Guarded: run_that_waits_is_denied_before_its_deletion,
    Guarded: run_without_a_requester_is_approved_by_none,
    Guarded: request_for_another_run_names_who_asks,
    Guarded: request_to_a_layer_names_who_asks,
    Guarded: nothing_approves_itself_with_four_eyes,
    Bare: four_eyes_of_the_chart_reach_each_policy,
}

const CREATES: &str = "pawl.run/requested-by must name the user who creates the run";
const REQUESTS: &str = "pawl.run/requested-by must name the user who makes this request";
const ASKS: &str = "pawl.run/asked-by is set together with pawl.run/rerun or pawl.run/recover";
const NEVER: &str = "never changes";
const ANOTHER: &str = "in this namespace another person has to approve it (four eyes)";

fn by(name: impl Into<Value>) -> Value {
    json!({"annotations": {names::REQUESTED_BY: name.into()}})
}

/// `ada` and `bob` may create and approve, `eve` may create what approves itself.
async fn people(world: World) -> Result<Scene> {
    let roles = [
        ("ada", "pawl-author"),
        ("ada", "pawl-approver"),
        ("bob", "pawl-author"),
        ("bob", "pawl-approver"),
        ("eve", "pawl-autoapprover"),
    ];
    Scene::new(world, &roles).await
}

/// Labels the namespace, and waits until the API server counts it.
async fn labelled(scene: &mut Scene) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(scene.world.admin.clone());
    let label = json!({"metadata": {"labels": {names::FOUR_EYES: "true"}}});
    objects::merge(&namespaces, &scene.namespace, &label).await?;
    scene
        .refuses("ada", "unnamed", json!({"create": {}}), CREATES)
        .await
}

/// Brings a run that was created to a plan that waits.
async fn planned(scene: &mut Scene, run: &str) -> Result<Agent> {
    scene.status(run, json!({"phase": "Pending"})).await?;
    let agent = scene.open(run, 1).await?;
    agent.plans(1).await?;
    agent
        .status(&json!({"phase": "AwaitingApproval", "plan": plan(1, 'a')}))
        .await?;
    Ok(agent)
}

async fn requester_of_a_run_may_not_approve_it(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    labelled(&mut scene).await?;
    let rows = json!([
        ["unnamed", "ada", {"create": {}}, CREATES],
        ["another's name", "ada", {"create": {"metadata": by("bob")}}, CREATES],
        ["two names", "ada", {"create": {"metadata": by("bob\nada")}}, CREATES],
        ["unnamed", "controller", {"create": {}}, CREATES],
        ["named", "ada", {"create": {"metadata": by("ada")}}, ""],
        ["another's name later", "ada", {"annotate": {names::REQUESTED_BY: "bob"}}, NEVER],
        ["no name later", "ada", {"annotate": {names::REQUESTED_BY: null}}, NEVER],
        ["another's name later", "controller", {"annotate": {names::REQUESTED_BY: "bob"}}, NEVER],
    ]);
    scene.rows(RUN, rows).await?;
    planned(&mut scene, RUN).await?;
    let both =
        json!({names::APPROVE: sum('a'), names::APPROVED_BY: "ada", names::REQUESTED_BY: "bob"});
    let rows = json!([
        ["approval", "ada", {"annotate": approval("ada", 'a')}, ANOTHER],
        ["approval in another's name", "ada", {"annotate": approval("bob", 'a')}, "must name the user who approves"],
        ["approval and another requester", "ada", {"annotate": both}, "requested this run"],
        ["comment", "bob", {"annotate": {names::APPROVE: sum('a'), names::APPROVED_BY: "bob", names::COMMENT: "x"}}, ""],
        ["approval after another's", "ada", {"annotate": approval("ada", 'a')}, ANOTHER],
        ["withdrawal", "ada", {"annotate": withdrawal()}, ""],
        ["approval", "bob", {"annotate": approval("bob", 'a')}, ""],
        ["denial", "ada", {"annotate": {names::DENY: "no"}}, ""],
    ]);
    scene.rows(RUN, rows).await?;
    // Without four eyes, one person may do both.
    let mut scene = people(scene.world.clone()).await?;
    let rows = json!([
        ["another's name", "ada", {"create": {"metadata": by("bob")}}, CREATES],
        ["unnamed", "ada", {"create": {}}, ""],
    ]);
    scene.rows(RUN, rows).await?;
    planned(&mut scene, RUN).await?;
    let rows = json!([["approval", "ada", {"annotate": approval("ada", 'a')}, ""]]);
    scene.rows(RUN, rows).await
}

async fn run_of_a_layer_is_approved_by_none_of_its_requesters(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    scene.person("cy", "pawl-approver").await?;
    labelled(&mut scene).await?;
    let mut metadata = by("bob\nada");
    metadata["labels"] = json!({names::LABEL_LAYER: "net"});
    let rows = json!([["creation", "controller", {"create": {"metadata": metadata}}, ""]]);
    scene.rows(RUN, rows).await?;
    planned(&mut scene, RUN).await?;
    let rows = json!([
        ["the first", "bob", {"annotate": approval("bob", 'a')}, ANOTHER],
        ["the last", "ada", {"annotate": approval("ada", 'a')}, ANOTHER],
        ["another", "cy", {"annotate": approval("cy", 'a')}, ""],
    ]);
    scene.rows(RUN, rows).await
}

/// The content of a ref is the same, so no person approves a run of it.
async fn requester_of_a_layer_is_kept_until_an_apply(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    labelled(&mut scene).await?;
    let controller = Controller::starts(&scene.world, &scene.namespace).await?;
    let layers: Api<TerraformLayer> = Api::namespaced(scene.world.admin.clone(), &scene.namespace);
    let follows = async |of: &str| {
        let source =
            json!({"of": format!("{of}\n.\n-"), "revision": "1".repeat(40), "content": sum('c')});
        objects::merge_status(&layers, "net", &json!({"source": source})).await
    };
    let spec = json!({"path": ".", "ref": "main"});
    let rows = json!([["creation", "admin", {"create": {}}, ""]]);
    scene.rows("repository/infra", rows).await?;
    let rows = json!([["creation", "ada", {"create": {"metadata": by("ada"), "spec": spec}}, ""]]);
    scene.rows("layer/net", rows).await?;
    follows("main").await?;
    let is = |names: &[&str], open: bool| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        move |layer: &TerraformLayer| {
            let status = layer.status.clone().unwrap_or_default();
            status.observed_generation == layer.metadata.generation
                && status.requested_by == names
                && status.current_run.is_some() == open
        }
    };
    let runs = scene.world.runs(&scene.namespace);
    let until = async |what: &str, names: &[&str], open: bool| -> Result<String> {
        let layer = wait::object(&layers, "net", what, PATIENCE, is(names, open)).await?;
        let run = layer.status.unwrap_or_default().current_run;
        if let Some(run) = &run {
            let created = async || Ok(runs.get_opt(run).await?.ok_or("the run is not there"));
            wait::until(format!("{run} is created"), PATIENCE, created).await?;
        }
        Ok(run.unwrap_or_default())
    };
    let run = until("planned", &["ada"], true).await?;
    let agent = planned(&mut scene, &run).await?;
    let rows = json!([
        ["approval", "ada", {"annotate": approval("ada", 'a')}, ANOTHER],
        ["approval", "bob", {"annotate": approval("bob", 'a')}, ""],
        ["record", "admin", {"status": record('a')}, ""],
        ["digest of the layer", "ada", {"annotate": {names::LAYER_SPEC: sum('0')}}, "written by the controller"],
    ]);
    scene.rows(&run, rows).await?;
    agent.claims(1, '0', 'a').await?;
    agent
        .status(&json!({"phase": "Succeeded", "result": "Applied", "completionTime": jiff::Timestamp::now()}))
        .await?;
    until("applied", &[], false).await?;
    let change = json!({"metadata": by("bob"), "spec": {"ref": "mine"}});
    let rows = json!([["another ref", "bob", {"merge": change}, ""]]);
    scene.rows("layer/net", rows).await?;
    // The controller has seen the change before it sees the content.
    let waits = |is_synced: bool| {
        move |layer: &TerraformLayer| {
            let status = layer.status.clone().unwrap_or_default();
            status.waits_for.is_none() == is_synced && is(&["bob"], false)(layer)
        }
    };
    wait::object(&layers, "net", "not synced", PATIENCE, waits(false)).await?;
    follows("mine").await?;
    wait::object(&layers, "net", "settled", PATIENCE, waits(true)).await?;
    let asks = json!({names::PLAN: "now", names::REQUESTED_BY: "ada"});
    scene
        .rows(
            "layer/net",
            json!([["request", "ada", {"annotate": asks}, ""]]),
        )
        .await?;
    let run = until("planned again", &["bob", "ada"], true).await?;
    planned(&mut scene, &run).await?;
    let rows = json!([
        ["who changed", "bob", {"annotate": approval("bob", 'a')}, ANOTHER],
        ["who asked", "ada", {"annotate": approval("ada", 'a')}, ANOTHER],
    ]);
    scene.rows(&run, rows).await?;
    controller.stops().await;
    Ok(())
}

async fn run_of_too_many_requesters_is_approved_by_none(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    labelled(&mut scene).await?;
    for (run, more, message) in [("most", 0, ""), ("over", 1, "more than 16 users requested")] {
        let all: Vec<_> = (0..names::MAX_REQUESTERS + more)
            .map(|number| format!("user-{number}"))
            .collect();
        let mut metadata = by(all.join("\n"));
        metadata["labels"] = json!({names::LABEL_LAYER: "net"});
        let rows = json!([["creation", "controller", {"create": {"metadata": metadata}}, ""]]);
        scene.rows(run, rows).await?;
        planned(&mut scene, run).await?;
        let rows = json!([["approval", "bob", {"annotate": approval("bob", 'a')}, message]]);
        scene.rows(run, rows).await?;
    }
    Ok(())
}

/// Its layer would plan anew, and the run would not name who deleted this one.
async fn run_that_waits_is_denied_before_its_deletion(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    labelled(&mut scene).await?;
    for (run, who, labels, message) in [
        ("plain", "ada", json!({}), ""),
        (
            "of-layer",
            "controller",
            json!({names::LABEL_LAYER_UID: "uid"}),
            "then delete it",
        ),
    ] {
        let mut metadata = by("ada");
        metadata["labels"] = labels;
        let rows = json!([["creation", who, {"create": {"metadata": metadata}}, ""]]);
        scene.rows(run, rows).await?;
        planned(&mut scene, run).await?;
        scene.dry_run = true;
        let rows = json!([["deletion", "bob", {"delete": ""}, message]]);
        scene.rows(run, rows).await?;
        scene.dry_run = false;
        let rows = json!([["denial", "bob", {"annotate": {names::DENY: "no"}}, ""], ["deletion", "bob", {"delete": ""}, ""]]);
        scene.rows(run, rows).await?;
    }
    Ok(())
}

async fn run_without_a_requester_is_approved_by_none(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    scene
        .rows(RUN, json!([["creation", "ada", {"create": {}}, ""]]))
        .await?;
    planned(&mut scene, RUN).await?;
    labelled(&mut scene).await?;
    let unnamed = "this run does not name its requester";
    let rows = json!([
        ["approval", "bob", {"annotate": approval("bob", 'a')}, unnamed],
        ["name afterwards", "ada", {"annotate": {names::REQUESTED_BY: "ada"}}, NEVER],
    ]);
    scene.rows(RUN, rows).await
}

async fn request_for_another_run_names_who_asks(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    let automatic = json!({"spec": {"approval": {"mode": "Automatic"}}});
    let ended = json!({"phase": "Failed", "result": "Failed"});
    for (run, who, what) in [("auto", "eve", automatic), (RUN, "ada", json!({}))] {
        let rows = json!([
            ["creation", who, {"create": what}, ""],
            ["begin", "admin", {"status": {"phase": "Pending"}}, ""],
            ["end", "admin", {"status": ended}, ""],
        ]);
        scene.rows(run, rows).await?;
    }
    labelled(&mut scene).await?;
    let asks = |name: Value| json!({names::RERUN: "true", names::ASKED_BY: name});
    let rows = json!([["rerun", "eve", {"annotate": asks("eve".into())}, "four eyes"]]);
    scene.rows("auto", rows).await?;
    let withdrawn = json!({names::RERUN: null, names::ASKED_BY: null});
    let rows = json!([
        ["unnamed", "bob", {"annotate": {names::RERUN: "true"}}, ASKS],
        ["another's name", "bob", {"annotate": asks("ada".into())}, ASKS],
        ["name alone", "bob", {"annotate": {names::ASKED_BY: "bob"}}, ASKS],
        ["named", "bob", {"annotate": asks("bob".into())}, ""],
        ["name changed", "ada", {"annotate": {names::ASKED_BY: "ada"}}, ASKS],
        ["name removed", "bob", {"annotate": {names::ASKED_BY: null}}, ASKS],
        ["withdrawn", "bob", {"annotate": withdrawn}, ""],
        ["asked by another", "ada", {"annotate": asks("ada".into())}, ""],
        ["request removed", "ada", {"annotate": {names::RERUN: null}}, ""],
        ["once more", "bob", {"annotate": asks("bob".into())}, ""],
        ["answer", "controller", {"status": {"rerun": "run-2"}}, ""],
        ["answered", "controller", {"annotate": {names::RERUN: null}}, ""],
    ]);
    scene.rows(RUN, rows).await?;
    // A rerun and a recovery of one run share the name.
    scene
        .rows(
            "applied",
            json!([["creation", "ada", {"create": {"metadata": by("ada")}}, ""]]),
        )
        .await?;
    let agent = planned(&mut scene, "applied").await?;
    let rows = json!([
        ["approval", "bob", {"annotate": approval("bob", 'a')}, ""],
        ["record", "admin", {"status": record('a')}, ""],
    ]);
    scene.rows("applied", rows).await?;
    agent.claims(1, '0', 'a').await?;
    agent.status(&ended).await?;
    let recovers = json!({names::RERUN: null, names::RECOVER: "true", names::ASKED_BY: "ada"});
    let rows = json!([
        ["unnamed recovery", "ada", {"annotate": {names::RECOVER: "true"}}, ASKS],
        ["rerun", "bob", {"annotate": asks("bob".into())}, ""],
        ["recovery meanwhile", "ada", {"annotate": recovers}, "the request of bob has no answer yet"],
        ["answer", "controller", {"status": {"rerun": "run-2"}}, ""],
        ["recovery", "ada", {"annotate": recovers}, ""],
    ]);
    scene.rows("applied", rows).await
}

async fn request_to_a_layer_names_who_asks(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    labelled(&mut scene).await?;
    let named = |name: &str, spec: Value| json!({"metadata": by(name), "spec": spec});
    let asks = |name: Value| json!({names::PLAN: "now", names::REQUESTED_BY: name});
    let seen = |generation: u8, names: Value| json!({"status": {"observedGeneration": generation, "requestedBy": names}});
    let unrecorded = "the controller has not recorded the request of";
    let rows = json!([
        ["unnamed", "ada", {"create": {}}, REQUESTS],
        ["another's name", "ada", {"create": {"metadata": by("bob")}}, REQUESTS],
        ["named", "ada", {"create": {"metadata": by("ada")}}, ""],
        ["change by another", "bob", {"merge": named("bob", json!({"path": "b"}))}, unrecorded],
        ["seen", "controller", seen(1, json!([])), ""],
        ["change by another", "bob", {"merge": named("bob", json!({"path": "b"}))}, unrecorded],
        ["recorded", "controller", seen(1, json!(["ada"])), ""],
        ["unnamed change", "bob", {"merge": {"spec": {"path": "b"}}}, REQUESTS],
        ["change in another's name", "bob", {"merge": named("ada", json!({"path": "b"}))}, REQUESTS],
        ["change", "bob", {"merge": named("bob", json!({"path": "b"}))}, ""],
        ["the same again", "bob", {"merge": named("bob", json!({"ref": "b"}))}, ""],
        ["change by another", "ada", {"merge": named("ada", json!({"path": "c"}))}, unrecorded],
        ["name alone", "ada", {"annotate": {names::REQUESTED_BY: "ada"}}, unrecorded],
        ["recorded", "controller", seen(3, json!(["ada", "bob"])), ""],
        ["name removed", "bob", {"annotate": {names::REQUESTED_BY: null}}, REQUESTS],
        ["another's name", "bob", {"annotate": {names::REQUESTED_BY: "ada"}}, REQUESTS],
        ["unnamed request", "ada", {"annotate": {names::PLAN: "now"}}, REQUESTS],
        ["request", "ada", {"annotate": asks("ada".into())}, ""],
        // Applied: the list is empty, and the request for a plan is not recorded.
        ["applied", "controller", seen(3, json!([])), ""],
        ["applied", "controller", {"status": {"appliedSpec": sum('0')}}, ""],
        ["request by another", "bob", {"annotate": {names::PLAN: "x", names::REQUESTED_BY: "bob"}}, unrecorded],
        ["token", "controller", {"annotate": {names::PLAN: "token"}}, ""],
        ["request by another", "bob", {"annotate": asks("bob".into())}, unrecorded],
        ["recorded", "controller", seen(3, json!(["ada"])), ""],
        ["request by another", "bob", {"annotate": asks("bob".into())}, ""],
        // To stop it needs no name.
        ["suspension", "ada", {"merge": {"spec": {"suspend": true}}}, ""],
        ["unnamed resumption", "ada", {"merge": {"spec": {"suspend": false}}}, REQUESTS],
        ["unnamed paths", "ada", {"merge": {"spec": {"triggerPaths": ["x"]}}}, REQUESTS],
        ["mark", "controller", {"annotate": {names::UNVERIFIED: "why"}}, ""],
        ["unnamed confirmation", "ada", {"annotate": {names::UNVERIFIED: null}}, REQUESTS],
        ["confirmation", "bob", {"annotate": {names::UNVERIFIED: null}}, ""],
    ]);
    scene.rows("layer/net", rows).await?;
    // A deletion carries no annotation, so the name stands on the layer before.
    let destroys = json!({"deletionPolicy": "Destroy"});
    let rows = json!([
        ["creation", "ada", {"create": named("ada", destroys)}, ""],
        ["recorded", "controller", seen(1, json!(["ada"])), ""],
        ["deletion", "bob", {"delete": ""}, REQUESTS],
        ["name", "bob", {"annotate": {names::REQUESTED_BY: "bob"}}, ""],
        ["deletion", "bob", {"delete": ""}, ""],
    ]);
    scene.rows("layer/destroys", rows).await?;
    let rows = json!([
        ["creation", "ada", {"create": {"metadata": by("ada")}}, ""],
        ["orphaning", "bob", {"delete": ""}, ""],
    ]);
    scene.rows("layer/orphan", rows).await
}

async fn nothing_approves_itself_with_four_eyes(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    let automatic = |field: &str| json!({"remediation": {field: "Automatic"}});
    let rows = json!([["creation before", "eve", {"create": {"spec": automatic("onCommit")}}, ""]]);
    scene.rows("layer/before", rows).await?;
    labelled(&mut scene).await?;
    let run = json!({"spec": {"approval": {"mode": "Automatic"}}, "metadata": by("eve")});
    let mut of_layer = run.clone();
    of_layer["metadata"]["labels"] = json!({names::LABEL_LAYER: "net"});
    let rows = json!([
        ["creation", "eve", {"create": run}, "four eyes"],
        // The layer shows this refusal: RunRefused.
        ["run of an older layer", "controller", {"create": of_layer}, "four eyes"],
    ]);
    scene.rows("auto", rows).await?;
    for field in ["onCommit", "onDrift", "onDelete"] {
        let layer = json!({"spec": automatic(field), "metadata": by("eve")});
        let rows = json!([
            ["creation", "eve", {"create": layer}, "four eyes"],
            ["creation", "eve", {"create": {"metadata": by("eve")}}, ""],
            ["change", "eve", {"merge": layer}, "four eyes"],
        ]);
        scene
            .rows(&format!("layer/{}", field.to_lowercase()), rows)
            .await?;
    }
    let manual = json!({"spec": {"remediation": {"onCommit": "Manual"}}, "metadata": by("eve")});
    let rows = json!([
        ["path", "eve", {"merge": {"spec": {"path": "b"}, "metadata": by("eve")}}, "four eyes"],
        ["suspension", "eve", {"merge": {"spec": {"suspend": true}}}, ""],
        ["made Manual", "eve", {"merge": manual}, ""],
    ]);
    scene.rows("layer/before", rows).await
}

async fn four_eyes_of_the_chart_reach_each_policy(_: World) -> Result<()> {
    for value in [false, true] {
        let all = chart::render(&json!({"approval.fourEyes": value}))?;
        for policy in [
            "pawl-approval",
            "pawl-creation",
            "pawl-finalizer",
            "pawl-layer",
        ] {
            let text =
                chart::get(&all, &format!("ValidatingAdmissionPolicy/{policy}"))?.to_string();
            let begins = format!("\"{value} || namespaceObject.metadata");
            ensure!(text.contains(&begins), "{policy}: {text}");
        }
    }
    Ok(())
}
