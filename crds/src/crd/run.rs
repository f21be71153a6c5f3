//! The definition of `TerraformRun`.

use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::schema::{NAMED, bound, inside, rules};
use crate::{Phase, RunResult, TerraformRun, names::MAX_RUN_NAME};

/// A CEL rule at the root of the schema.
///
/// Transition rules are at the root and use `has()` on both sides: a rule on a field is not evaluated when the field
/// appears or disappears (observed on kube-apiserver 1.34.4: removing and adding a field changed a terminal phase, a
/// claim and an "immutable" spec).
pub struct RootRule {
    /// Name, for tests and docs.
    pub name: &'static str,
    /// The expression.
    pub rule: String,
    /// The API server's message when the rule is violated.
    pub message: &'static str,
}

/// The rules at the root.
///
/// The API server evaluates each rule at every write of a run, and each access to `status` costs it a traversal of all
/// fields. So each rule detects in few steps that the fields it guards are unchanged.
pub fn root_rules() -> Vec<RootRule> {
    let rule = |name, rule: &str, message| RootRule {
        name,
        rule: rule
            .replace('\n', " ")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" "),
        message,
    };
    let unset = |field: &str| format!("!oldSelf.?status.?{field}.hasValue()");
    let same = |field: &str| {
        format!(
            "has(self.status) && has(self.status.{field}) && self.status.{field} == oldSelf.status.{field}"
        )
    };
    let phase = "self.?status.?phase.orValue('')";
    vec![
        rule("name", &format!("self.metadata.name.size() <= {MAX_RUN_NAME}"), "the name of a run has at most 52 characters"),
        rule("spec", "self.spec == oldSelf.spec",
            "spec is immutable; annotate the run with pawl.run/rerun=true for a fresh run, or create another"),
        rule("status", "!has(oldSelf.status) || has(self.status)", "status cannot be removed"),
        rule("first-phase", "oldSelf.?status.?phase.hasValue() || self.?status.?phase.orValue('Pending') == 'Pending'",
            "the first phase is Pending"),
        rule("phase", &format!("{} || {phase} == oldSelf.status.phase || {}", unset("phase"), legal_transitions()),
            "illegal change of phase"),
        rule("claim", &format!("{} || {}", unset("claim"), same("claim")), "a claim never changes"),
        rule("result", &format!("{} || {}", unset("result"), same("result")), "a result never changes"),
        rule("settled", &format!("{} ? !self.?status.?settled.hasValue() || self.?status.?result.orValue('') == '{}' : {}",
            unset("settled"), RunResult::Indeterminate, same("settled")),
            "settled never changes"),
        rule("apply-needs-claim", &format!("{phase} != '{}' || self.?status.?claim.hasValue()", Phase::Apply), "phase Apply needs a claim"),
        rule("result-of-phase", &format!("self.?status.?result.hasValue() ? has(self.status.phase) && ({})
            : !({phase} in ['Succeeded', 'Failed', 'Canceled'])", results_of_phases()),
            "a terminal phase has a result of its own, any other phase has none"),
        rule("result-needs-claim", &format!("!self.?status.?result.hasValue() || (has(self.status.claim)
            ? self.status.phase != 'Canceled' && !(self.status.result in ['NoChanges', 'Planned', 'Drifted']) : !(self.status.result in {}))", claimed_results()),
            "only a claimed run was applied, and a claimed run is never Canceled"),
    ]
}

fn quoted(words: impl IntoIterator<Item = &'static str>) -> String {
    let words: Vec<_> = words.into_iter().map(|w| format!("'{w}'")).collect();
    format!("[{}]", words.join(", "))
}

fn legal_transitions() -> String {
    let of = |phase: Phase| {
        let next = quoted(phase.successors().iter().map(|p| p.as_str()));
        format!("(oldSelf.status.phase == '{phase}' && self.?status.?phase.orValue('') in {next})")
    };
    Phase::ALL
        .into_iter()
        .filter(|phase| !phase.is_terminal())
        .map(of)
        .collect::<Vec<_>>()
        .join(" || ")
}

fn results_of_phases() -> String {
    let of = |phase| {
        quoted(
            RunResult::ALL
                .into_iter()
                .filter(move |r| r.phase() == phase)
                .map(RunResult::as_str),
        )
    };
    [Phase::Succeeded, Phase::Failed, Phase::Canceled]
        .map(|phase| {
            format!(
                "(self.status.phase == '{phase}' && self.status.result in {})",
                of(phase)
            )
        })
        .join(" || ")
}

fn claimed_results() -> String {
    quoted(
        RunResult::ALL
            .into_iter()
            .filter(|r| r.needs_claim())
            .map(RunResult::as_str),
    )
}

