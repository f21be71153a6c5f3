//! The CustomResourceDefinitions: what `kube` derives from the types, with the CEL rules at the root of the schema and a bound
//! on every string, list and map.

use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::{
    Phase, RunResult, TerraformLayer, TerraformRepository, TerraformRun,
    names::{MAX_LAYER_NAME, MAX_RUN_NAME},
};

/// A CEL rule at the root of the schema.
///
/// Transition rules stand at the root with `has()` on both sides: a rule on a field is not evaluated when the field appears or
/// disappears (tried on kube-apiserver 1.34.4: a terminal phase, a claim and an "immutable" spec were changed by remove and
/// add).
pub struct RootRule {
    /// Name, for tests and docs.
    pub name: &'static str,
    /// The expression.
    pub rule: String,
    /// What the API server answers when it is false.
    pub message: &'static str,
}

/// The rules at the root.
pub fn root_rules() -> Vec<RootRule> {
    let rule = |name, rule: &str, message| RootRule {
        name,
        rule: rule.replace('\n', " ").split_whitespace().collect::<Vec<_>>().join(" "),
        message,
    };
    vec![
        rule("name", &format!("self.metadata.name.size() <= {MAX_RUN_NAME}"), "the name of a run has at most 52 characters"),
        rule("spec", "has(self.spec) == has(oldSelf.spec) && (!has(self.spec) || self.spec == oldSelf.spec)",
            "spec is immutable; annotate the run with pawl.run/rerun=true for a fresh run, or create another"),
        rule("status", "!has(oldSelf.status) || has(self.status)", "status cannot be removed"),
        rule("first-phase", "!has(self.status) || !has(self.status.phase) || self.status.phase == 'Pending'
            || (has(oldSelf.status) && has(oldSelf.status.phase))", "the first phase is Pending"),
        rule("phase", &format!("!has(oldSelf.status) || !has(oldSelf.status.phase)
            || (has(self.status) && has(self.status.phase) && ({}))", legal_transitions()), "illegal change of phase"),
        rule("claim", "!has(oldSelf.status) || !has(oldSelf.status.claim)
            || (has(self.status) && has(self.status.claim) && self.status.claim == oldSelf.status.claim)", "a claim never changes"),
        rule("result", "!has(oldSelf.status) || !has(oldSelf.status.result)
            || (has(self.status) && has(self.status.result) && self.status.result == oldSelf.status.result)", "a result never changes"),
        rule("settled", "!has(self.status) || (has(oldSelf.status) && has(oldSelf.status.settled)
            ? has(self.status.settled) && self.status.settled == oldSelf.status.settled
            : !has(self.status.settled) || (has(self.status.result) && self.status.result == 'Indeterminate'))",
            "what settled an Indeterminate run never changes"),
        rule("apply-needs-claim", "!has(self.status) || !has(self.status.phase) || self.status.phase != 'Apply' || has(self.status.claim)",
            "phase Apply needs a claim"),
        rule("result-of-phase", &format!("!has(self.status) || (has(self.status.result)
            ? has(self.status.phase) && ({}) : !has(self.status.phase) || !(self.status.phase in ['Succeeded', 'Failed', 'Canceled']))", results_of_phases()),
            "a terminal phase has a result of its own, any other phase has none"),
        rule("result-needs-claim", &format!("!has(self.status) || !has(self.status.result) || (has(self.status.claim)
            ? self.status.phase != 'Canceled' && !(self.status.result in ['NoChanges', 'Planned', 'Drifted']) : !(self.status.result in {}))", claimed_results()),
            "only a claimed run was applied, and a claimed run is never Canceled"),
    ]
}

fn quoted(words: impl IntoIterator<Item = &'static str>) -> String {
    let words: Vec<_> = words.into_iter().map(|w| format!("'{w}'")).collect();
    format!("[{}]", words.join(", "))
}

fn legal_transitions() -> String {
    let mut parts = vec!["self.status.phase == oldSelf.status.phase".to_owned()];
    for phase in Phase::ALL.into_iter().filter(|p| !p.is_terminal()) {
        parts.push(format!(
            "(oldSelf.status.phase == '{phase}' && self.status.phase in {})",
            quoted(phase.successors().iter().map(|p| p.as_str()))
        ));
    }
    parts.join(" || ")
}

fn results_of_phases() -> String {
    let of = |phase| quoted(RunResult::ALL.into_iter().filter(move |r| r.phase() == phase).map(RunResult::as_str));
    [Phase::Succeeded, Phase::Failed, Phase::Canceled]
        .map(|phase| format!("(self.status.phase == '{phase}' && self.status.result in {})", of(phase)))
        .join(" || ")
}

fn claimed_results() -> String {
    quoted(RunResult::ALL.into_iter().filter(|r| r.needs_claim()).map(RunResult::as_str))
}

/// The CustomResourceDefinition of `TerraformRun`, as JSON.
///
/// # Panics
/// When the derived definition has another shape than `kube` gives it; a test would show it.
pub fn terraform_run() -> Value {
    let mut crd = serde_json::to_value(TerraformRun::crd()).unwrap_or_default();
    crd["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
    let version = &mut crd["spec"]["versions"][0];
    let root = &mut version["schema"]["openAPIV3Schema"];
    root["description"] = "One run of Terraform or OpenTofu: one plan, and at most one apply of it.".into();
    root["required"] = json!(["spec"]);
    root["x-kubernetes-validations"] = root_rules().into_iter().map(|r| json!({"rule": r.rule, "message": r.message})).collect();
    shape(root);
    bound(root, true);
    crd
}

/// The CustomResourceDefinition of `TerraformRepository`, as JSON.
pub fn terraform_repository() -> Value {
    let mut crd = serde_json::to_value(TerraformRepository::crd()).unwrap_or_default();
    let root = definition(&mut crd, "A Git repository that layers are made of.");
    let spec = &mut root["properties"]["spec"]["properties"];
    described(&mut spec["defaults"], template(&RUN_ONLY, &OWNERS));
    spec["interval"]["x-kubernetes-validations"] = rules(&[(
        "duration(self) >= duration('30s') && duration(self) <= duration('24h')",
        "interval is at least 30s and at most 24h",
    )]);
    root["properties"]["status"]["properties"]["refs"]["x-kubernetes-list-type"] = "map".into();
    root["properties"]["status"]["properties"]["refs"]["x-kubernetes-list-map-keys"] = json!(["name"]);
    bound(&mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], true);
    crd
}

/// The CustomResourceDefinition of `TerraformLayer`, as JSON.
pub fn terraform_layer() -> Value {
    let mut crd = serde_json::to_value(TerraformLayer::crd()).unwrap_or_default();
    let root = definition(&mut crd, "A directory of a repository at a ref, kept planned and applied.");
    root["x-kubernetes-validations"] =
        rules(&[(&format!("self.metadata.name.size() <= {MAX_LAYER_NAME}"), "the name of a layer has at most 63 characters")]);
    let spec = &mut root["properties"]["spec"]["properties"];
    described(&mut spec["template"], template(&RUN_ONLY, &[]));
    spec["template"]["x-kubernetes-validations"] = rules(&[(
        "!has(self.credentials) || (has(self.runner) && has(self.runner.serviceAccountName))
            || !(has(self.credentials.aws) || has(self.credentials.gcp) || has(self.credentials.azure) || has(self.credentials.vault))",
        NAMED,
    )]);
    spec["drift"]["x-kubernetes-validations"] = rules(&[(
        "duration(self.interval) >= duration('1m') && duration(self.interval) <= duration('720h')",
        "interval is at least 1m and at most 720h",
    )]);
    let spec = &mut root["properties"]["spec"];
    let mut all = inside("the repository");
    let automatic = rules(&[(
        "!has(self.template) || !has(self.template.runner) || !has(self.template.runner.planServiceAccountName)
            || ![self.remediation.onCommit, self.remediation.onDrift, self.remediation.onDelete].exists(r, r == 'Automatic')",
        "planServiceAccountName needs a remediation without Automatic: what nobody approves is applied in the pod that made the plan",
    )]);
    all.as_array_mut().into_iter().for_each(|all| all.extend(automatic.as_array().cloned().unwrap_or_default()));
    spec["x-kubernetes-validations"] = all;
    bound(&mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], true);
    crd
}

/// Fields of a run's spec that follow from its layer, as pointers. How long a run is kept is its `runHistory`.
const RUN_ONLY: [&str; 7] =
    ["/source", "/operation", "/recover", "/approval/mode", "/targets", "/replace", "/ttlSecondsAfterFinished"];
/// Fields that are of whoever may create the layer, and so are no defaults of a repository.
const OWNERS: [&str; 7] =
    ["/runner/serviceAccountName", "/runner/planServiceAccountName", "/runner/image", "/hooks", "/env", "/envFrom", "/outputs"];
/// Said of a run and of a layer's template.
const NAMED: &str = "credentials of aws, gcp, azure and vault need runner.serviceAccountName: they are the account's, and who uses it needs the verb use";

/// The schema of a run's spec without some of its fields. Nothing is required and nothing has a default, so that what nobody set stays
/// unset; rules that compare fields are the run's.
fn template(without: &[&str], and: &[&str]) -> Value {
    let mut spec = terraform_run()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].take();
    for pointer in without.iter().chain(and) {
        let (parent, field) = pointer.rsplit_once('/').unwrap_or_default();
        let parent = parent.split('/').filter(|part| !part.is_empty()).fold(&mut spec, |at, part| &mut at["properties"][part]);
        if let Some(properties) = parent["properties"].as_object_mut() {
            properties.remove(field);
        }
    }
    unset(&mut spec, true);
    spec
}

/// Takes defaults and what is required away, and the rules that would meet fields nobody set. Items of lists are whole, or not there.
fn unset(schema: &mut Value, open: bool) {
    let Some(object) = schema.as_object_mut() else { return };
    object.remove("default");
    if open {
        object.remove("required");
        if object.contains_key("properties") {
            object.remove("x-kubernetes-validations");
        }
        for inner in object.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
            unset(inner, true);
        }
    }
}

/// Puts a schema in the place of another, under the other's description.
fn described(place: &mut Value, mut schema: Value) {
    schema["description"] = place["description"].take();
    *place = schema;
}

/// What the definitions of repository and layer have in common.
fn definition<'a>(crd: &'a mut Value, description: &str) -> &'a mut Value {
    crd["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
    let root = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    root["description"] = description.into();
    root["required"] = json!(["spec"]);
    let conditions = &mut root["properties"]["status"]["properties"]["conditions"];
    conditions["x-kubernetes-list-type"] = "map".into();
    conditions["x-kubernetes-list-map-keys"] = json!(["type"]);
    root
}

