//! Who may create, approve, withdraw, deny, cancel and rerun, with the messages that users see.

use anyhow::{Context, Result, ensure};
use crds::{names, reason};
use harness::{cluster::objects, wait};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::world::{Agent, PATIENCE, Test, World, plan, refused, run, sum};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("policies::an_approver_approves_the_plan_that_waits", true, approves),
        Test::new("policies::a_wrong_checksum_is_refused_in_the_approvers_terminal", true, terminal),
        Test::new("policies::approving_needs_the_verb_ones_own_name_and_a_plan", true, matrix),
        Test::new("policies::a_withdrawal_needs_only_the_right_to_patch", true, withdrawal),
        Test::new("policies::deny_and_cancel_are_one_way", true, one_way),
        Test::new("policies::whoever_denies_or_cancels_names_nobody_else", true, stopped_by),
        Test::new("policies::an_apply_is_given_up_by_its_verb_in_ones_own_name_and_once", true, abandon),
        Test::new("policies::no_run_is_created_approved", true, created_approved),
        Test::new("policies::automatic_needs_autoapprove", true, automatic),
        Test::new("policies::a_service_account_needs_use", true, account),
        Test::new("policies::a_rerun_is_admitted_like_a_creation", true, rerun),
        Test::new("policies::the_finalizer_needs_control", true, finalizer),
        Test::new("policies::whoever_reads_runs_reads_their_events", true, events),
    ]
}

/// A namespace with an approver, alice, and an author, bob, and a run with the waiting plan `a`.
struct Scene {
    world: World,
    namespace: String,
    alice: Client,
    bob: Client,
}

impl Scene {
    async fn new(world: World) -> Result<Self> {
        let namespace = world.namespace().await?;
        let alice = world.person("alice@example.com", &namespace, "pawl-approver").await?;
        let bob = world.person("bob", &namespace, "pawl-author").await?;
        let scene = Self { world, namespace, alice, bob };
        scene.waiting("run").await?;
        Ok(scene)
    }

    async fn waiting(&self, name: &str) -> Result<Agent> {
        self.world.create(&self.namespace, name, &json!({})).await?;
        for phase in ["Pending", "Setup", "Init", "Plan"] {
            self.world.status(&self.namespace, name, &json!({"phase": phase})).await?;
        }
        // Only the pod of an attempt may write a plan, so the test uses its token.
        let agent = self.adopt(name, 1).await?;
        agent.status(&json!({"phase": "AwaitingApproval", "plan": plan(1, 'a')})).await?;
        Ok(agent)
    }

    async fn claimed(&self, name: &str) -> Result<()> {
        let agent = self.waiting(name).await?;
        self.annotate(&self.alice, name, approval("alice@example.com", 'a')).await?;
        let record = json!({"checksum": sum('a'), "by": "alice@example.com", "at": "2026-01-01T00:00:00Z"});
        self.world.status(&self.namespace, name, &json!({"approval": record})).await?;
        agent.claims(1, '0', 'a').await.context("claim")?;
        Ok(())
    }

    async fn adopt(&self, name: &str, attempt: u32) -> Result<Agent> {
        let agent = self.world.open(&self.namespace, name, attempt).await?;
        let mut adoption = agent.adoption(attempt, '0');
        adoption.as_object_mut().map(|a| a.remove("phase"));
        agent.status(&adoption).await?;
        Ok(agent)
    }

    async fn annotate(&self, who: &Client, name: &str, annotations: Value) -> kube::Result<crds::TerraformRun> {
        let runs = Api::namespaced(who.clone(), &self.namespace);
        objects::merge(&runs, name, &json!({"metadata": {"annotations": annotations}})).await
    }
}

fn approval(by: &str, digit: char) -> Value {
    json!({names::APPROVE: sum(digit), names::APPROVED_BY: by, names::COMMENT: "looks right"})
}

async fn approves(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    scene.annotate(&scene.alice, "run", approval("alice@example.com", 'a')).await?;
    // A write that leaves the approval as it is needs no right to approve, whoever writes.
    scene.annotate(&scene.bob, "run", json!({"team": "x"})).await?;
    Ok(())
}

