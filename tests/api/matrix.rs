//! Permissions on a run in every phase: every identity tries every act, and the API server's response is compared with a table that is
//! independent of the policies. All acts are dry runs, which pass admission like writes.

use anyhow::{Context, Result, ensure};
use crds::{
    Phase, RunResult, TerraformRun,
    fields::{FIELDS, Owner},
    names,
};
use harness::cluster::objects;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};

use crate::world::{Agent, Test, World, plan, run, sum};

/// Burrito 11.23: code of the stack could read a runner's token, which was valid for every layer of its namespace.
pub(crate) fn tests() -> Vec<Test> {
    Place::ALL.into_iter().map(|place| Test::new(&format!("matrix::{place:?}"), true, move |world| hold(world, place))).collect()
}

const RUN: &str = "run";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Pending,
    Opened,
    Setup,
    Init,
    Plan,
    AwaitingApproval,
    Approved,
    Apply,
    Succeeded,
    Failed,
    Canceled,
}

impl Place {
    const ALL: [Self; 11] = [
        Self::Pending,
        Self::Opened,
        Self::Setup,
        Self::Init,
        Self::Plan,
        Self::AwaitingApproval,
        Self::Approved,
        Self::Apply,
        Self::Succeeded,
        Self::Failed,
        Self::Canceled,
    ];

    const fn phase(self) -> Phase {
        match self {
            Self::Pending | Self::Opened => Phase::Pending,
            Self::Setup => Phase::Setup,
            Self::Init => Phase::Init,
            Self::Plan => Phase::Plan,
            Self::AwaitingApproval | Self::Approved => Phase::AwaitingApproval,
            Self::Apply => Phase::Apply,
            Self::Succeeded => Phase::Succeeded,
            Self::Failed => Phase::Failed,
            Self::Canceled => Phase::Canceled,
        }
    }

    /// Whether a pod has adopted the open attempt.
    fn is_adopted(self) -> bool {
        self != Self::Pending && self != Self::Opened && !self.phase().is_terminal()
    }

    fn is_claimed(self) -> bool {
        matches!(self, Self::Apply | Self::Succeeded)
    }

    /// Whether the plan of the open attempt is recorded.
    fn is_planned(self) -> bool {
        matches!(self, Self::AwaitingApproval | Self::Approved | Self::Apply)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Stranger,
    Viewer,
    Author,
    Approver,
    Autoapprover,
    Controller,
    /// The pod of the open attempt, or of the last one if none is open.
    Agent,
    /// The pod of a replaced attempt.
    OldAgent,
    /// The pod of another run.
    OtherAgent,
}

impl Who {
    const PEOPLE: [(Self, &'static [&'static str]); 5] = [
        (Self::Stranger, &[]),
        (Self::Viewer, &["pawl-viewer"]),
        (Self::Author, &["pawl-author"]),
        (Self::Approver, &["pawl-approver"]),
        (Self::Autoapprover, &["pawl-autoapprover"]),
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::Viewer => "viewer",
            Self::Author => "author",
            Self::Approver => "approver",
            Self::Autoapprover => "autoapprover",
            Self::Controller => "system:serviceaccount:pawl-system:pawl-controller",
            Self::Agent => "agent",
            Self::OldAgent => "old agent",
            Self::OtherAgent => "other agent",
        }
    }

    fn reads(self) -> bool {
        !matches!(self, Self::Stranger | Self::OtherAgent)
    }

    fn lists(self) -> bool {
        self.reads() && !matches!(self, Self::Agent | Self::OldAgent)
    }

    fn creates(self) -> bool {
        matches!(self, Self::Author | Self::Autoapprover | Self::Controller)
    }

    fn patches(self) -> bool {
        self.creates() || self == Self::Approver
    }
}

