//! Who may create, approve, withdraw, deny, cancel, abandon and rerun, with the messages that users see.

use anyhow::{Context, Result, ensure};
use crds::{names, reason};
use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use crate::{
    scene::{RUN, Scene, approval, record, withdrawal},
    world::{CONTROLLER, World, sum, tests, user},
};

tests! {
    Guarded: approver_approves_waiting_plan,
    Guarded: wrong_checksum_is_refused_in_terminal,
    Guarded: approval_needs_verb_own_name_and_waiting_plan,
    Guarded: withdrawal_needs_only_patch,
    Guarded: deny_and_cancel_are_never_taken_back,
    Guarded: deny_and_cancel_name_only_their_author,
    Guarded: request_that_comes_too_late_is_refused,
    Guarded: abandoning_needs_verb_own_name_and_lost_node,
    Guarded: created_approved_run_is_refused,
    Guarded: automatic_run_needs_autoapprove,
    Guarded: service_account_needs_use,
    Guarded: rerun_is_admitted_like_creation,
    Guarded: removing_finalizer_needs_control,
    Guarded: run_readers_read_events,
}

const ALICE: &str = "alice@example.com";
const AUTOAPPROVE: &str = "needs the verb autoapprove";

/// An approver, alice, and an author, bob, with a run that waits for the approval of plan `a`.
async fn people(world: World) -> Result<Scene> {
    let mut scene = Scene::new(world, &[(ALICE, "pawl-approver"), ("bob", "pawl-author")]).await?;
    scene.waiting(RUN, &json!({})).await?;
    Ok(scene)
}

fn commented() -> Value {
    let mut approval = approval(ALICE, 'a');
    approval[names::COMMENT] = "looks right".into();
    approval
}

async fn approver_approves_waiting_plan(world: World) -> Result<()> {
    let scene = people(world).await?;
    let rows = json!([
        ["with a comment", "alice", {"annotate": commented()}, ""],
        ["another annotation of an approved run", "bob", {"annotate": {"team": "x"}}, ""],
    ]);
    scene.rows(RUN, rows).await
}

async fn wrong_checksum_is_refused_in_terminal(world: World) -> Result<()> {
    let scene = people(world).await?;
    let args = [
        "annotate",
        "-n",
        &scene.namespace,
        "--overwrite",
        "--as=alice@example.com",
    ];
    let mut kubectl = scene.world.access.kubectl_command(&args);
    let approve = format!("{}={}", names::APPROVE, sum('b'));
    kubectl.args([
        format!("{}/{RUN}", names::KUBECTL_RUN),
        approve,
        format!("{}={ALICE}", names::APPROVED_BY),
    ]);
    let output = kubectl.output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let wanted = format!(
        "the plan that waits is {}, not {}; nothing was approved",
        sum('a'),
        sum('b')
    );
    ensure!(!output.status.success() && text.contains(&wanted), "{text}");
    Ok(())
}

