//! The settings of a layer's runs: the repository's defaults and the layer's template, merged field by field.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crds::{
    ApprovalMode, GitSource, Operation, Remediation, RunTemplate, Source, TerraformLayer,
    TerraformRepository, TerraformRunSpec, datastore::StateId, digest::hex_digest, references,
    state_key, text::clip,
};

/// The most lines of `status.effective`.
const LINES: usize = 128;
/// Characters of the longest value that is shown.
const VALUE: usize = 80;
/// Characters of the longest entry of a list that is shown.
const ENTRY: usize = 120;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Effective {
    template: RunTemplate,
    /// The stack of its runs' managed state.
    pub(super) stack: String,
    /// Each setting with its value and origin, one line each.
    pub(super) lines: Vec<String>,
    /// Digest of everything that a run of the layer is created from, except its commit and its trigger.
    pub(super) digest: String,
}

impl Effective {
    /// Merges a layer's template with the defaults of its repository.
    ///
    /// # Errors
    /// If no run can be created from it, with the reason.
    pub(super) fn of(
        layer: &TerraformLayer,
        repository: &TerraformRepository,
    ) -> Result<Self, String> {
        let namespace = layer.metadata.namespace.as_deref().unwrap_or_default();
        let template = merged(namespace, &layer.spec.template, repository)?;
        let stack = stack(&template, &layer.spec.path, &repository.spec.url)?;
        let digest = hex_digest(&Sha256::digest(state_key::canonical(&json!({
            "template": template,
            "stack": stack,
            "repository": layer.repository_key(),
            "path": layer.spec.path,
            "onCommit": layer.spec.remediation.on_commit,
        }))));
        let mut lines = [Vec::new(), Vec::new()];
        show(&mut lines, "", &template.0, Some(&layer.spec.template.0));
        let [mut lines, entries] = lines;
        if !template.0.contains_key("stack") {
            lines.push(format!("stack={stack} (repository and path)"));
        }
        // Long lists hide no other setting.
        lines.extend(entries);
        let more = lines.len().saturating_sub(LINES);
        if more > 0 {
            lines.truncate(LINES - 1);
            lines.push(format!("and {} more", more + 1));
        }
        let effective = Self {
            template,
            stack,
            lines,
            digest,
        };
        effective.spec(layer, &"0".repeat(40), Operation::Plan, Remediation::Manual)?;
        Ok(effective)
    }

    pub(super) fn names_stack(&self) -> bool {
        self.template.0.contains_key("stack")
    }

    /// The name of its runs' state, if that is a managed one.
    pub(super) fn state(&self) -> StateId {
        let workspace = self.template.0.get("workspace").and_then(Value::as_str);
        StateId {
            stack: self.stack.clone(),
            workspace: workspace.unwrap_or("default").to_owned(),
        }
    }

    /// The spec of a run as it is sent, including fields that only a newer CRD knows.
    ///
    /// # Errors
    /// If it is not a valid spec, with the reason.
    pub(super) fn spec(
        &self,
        layer: &TerraformLayer,
        revision: &str,
        operation: Operation,
        remediation: Remediation,
    ) -> Result<Value, String> {
        let mut spec = self.template.0.clone();
        let mut repository = json!({"name": layer.spec.repository.name, "revision": revision, "ref": layer.spec.git_ref, "path": layer.spec.path});
        if let Some(namespace) = &layer.spec.repository.namespace {
            repository["namespace"] = namespace.as_str().into();
        }
        spec.insert("source".into(), json!({"repository": repository}));
        spec.insert("operation".into(), json!(operation));
        spec.insert("stack".into(), self.stack.as_str().into());
        let mode = if remediation == Remediation::Automatic {
            ApprovalMode::Automatic
        } else {
            ApprovalMode::Manual
        };
        match spec.entry("approval").or_insert_with(|| json!({})) {
            Value::Object(approval) => approval.insert("mode".into(), json!(mode)),
            _ => return Err("approval is no object".into()),
        };
        let spec = Value::Object(spec);
        let read: TerraformRunSpec =
            serde_json::from_value(spec.clone()).map_err(|error| clip(&error.to_string(), 300))?;
        match (crds::TerraformRun {
            spec: read,
            ..crds::TerraformRun::default()
        })
        .unknown_word()
        {
            Some(field) => Err(format!("{field} has a value of a newer version")),
            None => Ok(spec),
        }
    }
}

