//! Compares the simulator's API server with a real one: the same operations by the same identities must give the same kind of response and
//! the same object.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use crds::{TerraformRun, names, reason};
use jiff::Timestamp;
use k8s_openapi::api::{
    admissionregistration::v1::{MatchResources, ValidatingAdmissionPolicy},
    authentication::v1::SelfSubjectReview,
};
use kube::{Api, ResourceExt, api::PostParams};
use played::{
    Refusal, User, admission,
    store::{Edit, Key, RUNS, Store},
};
use rand::{
    Rng, SeedableRng,
    rngs::StdRng,
    seq::{IndexedRandom, IteratorRandom},
};
use serde_json::{Value, json};

use crate::{
    scene::{RUN, Scene, Write, approval, withdrawal},
    world::{Agent, Test, World, plan, run, sum},
};

/// Number of sequences per test, and operations per sequence.
const SEQUENCES: u64 = 6;
const OPERATIONS: u32 = 60;

pub(crate) fn tests() -> Vec<Test> {
    (0..4)
        .map(|part| {
            let name = format!("conformance::played_api_answers_like_the_real_one_{part}");
            Test::new(&name, true, move |world| sequences(world, part))
        })
        .chain([Test::new(
            "conformance::played_policies_equal_those_of_helm",
            true,
            same_policies,
        )])
        .collect()
}

/// The simulated policies equal those that Helm renders from the same templates: expressions, their order, and matched writes.
async fn same_policies(world: World) -> Result<()> {
    let installed: Api<ValidatingAdmissionPolicy> = Api::all(world.admin.clone());
    for played in admission::policies().map_err(anyhow::Error::msg)? {
        let name = played.name_any();
        let (real, played) = (
            installed.get(&name).await?.spec.unwrap_or_default(),
            played.spec.unwrap_or_default(),
        );
        ensure!(
            real.validations == played.validations,
            "{name}: {:#?}\n{:#?}",
            real.validations,
            played.validations
        );
        ensure!(
            real.variables == played.variables,
            "{name}: {:#?}\n{:#?}",
            real.variables,
            played.variables
        );
        ensure!(
            real.match_conditions == played.match_conditions,
            "{name}: other conditions"
        );
        let writes = |constraints: &Option<MatchResources>| -> Vec<_> {
            let rules = constraints
                .iter()
                .flat_map(|all| all.resource_rules.iter().flatten());
            rules
                .map(|rule| (rule.operations.clone(), rule.resources.clone()))
                .collect()
        };
        ensure!(
            writes(&real.match_constraints) == writes(&played.match_constraints),
            "{name}: other writes"
        );
    }
    Ok(())
}

/// The same run on both API servers.
struct Pair {
    real: Scene,
    agents: [Agent; 2],
    played: Store,
    users: BTreeMap<String, User>,
}

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap_or_default()
}

impl Pair {
    async fn new(world: World, spec: Value) -> Result<Self> {
        let mut real = Scene::new(
            world,
            &[("alice", "pawl-approver"), ("alice", "pawl-abandoner")],
        )
        .await?;
        real.world.create(&real.namespace, RUN, &spec).await?;
        let agents = [
            real.pod("run-a1", "agent", RUN).await?,
            real.pod("run-a2", "agent", RUN).await?,
        ];
        let review = SelfSubjectReview::default();
        let admin = Api::<SelfSubjectReview>::all(real.world.admin.clone())
            .create(&PostParams::default(), &review)
            .await?;
        let admin = admin
            .status
            .and_then(|status| status.user_info?.username)
            .context("no name")?;
        let (approve, abandon) = (names::VERB_APPROVE, names::VERB_ABANDON);
        let everything = [
            "create",
            "use",
            approve,
            names::VERB_AUTOAPPROVE,
            abandon,
            names::VERB_CONTROL,
        ];
        let mut users = BTreeMap::from([
            ("admin".to_owned(), User::with(&admin, &everything)),
            ("alice".to_owned(), User::with("alice", &[approve, abandon])),
        ]);
        for (pod, agent) in ["run-a1", "run-a2"].into_iter().zip(&agents) {
            let mut user = User::pod(&real.namespace, pod, &agent.uid);
            user.name = format!("system:serviceaccount:{}:agent", real.namespace);
            users.insert(pod.to_owned(), user);
        }
        let mut played = Store::default();
        let object = serde_json::to_value(run(RUN, &spec)?)?;
        let created = played.create(&users["admin"], RUNS, &real.namespace, object, false, now());
        created.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;
        Ok(Self {
            real,
            agents,
            played,
            users,
        })
    }