async fn approval_needs_verb_own_name_and_waiting_plan(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    let truncated = json!({names::APPROVE: &sum('a')[..30], names::APPROVED_BY: ALICE});
    let in_bobs_name = "must name the user who approves, alice@example.com, not \"bob\"";
    let no_verb = "may not approve this run";
    let rows = json!([
        ["truncated", "alice", {"annotate": truncated}, "the plan that waits is"],
        ["of an older plan", "alice", {"annotate": approval(ALICE, 'b')}, "the plan that waits is"],
        ["no name", "alice", {"annotate": {names::APPROVE: sum('a')}}, "must name the user who approves"],
        ["in another's name", "alice", {"annotate": approval("bob", 'a')}, in_bobs_name],
        ["no verb", "bob", {"annotate": approval("bob", 'a')}, "bob may not approve this run"],
        ["no verb, in another's name", "bob", {"annotate": approval(ALICE, 'a')}, no_verb],
        ["comment, no verb", "bob", {"annotate": {names::COMMENT: "x"}}, no_verb],
        ["comment", "alice", {"annotate": {names::COMMENT: "x", names::APPROVED_BY: ALICE}}, "not none"],
        ["whole", "alice", {"annotate": commented()}, ""],
        ["the name of an approved run", "bob", {"annotate": {names::APPROVED_BY: "bob"}}, no_verb],
        ["the comment of an approved run", "bob", {"annotate": {names::COMMENT: "no"}}, no_verb],
        // The policy treats server-side apply and replace the same.
        ["server-side apply", "bob", {"apply": {"metadata": {"annotations": {names::APPROVED_BY: "bob"}}}}, no_verb],
    ]);
    scene.rows(RUN, rows).await?;
    scene.pending("early", &json!({})).await?;
    let none = "no plan waits for approval (phase Pending)";
    let rows = json!([["no plan", "alice", {"annotate": approval(ALICE, 'a')}, none]]);
    scene.rows("early", rows).await?;
    scene.waiting("again", &json!({})).await?;
    scene.status("again", json!({"phase": "Pending"})).await?;
    let rows =
        json!([["plan of a closed attempt", "alice", {"annotate": approval(ALICE, 'a')}, none]]);
    scene.rows("again", rows).await
}

async fn withdrawal_needs_only_patch(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    let late = "too late: apply was claimed at 2026-01-01T00:00:00Z; pawl.run/cancel interrupts it";
    let in_part = json!({names::APPROVE: null, names::COMMENT: null});
    let rows = json!([
        ["approval", "alice", {"annotate": approval(ALICE, 'a')}, ""],
        ["in part", "bob", {"annotate": in_part}, "may not approve this run"],
        ["whole", "bob", {"annotate": withdrawal()}, ""],
        ["approval after it", "alice", {"annotate": approval(ALICE, 'a')}, ""],
    ]);
    scene.rows(RUN, rows).await?;
    claimed(&mut scene, "late").await?;
    let rows = json!([["after the claim", "bob", {"annotate": withdrawal()}, late]]);
    scene.rows("late", rows).await
}

/// Creates a run whose plan is approved by alice and claimed.
async fn claimed(scene: &mut Scene, name: &str) -> Result<()> {
    let agent = scene.waiting(name, &json!({})).await?;
    let rows = json!([["approval", "alice", {"annotate": approval(ALICE, 'a')}, ""]]);
    scene.rows(name, rows).await?;
    scene.status(name, record('a')).await?;
    agent.claims(1, '0', 'a').await.context("claim")?;
    Ok(())
}

async fn deny_and_cancel_are_never_taken_back(world: World) -> Result<()> {
    let scene = people(world).await?;
    for key in [names::DENY, names::CANCEL] {
        let rows = json!([
            ["set", "bob", {"annotate": {key: "too dear"}}, ""],
            ["taken back", "bob", {"annotate": {key: null}}, "cannot be removed or changed"],
            ["changed", "bob", {"annotate": {key: "other"}}, "cannot be removed or changed"],
            ["taken back", "admin", {"annotate": {key: null}}, "cannot be removed or changed"],
        ]);
        scene.rows(RUN, rows).await.context(key)?;
    }
    Ok(())
}

