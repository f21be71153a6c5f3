//! Compares the simulator's API server with a real one: the same operations by the same identities must give the same kind of response and
//! the same object.

use anyhow::{Context, Result, ensure};
use crds::{TerraformRun, names, reason};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MatchResources, ValidatingAdmissionPolicy};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use played::{
    Refusal, User, admission,
    store::{Edit, Key, RUNS, Store},
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};

use crate::world::{Agent, Test, World, plan, run, sum};

/// Number of sequences per test, and operations per sequence.
const SEQUENCES: u64 = 6;
const OPERATIONS: u32 = 60;
const RUN: &str = "run";

pub(crate) fn tests() -> Vec<Test> {
    (0..4)
        .map(|part| {
            let name = format!("conformance::played_api_answers_like_the_real_one_{part}");
            Test::new(&name, true, move |world| sequences(world, part))
        })
        .chain([Test::new("conformance::played_policies_equal_those_of_helm", true, same_policies)])
        .collect()
}

/// The simulated policies equal those that Helm renders from the same templates: expressions, their order, and matched writes.
async fn same_policies(world: World) -> Result<()> {
    let installed: Api<ValidatingAdmissionPolicy> = Api::all(world.admin.clone());
    for played in admission::policies().map_err(anyhow::Error::msg)? {
        let name = played.name_any();
        let (real, played) = (installed.get(&name).await?.spec.unwrap_or_default(), played.spec.unwrap_or_default());
        ensure!(real.validations == played.validations, "{name}: {:#?}\n{:#?}", real.validations, played.validations);
        ensure!(real.variables == played.variables, "{name}: {:#?}\n{:#?}", real.variables, played.variables);
        ensure!(real.match_conditions == played.match_conditions, "{name}: other conditions");
        let writes = |constraints: &Option<MatchResources>| -> Vec<_> {
            let rules = constraints.iter().flat_map(|all| all.resource_rules.iter().flatten());
            rules.map(|rule| (rule.operations.clone(), rule.resources.clone())).collect()
        };
        ensure!(writes(&real.match_constraints) == writes(&played.match_constraints), "{name}: other writes");
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Admin,
    Alice,
    Agent(usize),
}

#[derive(Clone, Debug)]
enum What {
    Metadata(Value),
    Status(Value),
    Tested(Vec<Value>),
    Delete,
}

struct Scene {
    world: World,
    namespace: String,
    alice: Client,
    agents: Vec<Agent>,
    played: Store,
    users: (User, User, Vec<User>),
}

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap_or_default()
}

impl Scene {
    async fn new(world: World, spec: Value) -> Result<Self> {
        let namespace = world.namespace().await?;
        world.create(&namespace, RUN, &spec).await?;
        let alice = world.person("alice", &namespace, "pawl-approver").await?;
        world.person("alice", &namespace, "pawl-abandoner").await?;
        let mut agents = Vec::new();
        for number in 1..=2 {
            agents.push(world.pod(&namespace, &format!("{RUN}-a{number}"), "agent", RUN).await?);
        }
        let everything =
            ["create", "use", names::VERB_APPROVE, names::VERB_AUTOAPPROVE, names::VERB_ABANDON, names::VERB_CONTROL];
        let review = k8s_openapi::api::authentication::v1::SelfSubjectReview::default();
        let admin: k8s_openapi::api::authentication::v1::SelfSubjectReview =
            Api::all(world.admin.clone()).create(&kube::api::PostParams::default(), &review).await?;
        let name = admin.status.and_then(|status| status.user_info).and_then(|user| user.username).context("no name")?;
        let pods = agents.iter().enumerate().map(|(i, agent)| {
            let mut user = User::pod(&namespace, &format!("{RUN}-a{}", i + 1), &agent.uid);
            user.name = format!("system:serviceaccount:{namespace}:agent");
            user
        });
        let users =
            (User::with(&name, &everything), User::with("alice", &[names::VERB_APPROVE, names::VERB_ABANDON]), pods.collect());
        let mut played = Store::default();
        let object = serde_json::to_value(run(RUN, &spec)?)?;
        played.create(&users.0, RUNS, &namespace, object, false, now()).map_err(|r| anyhow::anyhow!("{r:?}"))?;
        Ok(Self { world, namespace, alice, agents, played, users })
    }

    fn user(&self, who: Who) -> &User {
        match who {
            Who::Admin => &self.users.0,
            Who::Alice => &self.users.1,
            Who::Agent(i) => &self.users.2[i],
        }
    }

    async fn really(&self, who: Who, what: &What) -> kube::Result<()> {
        let client = match who {
            Who::Admin => &self.world.admin,
            Who::Alice => &self.alice,
            Who::Agent(i) => &self.agents[i].client,
        };
        let api: Api<TerraformRun> = Api::namespaced(client.clone(), &self.namespace);
        let params = PatchParams::default();
        match what {
            What::Metadata(patch) => api.patch(RUN, &params, &Patch::Merge(patch)).await.map(drop),
            What::Status(patch) => api.patch_status(RUN, &params, &Patch::Merge(json!({"status": patch}))).await.map(drop),
            What::Tested(operations) => {
                let patch = serde_json::from_value(Value::Array(operations.clone())).map_err(kube::Error::SerdeError)?;
                api.patch_status(RUN, &params, &Patch::Json::<()>(patch)).await.map(drop)
            }
            What::Delete => api.delete(RUN, &DeleteParams::default()).await.map(drop),
        }
    }