async fn terminal(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    let output = scene
        .world
        .access
        .kubectl_command(&["annotate", "-n", &scene.namespace, "--overwrite", "--as=alice@example.com"])
        .arg(format!("{}/run", names::KUBECTL_RUN))
        .args([format!("{}={}", names::APPROVE, sum('b')), format!("{}=alice@example.com", names::APPROVED_BY)])
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let wanted = format!("the plan that waits is {}, not {}; nothing was approved", sum('a'), sum('b'));
    ensure!(!output.status.success() && text.contains(&wanted), "{text}");
    Ok(())
}

async fn matrix(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    let (alice, bob) = (&scene.alice, &scene.bob);
    let short = json!({names::APPROVE: &sum('a')[..30], names::APPROVED_BY: "alice@example.com"});
    let cases: Vec<(&str, &Client, Value, &str)> = vec![
        ("truncated", alice, short, "the plan that waits is"),
        ("older", alice, approval("alice@example.com", 'b'), "the plan that waits is"),
        ("not whole: no name", alice, json!({names::APPROVE: sum('a')}), "must name the user who approves"),
        ("someone else's name", alice, approval("bob", 'a'), "must name the user who approves, alice@example.com, not \"bob\""),
        ("without the verb", bob, approval("bob", 'a'), "bob may not approve this run"),
        ("without the verb, in another's name", bob, approval("alice@example.com", 'a'), "may not approve"),
        ("a comment alone, without the verb", bob, json!({names::COMMENT: "x"}), "may not approve"),
        ("a comment alone", alice, json!({names::COMMENT: "x", names::APPROVED_BY: "alice@example.com"}), "not none"),
    ];
    for (what, who, annotations, text) in cases {
        refused(what, scene.annotate(who, "run", annotations).await, text)?;
    }
    scene.annotate(alice, "run", approval("alice@example.com", 'a')).await?;
    for (what, change) in [("approved-by", json!({names::APPROVED_BY: "bob"})), ("the comment", json!({names::COMMENT: "no"}))] {
        refused(&format!("only {what}, afterwards"), scene.annotate(bob, "run", change).await, "has not the right")?;
    }
    // Approvals that are too early: without a plan, and with the plan of a closed attempt while the next attempt plans.
    scene.world.create(&scene.namespace, "early", &json!({})).await?;
    scene.world.status(&scene.namespace, "early", &json!({"phase": "Pending"})).await?;
    let early = scene.annotate(alice, "early", approval("alice@example.com", 'a')).await;
    refused("early", early, "no plan waits for approval (phase Pending)")?;
    scene.waiting("again").await?;
    scene.world.status(&scene.namespace, "again", &json!({"phase": "Pending"})).await?;
    let dead = scene.annotate(alice, "again", approval("alice@example.com", 'a')).await;
    refused("of a dead attempt", dead, "no plan waits for approval")?;
    // The policy treats server-side apply and replace the same.
    let api: Api<crds::TerraformRun> = Api::namespaced(bob.clone(), &scene.namespace);
    let applied = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun", "metadata": {"annotations": {names::APPROVED_BY: "bob"}}});
    let answer = api.patch("run", &PatchParams::apply("bob").force(), &Patch::Apply(applied)).await;
    refused("server-side apply", answer, "has not the right")
}

async fn withdrawal(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    scene.annotate(&scene.alice, "run", approval("alice@example.com", 'a')).await?;
    let part = json!({names::APPROVE: null, names::COMMENT: null});
    refused("a part", scene.annotate(&scene.bob, "run", part).await, "has not the right")?;
    let none = json!({names::APPROVE: null, names::APPROVED_BY: null, names::COMMENT: null});
    scene.annotate(&scene.bob, "run", none).await?;
    scene.annotate(&scene.alice, "run", approval("alice@example.com", 'a')).await?;
    scene.claimed("late").await?;
    let none = json!({names::APPROVE: null, names::APPROVED_BY: null, names::COMMENT: null});
    let late = scene.annotate(&scene.bob, "late", none).await;
    refused("after the claim", late, "too late: apply was claimed at 2026-01-01T00:00:00Z; pawl.run/cancel interrupts it")
}

