//! The CEL rules at the root of the CRD: each has an accepted, a refused and a remove-then-add case.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, TerraformLayer, TerraformRepository, TerraformRun};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    scene::{RUN, Scene},
    world::{World, sum, tests},
};

tests! {
    Bare: name_has_at_most_52_characters,
    Bare: spec_never_changes,
    Bare: status_is_never_removed,
    Bare: first_phase_is_pending,
    Bare: every_pair_of_phases_is_decided_as_in_the_table,
    Bare: claim_never_changes,
    Bare: result_never_changes,
    Bare: phase_apply_needs_a_claim,
    Bare: result_belongs_to_its_phase,
    Bare: only_a_claimed_run_is_applied,
    Bare: senseless_spec_is_refused_on_creation,
    Bare: refused_text_is_answered_with_what_is_allowed,
    Bare: defaults_are_stored,
}

const PHASE: &str = "illegal change of phase";

/// A claim. No rule here checks its writer.
fn a_claim(digit: char) -> Value {
    json!({"checksum": sum(digit), "attempt": 1, "podUID": "u", "nonce": "0".repeat(32), "at": "2026-01-01T00:00:00Z"})
}

/// The fields that a phase requires.
fn at(phase: Phase) -> Value {
    match phase {
        Phase::Succeeded => json!({"phase": phase, "result": "NoChanges"}),
        Phase::Failed => json!({"phase": phase, "result": "Failed"}),
        Phase::Canceled => json!({"phase": phase, "result": "Canceled"}),
        Phase::Apply => json!({"phase": phase, "claim": a_claim('a')}),
        Phase::Pending
        | Phase::Setup
        | Phase::Init
        | Phase::Plan
        | Phase::AwaitingApproval
        | Phase::Unknown => {
            json!({"phase": phase})
        }
    }
}

/// A run that has come to a phase on a legal path.
async fn walk(scene: &Scene, run: &str, to: Phase) -> Result<()> {
    use Phase::{Init, Pending, Plan, Setup};
    scene
        .rows(run, json!([["creation", "admin", {"create": {}}, ""]]))
        .await?;
    for phase in [Pending, Setup, Init, Plan]
        .into_iter()
        .filter(|phase| *phase < to)
        .chain([to])
    {
        let rows =
            json!([[format!("{phase} on the way to {to}"), "admin", {"status": at(phase)}, ""]]);
        scene.rows(run, rows).await?;
    }
    Ok(())
}

async fn name_has_at_most_52_characters(world: World) -> Result<()> {
    // A name cannot be removed and added.
    let scene = Scene::new(world, &[]).await?;
    let rows = json!([["52", "admin", {"create": {}}, ""]]);
    scene.rows(&"n".repeat(52), rows).await?;
    let rows = json!([["53", "admin", {"create": {}}, "at most 52"]]);
    scene.rows(&"n".repeat(53), rows).await
}

async fn spec_never_changes(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    let variables =
        |first: u8| json!({"variables": [{"name": "a", "value": {"deep": [first, "x"]}}]});
    let immutable = "spec is immutable";
    let rows = json!([
        ["creation", "admin", {"create": {"spec": variables(1)}}, ""],
        ["annotation", "admin", {"annotate": {"x": "y"}}, ""],
        ["change", "admin", {"merge": {"spec": {"workspace": "other"}}}, immutable],
        ["change of an untyped value", "admin", {"merge": {"spec": variables(2)}}, immutable],
        ["removal", "admin", {"merge": {"spec": null}}, "spec"],
        ["addition", "admin", {"merge": {"spec": {"tool": {"version": "1"}}}}, immutable],
        ["removal of a part", "admin", {"merge": {"spec": {"variables": null}}}, immutable],
    ]);
    scene.rows(RUN, rows).await
}