    fn in_play(&mut self, who: Who, what: &What) -> Result<(), Refusal> {
        let (key, user) = (Key::of(RUNS, &self.namespace, RUN), self.user(who).clone());
        match what {
            What::Metadata(patch) => self.played.edit(&user, &key, false, &Edit::Merge(patch.clone()), false),
            What::Status(patch) => self.played.edit(&user, &key, true, &Edit::Merge(json!({"status": patch})), false),
            What::Tested(operations) => self.played.edit(&user, &key, true, &Edit::Json(operations.clone()), false),
            What::Delete => self.played.delete(&key, &Value::Null, None, now()),
        }
        .map(drop)
    }

    /// The compared parts of the run in both worlds.
    async fn both(&self) -> Result<(Option<Value>, Option<Value>)> {
        let real = self.world.runs(&self.namespace).get_opt(RUN).await?;
        let played = self.played.get(&Key::of(RUNS, &self.namespace, RUN)).ok();
        let played: Option<TerraformRun> = played.map(|run| serde_json::from_value((*run).clone())).transpose()?;
        Ok((real.as_ref().map(essence), played.as_ref().map(essence)))
    }
}

fn essence(run: &TerraformRun) -> Value {
    json!({"annotations": run.annotations(), "finalizers": run.finalizers(), "deleted": run.metadata.deletion_timestamp.is_some(),
        "status": run.status.clone().unwrap_or_default(), "spec": run.spec})
}

pub(crate) fn class(code: Option<u16>) -> &'static str {
    match code {
        None => "landed",
        Some(404) => "not found",
        Some(409) => "conflict",
        Some(_) => "refused",
    }
}

