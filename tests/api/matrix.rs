//! Permissions on a run in every phase: every identity tries every act, and the API server's response is compared with a table that is
//! independent of the policies. All acts are dry runs, which pass admission like writes.

use anyhow::{Result, bail, ensure};
use crds::{
    RunResult,
    fields::{FIELDS, Owner},
    names,
};
use serde_json::{Map, Value, json};

use crate::{
    scene::{RUN, Scene, Write, approval, record, withdrawal},
    world::{Agent, Test, World, plan, sum},
};

/// Burrito 11.23: code of the stack could read a runner's token, which was valid for every layer of its namespace.
pub(crate) fn tests() -> Vec<Test> {
    let places = ANY.split(' ');
    places
        .map(|place| {
            Test::new(&format!("matrix::{place}"), true, move |world| {
                hold(world, place)
            })
        })
        .collect()
}

/// All places in a run's life. `Opened` has an attempt that no pod has adopted, `Approved` is AwaitingApproval with an approval.
const ANY: &str =
    "Pending Opened Setup Init Plan AwaitingApproval Approved Apply Succeeded Failed Canceled";
/// The places in which a pod has adopted the open attempt.
const ADOPTED: &str = "Setup Init Plan AwaitingApproval Approved Apply";
const UNCLAIMED: &str = "Pending Opened Setup Init Plan AwaitingApproval Approved Failed Canceled";
const ENDED: &str = "Succeeded Failed Canceled";
/// A cancel, and a denial, still have an effect.
const OPEN: &str = "Pending Opened Setup Init Plan AwaitingApproval Approved Apply";
const DENIABLE: &str = "Pending Opened Setup Init Plan AwaitingApproval Approved";

/// The pods are those of the open attempt or of the last one, of a replaced attempt, and of another run.
const EVERYBODY: &str =
    "stranger viewer author approver autoapprover controller run-a2 run-a1 another-a1";
const READERS: &str = "viewer author approver autoapprover controller run-a2 run-a1";
const LISTERS: &str = "viewer author approver autoapprover controller";
const CREATORS: &str = "author autoapprover controller";
const PATCHERS: &str = "author approver autoapprover controller";

/// Name, write, and who may send it in which places.
type Act = (String, Write, Vec<(String, String)>);

fn has(words: &str, word: &str) -> bool {
    words.split(' ').any(|it| it == word)
}

