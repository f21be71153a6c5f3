//! Settings: how they are merged and shown, and the run they give.

use crds::datastore::StateId;

use super::*;
use crate::layer::{
    conditions::READY,
    template::{self, Effective},
};

fn effective(defaults: &Value, template: &Value) -> Result<Effective, String> {
    let mut world = World::new().with(&json!({"spec": {"template": template}}));
    let repository = world.repository.as_mut().unwrap();
    repository.spec.defaults = serde_json::from_value(defaults.clone()).unwrap();
    Effective::of(&world.layer, repository)
}

#[test]
fn template_merges_fields_and_replaces_lists() {
    let defaults = json!({"workspace": "w", "timeouts": {"plan": "30m", "apply": "2h"}, "variables": [{"name": "a", "value": 1}],
        "backend": {"type": "s3", "config": {"bucket": "b"}}});
    let template = json!({"timeouts": {"plan": "1h"}, "variables": [{"name": "b", "value": "x"}], "stack": "own"});
    let effective = effective(&defaults, &template).unwrap();
    assert_eq!(
        effective.lines,
        [
            "workspace=w (repository)",
            "timeouts.plan=1h (layer)",
            "timeouts.apply=2h (repository)",
            "backend.type=s3 (repository)",
            "backend.config.bucket=… (repository)",
            "stack=own (layer)",
            "variables[b]=value: … (layer)",
        ]
    );
    let spec = effective
        .spec(
            &World::new().layer,
            &sha(1),
            crds::Operation::Apply,
            crds::Remediation::Manual,
        )
        .unwrap();
    let spec: crds::TerraformRunSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.variables.len(), 1);
    assert_eq!(spec.variables[0].name.as_str(), "b");
    assert_eq!(spec.timeouts.plan.to_string(), "1h");
    assert_eq!(spec.timeouts.apply.to_string(), "2h");
}

#[test]
fn entries_of_lists_are_shown_with_their_origin_and_without_values() {
    let key = |name: &str| json!({"name": name, "key": "k"});
    let defaults = json!({"variables": [{"name": "lost", "value": 1}], "env": [
        {"name": "REGION", "value": "s3cret"}, {"name": "TOKEN", "valueFrom": {"secretKeyRef": key("db")}}],
        "runner": {"imagePullSecrets": [{"name": "registry"}], "tolerations": [{"key": "a", "operator": "Exists"}]},
        "envFrom": [], "parallelism": 3});
    let template = json!({"variables": [{"name": "tags", "value": {"a": "s3cret"}}, {"name": "id", "valueFrom": {"outputOf": {"stack": "net", "name": "id"}}}],
        "hooks": [{"name": "lint", "when": "BeforePlan", "inline": "echo\ns3cret"}], "variableFiles": [{"path": "prod.tfvars"}],
        "files": [{"path": ".netrc", "secretKeyRef": key("git")}], "arguments": {"plan": ["-exclude=a.b"]}});
    let all = effective(&defaults, &template).unwrap().lines;
    let mut shown: Vec<_> = all.iter().filter(|line| line.contains("]=")).collect();
    shown.sort();
    assert_eq!(
        shown,
        [
            "arguments.plan[0]=-exclude=a.b (layer)",
            "env[REGION]=value: … (repository)",
            "env[TOKEN]=valueFrom.secretKeyRef.name: db, valueFrom.secretKeyRef.key: k (repository)",
            "files[.netrc]=secretKeyRef.name: git, secretKeyRef.key: k (layer)",
            "hooks[lint]=when: BeforePlan, inline: … (layer)",
            "runner.imagePullSecrets[0]=name: registry (repository)",
            "runner.tolerations[0]=key: a, operator: Exists (repository)",
            "variableFiles[0]=path: prod.tfvars (layer)",
            "variables[id]=valueFrom.outputOf.stack: net, valueFrom.outputOf.name: id (layer)",
            "variables[tags]=value: … (layer)",
        ]
    );
    assert!(
        all.contains(&"envFrom=[] (repository)".to_owned()),
        "{all:?}"
    );
    // Long lists hide no other setting.
    let many: Vec<_> = (0..200)
        .map(|n| json!({"name": format!("v{n}"), "value": n}))
        .collect();
    let lines = effective(&defaults, &json!({"variables": many}))
        .unwrap()
        .lines;
    assert_eq!(lines.len(), 128);
    assert!(
        lines.contains(&"parallelism=3 (repository)".to_owned()),
        "{lines:?}"
    );
}

