//! The CustomResourceDefinitions: `kube`'s derived schema, plus CEL rules at its root and a bound for every string,
//! list and map.

mod run;
mod schema;

use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::{TerraformLayer, TerraformRepository, names::MAX_LAYER_NAME};
use schema::{NAMED, bound, inside, rules};

pub use run::{RootRule, root_rules, terraform_run};

/// The CustomResourceDefinition of `TerraformRepository`, as JSON.
pub fn terraform_repository() -> Value {
    let mut crd = serde_json::to_value(TerraformRepository::crd()).unwrap_or_default();
    let root = definition(&mut crd, "A Git repository that layers use.");
    let spec = &mut root["properties"]["spec"]["properties"];
    described(&mut spec["defaults"], template(&RUN_ONLY, &OWNERS));
    spec["interval"]["x-kubernetes-validations"] = rules(&[(
        "duration(self) >= duration('30s') && duration(self) <= duration('24h')",
        "interval is at least 30s and at most 24h",
    )]);
    root["properties"]["status"]["properties"]["refs"]["x-kubernetes-list-type"] = "map".into();
    root["properties"]["status"]["properties"]["refs"]["x-kubernetes-list-map-keys"] =
        json!(["name"]);
    bound(
        &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
        true,
    );
    crd
}

/// The CustomResourceDefinition of `TerraformLayer`, as JSON.
pub fn terraform_layer() -> Value {
    let mut crd = serde_json::to_value(TerraformLayer::crd()).unwrap_or_default();
    let root = definition(
        &mut crd,
        "A directory of a repository at a ref, planned and applied continuously.",
    );
    root["x-kubernetes-validations"] = rules(&[(
        &format!("self.metadata.name.size() <= {MAX_LAYER_NAME}"),
        "the name of a layer has at most 63 characters",
    )]);
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
    for field in ["runHistoryAge", "appliedHistoryAge"] {
        spec[field]["x-kubernetes-validations"] = rules(&[(
            "duration(self) >= duration('1h') && duration(self) <= duration('8760h')",
            "the age is at least 1h and at most 8760h",
        )]);
    }
    spec["triggerPaths"]["items"]["x-kubernetes-validations"] = rules(&[(
        r"!self.contains('\\') && !self.split('/').exists(part, part == '..')",
        "a trigger path is relative to the top of the repository, without '..' and with '/' between its names",
    )]);
    let spec = &mut root["properties"]["spec"];
    let mut all = inside("the repository");
    let automatic = rules(&[(
        "!has(self.template) || !has(self.template.runner) || !has(self.template.runner.planServiceAccountName)
            || ![self.remediation.onCommit, self.remediation.onDrift, self.remediation.onDelete].exists(r, r == 'Automatic')",
        "planServiceAccountName needs a remediation without Automatic: a plan without approval is applied by the pod that made it",
    )]);
    all.as_array_mut()
        .into_iter()
        .for_each(|all| all.extend(automatic.as_array().cloned().unwrap_or_default()));
    spec["x-kubernetes-validations"] = all;
    bound(
        &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
        true,
    );
    crd
}

/// Fields of a run's spec that the layer determines, as JSON Pointers. The retention of runs is the layer's
/// `runHistory`.
const RUN_ONLY: [&str; 7] = [
    "/source",
    "/operation",
    "/recover",
    "/approval/mode",
    "/targets",
    "/replace",
    "/ttlSecondsAfterFinished",
];
/// Fields reserved to the layer's creator. A repository sets no defaults for them.
const OWNERS: [&str; 7] = [
    "/runner/serviceAccountName",
    "/runner/planServiceAccountName",
    "/runner/image",
    "/hooks",
    "/env",
    "/envFrom",
    "/outputs",
];
/// The schema of a run's spec without some fields. Nothing is required and nothing has a default, so an unset field
/// stays unset. Rules that compare fields apply only to the run.
fn template(without: &[&str], and: &[&str]) -> Value {
    let mut spec =
        terraform_run()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
            .take();
    for pointer in without.iter().chain(and) {
        let (parent, field) = pointer.rsplit_once('/').unwrap_or_default();
        let parent = parent
            .split('/')
            .filter(|part| !part.is_empty())
            .fold(&mut spec, |at, part| &mut at["properties"][part]);
        if let Some(properties) = parent["properties"].as_object_mut() {
            properties.remove(field);
        }
    }
    unset(&mut spec, true);
    spec
}