fn acts(agent: &Agent) -> Result<Vec<Act>> {
    let time = "2026-01-01T00:00:00Z";
    let automatic = json!({"approval": {"mode": "Automatic"}});
    let approved = json!({"annotations": {names::APPROVE: sum('a')}});
    let answers = json!({"annotations": {names::RERUN_OF: RUN}});
    let of_layer = json!({"labels": {names::LABEL_LAYER: "a"}});
    let denied = json!({names::DENY: "no", names::DENIED_BY: "approver"});
    let canceled = json!({names::CANCEL: "no", names::CANCELED_BY: "approver"});
    let abandoned = json!({names::ABANDON: "x", names::ABANDONED_BY: "approver"});
    let mut acts = json!([
        ["get", {"get": ""}, [[READERS, ANY]]],
        ["list", {"list": null}, [[LISTERS, ANY]]],
        ["create", {"create": {}}, [[CREATORS, ANY]]],
        ["create automatic", {"create": {"spec": automatic}}, [["autoapprover", ANY]]],
        ["create approved", {"create": {"metadata": approved}}, []],
        // The request for the rerun was admitted already.
        ["create a rerun", {"create": {"metadata": answers}}, [["controller", ANY]]],
        ["create of a layer", {"create": {"metadata": of_layer}}, [["controller", ANY]]],
        ["create automatic of a layer", {"create": {"spec": automatic, "metadata": of_layer}},
            [["controller", ANY]]],
        ["delete", {"delete": ""}, [[CREATORS, ANY]]],
        ["approve", {"annotate": approval("approver", 'a')}, [["approver", "AwaitingApproval Approved"]]],
        ["approve in another's name", {"annotate": approval("somebody", 'a')}, []],
        ["approve another plan", {"annotate": approval("approver", 'b')}, []],
        ["withdraw", {"annotate": withdrawal()}, [[PATCHERS, UNCLAIMED], ["controller", ANY]]],
        // A comment alone is no approval, because it names no person.
        ["comment", {"annotate": {names::COMMENT: "hm"}}, []],
        ["deny", {"annotate": {names::DENY: "no"}}, [[PATCHERS, DENIABLE], ["controller", ANY]]],
        ["cancel", {"annotate": {names::CANCEL: "no"}}, [[PATCHERS, OPEN], ["controller", ANY]]],
        ["deny by name", {"annotate": denied}, [["approver", DENIABLE]]],
        ["cancel by name", {"annotate": canceled}, [["approver", OPEN]]],
        ["name alone", {"annotate": {names::CANCELED_BY: "approver"}}, []],
        // Refused unless a node is lost; `policies` tests who may then.
        ["abandon", {"annotate": abandoned}, []],
        ["rerun", {"annotate": {names::RERUN: "true"}}, [[CREATORS, ENDED]]],
        ["rerun, another value", {"annotate": {names::RERUN: "yes"}}, []],
        ["rerun-of", {"annotate": {names::RERUN_OF: "x"}}, [["controller", ANY]]],
        ["label", {"merge": {"metadata": {"labels": {"team": "x"}}}}, [[PATCHERS, ANY]]],
        ["label of a layer", {"merge": {"metadata": {"labels": {names::LABEL_LAYER: "x"}}}},
            [["controller", ANY]]],
        ["trigger of a layer", {"annotate": {names::TRIGGER: "Commit"}}, [["controller", ANY]]],
        ["spec", {"merge": {"spec": {"workspace": "other"}}}, []],
        ["finalizer removed", {"merge": {"metadata": {"finalizers": []}}}, [["controller", ANY]]],
    ]);
    let adopted = json!({"attempt": 2, "podUID": "x", "nonce": "f".repeat(32)});
    let settled = json!({"result": "Applied", "message": "x", "at": time});
    let ends = |result: RunResult| json!({"phase": result.phase(), "result": result});
    let statuses = json!([
        ["attempt closed", {"status": {"attempt": {"open": false, "closedAt": time}}}, [["controller", ANY]]],
        // Only an Indeterminate run can be settled, and no run here is.
        ["settled", {"status": {"settled": settled}}, []],
        // The controller may write any attempt.
        ["adopted by another", {"status": {"adopted": adopted}}, [["controller", ANY]]],
        // An attempt gets its plan once, from any writer.
        ["plan", {"status": {"plan": plan(2, 'b')}},
            [["run-a2", "Setup Init Plan"], ["controller", "Opened Setup Init Plan Failed"]]],
        // A repeated claim is no change.
        ["claim", {"status": agent.claim(2, '2', 'a')}, [["run-a2", "Approved Apply"], ["controller", "Apply"]]],
        ["claim of another plan", {"status": agent.claim(2, '2', 'b')}, []],
        ["claim of another process", {"status": agent.claim(2, '3', 'a')}, []],
        ["claim removed", {"status": {"claim": null, "phase": "Plan"}}, [["run-a2 controller", "Init Plan"]]],
        ["result alone", {"status": {"result": "Applied"}}, [["controller", "Succeeded"]]],
        ["Applied", {"status": ends(RunResult::Applied)},
            [["run-a2", "Apply"], ["controller", "Apply Succeeded"]]],
        ["Failed", {"status": ends(RunResult::Failed)},
            [["run-a2", ADOPTED], ["controller", "Pending Opened Failed"], ["controller", ADOPTED]]],
        ["Canceled", {"status": ends(RunResult::Canceled)},
            [["run-a2", "Setup Init Plan AwaitingApproval Approved"],
             ["controller", "Pending Opened Setup Init Plan AwaitingApproval Approved Canceled"]]],
        ["NoChanges", {"status": ends(RunResult::NoChanges)}, [["run-a2 controller", "Plan"]]],
        ["Indeterminate", {"status": ends(RunResult::Indeterminate)}, [["run-a2 controller", "Apply"]]],
    ]);
    for more in [statuses, fields()] {
        acts.as_array_mut()
            .into_iter()
            .for_each(|acts| acts.extend(more.as_array().cloned().unwrap_or_default()));
    }
    Ok(serde_json::from_value(acts)?)
}

/// A write of each single field, as in the field table. Fields with their own rules are above.
fn fields() -> Value {
    let schema =
        crds::crd::terraform_run()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
    let ruled = ["phase", "result", "settled"];
    let others = FIELDS.iter().filter(|field| !ruled.contains(&field.name));
    others
        .filter_map(|field| {
            let value = sample(&schema["properties"]["status"]["properties"][field.name]);
            let mut grants = vec![("controller", ANY)];
            match field.owner {
                Owner::Attempt | Owner::Agent => grants.push(("run-a2", ADOPTED)),
                Owner::Controller => {}
                Owner::Adoption | Owner::Plan | Owner::Claim => return None,
            }
            Some(json!([field.name, {"status": {field.name: value}}, grants]))
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
            let required = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            required
                .map(|name| (name.to_owned(), sample(&schema["properties"][name])))
                .collect::<Map<_, _>>()
                .into()
        }
        Some("boolean") => json!(true),
        _ => json!(7),
    }
}