#[test]
fn unknown_template_field_is_passed_on() {
    let effective = effective(&json!({}), &json!({"runner": {"newer": {"a": 1}}})).unwrap();
    let spec = effective
        .spec(
            &World::new().layer,
            &sha(1),
            crds::Operation::Apply,
            crds::Remediation::Manual,
        )
        .unwrap();
    assert_eq!(spec["runner"]["newer"], json!({"a": 1}));
}

#[test]
fn settings_digest_covers_exactly_what_a_run_depends_on() {
    let of = |patch: &Value| {
        let world = World::new().with(patch);
        Effective::of(&world.layer, world.repository.as_ref().unwrap())
            .unwrap()
            .digest
    };
    let plain = of(&json!({}));
    for patch in [
        json!({"spec": {"drift": {"interval": "1h"}}}),
        json!({"spec": {"maxRetries": 1, "runHistory": 7, "suspend": true, "remediation": {"onDrift": "Automatic"}}}),
        json!({"spec": {"ref": "v1"}, "metadata": {"annotations": {"a": "b"}}}),
    ] {
        assert_eq!(of(&patch), plain, "{patch}");
    }
    for patch in [
        json!({"spec": {"template": {"workspace": "w"}}}),
        json!({"spec": {"path": "live/app"}}),
        json!({"spec": {"remediation": {"onCommit": "Automatic"}}}),
    ] {
        assert_ne!(of(&patch), plain, "{patch}");
    }
}

#[test]
fn invalid_template_is_reported_and_creates_no_run() {
    for template in [
        json!({"timeouts": {"plan": "soon"}}),
        json!({"tool": {"name": "Newer"}}),
        json!({"approval": "yes"}),
    ] {
        let world = World::new()
            .commit(1, "a")
            .with(&json!({"spec": {"template": template}}))
            .settled();
        assert!(world.made.is_empty());
        assert_eq!(
            world.condition(READY),
            ("False".into(), "TemplateInvalid".into()),
            "{template}"
        );
    }
}

/// T4: a repository's defaults read Secrets of the namespaces of its layers.
#[test]
fn defaults_of_another_namespace_name_nothing() {
    let from = json!({"secretKeyRef": {"name": "db", "key": "password"}});
    let defaults = json!({"parallelism": 3, "workspace": "w", "variables": [{"name": "v", "valueFrom": from}],
        "files": [{"path": ".netrc", "secretKeyRef": {"name": "db", "key": "password"}}]});
    let of = |owner: &str, template: &Value| {
        let patch = json!({"spec": {"template": template, "repository": {"namespace": owner}}});
        let mut world = World::new().commit(1, "a").with(&patch);
        let repository = world.repository.as_mut().unwrap();
        repository.metadata.namespace = Some(owner.into());
        repository.spec.allowed_namespaces = vec!["team".into()];
        repository.spec.defaults = serde_json::from_value(defaults.clone()).unwrap();
        world.settled()
    };
    let world = of("platform", &json!({}));
    assert!(world.made.is_empty());
    assert_eq!(world.condition(READY), is("False", "TemplateInvalid"));
    let text = "spec.defaults.files and spec.defaults.variables[].valueFrom and spec.defaults.workspace of the repository name objects \
                or states, and so apply only to layers in its namespace platform: set them in spec.template";
    let waits = world.status().waits_for.unwrap();
    assert!(waits.contains(text), "{waits}");
    // The values remain.
    let own = json!({"variables": [{"name": "v", "value": "x"}], "files": [], "workspace": "own"});
    let world = of("platform", &own);
    assert_eq!(world.made.len(), 1, "{:?}", world.status());
    let spec = &world.runs[0].spec;
    assert_eq!(
        (spec.workspace.as_str(), spec.parallelism, spec.files.len()),
        ("own", Some(3), 0)
    );
    let world = of("team", &json!({}));
    assert_eq!(world.made.len(), 1);
    assert_eq!(world.runs[0].spec.files.len(), 1);
}