async fn one_way(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    for key in [names::DENY, names::CANCEL] {
        scene.annotate(&scene.bob, "run", json!({key: "too dear"})).await?;
        refused("taken back", scene.annotate(&scene.bob, "run", json!({key: null})).await, "cannot be removed or changed")?;
        refused("changed", scene.annotate(&scene.bob, "run", json!({key: "other"})).await, "cannot be removed or changed")?;
        let admin = scene.world.admin.clone();
        refused(
            "taken back by an administrator",
            scene.annotate(&admin, "run", json!({key: null})).await,
            "cannot be removed or changed",
        )?;
    }
    Ok(())
}

async fn stopped_by(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    for (word, by) in [(names::DENY, names::DENIED_BY), (names::CANCEL, names::CANCELED_BY)] {
        let text = "name bob";
        refused("another's name", scene.annotate(&scene.bob, "run", json!({word: "x", by: "alice@example.com"})).await, text)?;
        refused("a name alone", scene.annotate(&scene.bob, "run", json!({by: "bob"})).await, text)?;
        scene.annotate(&scene.bob, "run", json!({word: "too dear", by: "bob"})).await?;
        refused("taken away", scene.annotate(&scene.bob, "run", json!({by: null})).await, text)?;
    }
    Ok(())
}

fn given_up(by: &str) -> Value {
    json!({names::ABANDON: "the rack burned down", names::ABANDONED_BY: by})
}

async fn abandon(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    let (world, namespace) = (&scene.world, &scene.namespace);
    let time = "2026-01-01T00:00:00Z";
    for name in ["lost", "unknown"] {
        scene.claimed(name).await?;
    }
    let carol = world.person("carol", namespace, "pawl-approver").await?;
    world.person("carol", namespace, "pawl-abandoner").await?;
    let vera = world.person("vera", namespace, "pawl-viewer").await?;
    let controller = world.access.impersonate("system:serviceaccount:pawl-system:pawl-controller", &[]).await?;
    let lost = "while the node of its pod is lost";
    refused("before a claim", scene.annotate(&carol, "run", given_up("carol")).await, lost)?;
    refused("under a node that is Ready", scene.annotate(&carol, "lost", given_up("carol")).await, lost)?;
    let stalled = json!([{"type": "Stalled", "status": "True", "reason": reason::NODE_UNREACHABLE, "message": "", "lastTransitionTime": time}]);
    world.status(namespace, "lost", &json!({"conditions": stalled})).await?;
    let by = |by: &str, why: &str| json!({names::ABANDON: why, names::ABANDONED_BY: by});
    let right = "may not abandon this apply";
    let cases: Vec<(&str, &Client, Value, &str)> = vec![
        ("a viewer", &vera, given_up("vera"), "cannot patch resource"),
        ("an author", &scene.bob, given_up("bob"), right),
        ("an approver", &scene.alice, given_up("alice@example.com"), right),
        ("the controller", &controller, given_up("system:serviceaccount:pawl-system:pawl-controller"), right),
        ("in another's name", &carol, given_up("alice@example.com"), "must name the user who abandons the apply, carol"),
        ("in nobody's name", &carol, json!({names::ABANDON: "x"}), "must name the user"),
        ("a name alone", &carol, json!({names::ABANDONED_BY: "carol"}), "must give a reason"),
        ("without a reason", &carol, by("carol", ""), "must give a reason"),
        ("with a long one", &carol, by("carol", &"x".repeat(513)), "must give a reason"),
    ];
    for (what, who, annotations, text) in cases {
        refused(what, scene.annotate(who, "lost", annotations).await, text)?;
    }
    scene.annotate(&carol, "lost", given_up("carol")).await.context("with the verb")?;
    // A change of something else is allowed.
    scene.annotate(&scene.bob, "lost", json!({"team": "x"})).await?;
    let off = json!({names::ABANDON: null, names::ABANDONED_BY: null});
    refused("taken back", scene.annotate(&carol, "lost", off.clone()).await, "cannot be removed or changed")?;
    for (what, change) in [
        ("half of it taken back", json!({names::ABANDON: null})),
        ("another reason", by("carol", "other")),
        ("another name", json!({names::ABANDONED_BY: "system:admin"})),
    ] {
        refused(what, scene.annotate(&carol, "lost", change.clone()).await, "cannot be removed or changed")?;
        refused(what, scene.annotate(&world.admin, "lost", change).await, "cannot be removed or changed")?;
    }
    scene.annotate(&controller, "lost", off).await.context("the controller removes what was refused, or is unverified")?;
    // An Indeterminate run, as long as it retains the lease on its state.
    world.status(namespace, "unknown", &json!({"phase": "Failed", "result": "Indeterminate"})).await?;
    refused("that keeps nothing", scene.annotate(&carol, "unknown", given_up("carol")).await, lost)?;
    let lease = json!({"lease": {"stateKey": sum('c'), "name": "x", "at": time}});
    world.status(namespace, "unknown", &lease).await?;
    scene.annotate(&carol, "unknown", given_up("carol")).await.context("one that is Indeterminate")?;
    let mut object = run("made", &json!({}))?;
    object.metadata.annotations = Some([(names::ABANDON.to_owned(), "x".to_owned())].into());
    refused("created so", world.runs(namespace).create(&PostParams::default(), &object).await, "nothing was abandoned")
}

