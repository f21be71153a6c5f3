//! Converts Burrito's repositories and layers.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    git, pod,
    read::{Document, Fields, Notes},
    write::{Made, Tree, number},
};

/// Fields of `overrideRunnerSpec` that a repository's defaults cannot hold for every namespace. They are copied to each layer.
const OF_LAYERS: [&str; 4] = ["serviceAccountName", "imagePullSecrets", "env", "envFrom"];

const HINTS: [(&str, &str); 3] = [
    (
        "syncWindows",
        "the annotation pawl.run/freeze on a namespace lets nothing new begin; windows are not there yet",
    ),
    (
        "additionalTargetRefs",
        "plans of pull requests are not there yet",
    ),
    (
        "applyWithoutPlanArtifact",
        "an apply always uses the stored plan, byte for byte",
    ),
];

/// Settings that layers inherit from their repositories.
#[derive(Default)]
pub(super) struct Repositories(BTreeMap<(String, String), Inherited>);

#[derive(Default)]
struct Inherited {
    apply: Option<bool>,
    retries: Option<u64>,
    history: Option<u64>,
    runner: Map<String, Value>,
    /// Where the state is was not carried over.
    waits: bool,
    used: bool,
}

impl Repositories {
    /// Converts a repository, and records what its layers inherit.
    pub(super) fn add(&mut self, mut document: Document, made: &mut Made, notes: &mut Notes) {
        let mut to = Tree::of("TerraformRepository", &document, 253, notes);
        let (namespace, name) = (document.namespace(), document.name());
        let spec = &mut document.spec;
        to.put("spec.url", spec.text("repository.url"));
        let secret = spec.text("repository.secretName");
        match &secret {
            Some(secret) => notes.say(
                "spec.repository.secretName",
                &format!("{secret} needs the keys identity and known_hosts, or username and password"),
            ),
            None => notes.say(
                "spec.repository.url",
                "has credentials that Burrito finds by the URL, if any: name their Secret in spec.secretRef",
            ),
        }
        to.put("spec.secretRef.name", secret);
        to.put("spec.defaults.tool", tool(spec, notes));
        let (apply, retries) = strategy(spec);
        let history = spec.number("runHistoryPolicy.runs");
        let most = spec
            .number("maxConcurrentRunnerPods")
            .filter(|most| *most > 0);
        to.put(
            "spec.maxConcurrentRuns",
            number(most, "spec.maxConcurrentRunnerPods", (1, 10_000), notes),
        );
        let mut runner = spec.within("overrideRunnerSpec");
        let mut of_layers = Map::new();
        for field in OF_LAYERS {
            of_layers.extend(runner.any(field).map(|value| (field.to_owned(), value)));
        }
        let waits = settings(runner, &mut to, "spec.defaults", notes);
        document.spec.end(&HINTS, notes);
        self.0.insert(
            (namespace.clone(), name.clone()),
            Inherited {
                apply,
                retries,
                history,
                runner: of_layers,
                waits,
                used: false,
            },
        );
        made.repository(&namespace, &name, to);
    }

    /// Warnings about settings that no layer inherited.
    pub(super) fn unused(&self) -> Vec<String> {
        let lost = self
            .0
            .iter()
            .filter(|(_, one)| !one.used && (one.apply.is_some() || !one.runner.is_empty()));
        let told = lost.map(|((namespace, name), one)| {
            let mut fields: Vec<_> = one.runner.keys().map(|field| format!("spec.overrideRunnerSpec.{field}")).collect();
            fields.extend(one.apply.map(|_| "spec.remediationStrategy".to_owned()));
            let fields = fields.join(", ");
            format!("TerraformRepository {namespace}/{name}: {fields} is a layer's own here; convert the repository together with its layers")
        });
        told.collect()
    }
}