async fn status_is_never_removed(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    scene.pending(RUN, &json!({})).await?;
    let remove = json!([{"op": "remove", "path": "/status"}]);
    let empty = json!([{"op": "replace", "path": "/status", "value": {}}]);
    let rows = json!([
        ["change", "admin", {"status": {"message": "x"}}, ""],
        ["removal", "admin", {"json": remove}, "status cannot be removed"],
        ["an empty status", "admin", {"json": empty}, PHASE],
    ]);
    scene.rows(RUN, rows).await
}

async fn first_phase_is_pending(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    for phase in Phase::ALL {
        let message = if phase == Phase::Pending {
            ""
        } else {
            "the first phase is Pending"
        };
        let rows = json!([
            ["creation", "admin", {"create": {}}, ""],
            ["phase", "admin", {"status": at(phase)}, message],
        ]);
        scene.rows(&phase.as_str().to_lowercase(), rows).await?;
    }
    removed_phase(&scene, "pending").await
}

/// A phase cannot be removed, to add another one.
async fn removed_phase(scene: &Scene, run: &str) -> Result<()> {
    let remove = json!([{"op": "remove", "path": "/status/phase"}]);
    let rows = json!([["removal of the phase", "admin", {"json": remove}, PHASE]]);
    scene.rows(run, rows).await
}

async fn every_pair_of_phases_is_decided_as_in_the_table(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    let runs = scene.world.runs(&scene.namespace);
    for from in Phase::ALL {
        let name = from.as_str().to_lowercase();
        walk(&scene, &name, from).await?;
        for to in Phase::ALL {
            let mut body = at(to);
            if from == Phase::Apply && to == Phase::Succeeded {
                body["result"] = "Applied".into();
            }
            if from.is_terminal() && from != to && !to.is_terminal() {
                body["result"] = Value::Null;
            }
            let dry = PatchParams {
                dry_run: true,
                ..PatchParams::default()
            };
            let answer = runs
                .patch_status(&name, &dry, &Patch::Merge(json!({"status": body})))
                .await;
            ensure!(
                answer.is_ok() == from.may_become(to),
                "{from} to {to}: {answer:?}"
            );
        }
        if from != Phase::Pending {
            removed_phase(&scene, &name).await?;
        }
    }
    Ok(())
}

async fn claim_never_changes(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    walk(&scene, RUN, Phase::Apply).await?;
    let swap = json!([{"op": "remove", "path": "/status/claim"},
        {"op": "add", "path": "/status/claim", "value": a_claim('b')}]);
    let fixed = "a claim never changes";
    let rows = json!([
        ["another field", "admin", {"status": {"message": "beside the claim"}}, ""],
        ["change", "admin", {"status": {"claim": {"nonce": "1".repeat(32)}}}, fixed],
        ["removal", "admin", {"status": {"claim": null}}, fixed],
        ["removal and addition", "admin", {"json": swap}, fixed],
    ]);
    scene.rows(RUN, rows).await
}

async fn result_never_changes(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    walk(&scene, RUN, Phase::Failed).await?;
    let swap = json!([
        {"op": "remove", "path": "/status/result"},
        {"op": "remove", "path": "/status/phase"},
        {"op": "add", "path": "/status/phase", "value": "Canceled"},
        {"op": "add", "path": "/status/result", "value": "Expired"},
    ]);
    let rows = json!([
        ["another field", "admin", {"status": {"message": "said later"}}, ""],
        ["change", "admin", {"status": {"result": "Indeterminate"}}, "a result never changes"],
        ["removal", "admin", {"status": {"result": null}}, "a result never changes"],
        ["removal and addition", "admin", {"json": swap}, "never changes"],
    ]);
    scene.rows(RUN, rows).await
}

async fn phase_apply_needs_a_claim(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    walk(&scene, RUN, Phase::Plan).await?;
    let rows = json!([
        ["no claim", "admin", {"status": {"phase": "Apply"}}, "phase Apply needs a claim"],
        ["claim", "admin", {"status": at(Phase::Apply)}, ""],
        ["removal", "admin", {"status": {"claim": null}}, "claim"],
    ]);
    scene.rows(RUN, rows).await
}

