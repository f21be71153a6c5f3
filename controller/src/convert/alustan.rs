//! Converts Alustan's `Terraform`: up to 0.16 (code in git) and 1.0 (code in an image).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    git,
    read::{Document, Fields, Notes},
    write::{Made, Tree},
};

/// Programs that Pawl runs itself.
const TOOLS: [&str; 3] = ["terraform", "tofu", "terragrunt"];

/// Given ConfigMaps, whose scripts are examined, by namespace, name and key.
#[derive(Default)]
pub(super) struct Scripts(BTreeMap<(String, String, String), String>);

impl Scripts {
    /// Records the content of a ConfigMap. It is not converted, because it exists already.
    pub(super) fn add(&mut self, document: &Document) {
        for (key, text) in document
            .data
            .iter()
            .filter_map(|(key, value)| Some((key, value.as_str()?)))
        {
            self.0.insert(
                (document.namespace(), document.name(), key.clone()),
                text.to_owned(),
            );
        }
    }
}

/// Converts a stack.
pub(super) fn terraform(
    mut document: Document,
    scripts: &Scripts,
    made: &mut Made,
    notes: &mut Notes,
) {
    let mut to = Tree::layer(&document, notes);
    let (own, name) = (document.namespace(), document.name());
    let spec = &mut document.spec;
    let address = spec.text("gitRepo.url").as_deref().and_then(git::address);
    let branch = spec.text("gitRepo.branch");
    let registry: Vec<_> = ["provider", "imageName", "semanticVersion"]
        .iter()
        .filter_map(|field| spec.text(&format!("containerRegistry.{field}")))
        .collect();
    if let Some(address) = address {
        let secret = spec.text("gitRepo.sshKeySecret.name");
        if let Some(secret) = &secret {
            let key = spec.text("gitRepo.sshKeySecret.key").unwrap_or_default();
            notes.say(
                "spec.gitRepo.sshKeySecret",
                &format!("names the Secret {secret}, which needs the keys identity and known_hosts, not {key}"),
            );
        }
        to.put(
            "spec.repository.name",
            Some(made.repository_of(&own, &address.url, secret.as_deref())),
        );
        to.put("spec.ref", branch.or(address.git_ref));
        to.put("spec.path", address.path);
        if !registry.is_empty() {
            notes.say(
                "spec.containerRegistry",
                "has no counterpart: nothing is built, the runner fetches the code",
            );
        }
    } else {
        to.put("spec.repository.name", Some(name));
        let code = if registry.is_empty() {
            "names no code".to_owned()
        } else {
            format!("has its code in the image {}", registry.join(" "))
        };
        notes.say("spec", &format!("{code}: make a TerraformRepository of that name of the Git repository that it is from, and set spec.ref and spec.path"));
    }
    for (key, value) in spec.map("variables") {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        match key.strip_prefix("TF_VAR_") {
            Some(name) => to.push(
                "spec.template.variables",
                json!({"name": name, "value": value}),
            ),
            None => to.push("spec.template.env", json!({"name": key, "value": text})),
        }
    }
    let destroys = scripts_of(spec, &own, scripts, &mut to, notes);
    if destroys {
        to.put("spec.deletionPolicy", Some("Destroy"));
    }
    // Alustan applies every plan and does not detect drift.
    to.put("spec.remediation.onCommit", Some("Automatic"));
    to.put("spec.remediation.onDelete", destroys.then_some("Automatic"));
    to.put("spec.drift.suspend", Some(true));
    backend(spec, &mut to, notes);
    document.spec.end(
        &[
            ("provider", "the code lists its providers"),
            (
                "environment",
                "name the layer by it, or set template.workspace",
            ),
            (
                "postDeploy",
                "a hook with when: AfterApply runs a script; template.outputs publishes outputs",
            ),
        ],
        notes,
    );
    made.push(to);
}