#[test]
fn long_template_is_shown_in_128_lines_of_256_characters() {
    let labels: Value = (0..200)
        .map(|n| (format!("l{n}"), json!("x".repeat(500))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let lines = effective(&json!({}), &json!({"runner": {"labels": labels}}))
        .unwrap()
        .lines;
    assert_eq!((lines.len(), lines[127].as_str()), (128, "and 74 more"));
    assert!(lines.iter().all(|line| line.chars().count() <= 256));
}

#[test]
fn expected_state_equals_the_state_of_the_run() {
    let key = |template: Value, has_datastore| {
        let world = World::new().with(&json!({"spec": {"template": template}}));
        let repository = world.repository.as_ref().unwrap();
        let expected = template::expected_state(
            "team",
            &world.layer.spec.path,
            &world.layer.spec.template,
            repository,
            has_datastore,
        );
        let effective = Effective::of(&world.layer, repository).unwrap();
        let spec = effective
            .spec(
                &world.layer,
                &sha(1),
                crds::Operation::Apply,
                crds::Remediation::Manual,
            )
            .unwrap();
        let spec = serde_json::from_value(spec).unwrap();
        assert_eq!(
            expected,
            crds::state_key::expected("team", "any", &spec, has_datastore)
        );
        expected
    };
    let managed = key(json!({}), true);
    assert!(managed.is_some());
    assert_ne!(key(json!({"workspace": "prod"}), true), managed);
    assert_ne!(key(json!({"stack": "own"}), true), managed);
    let backend = json!({"backend": {"type": "http", "config": {"address": "http://s/a"}}});
    assert_eq!(key(backend.clone(), true), key(backend, false));
    assert_eq!(key(json!({}), false), None, "nobody knows before init");
}

/// A layer that has planned and applied. `backend`: whether its code configures a backend.
fn planned(backend: bool) -> (World, String) {
    planned_in(World::begun(), backend)
}

fn planned_in(mut world: World, backend: bool) -> (World, String) {
    let effective = Effective::of(&world.layer, world.repository.as_ref().unwrap()).unwrap();
    let key = if backend {
        digest("b")
    } else {
        // As the agent computes it.
        let id = StateId::of("", &world.runs[0].spec);
        crds::state_key::managed("team", &id)
    };
    world.waits(1);
    world.merge_run(
        &world.open_name(),
        &json!({"status": {"plan": {"stateKey": key}}}),
    );
    world.ends(crds::RunResult::Applied).settle();
    (world, effective.stack)
}

/// Renames the layer's directory; the content stays.
fn rename(world: &mut World, template: &Value) {
    let source = json!({"of": "main\nlive/app\n-", "revision": sha(1), "content": digest("a")});
    world.change(
        &json!({"spec": {"path": "live/app", "template": template}, "status": {"source": source}}),
    );
    world.settle();
}

#[test]
fn renamed_directory_waits_until_the_stack_is_chosen() {
    let (mut world, stack) = planned(false);
    assert_eq!(world.status().stack.as_deref(), Some(stack.as_str()));
    rename(&mut world, &json!({}));
    assert_eq!(world.made.len(), 1);
    assert_eq!(world.condition(READY), is("False", "StateMoved"));
    let step = world.next_step();
    assert!(
        step.starts_with(&format!("set spec.template.stack: {stack} to keep")),
        "{step}"
    );
    // Either stack of the next step lets it continue, and is recorded.
    for chosen in [stack.clone(), "new".to_owned()] {
        let (mut world, _) = planned(false);
        rename(&mut world, &json!({"stack": chosen}));
        assert_eq!(world.made.len(), 2, "{chosen}");
    }
    // A destroy with an empty state would find nothing and remove the finalizer.
    world.change(
        &json!({"spec": {"deletionPolicy": "Destroy"}, "metadata": {"deletionTimestamp": t0()}}),
    );
    world.settle();
    assert_eq!(world.made.len(), 1);
}

/// Of `status.effective` some lines are cut or left out, so nothing else tells the workspace.
#[test]
fn status_names_the_workspace_of_the_state() {
    let workspace = "w".repeat(90);
    let template = json!({"spec": {"template": {"workspace": workspace}}});
    let world = World::new().with(&template).commit(1, "a").settled();
    let (world, _) = planned_in(world, false);
    assert_eq!(world.status().workspace, Some(workspace));
    let (world, _) = planned(false);
    assert_eq!(world.status().workspace.as_deref(), Some("default"));
    let (world, _) = planned(true);
    assert_eq!(world.status().workspace, None);
}

#[test]
fn renamed_directory_with_own_backend_is_planned() {
    let (mut world, _) = planned(true);
    rename(&mut world, &json!({}));
    assert_eq!((world.status().stack, world.made.len()), (None, 2));
}