async fn result_belongs_to_its_phase(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    let own = "a terminal phase has a result of its own";
    for phase in [Phase::Succeeded, Phase::Failed, Phase::Canceled] {
        for result in RunResult::ALL.into_iter().filter(|r| !r.needs_claim()) {
            let name = format!("{phase}-{result}").to_lowercase();
            walk(&scene, &name, Phase::Plan).await?;
            let message = if result.phase() == phase { "" } else { own };
            let rows =
                json!([["end", "admin", {"status": {"phase": phase, "result": result}}, message]]);
            scene.rows(&name, rows).await?;
        }
    }
    walk(&scene, RUN, Phase::Plan).await?;
    let rows = json!([
        ["no result", "admin", {"status": {"phase": "Failed"}}, own],
        ["a result without end", "admin", {"status": {"result": "Failed"}}, own],
        ["end", "admin", {"status": at(Phase::Failed)}, ""],
        ["removal", "admin", {"status": {"result": null, "phase": null}}, PHASE],
    ]);
    scene.rows(RUN, rows).await
}

async fn only_a_claimed_run_is_applied(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    let needs = "only a claimed run was applied";
    for result in RunResult::ALL {
        let word = result.as_str().to_lowercase();
        let (unclaimed, claimed) = (format!("w-{word}"), format!("c-{word}"));
        let end = json!({"phase": result.phase(), "result": result});
        walk(&scene, &unclaimed, Phase::Plan).await?;
        let message = if result.needs_claim() { needs } else { "" };
        let rows = json!([["end", "admin", {"status": end}, message]]);
        scene.rows(&unclaimed, rows).await?;
        walk(&scene, &claimed, Phase::Apply).await?;
        if result.needs_claim() || result == RunResult::Failed {
            let rows = json!([
                ["end", "admin", {"status": end}, ""],
                ["removal of the claim", "admin", {"status": {"claim": null}}, "claim"],
            ]);
            scene.rows(&claimed, rows).await?;
        } else {
            let answer = scene.world.status(&scene.namespace, &claimed, &end).await;
            ensure!(answer.is_err(), "{claimed} was admitted");
        }
    }
    Ok(())
}

async fn defaults_are_stored(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let spec = world.create(&namespace, RUN, &json!({})).await?.spec;
    ensure!(
        spec.timeouts.apply.to_string() == "6h"
            && spec.retry.limit == 3
            && spec.workspace == "default"
    );
    Ok(())
}

/// A spec: a Git source, with `more` merged over it.
fn with(more: &Value) -> Value {
    let mut spec = json!({"source": {"git": {"url": "https://example.com/r.git"}}});
    json_patch::merge(&mut spec, more);
    spec
}

