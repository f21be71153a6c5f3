//! The CEL rules at the root of the CRD: each has an accepted, a refused and a remove-then-add case.

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::world::{Test, World, refused, run, sum};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("cel::a_name_has_at_most_52_characters", false, names),
        Test::new("cel::the_spec_never_changes", false, spec),
        Test::new("cel::a_status_is_never_removed", false, status),
        Test::new("cel::the_first_phase_is_pending", false, first_phase),
        Test::new("cel::every_pair_of_phases_is_decided_as_in_the_table", false, pairs),
        Test::new("cel::a_claim_never_changes", false, claim),
        Test::new("cel::a_result_never_changes", false, result),
        Test::new("cel::phase_apply_needs_a_claim", false, apply_needs_claim),
        Test::new("cel::a_result_belongs_to_its_phase", false, result_of_phase),
        Test::new("cel::only_a_claimed_run_was_applied", false, result_needs_claim),
        Test::new("cel::what_makes_no_sense_is_refused_on_create", false, creation),
    ]
}

/// A claim. No rule here checks its writer.
fn a_claim() -> Value {
    json!({"checksum": sum('a'), "attempt": 1, "podUID": "u", "nonce": "0".repeat(32), "at": "2026-01-01T00:00:00Z"})
}

/// The fields that a phase requires.
fn at(phase: Phase) -> Value {
    match phase {
        Phase::Succeeded => json!({"phase": phase, "result": "NoChanges"}),
        Phase::Failed => json!({"phase": phase, "result": "Failed"}),
        Phase::Canceled => json!({"phase": phase, "result": "Canceled"}),
        Phase::Apply => json!({"phase": phase, "claim": a_claim()}),
        Phase::Pending | Phase::Setup | Phase::Init | Phase::Plan | Phase::AwaitingApproval | Phase::Unknown => {
            json!({"phase": phase})
        }
    }
}

/// A legal path to a phase.
fn way(to: Phase) -> Vec<Phase> {
    use Phase::{Apply, AwaitingApproval, Canceled, Failed, Init, Pending, Plan, Setup, Succeeded, Unknown};
    let line = [Pending, Setup, Init, Plan];
    match to {
        Pending | Setup | Init | Plan => line.into_iter().take_while(|p| *p <= to).collect(),
        AwaitingApproval | Apply | Succeeded | Failed | Canceled | Unknown => line.into_iter().chain([to]).collect(),
    }
}

async fn walk(world: &World, namespace: &str, name: &str, to: Phase) -> Result<()> {
    world.create(namespace, name, &json!({})).await?;
    for phase in way(to) {
        world.status(namespace, name, &at(phase)).await.with_context(|| format!("{phase} on the way to {to}"))?;
    }
    Ok(())
}

async fn json_patch(world: &World, namespace: &str, name: &str, patch: Value) -> kube::Result<crds::TerraformRun> {
    let patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
    world.runs(namespace).patch_status(name, &PatchParams::default(), &Patch::Json::<()>(patch)).await
}

async fn names(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    world.create(&namespace, &"n".repeat(52), &json!({})).await?;
    refused("53", world.runs(&namespace).create(&PostParams::default(), &run(&"n".repeat(53), &json!({}))?).await, "at most 52")
    // A name cannot be removed and added.
}

async fn spec(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let runs = world.runs(&namespace);
    let variables = json!({"variables": [{"name": "a", "value": {"deep": [1, "x"]}}]});
    world.create(&namespace, "a", &variables).await?;
    let patch = |body: Value| Patch::Merge(body);
    let pp = PatchParams::default();
    runs.patch("a", &pp, &patch(json!({"metadata": {"annotations": {"x": "y"}}}))).await?;
    refused("change", runs.patch("a", &pp, &patch(json!({"spec": {"workspace": "other"}}))).await, "spec is immutable")?;
    let deep = json!({"spec": {"variables": [{"name": "a", "value": {"deep": [2, "x"]}}]}});
    refused("change of an untyped value", runs.patch("a", &pp, &patch(deep)).await, "spec is immutable")?;
    refused("remove", runs.patch("a", &pp, &patch(json!({"spec": null}))).await, "spec")?;
    refused("add", runs.patch("a", &pp, &patch(json!({"spec": {"tool": {"version": "1"}}}))).await, "spec is immutable")?;
    refused("remove a part", runs.patch("a", &pp, &patch(json!({"spec": {"variables": null}}))).await, "spec is immutable")
}