async fn request_that_comes_too_late_is_refused(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    let (deny, cancel) = (json!({names::DENY: "no"}), json!({names::CANCEL: "stop"}));
    claimed(&mut scene, "claimed").await?;
    let late = "too late: apply was claimed at 2026-01-01T00:00:00Z; pawl.run/cancel interrupts it; nothing was denied";
    let rows = json!([
        ["denial of an apply", "bob", {"annotate": deny}, late],
        ["cancel of an apply", "bob", {"annotate": cancel}, ""],
    ]);
    scene.rows("claimed", rows).await?;
    for (name, request) in [("denied", &deny), ("cancelled", &cancel)] {
        scene.waiting(name, &json!({})).await?;
        let rows = json!([
            ["request", "bob", {"annotate": request}, ""],
            ["approval", "alice", {"annotate": approval(ALICE, 'a')}, "the run is denied or cancelled; nothing was approved"],
        ]);
        scene.rows(name, rows).await?;
    }
    let ended = json!({"phase": "Canceled", "result": "Expired"});
    scene.status(RUN, ended).await?;
    let late = "too late: the run has ended (Expired); nothing was changed";
    let rows = json!([
        ["denial of an ended run", "bob", {"annotate": deny}, late],
        ["cancel of an ended run", "bob", {"annotate": cancel}, late],
        ["its rerun", "bob", {"annotate": {names::RERUN: "true"}}, ""],
    ]);
    scene.rows(RUN, rows).await
}

async fn deny_and_cancel_name_only_their_author(world: World) -> Result<()> {
    let scene = people(world).await?;
    for (key, by) in [
        (names::DENY, names::DENIED_BY),
        (names::CANCEL, names::CANCELED_BY),
    ] {
        let rows = json!([
            ["in another's name", "bob", {"annotate": {key: "x", by: ALICE}}, "name bob"],
            ["a name alone", "bob", {"annotate": {by: "bob"}}, "name bob"],
            ["in the own name", "bob", {"annotate": {key: "too dear", by: "bob"}}, ""],
            ["the name taken back", "bob", {"annotate": {by: null}}, "name bob"],
        ]);
        scene.rows(RUN, rows).await.context(key)?;
    }
    Ok(())
}