/// The CustomResourceDefinition of `TerraformRun`, as JSON.
///
/// # Panics
/// When the derived definition does not have the shape that `kube` produces; a test would detect this.
pub fn terraform_run() -> Value {
    let mut crd = serde_json::to_value(TerraformRun::crd()).unwrap_or_default();
    crd["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
    let version = &mut crd["spec"]["versions"][0];
    let root = &mut version["schema"]["openAPIV3Schema"];
    root["description"] =
        "One run of Terraform or OpenTofu: one plan, and at most one apply of it.".into();
    root["required"] = json!(["spec"]);
    root["x-kubernetes-validations"] = root_rules()
        .into_iter()
        .map(|r| json!({"rule": r.rule, "message": r.message}))
        .collect();
    shape(root);
    bound(root, true);
    crd
}

/// Adds constraints that the derived schema cannot express.
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
    spec["source"]["properties"]["repository"]["x-kubernetes-validations"] =
        inside("the repository");
    for identity in ["aws", "gcp", "azure", "vault"] {
        // A token with such an audience would give access to the run's own plans and states.
        spec["credentials"]["properties"][identity]["x-kubernetes-validations"] = rules(&[(
            "!has(self.audience) || !self.audience.startsWith('pawl')",
            "audiences that begin with pawl are Pawl's own",
        )]);
    }
    let git = &mut spec["source"]["properties"]["git"];
    git["x-kubernetes-validations"] = rules(&[
        (
            "!self.path.startsWith('/') && !self.path.split('/').exists(part, part == '..')",
            "path stays inside the repository",
        ),
        (
            "!self.revision.contains('..') && !self.revision.endsWith('.lock') && !self.revision.contains('@{')",
            "not a branch, tag or commit: it contains .. or @{, or ends in .lock",
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
        // CEL cannot access an untyped value, so the schema expresses the rule.
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
        (
            "!has(self.path) || self.when != 'BeforeSetup'",
            "there is no file of the source before Setup",
        ),
        (
            "!has(self.path) || !self.path.startsWith('/')",
            "path is relative to the stack's directory",
        ),
    ]);
    spec["hooks"]["x-kubernetes-list-type"] = "map".into();
    spec["hooks"]["x-kubernetes-list-map-keys"] = json!(["name"]);
    spec["timeouts"]["x-kubernetes-validations"] = rules(&[(
        "[self.start, self.setup, self.init, self.plan, self.apply].all(t, duration(t) >= duration('1s') && duration(t) <= duration('24h'))",
        "a timeout is at least 1s and at most 24h",
    )]);
    root["properties"]["spec"]["x-kubernetes-validations"] = rules(&[(
        "!has(self.runner.planServiceAccountName) || self.approval.mode == 'Manual'",
        "planServiceAccountName needs approval.mode Manual: a plan without approval is applied by the pod that made it",
    ), (
        "self.operation != 'RefreshOnly' || !has(self.refresh) || self.refresh",
        "RefreshOnly with refresh: false would refresh nothing; leave refresh out",
    ), (
        "!(self.operation in ['Destroy', 'RefreshOnly']) || !has(self.replace) || self.replace.size() == 0",
        "replace makes objects anew, which operations Destroy and RefreshOnly do not; leave replace out, or name operation Apply or Plan",
    ), (
        "!(has(self.source.artifact) || has(self.source.repository)) || has(self.stack)",
        "an artifact or repository needs stack, which names its state",
    ), (
        "!has(self.credentials) || has(self.runner.serviceAccountName)
            || !(has(self.credentials.aws) || has(self.credentials.gcp) || has(self.credentials.azure) || has(self.credentials.vault))",
        NAMED,
    )]);
    let spec = &mut root["properties"]["spec"]["properties"];
    spec["approval"]["x-kubernetes-validations"] = rules(&[
        (
            "duration(self.holdFor) <= duration('24h')",
            "holdFor is at most 24h",
        ),
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

/// Rules for files, environment and arguments of the tool.
fn inputs(spec: &mut Value) {
    const INSIDE: &str = "!self.path.split('/').exists(part, part in ['.', '..'])";
    spec["variableFiles"]["items"]["x-kubernetes-validations"] = rules(&[(
        "[has(self.path), has(self.configMapKeyRef), has(self.secretKeyRef)].filter(x, x).size() == 1",
        "exactly one of path, configMapKeyRef and secretKeyRef",
    )]);
    spec["envFrom"]["items"]["x-kubernetes-validations"] = rules(&[(
        "has(self.configMapRef) != has(self.secretRef)",
        "exactly one of configMapRef and secretRef",
    )]);
    spec["files"]["items"]["x-kubernetes-validations"] = rules(&[
        (
            "has(self.secretKeyRef) != has(self.configMapKeyRef)",
            "exactly one of secretKeyRef and configMapKeyRef",
        ),
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