/// Brings a run, with an earlier attempt before the open one, to a place. Returns the scene and the pod of the open attempt.
pub(crate) async fn come(world: World, place: &str) -> Result<(Scene, Agent)> {
    let people = LISTERS
        .split(' ')
        .filter(|who| *who != "controller")
        .map(|who| (who, format!("pawl-{who}")));
    let people: Vec<_> = people.collect();
    let people: Vec<_> = people
        .iter()
        .map(|(who, role)| (*who, role.as_str()))
        .collect();
    let mut scene = Scene::new(world, &people).await?;
    scene.add(
        "stranger",
        scene
            .world
            .access
            .impersonate("stranger", &["system:authenticated"])
            .await?,
    );
    scene
        .world
        .create(&scene.namespace, "another", &json!({}))
        .await?;
    scene.pod("another-a1", "another-a1", "another").await?;
    scene.pending(RUN, &json!({})).await?;
    let old = scene.open(RUN, 1).await?;
    old.status(&old.adoption(1, '1')).await?;
    scene.close(RUN).await?;
    let agent = scene.pod("run-a2", "run-a2", RUN).await?;
    let opened =
        json!({"number": 2, "podName": "run-a2", "podUID": agent.uid, "open": true, "tries": 2});
    let planned = json!({"phase": "AwaitingApproval", "plan": plan(2, 'a')});
    let ends = |result: RunResult| json!({"phase": result.phase(), "result": result});
    let finalizers = json!({"finalizers": [names::RUN_FINALIZER]});
    // Each row leads to the place of its name.
    let path = json!([
        ["Pending", "admin", {"merge": {"metadata": finalizers}}, ""],
        ["Opened", "admin", {"status": {"attempt": opened}}, ""],
        ["Setup", "run-a2", {"status": agent.adoption(2, '2')}, ""],
        ["Init", "run-a2", {"status": {"phase": "Init"}}, ""],
        ["Plan", "run-a2", {"status": {"phase": "Plan"}}, ""],
        ["AwaitingApproval", "run-a2", {"status": planned}, ""],
        ["Approved", "admin", {"annotate": approval("admin", 'a')}, ""],
        ["Approved", "admin", {"status": record('a')}, ""],
        ["Apply", "run-a2", {"status": agent.claim(2, '2', 'a')}, ""],
        ["Succeeded", "run-a2", {"status": ends(RunResult::Applied)}, ""],
    ]);
    let (last, end) = match place {
        "Failed" => ("Plan", Some(RunResult::Failed)),
        "Canceled" => ("AwaitingApproval", Some(RunResult::Canceled)),
        place => (place, None),
    };
    let mut rows = path.as_array().cloned().unwrap_or_default();
    rows.truncate(
        rows.iter()
            .rposition(|row| row[0] == last)
            .map_or(0, |last| last + 1),
    );
    rows.extend(end.map(|result| json!([place, "run-a2", {"status": ends(result)}, ""])));
    if has(ENDED, place) {
        rows.push(json!([place, "admin", {"status": {"attempt": {"open": false}}}, ""]));
    }
    scene.rows(RUN, rows.into()).await?;
    Ok((scene, agent))
}

async fn hold(world: World, place: &str) -> Result<()> {
    let (mut scene, agent) = come(world, place).await?;
    scene.dry_run = true;
    let acts = acts(&agent)?;
    let (mut wrong, mut cases) = (Vec::new(), 0);
    for who in EVERYBODY.split(' ') {
        for (name, write, grants) in &acts {
            let object = if write.contains_key("create") {
                "fresh"
            } else {
                RUN
            };
            let refusal = match scene.send(who, object, write).await? {
                Ok(()) => None,
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
                    Some(status.message.clone())
                }
                Err(error) => bail!("{who}, {name}: got no answer: {error}"),
            };
            cases += 1;
            let allowed = grants
                .iter()
                .any(|(whom, places)| has(whom, who) && has(places, place));
            if allowed != refusal.is_none() {
                let answer = refusal.map_or_else(
                    || "was admitted".to_owned(),
                    |text| format!("was refused: {text}"),
                );
                wrong.push(format!("{who}, {name}: {answer}"));
            }
        }
    }
    // Nine identities; 37 acts and 5 results by hand, and all fields but the six among those.
    let meant = 9 * (37 + 5 + FIELDS.len() - 6);
    ensure!(cases == meant, "{cases} cases, and {meant} are meant");
    ensure!(
        wrong.is_empty(),
        "{place}: {} of {cases} cases are not as in the table:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}