fn rules(rules: &[(&str, &str)]) -> Value {
    rules.iter().map(|(rule, message)| json!({"rule": rule, "message": message})).collect()
}

/// That `path` does not lead out.
fn inside(what: &str) -> Value {
    rules(&[(
        "!self.path.startsWith('/') && !self.path.split('/').exists(part, part == '..')",
        &format!("path stays inside {what}"),
    )])
}

/// What the derived schema cannot say.
fn shape(root: &mut Value) {
    let spec = &mut root["properties"]["spec"]["properties"];
    spec["source"]["x-kubernetes-validations"] = rules(&[(
        "[has(self.git), has(self.inline), has(self.configMapRef), has(self.secretRef), has(self.artifact), has(self.repository)]
            .filter(x, x).size() == 1",
        "exactly one of git, inline, configMapRef, secretRef, artifact and repository",
    )]);
    for object in ["configMapRef", "secretRef"] {
        spec["source"]["properties"][object]["properties"]["items"]["x-kubernetes-validations"] = rules(&[(
            "self.all(item, !item.path.startsWith('-') && !item.path.split('/').exists(part, part in ['.', '..', '.terraform', '.git']))
                && self.all(item, self.exists_one(other, other.path == item.path))",
            "paths are relative, stay inside the stack, and differ",
        )]);
    }
    spec["source"]["properties"]["artifact"]["x-kubernetes-validations"] = inside("the archive");
    spec["source"]["properties"]["repository"]["x-kubernetes-validations"] = inside("the repository");
    for identity in ["aws", "gcp", "azure", "vault"] {
        // Such a token would be another key to the run's own plans and states.
        spec["credentials"]["properties"][identity]["x-kubernetes-validations"] = rules(&[(
            "!has(self.audience) || !self.audience.startsWith('pawl')",
            "audiences that begin with pawl are Pawl's own",
        )]);
    }
    let git = &mut spec["source"]["properties"]["git"];
    git["x-kubernetes-validations"] = rules(&[
        ("!self.path.startsWith('/') && !self.path.split('/').exists(part, part == '..')", "path stays inside the repository"),
        (
            "!self.revision.contains('..') && !self.revision.endsWith('.lock') && !self.revision.contains('@{')",
            "not a branch, tag or commit",
        ),
    ]);
    let files = &mut spec["source"]["properties"]["inline"]["properties"]["files"];
    files["maxProperties"] = 64.into();
    files["minProperties"] = 1.into();
    files["additionalProperties"]["maxLength"] = 131_072.into();
    files["x-kubernetes-validations"] = rules(&[(
        "self.all(path, path.size() <= 255 && path.matches('^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$') && !path.startsWith('-')
            && !path.split('/').exists(part, part in ['.', '..', '.terraform', '.git']))",
        "paths are relative, of letters, digits and _ . -, and stay inside the stack",
    )]);
    for list in ["variables", "env"] {
        let item = &mut spec[list]["items"];
        item["properties"]["valueFrom"]["x-kubernetes-validations"] = rules(&[(
            "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.outputOf)].filter(x, x).size() == 1",
            "exactly one of secretKeyRef, configMapKeyRef and outputOf",
        )]);
        // CEL cannot see an untyped value, so the schema says it.
        item["oneOf"] = json!([{"required": ["value"]}, {"required": ["valueFrom"]}]);
        spec[list]["x-kubernetes-list-type"] = "map".into();
        spec[list]["x-kubernetes-list-map-keys"] = json!(["name"]);
    }
    inputs(spec);
    spec["variables"]["items"]["properties"]["value"] = json!({
        "description": spec["variables"]["items"]["properties"]["value"]["description"],
        "x-kubernetes-preserve-unknown-fields": true,
    });
    spec["backend"]["properties"]["config"] = json!({
        "description": spec["backend"]["properties"]["config"]["description"],
        "type": "object", "default": {}, "x-kubernetes-preserve-unknown-fields": true,
    });
    spec["hooks"]["items"]["x-kubernetes-validations"] = rules(&[
        (
            "[has(self.inline), has(self.configMapKeyRef), has(self.path)].filter(x, x).size() == 1",
            "exactly one of inline, configMapKeyRef and path",
        ),
        ("!has(self.path) || self.when != 'BeforeSetup'", "there is no file of the source before Setup"),
        ("!has(self.path) || !self.path.startsWith('/')", "path is relative to the stack's directory"),
    ]);
    spec["hooks"]["x-kubernetes-list-type"] = "map".into();
    spec["hooks"]["x-kubernetes-list-map-keys"] = json!(["name"]);
    spec["timeouts"]["x-kubernetes-validations"] = rules(&[(
        "[self.start, self.setup, self.init, self.plan, self.apply].all(t, duration(t) >= duration('1s') && duration(t) <= duration('24h'))",
        "a timeout is at least 1s and at most 24h",
    )]);
    root["properties"]["spec"]["x-kubernetes-validations"] = rules(&[(
        "!has(self.runner.planServiceAccountName) || self.approval.mode == 'Manual'",
        "planServiceAccountName needs approval.mode Manual: what nobody approves is applied in the pod that made the plan",
    ), (
        "self.operation != 'RefreshOnly' || !has(self.refresh) || self.refresh",
        "RefreshOnly with refresh: false would look at nothing; leave refresh out",
    ), (
        "!(self.operation in ['Destroy', 'RefreshOnly']) || !has(self.replace) || self.replace.size() == 0",
        "replace makes objects anew, which operations Destroy and RefreshOnly do not; leave replace out, or name operation Apply or Plan",
    ), (
        "!(has(self.source.artifact) || has(self.source.repository)) || has(self.stack)",
        "an artifact or repository needs stack: nothing else says which stack it holds, and so which state it has",
    ), (
        "!has(self.credentials) || has(self.runner.serviceAccountName)
            || !(has(self.credentials.aws) || has(self.credentials.gcp) || has(self.credentials.azure) || has(self.credentials.vault))",
        NAMED,
    )]);
    let spec = &mut root["properties"]["spec"]["properties"];
    spec["approval"]["x-kubernetes-validations"] = rules(&[
        ("duration(self.holdFor) <= duration('24h')", "holdFor is at most 24h"),
        (
            "duration(self.expiresAfter) >= duration('1s') && duration(self.expiresAfter) <= duration('720h')",
            "expiresAfter is at least 1s and at most 720h",
        ),
    ]);
    spec["runner"]["properties"]["labels"]["x-kubernetes-validations"] = own_keys();
    spec["runner"]["properties"]["annotations"]["x-kubernetes-validations"] = own_keys();
    let status = &mut root["properties"]["status"]["properties"];
    status["conditions"]["x-kubernetes-list-type"] = "map".into();
    status["conditions"]["x-kubernetes-list-map-keys"] = json!(["type"]);
}