/// Sources: name, spec, and whether it is accepted.
fn sources() -> Value {
    let git = |git: Value| with(&json!({"source": {"git": git}}));
    let inline = |path: &str| json!({"source": {"inline": {"files": {path: "x"}}}});
    let artifact = |url: &str, more: Value| {
        let mut spec =
            json!({"stack": "s", "source": {"artifact": {"url": url, "digest": sum('a')}}});
        json_patch::merge(&mut spec, &more);
        spec
    };
    let half = json!({"source": {"artifact": {"digest": "sha256:aa"}}});
    let above = json!({"source": {"artifact": {"path": "a/.."}}});
    let no_digest = json!({"source": {"artifact": {"digest": null}}});
    let map = |path: &str| {
        let items = json!([{"key": "k", "path": path}, {"key": "l", "path": "b"}]);
        json!({"source": {"configMapRef": {"name": "a", "items": items}}})
    };
    let secret_too = json!({"source": {"configMapRef": {"name": "a"}, "secretRef": {"name": "a"}}});
    let inline_too = json!({"git": {"url": "https://e.com/r"}, "inline": {"files": {"a.tf": ""}}});
    let many: BTreeMap<_, _> = (0..65).map(|i| (format!("f{i}"), "x")).collect();
    json!([
        ["artifact", artifact("https://example.com/a@1/x.tgz?v=1", json!({})), true],
        ["artifact without stack", artifact("https://example.com/a", json!({"stack": null})), false],
        ["artifact without digest", artifact("https://example.com/a", no_digest), false],
        ["artifact with half a digest", artifact("https://h/a", half), false],
        ["artifact with credentials", artifact("https://me:secret@example.com/a", json!({})), false],
        ["artifact of a file", artifact("file:///etc", json!({})), false],
        ["artifact above", artifact("https://h/a", above), false],
        ["ConfigMap", map("modules/x/a.tf"), true],
        ["ConfigMap above the stack", map("../a.tf"), false],
        ["ConfigMap into a Git directory", map("a/.git/config"), false],
        ["ConfigMap twice at one path", map("b"), false],
        ["Secret and ConfigMap", secret_too, false],
        ["Git", git(json!({})), true],
        ["inline", inline("modules/a/main.tf"), true],
        ["no source", {"source": {}}, false],
        ["no spec", null, false],
        ["two sources", {"source": inline_too}, false],
        ["URL with credentials", git(json!({"url": "https://me:secret@example.com/r"})), false],
        ["URL of a file", git(json!({"url": "file:///etc"})), false],
        ["URL that runs a program", git(json!({"url": "ext::sh -c true"})), false],
        ["revision that is an option", git(json!({"revision": "--upload-pack=x"})), false],
        ["revision with a range", git(json!({"revision": "a..b"})), false],
        ["path above the repository", git(json!({"path": "a/../../b"})), false],
        ["absolute path", git(json!({"path": "/etc"})), false],
        ["path with dots in a name", git(json!({"path": "a..b/c"})), true],
        ["inline above the stack", inline("../main.tf"), false],
        ["inline absolute", inline("/main.tf"), false],
        ["inline version file", inline(".opentofu-version"), true],
        ["inline above a module", inline("modules/../../main.tf"), false],
        ["inline into a Git directory", inline("a/.git/config"), false],
        ["inline into .terraform", inline(".terraform/x"), false],
        ["too many files", {"source": {"inline": {"files": many}}}, false],
        ["file too large", {"source": {"inline": {"files": {"a": "x".repeat(131_073)}}}}, false],
    ])
}

/// Inputs, which are merged over a Git source.
fn inputs() -> Value {
    let key = json!({"name": "s", "key": "k"});
    let both = json!({"secretKeyRef": key, "configMapKeyRef": key});
    let twice = json!([{"name": "a", "value": 1}, {"name": "a", "value": 2}]);
    let two_values = json!({"name": "a", "value": 1, "valueFrom": {"secretKeyRef": key}});
    let file = |path: &str| json!({"path": path, "secretKeyRef": key});
    let elsewhere = json!({"path": "a", "in": "Root", "secretKeyRef": key});
    let same_file = json!([file("a"), {"path": "a", "in": "Home", "configMapKeyRef": key}]);
    json!([
        ["variable of any type", {"variables": [{"name": "a", "value": [1, {"b": null}]}]}, true],
        ["variable without value", {"variables": [{"name": "a"}]}, false],
        ["variable with two values", {"variables": [two_values]}, false],
        ["variable from two places", {"variables": [{"name": "a", "valueFrom": both}]}, false],
        ["variable twice", {"variables": twice}, false],
        ["variable file of two places", {"variableFiles": [file("a")]}, false],
        ["variable file beside the stack", {"variableFiles": [{"path": "../env/a.tfvars"}]}, true],
        ["absolute variable file", {"variableFiles": [{"path": "/etc/passwd"}]}, false],
        ["environment of nowhere", {"envFrom": [{"prefix": "A_"}]}, false],
        ["environment of a Secret", {"envFrom": [{"prefix": "TF_VAR_", "secretRef": {"name": "s"}}]}, true],
        ["file of a Secret", {"files": [file(".aws/credentials")]}, true],
        ["file above the home", {"files": [file("../a")]}, false],
        ["file above the home, later", {"files": [file("a/../../b")]}, false],
        ["file twice", {"files": same_file}, false],
        ["file elsewhere", {"files": [elsewhere]}, false],
        ["arguments", {"arguments": {"plan": ["-compact-warnings"]}}, true],
    ])
}