async fn status(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    world.create(&namespace, "a", &json!({})).await?;
    world.status(&namespace, "a", &at(Phase::Pending)).await?;
    world.status(&namespace, "a", &json!({"message": "x"})).await?;
    let removal = json_patch(&world, &namespace, "a", json!([{"op": "remove", "path": "/status"}])).await;
    refused("remove", removal, "status cannot be removed")?;
    let again = json_patch(&world, &namespace, "a", json!([{"op": "replace", "path": "/status", "value": {}}])).await;
    refused("emptied", again, "illegal change of phase")
}

async fn first_phase(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    for phase in Phase::ALL {
        let name = phase.as_str().to_lowercase();
        world.create(&namespace, &name, &json!({})).await?;
        let answer = world.status(&namespace, &name, &at(phase)).await;
        if phase == Phase::Pending {
            answer?;
            let removed = json_patch(&world, &namespace, &name, json!([{"op": "remove", "path": "/status/phase"}])).await;
            refused("removed, to be added as another", removed, "illegal change of phase")?;
        } else {
            refused(phase.as_str(), answer, "the first phase is Pending")?;
        }
    }
    Ok(())
}

async fn pairs(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    for from in Phase::ALL {
        let name = from.as_str().to_lowercase();
        walk(&world, &namespace, &name, from).await?;
        for to in Phase::ALL {
            let mut body = at(to);
            if from == Phase::Apply && to == Phase::Succeeded {
                body["result"] = "Applied".into();
            }
            if from.is_terminal() && from != to && !to.is_terminal() {
                body["result"] = Value::Null;
            }
            let dry = PatchParams { dry_run: true, ..PatchParams::default() };
            let answer = world.runs(&namespace).patch_status(&name, &dry, &Patch::Merge(json!({"status": body}))).await;
            ensure!(answer.is_ok() == from.may_become(to), "{from} to {to}: {answer:?}");
        }
        if from != Phase::Pending {
            let removed = json_patch(&world, &namespace, &name, json!([{"op": "remove", "path": "/status/phase"}])).await;
            refused(&format!("{from} removed"), removed, "illegal change of phase")?;
        }
    }
    Ok(())
}

async fn claim(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    walk(&world, &namespace, "a", Phase::Apply).await?;
    world.status(&namespace, "a", &json!({"message": "beside the claim"})).await?;
    for (what, claim) in [("change", json!({"nonce": "1".repeat(32)})), ("remove", Value::Null)] {
        refused(what, world.status(&namespace, "a", &json!({"claim": claim})).await, "a claim never changes")?;
    }
    let swap = json!([{"op": "remove", "path": "/status/claim"}, {"op": "add", "path": "/status/claim", "value": {
        "checksum": sum('b'), "attempt": 1, "podUID": "u", "nonce": "0".repeat(32), "at": "2026-01-01T00:00:00Z"}}]);
    refused("remove and add", json_patch(&world, &namespace, "a", swap).await, "a claim never changes")
}

async fn result(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    walk(&world, &namespace, "a", Phase::Failed).await?;
    world.status(&namespace, "a", &json!({"message": "said later"})).await?;
    refused("change", world.status(&namespace, "a", &json!({"result": "Indeterminate"})).await, "a result never changes")?;
    refused("remove", world.status(&namespace, "a", &json!({"result": null})).await, "a result never changes")?;
    let swap = json!([{"op": "remove", "path": "/status/result"}, {"op": "remove", "path": "/status/phase"},
        {"op": "add", "path": "/status/phase", "value": "Canceled"}, {"op": "add", "path": "/status/result", "value": "Expired"}]);
    refused("remove and add", json_patch(&world, &namespace, "a", swap).await, "never changes")
}

async fn apply_needs_claim(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    walk(&world, &namespace, "a", Phase::Plan).await?;
    refused("none", world.status(&namespace, "a", &json!({"phase": "Apply"})).await, "phase Apply needs a claim")?;
    world.status(&namespace, "a", &at(Phase::Apply)).await?;
    refused("removed", world.status(&namespace, "a", &json!({"claim": null})).await, "claim")
}