/// Rules of what is given to the tool as a whole.
fn inputs(spec: &mut Value) {
    const INSIDE: &str = "!self.path.split('/').exists(part, part in ['.', '..'])";
    spec["variableFiles"]["items"]["x-kubernetes-validations"] = rules(&[(
        "[has(self.path), has(self.configMapKeyRef), has(self.secretKeyRef)].filter(x, x).size() == 1",
        "exactly one of path, configMapKeyRef and secretKeyRef",
    )]);
    spec["envFrom"]["items"]["x-kubernetes-validations"] =
        rules(&[("has(self.configMapRef) != has(self.secretRef)", "exactly one of configMapRef and secretRef")]);
    spec["files"]["items"]["x-kubernetes-validations"] = rules(&[
        ("has(self.secretKeyRef) != has(self.configMapKeyRef)", "exactly one of secretKeyRef and configMapKeyRef"),
        (INSIDE, "path is relative, and without the parts . and .."),
    ]);
    spec["files"]["x-kubernetes-list-type"] = "map".into();
    spec["files"]["x-kubernetes-list-map-keys"] = json!(["in", "path"]);
}

fn own_keys() -> Value {
    rules(&[(
        "self.all(key, !key.startsWith('pawl.run/') && !key.startsWith('app.kubernetes.io/'))",
        "keys of pawl.run/ and app.kubernetes.io/ are the controller's",
    )])
}

