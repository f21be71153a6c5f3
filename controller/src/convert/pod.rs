//! Converts pod settings that operators take from Kubernetes.

use serde_json::{Value, json};

use super::{
    read::{Fields, Notes},
    write::Tree,
};

/// Pod fields that Pawl covers by other means.
pub(super) const HINTS: [(&str, &str); 10] = [
    (
        "image",
        "the runner's image is Pawl's; template.tool selects the tool and its version",
    ),
    (
        "command",
        "Pawl's agent runs the tool; template.hooks holds scripts",
    ),
    (
        "args",
        "Pawl's agent runs the tool; template.hooks holds scripts",
    ),
    (
        "initContainers",
        "template.hooks holds scripts, template.files files",
    ),
    (
        "volumes",
        "template.files puts keys of Secrets and ConfigMaps where the tool finds them",
    ),
    (
        "volumeMounts",
        "template.files puts keys of Secrets and ConfigMaps where the tool finds them",
    ),
    (
        "securityContext",
        "pods of runs are restricted, and no setting weakens that",
    ),
    ("hostAliases", "names are resolved by the cluster"),
    (
        "script",
        "a hook holds a script in the run, in a ConfigMap or in the source",
    ),
    (
        "policyRules",
        "give template.runner.serviceAccountName an account with these rights",
    ),
];

/// Fields of an object of `env` or `envFrom`.
pub(super) const VARIABLE: [(&str, &str); 2] = [
    ("optional", "the object has to exist"),
    (
        "valueFrom.fieldRef",
        "values are resolved before the run has a pod",
    ),
];

/// Settings with equal names and types.
const SAME: [&str; 9] = [
    "imagePullPolicy",
    "imagePullSecrets",
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "priorityClassName",
    "runtimeClassName",
    "resources",
];

/// Takes the settings that `runner` has too; `at` is `spec.template` or `spec.defaults`.
pub(super) fn settings(of: &mut Fields, to: &mut Tree, at: &str) {
    for name in SAME {
        to.put(&format!("{at}.runner.{name}"), of.any(name));
    }
}

/// Converts labels and annotations of the pods.
pub(super) fn metadata(of: &mut Fields, to: &mut Tree, at: &str) {
    for name in ["labels", "annotations"] {
        let mut own = of.map(name);
        own.retain(|key, _| {
            !key.starts_with("app.kubernetes.io/") && !key.starts_with("pawl.run/")
        });
        for (key, value) in own {
            // Keys contain dots, so `put` cannot be used.
            let path = format!("{at}.runner.{name}");
            if !to.has(&path) {
                to.put(&path, Some(json!({})));
            }
            if let Some(map) =
                to.0.pointer_mut(&format!("/{}", path.replace('.', "/")))
                    .and_then(Value::as_object_mut)
            {
                map.insert(key, value);
            }
        }
    }
}

/// Converts the environment in `env` and `envFrom`.
pub(super) fn environment(of: &mut Fields, to: &mut Tree, at: &str, notes: &mut Notes) {
    for mut variable in of.items("env") {
        let Some(name) = variable.text("name") else {
            continue;
        };
        if name == "TF_WORKSPACE" {
            to.put(&format!("{at}.workspace"), variable.text("value"));
        } else if name.starts_with("TF_CLI_ARGS") || name == "TF_DATA_DIR" {
            drop(variable.text("value"));
            notes.say(
                &variable.path("name"),
                &format!(
                    "{name} has no counterpart: template.arguments holds arguments of the tool"
                ),
            );
        } else if let Some(value) = variable.text("value") {
            to.push(&format!("{at}.env"), json!({"name": name, "value": value}));
        } else if variable.has("valueFrom") {
            if let Some(from) = value_from(&mut variable) {
                to.push(
                    &format!("{at}.env"),
                    json!({"name": name, "valueFrom": from}),
                );
            }
        } else {
            to.push(&format!("{at}.env"), json!({"name": name, "value": ""}));
        }
        variable.end(&VARIABLE, notes);
    }
    for mut all in of.items("envFrom") {
        let mut from = Tree(json!({}));
        from.put("prefix", all.text("prefix"));
        for kind in ["secretRef", "configMapRef"] {
            let name = format!("{kind}.name");
            from.put(&name, all.text(&name));
        }
        if from.has("secretRef") || from.has("configMapRef") {
            to.push(&format!("{at}.envFrom"), from.0);
        }
        all.end(&VARIABLE, notes);
    }
}

/// Converts `valueFrom` with a key of a Secret or ConfigMap.
pub(super) fn value_from(of: &mut Fields) -> Option<Value> {
    let mut found = None;
    for kind in ["secretKeyRef", "configMapKeyRef"] {
        let [name, key] =
            ["name", "key"].map(|field| of.text(&format!("valueFrom.{kind}.{field}")));
        if let (Some(name), Some(key)) = (name, key) {
            found = Some(json!({kind: {"name": name, "key": key}}));
        }
    }
    found
}

/// Converts additional arguments of the tool, if they are allowed; an argument with a corresponding field becomes that
/// field. Returns whether one of them says where the state is: then plans have to wait.
pub(super) fn arguments(
    of: &mut Fields,
    name: &str,
    command: &str,
    to: &mut Tree,
    at: &str,
    notes: &mut Notes,
) -> bool {
    let (field, mut waits) = (of.path(name), false);
    let mut words = of.words(name).into_iter();
    while let Some(mut argument) = words.next() {
        // `-var NAME=VALUE` in two words is `-var=NAME=VALUE`.
        if ["var", "var-file", "backend-config"].contains(&argument.trim_start_matches('-')) {
            argument = format!("{argument}={}", words.next().unwrap_or_default());
        }
        let (key, value) = argument
            .split_once('=')
            .map_or((argument.as_str(), None), |(key, value)| (key, Some(value)));
        let key = key.trim_start_matches('-');
        let allowed: &[&str] = match command {
            "init" => &["upgrade", "lockfile", "compact-warnings"],
            "plan" => &[
                "exclude",
                "target-file",
                "exclude-file",
                "generate-config-out",
                "compact-warnings",
            ],
            _ => &["compact-warnings"],
        };
        match (key, value) {
            (key, _) if allowed.contains(&key) => {
                to.push(
                    &format!("{at}.arguments.{command}"),
                    format!("-{}", argument.trim_start_matches('-')).into(),
                );
            }
            ("var-file", Some(path)) if command == "plan" => {
                to.push(&format!("{at}.variableFiles"), json!({"path": path}));
            }
            ("var", Some(pair)) if command == "plan" => match pair.split_once('=') {
                Some((name, value)) => to.push(
                    &format!("{at}.variables"),
                    json!({"name": name, "value": value}),
                ),
                None => notes.say(
                    &field,
                    &format!("holds {argument}, which names no variable"),
                ),
            },
            ("backend-config", _) => {
                waits = true;
                notes.say(
                    &field,
                    &format!("holds {argument}, so plans wait: write it into {at}.backend.config, with the type of the code's backend, before you apply the object"),
                );
            }
            ("parallelism", Some(value)) => {
                to.put(&format!("{at}.parallelism"), value.parse::<u16>().ok());
            }
            ("refresh", Some(value)) => {
                to.put(&format!("{at}.refresh"), value.parse::<bool>().ok());
            }
            _ => notes.say(
                &field,
                &format!("holds {argument}, which has no counterpart"),
            ),
        }
    }
    waits
}