/// Draws an operation, usually one that a legal course would have next.
fn anything(random: &mut StdRng, run: Option<&TerraformRun>, agents: &[Agent]) -> (Who, What) {
    let status = run.and_then(|run| run.status.clone()).unwrap_or_default();
    let number = status.attempt.as_ref().map_or(0, |attempt| attempt.number);
    let annotate = |annotations: Value| What::Metadata(json!({"metadata": {"annotations": annotations}}));
    let digit = *['a', 'a', 'a', 'b'].choose(random).unwrap_or(&'a');
    let nonce = *['0', '0', '0', '1'].choose(random).unwrap_or(&'0');
    let attempt = if random.random_bool(0.85) { number.max(1) } else { random.random_range(1..4) };
    let agent = usize::try_from(attempt.clamp(1, 2) - 1).unwrap_or(0);
    let agent = if random.random_bool(0.9) { agent } else { 1 - agent };
    let who = if random.random_bool(0.92) { Who::Agent(agent) } else { Who::Admin };
    let phases = ["Pending", "Setup", "Init", "Plan", "AwaitingApproval", "Apply", "Succeeded", "Failed", "Canceled"];
    let results = ["Applied", "NoChanges", "Planned", "Failed", "Indeterminate", "Canceled", "Rejected"];
    let path = ["Pending", "Setup", "Init", "Plan", "AwaitingApproval"];
    let here = status.phase.map_or("Pending", crds::Phase::as_str);
    let next = path.iter().position(|p| *p == here).and_then(|i| path.get(i + 1)).copied().unwrap_or("Apply");
    match random.random_range(0..31) {
        0..=2 => {
            let pod = format!("{RUN}-a{}", (number + 1).min(2));
            let mut fresh = json!({"number": number + 1, "podName": pod, "open": true, "tries": number + 1});
            if number > 0 && random.random_bool(0.5) {
                fresh["restores"] = json!(number);
            }
            (Who::Admin, What::Status(json!({"phase": "Pending", "attempt": fresh})))
        }
        3 => (Who::Admin, What::Status(json!({"attempt": {"open": false}, "phase": phases.choose(random)}))),
        4..=6 => (who, What::Status(agents[agent].adoption(attempt, nonce))),
        7..=10 => (who, What::Status(json!({"phase": next, "message": format!("{}", random.random::<u8>())}))),
        11 => (who, What::Status(json!({"phase": phases.choose(random), "result": results.choose(random)}))),
        12..=13 => (who, What::Status(json!({"phase": "AwaitingApproval", "plan": plan(attempt, digit)}))),
        14..=15 => (who, What::Status(agents[agent].claim(attempt, nonce, digit))),
        16 => (who, What::Status(json!({"phase": "Succeeded", "result": "Applied"}))),
        17 => {
            let operations = json!([{"op": "test", "path": "/status/attempt/open", "value": true},
                {"op": "test", "path": "/status/adopted/nonce", "value": nonce.to_string().repeat(32)},
                {"op": "test", "path": "/status/claim", "value": null},
                {"op": "test", "path": "/metadata/deletionTimestamp", "value": null},
                {"op": "add", "path": "/status/message", "value": "tested"}]);
            (who, What::Tested(operations.as_array().cloned().unwrap_or_default()))
        }
        18..=19 => {
            let by = if random.random_bool(0.8) { "alice" } else { "bob" };
            (Who::Alice, annotate(json!({names::APPROVE: sum(digit), names::APPROVED_BY: by})))
        }
        20 => (Who::Alice, annotate(json!({names::APPROVE: null, names::APPROVED_BY: null, names::COMMENT: null}))),
        21..=22 => {
            let record = json!({"checksum": sum(digit), "by": "alice", "at": "2026-01-01T00:00:00Z"});
            (Who::Admin, What::Status(json!({"approval": if random.random_bool(0.8) { record } else { Value::Null }})))
        }
        23 => {
            let key = if random.random_bool(0.5) { names::CANCEL } else { names::DENY };
            let value = if random.random_bool(0.6) { json!("why") } else { Value::Null };
            if random.random_bool(0.3) {
                let by = if key == names::CANCEL { names::CANCELED_BY } else { names::DENIED_BY };
                let name = if random.random_bool(0.7) { "alice" } else { "bob" };
                (Who::Alice, annotate(if random.random_bool(0.5) { json!({key: value}) } else { json!({key: value, by: name}) }))
            } else {
                (Who::Alice, annotate(json!({names::COMMENT: "x".repeat(600)})))
            }
        }
        24 => {
            let finalizers = if random.random_bool(0.7) { json!([names::RUN_FINALIZER]) } else { json!([]) };
            let who = if random.random_bool(0.5) { Who::Admin } else { Who::Alice };
            (who, What::Metadata(json!({"metadata": {"finalizers": finalizers}})))
        }
        25 => {
            let by = if random.random_bool(0.8) { "alice" } else { "bob" };
            let why = if random.random_bool(0.8) { json!("why") } else { Value::Null };
            (Who::Alice, annotate(json!({names::ABANDON: why, names::ABANDONED_BY: by})))
        }
        26 => {
            let time = "2026-01-01T00:00:00Z";
            let told = json!([{"type": "Stalled", "status": if random.random_bool(0.8) { "True" } else { "False" },
                "reason": reason::NODE_UNREACHABLE, "message": "", "lastTransitionTime": time}]);
            (Who::Admin, What::Status(json!({"conditions": told})))
        }
        27..=29 => {
            let who = if random.random_bool(0.5) { Who::Admin } else { Who::Alice };
            let key = *[names::RERUN, names::RECOVER, names::RERUN_OF, names::RECOVERY_OF, names::TRIGGER]
                .choose(random)
                .unwrap_or(&names::RERUN);
            let value = if random.random_bool(0.8) { "true" } else { "yes" };
            (who, annotate(json!({key: value})))
        }
        _ => {
            if random.random_bool(0.25) {
                (Who::Admin, What::Delete)
            } else {
                (Who::Admin, What::Metadata(json!({"metadata": {"resourceVersion": "987654321", "annotations": {"x": "y"}}})))
            }
        }
    }
}

async fn sequences(world: World, part: u64) -> Result<()> {
    let mut landed = 0;
    for sequence in 0..SEQUENCES {
        let seed = part * 1_000 + sequence;
        let mut random = StdRng::seed_from_u64(seed);
        let spec = match sequence % 3 {
            0 => json!({}),
            1 => json!({"runner": {"serviceAccountName": "writer", "planServiceAccountName": "reader"}}),
            _ => json!({"approval": {"mode": "Automatic"}}),
        };
        let mut scene = Scene::new(world.clone(), spec).await?;
        let mut done = Vec::new();
        for _ in 0..OPERATIONS {
            let current = world.runs(&scene.namespace).get_opt(RUN).await?;
            let (who, what) = anything(&mut random, current.as_ref(), &scene.agents);
            let real = scene.really(who, &what).await;
            let code = match &real {
                Ok(()) => None,
                Err(kube::Error::Api(status)) => Some(status.code),
                Err(error) => anyhow::bail!("no answer: {error}"),
            };
            let played = scene.in_play(who, &what);
            done.push(format!("{who:?} {what:?}: {}", class(code)));
            let told = || format!("seed {seed}: {}\nreal {real:?}\nplayed {played:?}", done.join("\n"));
            ensure!(class(code) == class(played.as_ref().err().map(|refusal| refusal.code)), "other answers; {}", told());
            let (one, other) = scene.both().await?;
            ensure!(one == other, "other objects; {}\n{one:?}\n{other:?}", told());
            landed += u32::from(code.is_none());
            if one.is_none() {
                break;
            }
        }
    }
    ensure!(landed > 60, "hardly anything landed: {landed}");
    println!("conformance {part}: {SEQUENCES} sequences, {landed} operations landed, none differed");
    Ok(())
}