#[derive(Clone, Debug)]
enum Act {
    Get,
    List,
    Create {
        automatic: bool,
        approved: bool,
        answers: bool,
    },
    /// A creation by the controller for a layer.
    CreateOfLayer {
        automatic: bool,
    },
    Delete,
    /// A merge patch of the run, and which of the identities with `patch` may send it.
    Patch(&'static str, Value, fn(Who, Place) -> bool),
    /// A merge patch of the status, and whether the agent and the controller may send it.
    Status(&'static str, Value, fn(Place) -> bool, fn(Place) -> bool),
}

impl Act {
    fn name(&self) -> String {
        match self {
            Self::Patch(name, ..) => format!("patch {name}"),
            Self::Status(name, ..) => format!("status {name}"),
            other => format!("{other:?}"),
        }
    }

    /// The table: whether the act is allowed.
    fn allowed(&self, who: Who, place: Place) -> bool {
        match self {
            Self::Get => who.reads(),
            Self::List => who.lists(),
            Self::Create { approved: true, .. } => false,
            // The request for the rerun was admitted already.
            Self::Create { answers: true, .. } | Self::CreateOfLayer { .. } => who == Who::Controller,
            Self::Create { automatic, .. } => who.creates() && (!automatic || who == Who::Autoapprover),
            Self::Delete => who.creates(),
            Self::Patch(_, _, may) => who.patches() && may(who, place),
            Self::Status(_, _, agent, controller) => match who {
                Who::Agent => agent(place),
                Who::Controller => controller(place),
                _ => false,
            },
        }
    }
}

const NEVER: fn(Place) -> bool = |_| false;
const ALWAYS: fn(Place) -> bool = |_| true;
const ADOPTED: fn(Place) -> bool = Place::is_adopted;

fn acts(agent: &Agent) -> Vec<Act> {
    let time = "2026-01-01T00:00:00Z";
    let approve =
        |digit: char, by: &str| json!({"metadata": {"annotations": {names::APPROVE: sum(digit), names::APPROVED_BY: by}}});
    let annotate = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    let stop = |word: &str, by: &str| json!({"metadata": {"annotations": {word: "no", by: "approver"}}});
    let in_time = |who: Who, place: Place| who == Who::Approver && place.phase() == Phase::AwaitingApproval;
    let all = |_: Who, _: Place| true;
    let none = |_: Who, _: Place| false;
    let control = |who: Who, _: Place| who == Who::Controller;
    let ends = |result: RunResult| json!({"phase": result.phase(), "result": result});
    let withdrawal = json!({"metadata": {"annotations": {names::APPROVE: null, names::APPROVED_BY: null, names::COMMENT: null}}});
    let only_comment = annotate(names::COMMENT, "hm".into());
    let mut acts = vec![
        Act::Get,
        Act::List,
        Act::Create { automatic: false, approved: false, answers: false },
        Act::Create { automatic: true, approved: false, answers: false },
        Act::Create { automatic: false, approved: true, answers: false },
        Act::Create { automatic: false, approved: false, answers: true },
        Act::CreateOfLayer { automatic: false },
        Act::CreateOfLayer { automatic: true },
        Act::Delete,
        Act::Patch("approve", approve('a', "approver"), in_time),
        Act::Patch("approve in another's name", approve('a', "somebody"), none),
        Act::Patch("approve another plan", approve('b', "approver"), none),
        // Refused after the claim.
        Act::Patch("withdraw", withdrawal, |who, place| !place.is_claimed() || who == Who::Controller),
        // A comment alone is no approval, because it names no person; with the user's own approval it is allowed.
        Act::Patch("comment", only_comment, |_, _| false),
        Act::Patch("deny", annotate(names::DENY, "no".into()), all),
        Act::Patch("cancel", annotate(names::CANCEL, "no".into()), all),
        Act::Patch("deny by name", stop(names::DENY, names::DENIED_BY), |who, _| who == Who::Approver),
        Act::Patch("cancel by name", stop(names::CANCEL, names::CANCELED_BY), |who, _| who == Who::Approver),
        Act::Patch("name alone", annotate(names::CANCELED_BY, "approver".into()), none),
        // Refused unless a node is lost; `policies` tests who may then.
        Act::Patch("abandon", json!({"metadata": {"annotations": {names::ABANDON: "x", names::ABANDONED_BY: "approver"}}}), none),
        Act::Patch("rerun", annotate(names::RERUN, "true".into()), |who, place| who.creates() && place.phase().is_terminal()),
        Act::Patch("rerun, other words", annotate(names::RERUN, "yes".into()), none),
        Act::Patch("rerun-of", annotate(names::RERUN_OF, "x".into()), control),
        Act::Patch("a label", json!({"metadata": {"labels": {"team": "x"}}}), all),
        Act::Patch("a layer's label", json!({"metadata": {"labels": {names::LABEL_LAYER: "x"}}}), control),
        Act::Patch("a layer's trigger", annotate(names::TRIGGER, "Commit".into()), control),
        Act::Patch("spec", json!({"spec": {"workspace": "other"}}), none),
        Act::Patch("finalizer away", json!({"metadata": {"finalizers": []}}), control),
        Act::Status("attempt closed", json!({"attempt": {"open": false, "closedAt": time}}), NEVER, ALWAYS),
        // Only an Indeterminate run can be settled, and no run here is.
        Act::Status("settled", json!({"settled": {"result": "Applied", "message": "x", "at": time}}), NEVER, NEVER),
        // The controller may write any attempt.
        Act::Status(
            "adopted by another",
            json!({"adopted": {"attempt": 2, "podUID": "x", "nonce": "f".repeat(32)}}),
            NEVER,
            ALWAYS,
        ),
        // An attempt gets its plan once, from any writer.
        Act::Status(
            "plan",
            json!({"plan": plan(2, 'b')}),
            |p| p.is_adopted() && !p.is_planned(),
            |p| !matches!(p, Place::Pending | Place::Succeeded | Place::Canceled) && !p.is_planned(),
        ),
        // A repeated claim is no change.
        Act::Status(
            "claim",
            agent.claim(2, '2', &sum('a')),
            |p| matches!(p, Place::Approved | Place::Apply),
            |p| p == Place::Apply,
        ),
        Act::Status("claim of another plan", agent.claim(2, '2', &sum('b')), NEVER, NEVER),
        Act::Status("claim of another process", agent.claim(2, '3', &sum('a')), NEVER, NEVER),
        Act::Status(
            "claim away",
            json!({"claim": null, "phase": "Plan"}),
            |p| matches!(p, Place::Init | Place::Plan),
            |p| p.phase().may_become(Phase::Plan) && !p.is_claimed(),
        ),
        Act::Status("result alone", json!({"result": "Applied"}), NEVER, |place| place == Place::Succeeded),
    ];
    acts.extend(fields());
    for result in [RunResult::Applied, RunResult::Failed, RunResult::Canceled, RunResult::NoChanges, RunResult::Indeterminate] {
        let name = result.as_str();
        acts.push(match result {
            RunResult::Applied => {
                Act::Status(name, ends(result), |p| p == Place::Apply, |p| matches!(p, Place::Apply | Place::Succeeded))
            }
            RunResult::Indeterminate => Act::Status(name, ends(result), |p| p == Place::Apply, |p| p == Place::Apply),
            RunResult::Canceled => Act::Status(
                name,
                ends(result),
                |p| p.is_adopted() && !p.is_claimed(),
                |p| !p.is_claimed() && !matches!(p, Place::Failed),
            ),
            RunResult::NoChanges => Act::Status(name, ends(result), |p| p == Place::Plan, |p| p == Place::Plan),
            _ => Act::Status(name, ends(result), ADOPTED, |p| !matches!(p, Place::Succeeded | Place::Canceled)),
        });
    }
    acts
}

/// A write of each single field, as in the field table. Fields with their own rules are above.
fn fields() -> Vec<Act> {
    let schema = crds::crd::terraform_run()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
    let ruled = ["phase", "result", "settled"];
    let others = FIELDS.iter().filter(|field| !ruled.contains(&field.name));
    others
        .filter_map(|field| {
            let agent = match field.owner {
                Owner::Attempt | Owner::Agent => ADOPTED,
                Owner::Controller => NEVER,
                Owner::Adoption | Owner::Plan | Owner::Claim => return None,
            };
            let value = sample(&schema["properties"]["status"]["properties"][field.name]);
            Some(Act::Status(field.name, json!({field.name: value}), agent, ALWAYS))
        })
        .collect()
}

/// The smallest value that a schema permits.
fn sample(schema: &Value) -> Value {
    if let Some(word) = schema["enum"].get(0) {
        return word.clone();
    }
    match schema["type"].as_str() {
        Some("string") if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
        Some("string") if schema["minLength"] == 71 => json!(sum('c')),
        Some("string") => json!("X"),
        Some("array") => json!([sample(&schema["items"])]),
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            required.map(|name| (name.to_owned(), sample(&schema["properties"][name]))).collect::<Map<_, _>>().into()
        }
        Some("boolean") => json!(true),
        _ => json!(7),
    }
}

struct Scene {
    world: World,
    namespace: String,
    agent: Agent,
    old: Agent,
    other: Agent,
}

impl Scene {
    /// A run with an earlier attempt before the open one, brought to its place.
    async fn new(world: World, place: Place) -> Result<Self> {
        let namespace = world.namespace().await?;
        world.create(&namespace, RUN, &json!({})).await?;
        world.create(&namespace, "another", &json!({})).await?;
        objects::merge(&world.runs(&namespace), RUN, &json!({"metadata": {"finalizers": [names::RUN_FINALIZER]}})).await?;
        let attempt = |number: u32, open: bool| json!({"attempt": {"number": number, "podName": format!("{RUN}-a{number}"), "open": open, "tries": number}});
        let set = async |status: &Value| world.status(&namespace, RUN, status).await.context("as the administrator");
        set(&json!({"phase": "Pending"})).await?;
        set(&attempt(1, true)).await?;
        let old = world.pod(&namespace, "run-a1", "run-a1", RUN).await?;
        old.status(&old.adoption(1, '1')).await?;
        let mut closing = attempt(1, false);
        closing["phase"] = "Pending".into();
        set(&closing).await?;
        let agent = world.pod(&namespace, "run-a2", "run-a2", RUN).await?;
        let other = world.pod(&namespace, "another-a1", "another-a1", "another").await?;
        let scene = Self { world: world.clone(), namespace: namespace.clone(), agent, old, other };
        if place == Place::Pending {
            return Ok(scene);
        }
        set(&attempt(2, true)).await?;
        if place == Place::Opened {
            return Ok(scene);
        }
        scene.agent.status(&scene.agent.adoption(2, '2')).await?;
        for phase in ["Setup", "Init", "Plan"] {
            scene.agent.status(&json!({"phase": phase})).await?;
            if place.phase().as_str() == phase {
                return Ok(scene);
            }
        }
        if place == Place::Failed {
            scene.agent.status(&json!({"phase": "Failed", "result": "Failed"})).await?;
            set(&attempt(2, false)).await?;
            return Ok(scene);
        }
        scene.agent.status(&json!({"phase": "AwaitingApproval", "plan": plan(2, 'a')})).await?;
        match place {
            Place::Canceled => {
                scene.agent.status(&json!({"phase": "Canceled", "result": "Canceled"})).await?;
                set(&attempt(2, false)).await?;
            }
            Place::Approved | Place::Apply | Place::Succeeded => {
                let approval = json!({names::APPROVE: sum('a'), names::APPROVED_BY: "admin"});
                let runs = scene.world.runs(&scene.namespace);
                objects::merge(&runs, RUN, &json!({"metadata": {"annotations": approval}})).await?;
                set(&json!({"approval": {"checksum": sum('a'), "by": "admin", "at": "2026-01-01T00:00:00Z"}})).await?;
                if place != Place::Approved {
                    scene.agent.status(&scene.agent.claim(2, '2', &sum('a'))).await.context("claim")?;
                }
                if place == Place::Succeeded {
                    scene.agent.status(&json!({"phase": "Succeeded", "result": "Applied"})).await?;
                    set(&attempt(2, false)).await?;
                }
            }
            _ => {}
        }
        Ok(scene)
    }