/// Removes defaults, `required`, and rules that would fail on unset fields. List items keep them: an item is complete
/// or absent.
fn unset(schema: &mut Value, open: bool) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    object.remove("default");
    if open {
        object.remove("required");
        if object.contains_key("properties") {
            object.remove("x-kubernetes-validations");
        }
        for inner in object
            .get_mut("properties")
            .and_then(Value::as_object_mut)
            .into_iter()
            .flat_map(Map::values_mut)
        {
            unset(inner, true);
        }
    }
}

/// Replaces a schema, but keeps its description.
fn described(place: &mut Value, mut schema: Value) {
    schema["description"] = place["description"].take();
    *place = schema;
}

/// The common parts of the definitions of repository and layer.
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

/// The definitions as shipped in the chart: file names and contents.
///
/// # Errors
/// When one cannot be serialized as YAML; a test would detect this.
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
        let Some(object) = schema.as_object() else {
            return;
        };
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
        for (name, inner) in object
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            unbounded(&format!("{path}.{name}"), inner, found);
        }
    }

    /// The schemas of all kinds.
    fn schemas() -> [Value; 3] {
        [terraform_run(), terraform_repository(), terraform_layer()]
            .map(|crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone())
    }

    /// Passes each field of Pawl below a schema on, with its path. Kubernetes describes its own types.
    fn visit(path: &str, schema: &Value, to: &mut impl FnMut(&str, &Value)) {
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            to(&path, inner);
            if !matches!(
                name.as_str(),
                "affinity"
                    | "tolerations"
                    | "topologySpreadConstraints"
                    | "resources"
                    | "conditions"
            ) {
                visit(&path, inner, to);
                visit(&format!("{path}[]"), &inner["items"], to);
            }
        }
    }

    #[test]
    fn every_schema_value_is_bounded() {
        let mut found = Vec::new();
        for schema in schemas() {
            unbounded("", &schema, &mut found);
        }
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn definitions_fit_into_the_annotation_of_kubectl_apply() {
        // All annotations of an object together are limited to 256 KiB.
        for (name, text) in files().unwrap() {
            assert!(
                text.len() < 196_608,
                "`kubectl apply` keeps a copy of {name} in an annotation: {}",
                text.len()
            );
        }
    }

    /// `kubectl explain` prints descriptions, but neither defaults nor bounds.
    #[test]
    fn descriptions_name_defaults_and_bounds_of_the_spec() {
        let mut missing = Vec::new();
        let mut check = |path: &str, inner: &Value| {
            let Some(text) = inner["description"].as_str() else {
                return missing.push(path.to_owned());
            };
            if path.starts_with("status") {
                return;
            }
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let mut words = Vec::new();
            match &inner["default"] {
                Value::Null | Value::Object(_) | Value::Array(_) => {}
                Value::String(default) => words.push(format!("Default: `{default}`")),
                default => words.push(format!("Default: `{default}`")),
            }
            // Skip the lengths of Kubernetes names (253), and of durations and enums (16), which their own format bounds.
            let length = inner["maxLength"]
                .as_u64()
                .filter(|length| ![16, 253].contains(length));
            let most = ["maximum", "maxItems", "maxProperties"]
                .iter()
                .find_map(|bound| inner[bound].as_f64());
            words.extend(length.map(|length| format!("at most {length} characters")));
            words.extend(most.map(|most| format!("at most {most}")));
            words.extend(
                inner["minimum"]
                    .as_f64()
                    .filter(|least| *least > 0.0)
                    .map(|least| format!("at least {least}")),
            );
            let lacks = |word: &&String| {
                !text.contains(word.as_str()) && !text.contains(&word.replacen("at", "At", 1))
            };
            missing.extend(
                words
                    .iter()
                    .filter(lacks)
                    .map(|word| format!("{path}: {word}")),
            );
        };
        for schema in schemas() {
            visit("spec", &schema["properties"]["spec"], &mut check);
            visit("status", &schema["properties"]["status"], &mut check);
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn committed_definitions_equal_the_generated_ones() {
        for (name, text) in files().unwrap() {
            let path = format!(
                "{}/../charts/pawl/files/crds/{name}",
                env!("CARGO_MANIFEST_DIR")
            );
            let committed = std::fs::read_to_string(path).unwrap_or_default();
            assert!(
                committed == text,
                "run `cargo run --release --bin crdgen` and commit {name}"
            );
        }
    }
}