async fn created_approved(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    for key in [names::APPROVE, names::APPROVED_BY, names::COMMENT] {
        let mut object = run("a", &json!({}))?;
        object.metadata.annotations = Some([(key.to_owned(), "x".to_owned())].into());
        let text = "created without an approval";
        refused(key, world.runs(&namespace).create(&PostParams::default(), &object).await, text)?;
        object.metadata.name = None;
        object.metadata.generate_name = Some("a-".into());
        refused("generateName", world.runs(&namespace).create(&PostParams::default(), &object).await, text)?;
    }
    Ok(())
}

async fn automatic(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let bob = world.person("bob", &namespace, "pawl-author").await?;
    let object = run("a", &json!({"approval": {"mode": "Automatic"}}))?;
    let runs: Api<crds::TerraformRun> = Api::namespaced(bob.clone(), &namespace);
    refused("author", runs.create(&PostParams::default(), &object).await, "needs the verb autoapprove")?;
    world.person("bob", &namespace, "pawl-autoapprover").await?;
    eventually(&runs, &object).await
}

/// Creates a run with a right that was just granted: the API server needs a moment to see it.
async fn eventually(runs: &Api<crds::TerraformRun>, object: &crds::TerraformRun) -> Result<()> {
    let create = async || Ok(runs.create(&PostParams::default(), object).await);
    wait::until("an author may with the verb", PATIENCE, create).await.map(drop)
}