    async fn clients(&self) -> Result<Vec<(Who, Client)>> {
        let mut clients = Vec::new();
        for (who, roles) in Who::PEOPLE {
            for role in roles {
                self.world.person(who.name(), &self.namespace, role).await?;
            }
            clients.push((who, self.world.access.impersonate(who.name(), &["system:authenticated"]).await?));
        }
        let groups = ["system:serviceaccounts", "system:authenticated"];
        clients.push((Who::Controller, self.world.access.impersonate(Who::Controller.name(), &groups).await?));
        for (who, agent) in [(Who::Agent, &self.agent), (Who::OldAgent, &self.old), (Who::OtherAgent, &self.other)] {
            clients.push((who, agent.client.clone()));
        }
        Ok(clients)
    }

    /// Tries an act; returns the refusal, if any. Errors that are no response of the API server are returned as errors.
    async fn attempt(&self, client: &Client, act: &Act) -> Result<Option<String>> {
        let api: Api<TerraformRun> = Api::namespaced(client.clone(), &self.namespace);
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let answer = match act {
            Act::Get => api.get(RUN).await.map(drop),
            Act::List => api.list(&kube::api::ListParams::default()).await.map(drop),
            Act::Delete => api.delete(RUN, &DeleteParams { dry_run: true, ..DeleteParams::default() }).await.map(drop),
            Act::Create { automatic, approved, answers } => {
                let mode = if *automatic { "Automatic" } else { "Manual" };
                let mut fresh = run("fresh", &json!({"approval": {"mode": mode}}))?;
                let mut annotations = std::collections::BTreeMap::new();
                if *approved {
                    annotations.insert(names::APPROVE.to_owned(), sum('a'));
                }
                if *answers {
                    annotations.insert(names::RERUN_OF.to_owned(), RUN.to_owned());
                }
                fresh.metadata.annotations = Some(annotations);
                api.create(&PostParams { dry_run: true, ..PostParams::default() }, &fresh).await.map(drop)
            }
            Act::CreateOfLayer { automatic } => {
                let mode = if *automatic { "Automatic" } else { "Manual" };
                let mut fresh = run("fresh", &json!({"approval": {"mode": mode}}))?;
                fresh.metadata.labels = Some([(names::LABEL_LAYER.to_owned(), "a".to_owned())].into());
                api.create(&PostParams { dry_run: true, ..PostParams::default() }, &fresh).await.map(drop)
            }
            Act::Patch(_, patch, _) => api.patch(RUN, &params, &Patch::Merge(patch)).await.map(drop),
            Act::Status(_, status, _, _) => {
                api.patch_status(RUN, &params, &Patch::Merge(json!({"status": status}))).await.map(drop)
            }
        };
        match answer {
            Ok(()) => Ok(None),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => Ok(Some(status.message.clone())),
            Err(error) => Err(error).with_context(|| format!("{} got no answer", act.name())),
        }
    }
}

async fn hold(world: World, place: Place) -> Result<()> {
    let scene = Scene::new(world, place).await.with_context(|| format!("{place:?}"))?;
    let acts = acts(&scene.agent);
    let (mut wrong, mut cases) = (Vec::new(), 0);
    for (who, client) in scene.clients().await? {
        for act in &acts {
            let refusal = scene.attempt(&client, act).await?;
            cases += 1;
            if act.allowed(who, place) != refusal.is_none() {
                let answer = refusal.map_or_else(|| "was let through".to_owned(), |text| format!("was refused: {text}"));
                wrong.push(format!("{who:?}, {}: {answer}", act.name()));
            }
        }
    }
    // Nine identities; 37 acts and 5 results by hand, and all fields but the six among those.
    let meant = 9 * (37 + 5 + FIELDS.len() - 6);
    ensure!(cases == meant, "{cases} cases, and {meant} are meant");
    ensure!(wrong.is_empty(), "{place:?}: {} of {cases} cases are not as in the table:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