/// Gives every string, list and map a bound where it has none (types of Kubernetes itself have none), and drops the long
/// descriptions of those types, which `kubectl explain pod.spec` has as well.
fn bound(schema: &mut Value, ours: bool) {
    let Some(object) = schema.as_object_mut() else { return };
    if !ours {
        object.remove("description");
    }
    match object.get("type").and_then(Value::as_str) {
        Some("string") if !object.contains_key("enum") => default_to(object, "maxLength", 1024),
        Some("array") => default_to(object, "maxItems", 32),
        Some("object") if object.contains_key("additionalProperties") => default_to(object, "maxProperties", 64),
        _ => {}
    }
    if object.get("x-kubernetes-int-or-string").is_some() {
        default_to(object, "maxLength", 64);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(key) {
            bound(inner, ours);
        }
    }
    if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, inner) in properties {
            let foreign =
                matches!(name.as_str(), "affinity" | "tolerations" | "topologySpreadConstraints" | "resources" | "conditions");
            let description = inner.get("description").cloned();
            bound(inner, ours && !foreign);
            if let (true, true, Some(text)) = (ours, foreign, description) {
                inner["description"] = text;
            }
        }
    }
}

fn default_to(object: &mut Map<String, Value>, key: &str, value: u32) {
    object.entry(key).or_insert_with(|| value.into());
}