/// Converts a layer, with its repository's settings for unset fields.
pub(super) fn layer(
    mut document: Document,
    known: &mut Repositories,
    made: &mut Made,
    notes: &mut Notes,
) {
    let mut to = Tree::layer(&document, notes);
    let own = document.namespace();
    let spec = &mut document.spec;
    let name = spec.text("repository.name").unwrap_or_default();
    let namespace = spec
        .text("repository.namespace")
        .filter(|namespace| *namespace != own);
    let mut none = Inherited::default();
    let key = (
        namespace.clone().unwrap_or_else(|| own.clone()),
        name.clone(),
    );
    let inherited = known.0.get_mut(&key).unwrap_or_else(|| {
        notes.say(
            "spec.repository",
            "names a repository that is not in the input: the settings that the layer takes from it are missing here",
        );
        &mut none
    });
    inherited.used = true;
    made.allow(&key.0, &key.1, &own);
    to.put("spec.repository.name", Some(name));
    to.put("spec.repository.namespace", namespace);
    to.put("spec.ref", spec.text("branch"));
    let path = git::directory(spec.text("path"));
    to.put("spec.path", path.clone());
    to.put("spec.template.tool", tool(spec, notes));
    let (apply, retries) = strategy(spec);
    let remediation = if apply.or(inherited.apply).unwrap_or(false) {
        "Automatic"
    } else {
        "Dry"
    };
    to.put(
        "spec.remediation",
        Some(json!({"onCommit": remediation, "onDrift": remediation})),
    );
    let retries = retries.or(inherited.retries);
    to.put(
        "spec.maxRetries",
        number(
            retries,
            "spec.remediationStrategy.onError.maxRetries",
            (0, 10),
            notes,
        ),
    );
    let runs = spec.number("runHistoryPolicy.runs").or(inherited.history);
    to.put(
        "spec.runHistory",
        number(runs, "spec.runHistoryPolicy.runs", (1, 50), notes),
    );
    let mut runner = spec.within("overrideRunnerSpec");
    for (field, value) in &inherited.runner {
        runner.inherit(field, value);
    }
    to.put(
        "spec.template.runner.serviceAccountName",
        runner.text("serviceAccountName"),
    );
    pod::environment(&mut runner, &mut to, "spec.template", notes);
    if settings(runner, &mut to, "spec.template", notes) || inherited.waits {
        to.wait();
    }
    let annotations = document
        .metadata
        .get("annotations")
        .and_then(Value::as_object);
    let triggers = annotations
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.ends_with("-trigger-paths"));
    for trigger in triggers
        .filter_map(|(_, paths)| paths.as_str())
        .flat_map(|paths| paths.split(','))
    {
        let trigger = trigger.trim();
        to.push("spec.triggerPaths", glob(path.as_deref(), trigger).into());
        // Burrito documents paths from the root and matches paths from the layer's directory.
        if path.is_some() && !trigger.starts_with(['/', '.']) {
            to.push("spec.triggerPaths", glob(None, trigger).into());
            notes.say(
                "metadata.annotations (trigger paths)",
                &format!("has {trigger}, which counts here both from the root and from the layer's directory: remove the wrong one from spec.triggerPaths"),
            );
        }
    }
    document.spec.end(&HINTS, notes);
    made.push(to);
}

/// Converts `terraform`, `opentofu` and `terragrunt`: the tool to start.
fn tool(spec: &mut Fields, notes: &mut Notes) -> Option<Value> {
    let mut found: Option<(&str, Value)> = None;
    for (field, name) in [
        ("terragrunt", "Terragrunt"),
        ("opentofu", "OpenTofu"),
        ("terraform", "Terraform"),
    ] {
        let (enabled, version) = (
            spec.flag(&format!("{field}.enabled")),
            spec.text(&format!("{field}.version")),
        );
        if enabled == Some(false) || (enabled.is_none() && version.is_none()) {
            continue;
        }
        if found
            .as_ref()
            .is_some_and(|(outer, _)| *outer == "Terragrunt")
        {
            if version.is_some() {
                notes.say(
                    &spec.path(&format!("{field}.version")),
                    "is read from the code when the tool is Terragrunt",
                );
            }
            continue;
        }
        let mut tool = Tree(json!({"name": name}));
        tool.put("version", version);
        found = Some((name, tool.0));
    }
    found.map(|(_, tool)| tool)
}

fn strategy(spec: &mut Fields) -> (Option<bool>, Option<u64>) {
    (
        spec.flag("remediationStrategy.autoApply"),
        spec.number("remediationStrategy.onError.maxRetries"),
    )
}

/// The common fields of `overrideRunnerSpec` in repositories and layers. Returns whether plans have to wait.
fn settings(mut runner: Fields, to: &mut Tree, at: &str, notes: &mut Notes) -> bool {
    let mut waits = false;
    pod::settings(&mut runner, to, at);
    pod::metadata(&mut runner.within("metadata"), to, at);
    for (name, command) in [
        ("extraInitArgs", "init"),
        ("extraPlanArgs", "plan"),
        ("extraApplyArgs", "apply"),
    ] {
        waits |= pod::arguments(&mut runner, name, command, to, at, notes);
    }
    runner.end(&pod::HINTS, notes);
    waits
}

/// Converts a trigger path, relative to the layer's directory in Burrito, to a glob relative to the root.
fn glob(directory: Option<&str>, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let from = if path.starts_with('/') {
        ""
    } else {
        directory.unwrap_or_default()
    };
    for part in from.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let is_file = parts.last().is_some_and(|last| last.contains(['.', '*']));
    let path = parts.join("/");
    if is_file || path.is_empty() {
        path
    } else {
        format!("{path}/**")
    }
}