    fn key(&self) -> Key {
        Key::of(RUNS, &self.real.namespace, RUN)
    }

    fn play(&mut self, who: &str, write: &Write) -> Result<Result<(), Refusal>> {
        let (key, user) = (self.key(), &self.users[who]);
        let (verb, body) = write.iter().next().context("no verb")?;
        let (status, edit) = match verb.as_str() {
            "delete" => {
                return Ok(self
                    .played
                    .delete(&key, &Value::Null, None, now())
                    .map(drop));
            }
            "status" => (true, Edit::Merge(json!({"status": body}))),
            "json" => (true, Edit::Json(serde_json::from_value(body.clone())?)),
            "annotate" => (
                false,
                Edit::Merge(json!({"metadata": {"annotations": body}})),
            ),
            _ => (false, Edit::Merge(body.clone())),
        };
        Ok(self.played.edit(user, &key, status, &edit, false).map(drop))
    }

    /// The compared parts of the run in both worlds.
    async fn both(&self) -> Result<(Option<Value>, Option<Value>)> {
        let real = self
            .real
            .world
            .runs(&self.real.namespace)
            .get_opt(RUN)
            .await?;
        let played = self.played.get(&self.key()).ok();
        let played: Option<TerraformRun> = played
            .map(|run| serde_json::from_value((*run).clone()))
            .transpose()?;
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

/// Draws a client and its write, usually one that a legal course would have next.
fn draw(random: &mut StdRng, run: Option<&TerraformRun>, agents: &[Agent; 2]) -> Value {
    let status = run.and_then(|run| run.status.clone()).unwrap_or_default();
    let number = status.attempt.as_ref().map_or(0, |attempt| attempt.number);
    let digit = *['a', 'a', 'a', 'b'].choose(random).unwrap_or(&'a');
    let nonce = *['0', '0', '0', '1'].choose(random).unwrap_or(&'0');
    let attempt = if random.random_bool(0.85) {
        number.max(1)
    } else {
        random.random_range(1..4)
    };
    let agent = usize::try_from(attempt.clamp(1, 2) - 1).unwrap_or(0);
    let agent = if random.random_bool(0.9) {
        agent
    } else {
        1 - agent
    };
    let who = if random.random_bool(0.92) {
        format!("{RUN}-a{}", agent + 1)
    } else {
        "admin".to_owned()
    };
    let agent = &agents[agent];
    let mut one_of = |words: &str| {
        words
            .split(' ')
            .choose(random)
            .unwrap_or_default()
            .to_owned()
    };
    let phase = one_of("Pending Setup Init Plan AwaitingApproval Apply Succeeded Failed Canceled");
    let result = one_of("Applied NoChanges Planned Failed Indeterminate Canceled Rejected");
    let either = one_of("admin alice");
    let path = [
        "Pending",
        "Setup",
        "Init",
        "Plan",
        "AwaitingApproval",
        "Apply",
    ];
    let here = status.phase.map_or("Pending", crds::Phase::as_str);
    let next = path
        .iter()
        .skip_while(|phase| **phase != here)
        .nth(1)
        .unwrap_or(&"Apply");
    let by = if random.random_bool(0.8) {
        "alice"
    } else {
        "bob"
    };
    let why = if random.random_bool(0.7) {
        json!("why")
    } else {
        Value::Null
    };
    match random.random_range(0..31) {
        0..=2 => {
            let next = usize::from(number > 0);
            let mut fresh = json!({"number": number + 1, "podName": format!("{RUN}-a{}", next + 1),
                "podUID": agents[next].uid, "open": true, "tries": number + 1});
            if number > 0 && random.random_bool(0.5) {
                fresh["restores"] = json!(number);
            }
            json!(["admin", {"status": {"phase": "Pending", "attempt": fresh}}])
        }
        3 => json!(["admin", {"status": {"attempt": {"open": false}, "phase": phase}}]),
        4..=6 => json!([who, {"status": agent.adoption(attempt, nonce)}]),
        7..=10 => {
            json!([who, {"status": {"phase": next, "message": random.random::<u8>().to_string()}}])
        }
        11 => json!([who, {"status": {"phase": phase, "result": result}}]),
        12..=13 => {
            json!([who, {"status": {"phase": "AwaitingApproval", "plan": plan(attempt, digit)}}])
        }
        14..=15 => json!([who, {"status": agent.claim(attempt, nonce, digit)}]),
        16 => json!([who, {"status": {"phase": "Succeeded", "result": "Applied"}}]),
        17 => json!([who, {"json": [
            {"op": "test", "path": "/status/attempt/open", "value": true},
            {"op": "test", "path": "/status/adopted/nonce", "value": nonce.to_string().repeat(32)},
            {"op": "test", "path": "/status/claim", "value": null},
            {"op": "test", "path": "/metadata/deletionTimestamp", "value": null},
            {"op": "add", "path": "/status/message", "value": "tested"},
        ]}]),
        18..=19 => json!(["alice", {"annotate": approval(by, digit)}]),
        20 => json!(["alice", {"annotate": withdrawal()}]),
        21..=22 => {
            let record =
                json!({"checksum": sum(digit), "by": "alice", "at": "2026-01-01T00:00:00Z"});
            let record = if random.random_bool(0.8) {
                record
            } else {
                Value::Null
            };
            json!(["admin", {"status": {"approval": record}}])
        }
        23 if random.random_bool(0.7) => {
            json!(["alice", {"annotate": {names::COMMENT: "x".repeat(600)}}])
        }
        23 => {
            let stops = [
                (names::CANCEL, names::CANCELED_BY),
                (names::DENY, names::DENIED_BY),
            ];
            let (stop, named) = *stops.choose(random).unwrap_or(&stops[0]);
            let name = if random.random_bool(0.5) {
                json!({stop: why})
            } else {
                json!({stop: why, named: by})
            };
            json!(["alice", {"annotate": name}])
        }
        24 => {
            let finalizers = if random.random_bool(0.7) {
                json!([names::RUN_FINALIZER])
            } else {
                json!([])
            };
            json!([either, {"merge": {"metadata": {"finalizers": finalizers}}}])
        }
        25 => json!(["alice", {"annotate": {names::ABANDON: why, names::ABANDONED_BY: by}}]),
        26 => {
            let lost = if random.random_bool(0.8) {
                "True"
            } else {
                "False"
            };
            let stalled = json!({"type": "Stalled", "status": lost, "reason": reason::NODE_UNREACHABLE,
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            json!(["admin", {"status": {"conditions": [stalled]}}])
        }
        27..=29 => {
            let keys = [
                names::RERUN,
                names::RECOVER,
                names::RERUN_OF,
                names::RECOVERY_OF,
                names::TRIGGER,
            ];
            let key = *keys.choose(random).unwrap_or(&names::RERUN);
            let value = if random.random_bool(0.8) {
                "true"
            } else {
                "yes"
            };
            json!([either, {"annotate": {key: value}}])
        }
        _ if random.random_bool(0.25) => json!(["admin", {"delete": ""}]),
        _ => {
            json!(["admin", {"merge": {"metadata": {"resourceVersion": "987654321", "annotations": {"x": "y"}}}}])
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
            1 => {
                json!({"runner": {"serviceAccountName": "writer", "planServiceAccountName": "reader"}})
            }
            _ => json!({"approval": {"mode": "Automatic"}}),
        };
        let mut pair = Pair::new(world.clone(), spec).await?;
        let mut done = Vec::new();
        for _ in 0..OPERATIONS {
            let current = world.runs(&pair.real.namespace).get_opt(RUN).await?;
            let drawn = draw(&mut random, current.as_ref(), &pair.agents);
            let (who, write): (String, Write) = serde_json::from_value(drawn)?;
            let real = pair.real.send(&who, RUN, &write).await?;
            let played = pair.play(&who, &write)?;
            let answer = class(code(&real)?);
            done.push(format!("{who} {write:?}: {answer}"));
            let told = || {
                format!(
                    "seed {seed}: {}\nreal {real:?}\nplayed {played:?}",
                    done.join("\n")
                )
            };
            ensure!(
                answer == class(played.as_ref().err().map(|refusal| refusal.code)),
                "other answers; {}",
                told()
            );
            let (one, other) = pair.both().await?;
            ensure!(
                one == other,
                "other objects; {}\n{one:?}\n{other:?}",
                told()
            );
            landed += u32::from(answer == "landed");
            if one.is_none() {
                break;
            }
        }
    }
    ensure!(landed > 60, "hardly anything landed: {landed}");
    println!(
        "conformance {part}: {SEQUENCES} sequences, {landed} operations landed, none differed"
    );
    Ok(())
}

/// The code of a refusal. An error without one is no answer of the API server.
pub(crate) fn code<T>(answer: &kube::Result<T>) -> Result<Option<u16>> {
    match answer {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.code)),
        Err(error) => anyhow::bail!("no answer: {error}"),
    }
}