/// Names the bucket and the table that Alustan made. Its object does not have the key of the state.
fn backend(spec: &mut Fields, to: &mut Tree, notes: &mut Notes) {
    let Some(Value::Object(all)) = spec.any("backend") else {
        return;
    };
    let text: Vec<_> = all
        .iter()
        .map(|(key, value)| format!("{key}: {}", value.as_str().unwrap_or_default()))
        .collect();
    to.wait();
    notes.say(
        "spec.backend",
        &format!(
            "({}) says where the state is, but not under which key, so plans wait: see that the code's backend block, or spec.template.backend, \
             names that place and key, and that the first plan creates nothing; then set remediation to Automatic",
            text.join(", ")
        ),
    );
}

/// Converts `scripts`: the name of a program or, before 0.16, a script or the key of a ConfigMap. Returns whether
/// deletion destroys the resources.
fn scripts_of(
    spec: &mut Fields,
    namespace: &str,
    known: &Scripts,
    to: &mut Tree,
    notes: &mut Notes,
) -> bool {
    let mut destroys = false;
    for (field, when, instead) in [
        (
            "deploy",
            "AfterApply",
            "Pawl runs init, plan and apply itself; template.hooks holds scripts",
        ),
        (
            "apply",
            "AfterApply",
            "Pawl runs init, plan and apply itself; template.hooks holds scripts",
        ),
        (
            "destroy",
            "AfterDestroy",
            "a run destroys what the layer made (deletionPolicy)",
        ),
    ] {
        let script = format!("scripts.{field}");
        let at = spec.path(&script);
        destroys |= field == "destroy" && spec.has(&script);
        if let Some(program) = spec.text(&script) {
            notes.say(&at, &format!("({program}) has no counterpart: {instead}"));
        }
        let [inline, name, key] = ["inline", "configMapRef.name", "configMapRef.key"]
            .map(|part| spec.text(&format!("{script}.{part}")));
        let (text, hook) = match (inline, name, key) {
            (Some(text), ..) => (Some(text.clone()), json!({"inline": text})),
            (None, Some(name), Some(key)) => {
                let text = known
                    .0
                    .get(&(namespace.to_owned(), name.clone(), key.clone()))
                    .cloned();
                (text, json!({"configMapKeyRef": {"name": name, "key": key}}))
            }
            (None, None, None) => continue,
            (None, ..) => {
                notes.say(&at, "names no key of a ConfigMap");
                continue;
            }
        };
        match text.as_deref().map(calls_tool) {
            Some(false) => {
                to.push("spec.template.hooks", named(hook, field, when));
                notes.say(&at, &format!("calls no tool: it is a hook with when: {when}, which runs when something was applied, and not at each sync"));
            }
            Some(true) => {
                notes.say(
                    &at,
                    &format!(
                        "calls the tool, and has no counterpart: {instead}. Move its other commands into a hook before or after that"
                    ),
                );
            }
            None => {
                let of = &hook["configMapKeyRef"];
                let [name, key] = ["name", "key"].map(|part| of[part].as_str().unwrap_or_default());
                notes.say(
                    &at,
                    &format!("is the key {key} of ConfigMap {name}, which is not given: give it as well, and a script that calls no tool becomes a hook"),
                );
            }
        }
    }
    destroys
}

fn named(mut hook: Value, name: &str, when: &str) -> Value {
    hook["name"] = name.into();
    hook["when"] = when.into();
    hook
}

/// Whether a script contains the name of a tool as a word, outside comments.
fn calls_tool(script: &str) -> bool {
    let lines = script
        .lines()
        .map(str::trim_start)
        .filter(|line| !line.starts_with('#'));
    let words = lines
        .flat_map(|line| line.split(|c: char| c.is_whitespace() || "\"'`;|&()${}".contains(c)));
    words
        .filter_map(|word| word.rsplit('/').next())
        .any(|word| TOOLS.contains(&word))
}