/// The definitions as the chart ships them: names of files, and their texts.
///
/// # Errors
/// When one cannot be written as YAML, which a test would show.
pub fn files() -> Result<[(&'static str, String); 3], serde_saphyr::ser::Error> {
    let head = "# Generated from crds/src by `cargo run --release --bin crdgen`; `cargo ci` holds it equal.\n";
    let text = |crd: &Value| serde_saphyr::to_string(crd).map(|text| format!("{head}{text}"));
    Ok([
        ("terraformlayers.yaml", text(&terraform_layer())?),
        ("terraformrepositories.yaml", text(&terraform_repository())?),
        ("terraformruns.yaml", text(&terraform_run())?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unbounded(path: &str, schema: &Value, found: &mut Vec<String>) {
        let Some(object) = schema.as_object() else { return };
        let lacks = |key| !object.contains_key(key);
        match object.get("type").and_then(Value::as_str) {
            Some("string") if lacks("maxLength") && lacks("enum") => found.push(path.into()),
            Some("array") if lacks("maxItems") => found.push(path.into()),
            Some("object")
                if lacks("properties")
                    && lacks("maxProperties")
                    && lacks("x-kubernetes-preserve-unknown-fields")
                    && path != ".metadata" =>
            {
                found.push(path.into());
            }
            _ => {}
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = object.get(key) {
                unbounded(&format!("{path}[]"), inner, found);
            }
        }
        for (name, inner) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
            unbounded(&format!("{path}.{name}"), inner, found);
        }
    }

    #[test]
    fn everything_has_a_bound() {
        let mut found = Vec::new();
        for crd in [terraform_run(), terraform_repository(), terraform_layer()] {
            unbounded("", &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], &mut found);
        }
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn kubectl_apply_can_carry_it() {
        // All annotations of an object together have at most 256 KiB.
        for (name, text) in files().unwrap() {
            assert!(text.len() < 196_608, "`kubectl apply` keeps a copy of {name} in an annotation: {}", text.len());
        }
    }

    #[test]
    fn every_field_of_ours_is_described() {
        fn walk(path: &str, schema: &Value, missing: &mut Vec<String>) {
            for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
                let path = format!("{path}.{name}");
                if inner.get("description").is_none() {
                    missing.push(path.clone());
                }
                if !matches!(name.as_str(), "affinity" | "tolerations" | "topologySpreadConstraints" | "resources" | "conditions")
                {
                    walk(&path, inner, missing);
                    walk(&format!("{path}[]"), &inner["items"], missing);
                }
            }
        }
        let mut missing = Vec::new();
        for crd in [terraform_run(), terraform_repository(), terraform_layer()] {
            let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
            walk("spec", &root["spec"], &mut missing);
            walk("status", &root["status"], &mut missing);
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }

    /// `kubectl explain` prints descriptions, and neither defaults nor bounds.
    #[test]
    fn descriptions_of_the_spec_name_defaults_and_bounds() {
        fn walk(path: &str, schema: &Value, missing: &mut Vec<String>) {
            for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
                let path = format!("{path}.{name}");
                let text = inner["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
                let mut words = Vec::new();
                match &inner["default"] {
                    Value::Null | Value::Object(_) | Value::Array(_) => {}
                    Value::String(default) => words.push(format!("Default: `{default}`")),
                    default => words.push(format!("Default: `{default}`")),
                }
                // Names as long as those of Kubernetes, and durations and words, which their own form bounds.
                let length = inner["maxLength"].as_u64().filter(|length| ![16, 253].contains(length));
                let most = ["maximum", "maxItems", "maxProperties"].iter().find_map(|bound| inner[bound].as_f64());
                words.extend(length.map(|length| format!("at most {length} characters")));
                words.extend(most.map(|most| format!("at most {most}")));
                words.extend(inner["minimum"].as_f64().filter(|least| *least > 0.0).map(|least| format!("at least {least}")));
                let lacks = |word: &&String| !text.contains(word.as_str()) && !text.contains(&word.replacen("at", "At", 1));
                missing.extend(words.iter().filter(lacks).map(|word| format!("{path}: {word}")));
                if !matches!(name.as_str(), "affinity" | "tolerations" | "topologySpreadConstraints" | "resources") {
                    walk(&path, inner, missing);
                    walk(&format!("{path}[]"), &inner["items"], missing);
                }
            }
        }
        let mut missing = Vec::new();
        for crd in [terraform_run(), terraform_repository(), terraform_layer()] {
            walk("spec", &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"], &mut missing);
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn the_committed_definitions_are_the_generated_ones() {
        for (name, text) in files().unwrap() {
            let path = format!("{}/../charts/pawl/files/crds/{name}", env!("CARGO_MANIFEST_DIR"));
            let committed = std::fs::read_to_string(path).unwrap_or_default();
            assert!(committed == text, "run `cargo run --release --bin crdgen` and commit {name}");
        }
    }
}