async fn abandoning_needs_verb_own_name_and_lost_node(world: World) -> Result<()> {
    let mut scene = people(world).await?;
    for (user, role) in [
        ("carol", "pawl-approver"),
        ("carol", "pawl-abandoner"),
        ("vera", "pawl-viewer"),
    ] {
        scene.person(user, role).await?;
    }
    let by = |by: &str, why: &str| json!({names::ABANDON: why, names::ABANDONED_BY: by});
    let given_up = |name: &str| by(name, "the rack burned down");
    let lost = "while the node of its pod is lost";
    let rows = json!([["no claim", "carol", {"annotate": given_up("carol")}, lost]]);
    scene.rows(RUN, rows).await?;
    for name in ["lost", "unknown"] {
        claimed(&mut scene, name).await?;
    }
    let stalled = json!({"type": "Stalled", "status": "True", "reason": reason::NODE_UNREACHABLE, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let (no_verb, once) = ("may not abandon this apply", "cannot be removed or changed");
    let names_her = "must name the user who abandons the apply, carol";
    let (name_alone, half) = (
        json!({names::ABANDONED_BY: "carol"}),
        json!({names::ABANDON: null}),
    );
    let other_name = json!({names::ABANDONED_BY: "system:admin"});
    let off = json!({names::ABANDON: null, names::ABANDONED_BY: null});
    let rows = json!([
        ["a Ready node", "carol", {"annotate": given_up("carol")}, lost],
        ["the node is lost", "admin", {"status": {"conditions": [stalled]}}, ""],
        ["a viewer", "vera", {"annotate": given_up("vera")}, "cannot patch resource"],
        ["an author", "bob", {"annotate": given_up("bob")}, no_verb],
        ["an approver", "alice", {"annotate": given_up(ALICE)}, no_verb],
        ["no verb", "controller", {"annotate": given_up(CONTROLLER)}, no_verb],
        ["in another's name", "carol", {"annotate": given_up(ALICE)}, names_her],
        ["no name", "carol", {"annotate": {names::ABANDON: "x"}}, "must name the user who abandons"],
        ["a name alone", "carol", {"annotate": name_alone}, "must give a reason"],
        ["no reason", "carol", {"annotate": by("carol", "")}, "must give a reason"],
        ["a long reason", "carol", {"annotate": by("carol", &"x".repeat(513))}, "must give a reason"],
        ["with the verb", "carol", {"annotate": given_up("carol")}, ""],
        ["another annotation", "bob", {"annotate": {"team": "x"}}, ""],
        ["taken back", "carol", {"annotate": off}, once],
        ["half of it taken back", "carol", {"annotate": half}, once],
        ["half of it taken back", "admin", {"annotate": half}, once],
        ["another reason", "carol", {"annotate": by("carol", "other")}, once],
        ["another reason", "admin", {"annotate": by("carol", "other")}, once],
        ["another name", "carol", {"annotate": other_name}, once],
        ["another name", "admin", {"annotate": other_name}, once],
        ["refused or unverified", "controller", {"annotate": off}, ""],
    ]);
    scene.rows("lost", rows).await?;
    // An Indeterminate run, as long as it retains the lease on its state.
    let lease = json!({"stateKey": sum('c'), "name": "x", "at": "2026-01-01T00:00:00Z"});
    let rows = json!([
        ["end", "admin", {"status": {"phase": "Failed", "result": "Indeterminate"}}, ""],
        ["no lease", "carol", {"annotate": given_up("carol")}, lost],
        ["lease", "admin", {"status": {"lease": lease}}, ""],
        ["with a lease", "carol", {"annotate": given_up("carol")}, ""],
    ]);
    scene.rows("unknown", rows).await?;
    let made = json!({"metadata": {"annotations": {names::ABANDON: "x"}}});
    let rows = json!([["created so", "admin", {"create": made}, "nothing was abandoned"]]);
    scene.rows("made", rows).await
}

async fn created_approved_run_is_refused(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    let approved = "created without an approval";
    for key in [names::APPROVE, names::APPROVED_BY, names::COMMENT] {
        let named = json!({"metadata": {"annotations": {key: "x"}}});
        let generated =
            json!({"metadata": {"annotations": {key: "x"}, "name": null, "generateName": "a-"}});
        let rows = json!([
            [key, "admin", {"create": named}, approved],
            ["generateName", "admin", {"create": generated}, approved],
        ]);
        scene.rows("a", rows).await?;
    }
    Ok(())
}

fn automatic() -> Value {
    json!({"approval": {"mode": "Automatic"}})
}

async fn automatic_run_needs_autoapprove(world: World) -> Result<()> {
    let scene = Scene::new(world, &[("bob", "pawl-author")]).await?;
    let create = json!({"create": {"spec": automatic()}});
    let rows = json!([["an author", "bob", create.clone(), AUTOAPPROVE]]);
    scene.rows("a", rows).await?;
    scene
        .world
        .bind_user(&scene.namespace, "pawl-autoapprover", "bob")
        .await?;
    scene.eventually("bob", "a", create).await
}

async fn service_account_needs_use(world: World) -> Result<()> {
    let scene = Scene::new(world, &[("bob", "pawl-author")]).await?;
    let deployer = json!({"create": {"spec": {"runner": {"serviceAccountName": "deployer"}}}});
    let needs = "naming the ServiceAccount deployer needs the verb use";
    scene
        .rows("a", json!([["an author", "bob", deployer.clone(), needs]]))
        .await?;
    let rules = json!([{"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["deployer"], "verbs": ["use"]}]);
    scene
        .world
        .grant(&scene.namespace, "use", &rules, &user("bob"))
        .await?;
    scene.eventually("bob", "a", deployer).await?;
    let both = json!({"serviceAccountName": "deployer", "planServiceAccountName": "root"});
    let root = json!({"serviceAccountName": "root"});
    let rows = json!([
        ["another account", "bob", {"create": {"spec": {"runner": root}}}, "ServiceAccount root"],
        ["of the pods that plan", "bob", {"create": {"spec": {"runner": both}}}, "ServiceAccount deployer or root"],
    ]);
    scene.rows("b", rows).await
}

async fn rerun_is_admitted_like_creation(world: World) -> Result<()> {
    let scene = people(world).await?;
    let ended = json!({"phase": "Canceled", "result": "Canceled"});
    let by_controller = "pawl.run/rerun-of is written by the controller";
    let rows = json!([
        ["of a waiting run", "bob", {"annotate": {names::RERUN: "true"}}, "has not ended (phase AwaitingApproval)"],
        ["end", "admin", {"status": ended}, ""],
        ["an approver", "alice", {"annotate": {names::RERUN: "true"}}, "needs the verb create"],
        ["not true", "bob", {"annotate": {names::RERUN: "yes"}}, "set to true"],
        ["an author", "bob", {"annotate": {names::RERUN: "true"}}, ""],
        // As the controller answers.
        ["answer", "admin", {"status": {"rerun": "run-2"}}, ""],
        ["answered", "admin", {"annotate": {names::RERUN: null}}, ""],
        ["once more", "bob", {"annotate": {names::RERUN: "true"}}, "run run-2 already answers this request"],
        ["rerun-of set afterwards", "bob", {"annotate": {names::RERUN_OF: "x"}}, by_controller],
    ]);
    scene.rows(RUN, rows).await?;
    let root = json!({"runner": {"serviceAccountName": "root"}});
    // Only the controller may set the annotation that bypasses these checks.
    let forged =
        json!({"spec": automatic(), "metadata": {"annotations": {names::RERUN_OF: "run"}}});
    let of_layer =
        json!({"spec": automatic(), "metadata": {"labels": {names::LABEL_LAYER: "net"}}});
    let rows = json!([
        ["a forged answer", "bob", {"create": forged}, by_controller],
        ["unasked", "controller", {"create": {"spec": automatic()}}, AUTOAPPROVE],
        ["an answer", "controller", {"create": forged}, ""],
    ]);
    scene.rows("forged", rows).await?;
    // A rerun of a layer's run is a run outside of the layer, which needs its own rights.
    for (name, who, run, message) in [
        (
            "automatic",
            "admin",
            json!({"spec": automatic()}),
            AUTOAPPROVE,
        ),
        (
            "account",
            "admin",
            json!({"spec": root}),
            "ServiceAccount root",
        ),
        ("of-layer", "controller", of_layer, AUTOAPPROVE),
    ] {
        let rows = json!([
            ["creation", who, {"create": run}, ""],
            ["begin", "admin", {"status": {"phase": "Pending"}}, ""],
            ["end", "admin", {"status": ended}, ""],
            ["rerun", "bob", {"annotate": {names::RERUN: "true"}}, message],
        ]);
        scene.rows(name, rows).await?;
    }
    Ok(())
}

async fn removing_finalizer_needs_control(world: World) -> Result<()> {
    let scene = people(world).await?;
    let and_mine = json!([names::RUN_FINALIZER, "example.com/mine"]);
    let rows = json!([
        ["set", "admin", {"merge": {"metadata": {"finalizers": [names::RUN_FINALIZER]}}}, ""],
        ["removed", "bob", {"merge": {"metadata": {"finalizers": []}}}, "removed by the controller"],
        ["another one beside it", "bob", {"merge": {"metadata": {"finalizers": and_mine}}}, ""],
        ["removed with the verb", "admin", {"merge": {"metadata": {"finalizers": []}}}, ""],
    ]);
    scene.rows(RUN, rows).await
}

/// The last lines of `kubectl describe`.
async fn run_readers_read_events(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    for role in [
        "pawl-viewer",
        "pawl-author",
        "pawl-approver",
        "pawl-autoapprover",
    ] {
        let person = world.person(role, &namespace, role).await?;
        let events: Api<Event> = Api::namespaced(person, &namespace);
        events
            .list(&ListParams::default())
            .await
            .with_context(|| format!("as {role}"))?;
    }
    Ok(())
}