async fn result_of_phase(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let text = "a terminal phase has a result of its own";
    for phase in [Phase::Succeeded, Phase::Failed, Phase::Canceled] {
        for result in RunResult::ALL.into_iter().filter(|r| !r.needs_claim()) {
            let name = format!("{}-{}", phase.as_str().to_lowercase(), result.as_str().to_lowercase());
            walk(&world, &namespace, &name, Phase::Plan).await?;
            let answer = world.status(&namespace, &name, &json!({"phase": phase, "result": result})).await;
            if result.phase() == phase { drop(answer?) } else { refused(&name, answer, text)? }
        }
    }
    walk(&world, &namespace, "a", Phase::Plan).await?;
    refused("no result", world.status(&namespace, "a", &json!({"phase": "Failed"})).await, text)?;
    refused("result without end", world.status(&namespace, "a", &json!({"result": "Failed"})).await, text)?;
    world.status(&namespace, "a", &at(Phase::Failed)).await?;
    refused("removed", world.status(&namespace, "a", &json!({"result": null, "phase": null})).await, "illegal change of phase")
}

async fn result_needs_claim(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let text = "only a claimed run was applied";
    for result in RunResult::ALL {
        let (without, with) = (format!("w-{}", result.as_str().to_lowercase()), format!("c-{}", result.as_str().to_lowercase()));
        let end = json!({"phase": result.phase(), "result": result});
        walk(&world, &namespace, &without, Phase::Plan).await?;
        let answer = world.status(&namespace, &without, &end).await;
        if result.needs_claim() {
            refused(&without, answer, text)?;
        } else {
            drop(answer?);
        }
        walk(&world, &namespace, &with, Phase::Apply).await?;
        let answer = world.status(&namespace, &with, &end).await;
        let allowed = result.needs_claim() || result == RunResult::Failed;
        if allowed {
            answer?;
            refused("claim removed afterwards", world.status(&namespace, &with, &json!({"claim": null})).await, "claim")?;
        } else {
            ensure!(answer.is_err(), "{with} was let through");
        }
    }
    Ok(())
}