/// Operations, identities, hooks and limits, which are merged over a Git source.
fn settings() -> Value {
    let vault = |more: Value| {
        let mut spec = json!({"credentials": {"vault": {"address": "https://v"}}, "runner": {"serviceAccountName": "a"}});
        json_patch::merge(&mut spec, &more);
        spec
    };
    let datastore = json!({"credentials": {"vault": {"audience": "pawl-datastore"}}});
    let hook = |more: Value| {
        let mut hook = json!({"name": "a", "when": "Always"});
        json_patch::merge(&mut hook, &more);
        json!({"hooks": [hook]})
    };
    let s3 = json!({"bucket": "b", "assume_role": {"role_arn": "x"}});
    let targets = json!({"targets": ["a.b[\"c\"]"], "replace": ["a.d"], "refresh": false, "parallelism": 256});
    json!([
        ["identity", vault(json!({})), true],
        ["identity without account", vault(json!({"runner": {"serviceAccountName": null}})), false],
        ["identity at the datastore", vault(datastore), false],
        ["role of no account", vault(json!({"credentials": {"aws": {"roleArn": "admin"}}})), false],
        ["refresh only", {"operation": "RefreshOnly", "refresh": true, "replace": []}, true],
        ["refresh only without refresh", {"operation": "RefreshOnly", "refresh": false}, false],
        ["refresh only that replaces", {"operation": "RefreshOnly", "replace": ["a.b"]}, false],
        ["destroy that replaces", {"operation": "Destroy", "replace": ["a.b"]}, false],
        ["plan that replaces, no refresh", {"operation": "Plan", "refresh": false, "replace": ["a.b"]}, true],
        ["unknown operation", {"operation": "Refresh"}, false],
        ["targets and more", targets, true],
        ["parallelism of nothing", {"parallelism": 0}, false],
        ["hook", hook(json!({"inline": "true"})), true],
        ["hook of nothing", hook(json!({})), false],
        ["hook of two things", hook(json!({"inline": "true", "path": "a"})), false],
        ["hook at an unknown time", hook(json!({"when": "Sometimes", "inline": "true"})), false],
        ["hook of a file before Setup", hook(json!({"when": "BeforeSetup", "path": "a.sh"})), false],
        ["hook of a file of the image", hook(json!({"path": "/bin/true"})), false],
        ["hook with a long name", hook(json!({"name": "a".repeat(25), "inline": "true"})), false],
        ["timeout too long", {"timeouts": {"apply": "25h"}}, false],
        ["timeout of nothing", {"timeouts": {"plan": "0s"}}, false],
        ["timeout in days", {"timeouts": {"plan": "1d"}}, false],
        ["expiry too far", {"approval": {"expiresAfter": "721h"}}, false],
        ["too many retries", {"retry": {"limit": 11}}, false],
        ["our label", {"runner": {"labels": {"pawl.run/run": "other"}}}, false],
        ["their label", {"runner": {"labels": {"team": "a"}}}, true],
        ["backend with anything", {"backend": {"type": "s3", "config": s3}}, true],
    ])
}

async fn senseless_spec_is_refused_on_creation(world: World) -> Result<()> {
    let scene = Scene::new(world, &[]).await?;
    let runs: Api<DynamicObject> = Api::namespaced_with(
        scene.world.admin.clone(),
        &scene.namespace,
        &ApiResource::erase::<TerraformRun>(&()),
    );
    let rows = |rows: Value| serde_json::from_value::<Vec<(String, Value, bool)>>(rows);
    let over_git = [rows(inputs())?, rows(settings())?].concat();
    let over_git = over_git
        .into_iter()
        .map(|(name, spec, accepted)| (name, with(&spec), accepted));
    for (name, spec, accepted) in rows(sources())?.into_iter().chain(over_git) {
        let mut object = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun",
            "metadata": {"generateName": "a-"}, "spec": spec});
        if spec.is_null() {
            object.as_object_mut().map(|object| object.remove("spec"));
        }
        let object = serde_json::from_value(object).with_context(|| name.clone())?;
        let answer = runs
            .create(
                &PostParams {
                    dry_run: true,
                    ..PostParams::default()
                },
                &object,
            )
            .await;
        ensure!(answer.is_ok() == accepted, "{name}: {answer:?}");
    }
    Ok(())
}