/// The key of the state of a layer's runs, as far as the template determines it: only `init` shows whether the code configures a backend.
pub(super) fn expected_state(
    namespace: &str,
    path: &str,
    template: &RunTemplate,
    repository: &TerraformRepository,
    has_datastore: bool,
) -> Option<String> {
    let merged = merged(namespace, template, repository).ok()?;
    let mut spec = json!({"source": {}, "stack": stack(&merged, path, &repository.spec.url).ok()?});
    for field in ["workspace", "backend"] {
        if let Some(value) = merged.0.get(field) {
            spec[field] = value.clone();
        }
    }
    let spec: TerraformRunSpec = serde_json::from_value(spec).ok()?;
    state_key::expected(namespace, "", &spec, has_datastore)
}

/// The template over the repository's defaults. In another namespace these hold values only: what they name there is of whoever makes the
/// layer (design/0004).
///
/// # Errors
/// If the layer would need more of them, with the fields.
fn merged(
    namespace: &str,
    template: &RunTemplate,
    repository: &TerraformRepository,
) -> Result<RunTemplate, String> {
    let defaults = &repository.spec.defaults;
    let own = repository.metadata.namespace.as_deref().unwrap_or_default();
    let named = references::named(defaults, template);
    if own == namespace || named.is_empty() {
        return Ok(template.over(defaults));
    }
    let fields: Vec<_> = (named.iter())
        .map(|field| format!("spec.defaults.{field}"))
        .collect();
    Err(format!(
        "{} of the repository name objects or states, and so apply only to layers in its namespace {own}: set them in spec.template",
        fields.join(" and ")
    ))
}

/// The stack that the template names, else the one derived from URL and path as for a git source: a manual run and a layer of the same
/// directory share their state.
fn stack(template: &RunTemplate, path: &str, url: &str) -> Result<String, String> {
    if let Some(stack) = template.0.get("stack") {
        return stack
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| "stack is no text".to_owned());
    }
    let git = GitSource {
        url: url.into(),
        revision: "HEAD".into(),
        path: path.into(),
        secret_ref: None,
    };
    let spec = TerraformRunSpec {
        source: Source {
            git: Some(git),
            ..Source::default()
        },
        ..TerraformRunSpec::default()
    };
    Ok(StateId::of("", &spec).stack)
}

/// One line per field, and per entry of a list, with its origin: a list is replaced as a whole. Shows `…` for values of `backend.config` and
/// for values of variables and scripts, which may be credentials.
fn show(
    lines: &mut [Vec<String>; 2],
    path: &str,
    merged: &Map<String, Value>,
    layer: Option<&Map<String, Value>>,
) {
    for (field, value) in merged {
        let path = if path.is_empty() {
            field.clone()
        } else {
            format!("{path}.{field}")
        };
        let own = layer.and_then(|layer| layer.get(field));
        let origin = if own.is_some() { "layer" } else { "repository" };
        match value {
            Value::Object(parts) if !parts.is_empty() => {
                show(lines, &path, parts, own.and_then(Value::as_object));
            }
            Value::Array(items) if !items.is_empty() => {
                let entries = items.iter().enumerate();
                lines[1].extend(entries.map(|(at, item)| entry(&path, at, item, origin)));
            }
            _ if path.starts_with("backend.config.") => lines[0].push(line(&path, "…", origin)),
            _ => lines[0].push(line(&path, &clip(&text(value), VALUE), origin)),
        }
    }
}

/// The line of a list's entry, by its name or path beside its other fields.
fn entry(list: &str, at: usize, item: &Value, origin: &str) -> String {
    let Value::Object(fields) = item else {
        return line(&format!("{list}[{at}]"), &clip(&text(item), VALUE), origin);
    };
    let key = ["name", "path"]
        .into_iter()
        .find(|key| fields.len() > 1 && fields.get(*key).is_some_and(Value::is_string));
    let name = key.map_or_else(|| at.to_string(), |key| text(&fields[key]));
    let mut parts = Vec::new();
    for (field, value) in fields
        .iter()
        .filter(|(field, _)| Some(field.as_str()) != key)
    {
        flat(field, value, &mut parts);
    }
    line(
        &format!("{list}[{}]", clip(&name, VALUE)),
        &clip(&parts.join(", "), ENTRY),
        origin,
    )
}

/// The leaves of a field, each with its path.
fn flat(path: &str, value: &Value, parts: &mut Vec<String>) {
    match value {
        _ if matches!(path, "value" | "inline") => parts.push(format!("{path}: …")),
        Value::Object(fields) => {
            for (field, value) in fields {
                flat(&format!("{path}.{field}"), value, parts);
            }
        }
        _ => parts.push(format!("{path}: {}", text(value))),
    }
}

fn text(value: &Value) -> String {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    text.replace('\n', " ")
}

fn line(path: &str, shown: &str, origin: &str) -> String {
    clip(&format!("{path}={shown} ({origin})"), 256)
}