async fn creation(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let runs = world.access.client().await?;
    let api: kube::Api<kube::core::DynamicObject> =
        kube::Api::namespaced_with(runs, &namespace, &kube::core::ApiResource::erase::<crds::TerraformRun>(&()));
    let git = |extra: Value| {
        let mut git = json!({"url": "https://example.com/r.git"});
        git.as_object_mut().map(|g| extra.as_object().cloned().map(|e| g.extend(e)));
        json!({"source": {"git": git}})
    };
    let inline = |path: &str| json!({"source": {"inline": {"files": {path: "x"}}}});
    let with = |extra: Value| {
        let mut spec = git(json!({}));
        spec.as_object_mut().map(|s| extra.as_object().cloned().map(|e| s.extend(e)));
        spec
    };
    let artifact = |url: &str, extra: Value| {
        let mut spec = json!({"stack": "s", "source": {"artifact": {"url": url, "digest": sum('a')}}});
        ::json_patch::merge(&mut spec, &extra);
        spec
    };
    let item = |path: &str| json!({"source": {"configMapRef": {"name": "a", "items": [{"key": "k", "path": path}, {"key": "l", "path": "b"}]}}});
    let vault = |spec: Value| {
        let mut whole = with(json!({"credentials": {"vault": {"address": "https://v"}}, "runner": {"serviceAccountName": "a"}}));
        ::json_patch::merge(&mut whole, &spec);
        whole
    };
    let cases: Vec<(&str, Value, bool)> = vec![
        ("artifact", artifact("https://example.com/a@1/x.tgz?v=1", json!({})), true),
        ("artifact of no stack", artifact("https://example.com/a", json!({"stack": null})), false),
        ("artifact of no digest", artifact("https://example.com/a", json!({"source": {"artifact": {"digest": null}}})), false),
        ("artifact of half a digest", artifact("https://h/a", json!({"source": {"artifact": {"digest": "sha256:aa"}}})), false),
        ("artifact with credentials", artifact("https://me:secret@example.com/a", json!({})), false),
        ("artifact of a file", artifact("file:///etc", json!({})), false),
        ("artifact above", artifact("https://h/a", json!({"source": {"artifact": {"path": "a/.."}}})), false),
        ("config map", item("modules/x/a.tf"), true),
        ("config map above the stack", item("../a.tf"), false),
        ("config map into a git directory", item("a/.git/config"), false),
        ("config map twice in one place", item("b"), false),
        ("secret and config map", json!({"source": {"configMapRef": {"name": "a"}, "secretRef": {"name": "a"}}}), false),
        ("identity", vault(json!({})), true),
        ("identity of nobody", vault(json!({"runner": {"serviceAccountName": null}})), false),
        ("identity at the datastore", vault(json!({"credentials": {"vault": {"audience": "pawl-datastore"}}})), false),
        ("refresh only", with(json!({"operation": "RefreshOnly", "refresh": true, "replace": []})), true),
        ("refresh only without a look", with(json!({"operation": "RefreshOnly", "refresh": false})), false),
        ("refresh only that makes anew", with(json!({"operation": "RefreshOnly", "replace": ["a.b"]})), false),
        ("destroy that makes anew", with(json!({"operation": "Destroy", "replace": ["a.b"]})), false),
        (
            "plan that makes anew and does not look",
            with(json!({"operation": "Plan", "refresh": false, "replace": ["a.b"]})),
            true,
        ),
        ("role of no account", vault(json!({"credentials": {"aws": {"roleArn": "admin"}}})), false),
        ("git", git(json!({})), true),
        ("inline", inline("modules/a/main.tf"), true),
        ("no source", json!({"source": {}}), false),
        ("no spec", Value::Null, false),
        ("two sources", json!({"source": {"git": {"url": "https://e.com/r"}, "inline": {"files": {"a.tf": ""}}}}), false),
        ("url with credentials", git(json!({"url": "https://me:secret@example.com/r"})), false),
        ("url of a file", git(json!({"url": "file:///etc"})), false),
        ("url that runs a program", git(json!({"url": "ext::sh -c true"})), false),
        ("revision that is an option", git(json!({"revision": "--upload-pack=x"})), false),
        ("revision with a range", git(json!({"revision": "a..b"})), false),
        ("path above the repository", git(json!({"path": "a/../../b"})), false),
        ("absolute path", git(json!({"path": "/etc"})), false),
        ("path with dots in a name", git(json!({"path": "a..b/c"})), true),
        ("inline above the stack", inline("../main.tf"), false),
        ("inline absolute", inline("/main.tf"), false),
        ("inline version file", inline(".opentofu-version"), true),
        ("inline above a module", inline("modules/../../main.tf"), false),
        ("inline into a git directory", inline("a/.git/config"), false),
        ("inline into .terraform", inline(".terraform/x"), false),
        ("variable of any type", with(json!({"variables": [{"name": "a", "value": [1, {"b": null}]}]})), true),
        ("variable without value", with(json!({"variables": [{"name": "a"}]})), false),
        (
            "variable with two values",
            with(json!({"variables": [{"name": "a", "value": 1, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]})),
            false,
        ),
        (
            "variable from two places",
            with(
                json!({"variables": [{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}, "configMapKeyRef": {"name": "s", "key": "k"}}}]}),
            ),
            false,
        ),
        ("variable twice", with(json!({"variables": [{"name": "a", "value": 1}, {"name": "a", "value": 2}]})), false),
        ("a hook", with(json!({"hooks": [{"name": "a", "when": "Always", "inline": "true"}]})), true),
        ("a hook of nothing", with(json!({"hooks": [{"name": "a", "when": "Always"}]})), false),
        ("a hook of two things", with(json!({"hooks": [{"name": "a", "when": "Always", "inline": "true", "path": "a"}]})), false),
        ("a hook of no moment", with(json!({"hooks": [{"name": "a", "when": "Sometimes", "inline": "true"}]})), false),
        ("a file before Setup", with(json!({"hooks": [{"name": "a", "when": "BeforeSetup", "path": "a.sh"}]})), false),
        ("a file of the image", with(json!({"hooks": [{"name": "a", "when": "Always", "path": "/bin/true"}]})), false),
        ("a hook of a long name", with(json!({"hooks": [{"name": "a".repeat(25), "when": "Always", "inline": "true"}]})), false),
        ("timeout too long", with(json!({"timeouts": {"apply": "25h"}})), false),
        ("timeout of nothing", with(json!({"timeouts": {"plan": "0s"}})), false),
        ("timeout in days", with(json!({"timeouts": {"plan": "1d"}})), false),
        ("expiry too far", with(json!({"approval": {"expiresAfter": "721h"}})), false),
        ("too many retries", with(json!({"retry": {"limit": 11}})), false),
        ("our label", with(json!({"runner": {"labels": {"pawl.run/run": "other"}}})), false),
        ("their label", with(json!({"runner": {"labels": {"team": "a"}}})), true),
        (
            "backend with anything",
            with(json!({"backend": {"type": "s3", "config": {"bucket": "b", "assume_role": {"role_arn": "x"}}}})),
            true,
        ),
        (
            "variable file of two places",
            with(json!({"variableFiles": [{"path": "a", "secretKeyRef": {"name": "s", "key": "k"}}]})),
            false,
        ),
        ("variable file beside the stack", with(json!({"variableFiles": [{"path": "../env/a.tfvars"}]})), true),
        ("absolute variable file", with(json!({"variableFiles": [{"path": "/etc/passwd"}]})), false),
        ("environment of nowhere", with(json!({"envFrom": [{"prefix": "A_"}]})), false),
        ("environment of a Secret", with(json!({"envFrom": [{"prefix": "TF_VAR_", "secretRef": {"name": "s"}}]})), true),
        (
            "file of a Secret",
            with(json!({"files": [{"path": ".aws/credentials", "secretKeyRef": {"name": "s", "key": "k"}}]})),
            true,
        ),
        ("file above the home", with(json!({"files": [{"path": "../a", "secretKeyRef": {"name": "s", "key": "k"}}]})), false),
        (
            "file above the home, later",
            with(json!({"files": [{"path": "a/../../b", "secretKeyRef": {"name": "s", "key": "k"}}]})),
            false,
        ),
        (
            "file twice",
            with(
                json!({"files": [{"path": "a", "secretKeyRef": {"name": "s", "key": "k"}}, {"path": "a", "in": "Home", "configMapKeyRef": {"name": "s", "key": "k"}}]}),
            ),
            false,
        ),
        (
            "file elsewhere",
            with(json!({"files": [{"path": "a", "in": "Root", "secretKeyRef": {"name": "s", "key": "k"}}]})),
            false,
        ),
        (
            "targets and more",
            with(json!({"targets": ["a.b[\"c\"]"], "replace": ["a.d"], "refresh": false, "parallelism": 256})),
            true,
        ),
        ("parallelism of nothing", with(json!({"parallelism": 0})), false),
        ("arguments", with(json!({"arguments": {"plan": ["-compact-warnings"]}})), true),
        ("unknown operation", with(json!({"operation": "Refresh"})), false),
        (
            "too many files",
            json!({"source": {"inline": {"files": (0..65).map(|i| (format!("f{i}"), "x")).collect::<std::collections::BTreeMap<_, _>>()}}}),
            false,
        ),
        ("file too large", json!({"source": {"inline": {"files": {"a": "x".repeat(131_073)}}}}), false),
    ];
    for (what, spec, accepted) in cases {
        let mut object =
            json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun", "metadata": {"generateName": "a-"}, "spec": spec});
        if spec.is_null() {
            object.as_object_mut().map(|o| o.remove("spec"));
        }
        let answer = api.create(&PostParams { dry_run: true, ..PostParams::default() }, &serde_json::from_value(object)?).await;
        ensure!(answer.is_ok() == accepted, "{what}: {answer:?}");
    }
    // Defaults are visible in the stored object.
    let created = world.create(&namespace, "defaults", &json!({})).await?;
    ensure!(
        created.spec.timeouts.apply.to_string() == "6h" && created.spec.retry.limit == 3 && created.spec.workspace == "default"
    );
    Ok(())
}