/// Texts that a person brings from a forge or a registry: kind, spec, and the words of the refusal.
fn texts() -> Value {
    let run = |source: Value| json!({"stack": "s", "source": source});
    let git = |git: Value| {
        let mut spec = json!({"url": "https://e.com/r"});
        json_patch::merge(&mut spec, &git);
        run(json!({"git": spec}))
    };
    let stored =
        json!({"repository": {"name": "r", "revision": "a".repeat(40), "ref": "feat(x)=1"}});
    let archive = json!({"artifact": {"url": "https://me:pw@e.com/a", "digest": sum('a')}});
    let layer = |name: &str| json!({"repository": {"name": "r"}, "ref": name});
    let secret = json!({"name": "s"});
    let forge = json!({"url": "https://e.com/r", "credentials": [{"host": "https://e.com", "secretRef": secret}]});
    let registry = json!([{"host": "e.com/v1", "secretKeyRef": {"name": "s", "key": "k"}}]);
    let registry = json!({"credentials": {"registries": registry}});
    let azure = "https://org:pw@dev.azure.com/org/p/_git/r";
    let (in_ref, in_url) = (
        "the characters _ . / + @ # -",
        "a password or token belongs in the Secret of secretRef",
    );
    json!([
        ["TerraformLayer", layer("feat(x)=1"), in_ref],
        ["TerraformLayer", layer("-x"), "begins with a letter, a digit, _ or ."],
        ["TerraformLayer", layer("feat/x#1+2@3"), ""],
        ["TerraformRun", run(stored), in_ref],
        ["TerraformRun", git(json!({"revision": "feat(x)=1"})), in_ref],
        ["TerraformRun", git(json!({"revision": "a..b"})), "it contains .."],
        ["TerraformRun", git(json!({"url": azure})), in_url],
        ["TerraformRun", git(json!({"url": "ssh://e.com:r/ x"})), "without spaces"],
        ["TerraformRun", run(archive), "without a user"],
        ["TerraformRun", with(&registry), "without https:// and without a path"],
        ["TerraformRepository", {"url": azure}, in_url],
        ["TerraformRepository", {"url": "https://org@dev.azure.com/org/p/_git/r"}, ""],
        ["TerraformRepository", {"url": "git@e.com"}, "USER@HOST:PATH"],
        ["TerraformRepository", forge, "without https://"],
    ])
}

async fn refused_text_is_answered_with_what_is_allowed(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for (kind, spec, words) in serde_json::from_value::<Vec<(String, Value, String)>>(texts())? {
        let resource = match kind.as_str() {
            "TerraformLayer" => ApiResource::erase::<TerraformLayer>(&()),
            "TerraformRepository" => ApiResource::erase::<TerraformRepository>(&()),
            _ => ApiResource::erase::<TerraformRun>(&()),
        };
        let api: Api<DynamicObject> =
            Api::namespaced_with(world.admin.clone(), &namespace, &resource);
        let object = json!({"apiVersion": "pawl.run/v1alpha1", "kind": kind, "metadata": {"name": "a"}, "spec": spec});
        let answer = match api.create(&dry, &serde_json::from_value(object)?).await {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        ensure!(
            answer.contains(&words) && answer.is_empty() == words.is_empty(),
            "{spec}: {answer}"
        );
        ensure!(!answer.contains("should match"), "{answer}");
    }
    Ok(())
}