async fn account(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let bob = world.person("bob", &namespace, "pawl-author").await?;
    let object = run("a", &json!({"runner": {"serviceAccountName": "deployer"}}))?;
    let runs: Api<crds::TerraformRun> = Api::namespaced(bob, &namespace);
    refused(
        "author",
        runs.create(&PostParams::default(), &object).await,
        "naming the ServiceAccount deployer needs the verb use",
    )?;
    let role = json!({"metadata": {"name": "use"}, "rules": [
        {"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["deployer"], "verbs": ["use"]}]});
    objects::create(&Api::<k8s_openapi::api::rbac::v1::Role>::namespaced(world.admin.clone(), &namespace), role).await?;
    world.access.kubectl(&["create", "rolebinding", "-n", &namespace, "use", "--role=use", "--user=bob"])?;
    eventually(&runs, &object).await?;
    let other = run("b", &json!({"runner": {"serviceAccountName": "root"}}))?;
    refused("another account", runs.create(&PostParams::default(), &other).await, "ServiceAccount root")?;
    let planning = run("c", &json!({"runner": {"serviceAccountName": "deployer", "planServiceAccountName": "root"}}))?;
    refused("of the pods that plan", runs.create(&PostParams::default(), &planning).await, "ServiceAccount deployer or root")
}

async fn rerun(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    let again = json!({names::RERUN: "true"});
    let waits = "has not ended (phase AwaitingApproval)";
    refused("of one that waits", scene.annotate(&scene.bob, "run", again.clone()).await, waits)?;
    let ended = json!({"phase": "Canceled", "result": "Canceled"});
    scene.world.status(&scene.namespace, "run", &ended).await?;
    refused("an approver may not create", scene.annotate(&scene.alice, "run", again.clone()).await, "needs the verb create")?;
    refused("something else than true", scene.annotate(&scene.bob, "run", json!({names::RERUN: "yes"})).await, "set to true")?;
    scene.annotate(&scene.bob, "run", again.clone()).await?;
    // As the controller responds.
    scene.world.status(&scene.namespace, "run", &json!({"rerun": "run-2"})).await?;
    scene.annotate(&scene.world.admin, "run", json!({names::RERUN: null})).await?;
    let answered = "run run-2 already answers this request";
    refused("once more", scene.annotate(&scene.bob, "run", again.clone()).await, answered)?;
    for (name, spec) in [
        ("automatic", json!({"approval": {"mode": "Automatic"}})),
        ("account", json!({"runner": {"serviceAccountName": "root"}})),
    ] {
        scene.world.create(&scene.namespace, name, &spec).await?;
        scene.world.status(&scene.namespace, name, &json!({"phase": "Pending"})).await?;
        scene.world.status(&scene.namespace, name, &ended).await?;
    }
    refused("of an automatic run", scene.annotate(&scene.bob, "automatic", again.clone()).await, "needs the verb autoapprove")?;
    refused("of a run with an account", scene.annotate(&scene.bob, "account", again).await, "ServiceAccount root")?;
    // Only the controller may set the annotation that bypasses these checks.
    let mut object = run("forged", &json!({"approval": {"mode": "Automatic"}}))?;
    object.metadata.annotations = Some([(names::RERUN_OF.to_owned(), "run".to_owned())].into());
    let runs: Api<crds::TerraformRun> = Api::namespaced(scene.bob.clone(), &scene.namespace);
    refused(
        "a forged answer",
        runs.create(&PostParams::default(), &object).await,
        "pawl.run/rerun-of is written by the controller",
    )?;
    refused(
        "set afterwards",
        scene.annotate(&scene.bob, "run", json!({names::RERUN_OF: "x"})).await,
        "rerun-of is written by the controller",
    )?;
    let as_controller = scene.world.access.impersonate("system:serviceaccount:pawl-system:pawl-controller", &[]).await?;
    let runs: Api<crds::TerraformRun> = Api::namespaced(as_controller, &scene.namespace);
    runs.create(&PostParams::default(), &object).await.context("the controller's answer")?;
    object.metadata.name = Some("unasked".into());
    object.metadata.annotations = None;
    refused("the controller, unasked", runs.create(&PostParams::default(), &object).await, "needs the verb autoapprove")?;
    // A rerun of a layer's run is a run outside of the layer, which needs its own rights.
    let mut of_layer = object.clone();
    of_layer.metadata.name = Some("of-layer".into());
    of_layer.metadata.labels = Some([(names::LABEL_LAYER.to_owned(), "net".to_owned())].into());
    runs.create(&PostParams::default(), &of_layer).await.context("the controller, for a layer")?;
    scene.world.status(&scene.namespace, "of-layer", &json!({"phase": "Pending"})).await?;
    scene.world.status(&scene.namespace, "of-layer", &ended).await?;
    refused(
        "of an automatic run of a layer",
        scene.annotate(&scene.bob, "of-layer", json!({names::RERUN: "true"})).await,
        "needs the verb autoapprove",
    )
}

async fn finalizer(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    let set = |list: Value| Patch::Merge(json!({"metadata": {"finalizers": list}}));
    scene.world.runs(&scene.namespace).patch("run", &PatchParams::default(), &set(json!([names::RUN_FINALIZER]))).await?;
    let runs: Api<crds::TerraformRun> = Api::namespaced(scene.bob.clone(), &scene.namespace);
    refused("author", runs.patch("run", &PatchParams::default(), &set(json!([]))).await, "removed by the controller")?;
    runs.patch("run", &PatchParams::default(), &set(json!([names::RUN_FINALIZER, "example.com/mine"])))
        .await
        .context("another one beside it")?;
    scene.world.runs(&scene.namespace).patch("run", &PatchParams::default(), &set(json!([]))).await.context("verb control")?;
    Ok(())
}

/// The last lines of `kubectl describe`.
async fn events(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    for role in ["pawl-viewer", "pawl-author", "pawl-approver", "pawl-autoapprover"] {
        let person = world.person(role, &namespace, role).await?;
        let events: Api<Event> = Api::namespaced(person, &namespace);
        events.list(&ListParams::default()).await.with_context(|| format!("as {role}"))?;
    }
    Ok(())
}
