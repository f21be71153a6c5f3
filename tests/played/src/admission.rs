//! Evaluates the CEL expressions of the chart's admission policies.

use std::sync::{Arc, LazyLock};

use cel::{Context, Program, Value as Found, common::value::CowVal, extractors::This};
use crds::{names, release};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, Validation};
use serde_json::{Value, json};

use super::{
    LAYERS, RUNS, Refusal, User,
    cel::{compile, context, is_true},
    memo,
};

/// The chart's templates, each with one policy and its binding.
const TEMPLATES: [&str; 7] = [
    include_str!("../../../charts/pawl/templates/policies/approval.yaml"),
    include_str!("../../../charts/pawl/templates/policies/attempt.yaml"),
    include_str!("../../../charts/pawl/templates/policies/creation.yaml"),
    include_str!("../../../charts/pawl/templates/policies/finalizer.yaml"),
    include_str!("../../../charts/pawl/templates/policies/layer.yaml"),
    include_str!("../../../charts/pawl/templates/policies/repository.yaml"),
    include_str!("../../../charts/pawl/templates/policies/status.yaml"),
];

static POLICIES: LazyLock<Result<Vec<Policy>, String>> = LazyLock::new(|| {
    policies()?
        .iter()
        .map(Policy::of)
        .collect::<Result<Vec<_>, _>>()
});

/// The policies as the chart installs them with default values.
///
/// # Errors
/// When a template cannot be parsed.
pub fn policies() -> Result<Vec<ValidatingAdmissionPolicy>, String> {
    let read = |template: &&str| {
        let rendered = rendered(template);
        let policy = rendered.split("\n---\n").next().unwrap_or_default();
        serde_saphyr::from_str(policy).map_err(|error| error.to_string())
    };
    TEMPLATES.iter().map(read).collect()
}

/// Renders a template with default values. Leaves out labels and the content of `with` blocks.
fn rendered(template: &str) -> String {
    let template = template
        .replace(r#"{{ include "pawl.minor" . }}"#, release::minor())
        .replace("{{ (.Values.approval).fourEyes | default false }}", "false");
    let mut out = false;
    let mut lines = Vec::new();
    for line in template.lines() {
        if line.contains("{{") {
            out = line.contains("{{- with") || (out && !line.contains("{{- end"));
        } else if !out {
            lines.push(line);
        }
    }
    lines.join("\n")
}

/// A parsed policy.
struct Policy {
    name: String,
    /// Operation and resource of each write that it matches.
    writes: Vec<(String, String)>,
    conditions: Vec<Program>,
    variables: Vec<(String, Program)>,
    rules: Vec<Rule>,
}

/// One validation of a policy.
struct Rule {
    expression: String,
    holds: Program,
    message: String,
    says: Option<Program>,
    code: u16,
    reason: &'static str,
}

impl Rule {
    fn of(rule: &Validation) -> Result<Self, String> {
        // The API server's default for a policy without a reason.
        let (code, reason) = if rule.reason.as_deref() == Some("Forbidden") {
            (403, "Forbidden")
        } else {
            (422, "Invalid")
        };
        Ok(Self {
            expression: rule.expression.clone(),
            holds: compile(&rule.expression)?,
            message: rule.message.clone().unwrap_or_default(),
            says: rule
                .message_expression
                .as_deref()
                .map(compile)
                .transpose()?,
            code,
            reason,
        })
    }
}

impl Policy {
    fn of(policy: &ValidatingAdmissionPolicy) -> Result<Self, String> {
        let spec = policy.spec.clone().unwrap_or_default();
        let rules = spec
            .match_constraints
            .unwrap_or_default()
            .resource_rules
            .unwrap_or_default();
        let writes = rules.iter().flat_map(|rule| {
            let (operations, resources) = (
                rule.operations.clone().unwrap_or_default(),
                rule.resources.clone().unwrap_or_default(),
            );
            operations.into_iter().flat_map(move |o| {
                resources
                    .clone()
                    .into_iter()
                    .map(move |resource| (o.clone(), resource))
            })
        });
        let variable = |v: k8s_openapi::api::admissionregistration::v1::Variable| {
            Ok((format!("variables.{}", v.name), compile(&v.expression)?))
        };
        Ok(Self {
            name: policy.metadata.name.clone().unwrap_or_default(),
            writes: writes.collect(),
            conditions: spec
                .match_conditions
                .unwrap_or_default()
                .iter()
                .map(|c| compile(&c.expression))
                .collect::<Result<_, _>>()?,
            variables: spec
                .variables
                .unwrap_or_default()
                .into_iter()
                .map(variable)
                .collect::<Result<_, String>>()?,
            rules: spec
                .validations
                .unwrap_or_default()
                .iter()
                .map(Rule::of)
                .collect::<Result<_, _>>()?,
        })
    }

    fn admit(&self, context: &Context) -> Result<(), Refusal> {
        let failed = |expression: &str, error: &str| {
            let text = format!("expression '{expression}' resulted in error: {error}");
            Refusal {
                code: 422,
                reason: "Invalid",
                message: denied(&self.name, &text),
            }
        };
        for condition in &self.conditions {
            if !is_true(condition, context).map_err(|error| failed("a match condition", &error))? {
                return Ok(());
            }
        }
        let mut context = context.new_inner_scope();
        for (name, variable) in &self.variables {
            // A variable that cannot be evaluated fails only the expressions that use it.
            let value = Found::resolve_val(variable.expression(), &context).map(CowVal::into_owned);
            if let Ok(value) = value {
                context.add_variable_as_val(name.as_str(), value);
            }
        }
        for rule in &self.rules {
            if !is_true(&rule.holds, &context).map_err(|error| failed(&rule.expression, &error))? {
                let said = match rule.says.as_ref().map(|says| says.execute(&context)) {
                    Some(Ok(Found::String(text))) => text.to_string(),
                    _ => rule.message.clone(),
                };
                return Err(Refusal {
                    code: rule.code,
                    reason: rule.reason,
                    message: denied(&self.name, &said),
                });
            }
        }
        Ok(())
    }
}

fn denied(policy: &str, message: &str) -> String {
    format!(
        "is forbidden: ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {message}"
    )
}

/// Admits a write of a run, or of its status with `status`. Without `old` it is a creation.
///
/// # Errors
/// The refusal of the first policy that refuses it.
pub fn admit(user: &User, old: Option<&Value>, new: &Value, status: bool) -> Result<(), Refusal> {
    admit_write(
        user,
        if status { "terraformruns/status" } else { RUNS },
        old,
        new,
    )
}

/// Admits a write of a layer. Without `old` it is a creation. No policy checks its status.
///
/// # Errors
/// The refusal of the first policy that refuses it.
pub fn admit_layer(user: &User, old: Option<&Value>, new: &Value) -> Result<(), Refusal> {
    admit_write(user, LAYERS, old, new)
}

fn admit_write(
    user: &User,
    written: &str,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), Refusal> {
    memo::answer(&("policies", user, written, old, new), || {
        evaluated(user, written, old, new)
    })
}

fn evaluated(user: &User, written: &str, old: Option<&Value>, new: &Value) -> Result<(), Refusal> {
    let broken = |text: &String| Refusal {
        code: 500,
        reason: "InternalError",
        message: text.clone(),
    };
    let policies = POLICIES.as_ref().map_err(broken)?;
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    let extra = user
        .pod
        .as_ref()
        .map(|(pod, uid)| json!({"authentication.kubernetes.io/pod-name": [pod], "authentication.kubernetes.io/pod-uid": [uid]}));
    let (resource, subresource) = written.split_once('/').unwrap_or((written, ""));
    let request = json!({"operation": operation, "userInfo": {"username": user.name, "extra": extra},
        "resource": {"group": names::GROUP, "version": "v1alpha1", "resource": resource}, "subResource": subresource});
    let (none, nothing) = (Value::Null, Value::String(String::new()));
    let namespace = json!({"metadata": {"name": new["metadata"]["namespace"]}});
    let mut context = context(&[
        ("object", new),
        ("oldObject", old.unwrap_or(&none)),
        ("request", &request),
        ("namespaceObject", &namespace),
        ("authorizer", &nothing),
    ]);
    authorize(&mut context, user);
    let of_write = |policy: &&Policy| {
        policy
            .writes
            .iter()
            .any(|(o, r)| o == operation && r == written)
    };
    policies
        .iter()
        .filter(of_write)
        .try_for_each(|policy| policy.admit(&context))
}

/// Defines the `authorizer`: each call appends to a path, and the last one looks it up in the user's permissions.
fn authorize(context: &mut Context, user: &User) {
    for step in ["group", "resource", "namespace", "name"] {
        let said =
            |This(path): This<Arc<String>>, part: Arc<String>| Arc::new(format!("{path}{part}/"));
        drop(context.add_function(step, said));
    }
    let user = user.clone();
    let check = move |This(path): This<Arc<String>>, verb: Arc<String>| {
        let known = [
            "pawl.run/terraformruns/",
            "pawl.run/terraformlayers/",
            "/serviceaccounts/",
            "/configmaps/",
            "/secrets/",
        ];
        known.iter().any(|resource| path.starts_with(resource)) && user.may(&verb)
    };
    drop(context.add_function("check", check));
    drop(context.add_function("allowed", |This(is): This<bool>| is));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_of_the_chart_is_parsed() {
        let policies = POLICIES.as_ref().unwrap();
        let mut names: Vec<_> = policies.iter().map(|policy| policy.name.as_str()).collect();
        names.sort_unstable();
        let mut all = names::POLICIES;
        all.sort_unstable();
        assert_eq!(names, all);
        for (policy, template) in policies.iter().zip(TEMPLATES) {
            // The rule in a `with` block is left out.
            let optional = template.matches("{{- with").count();
            assert_eq!(
                policy.rules.len() + optional,
                template.matches("  - expression:").count(),
                "{}",
                policy.name
            );
            assert!(
                policy.rules.len() > 1 && !policy.writes.is_empty(),
                "{}",
                policy.name
            );
        }
    }

    fn run(metadata: &Value, spec: &Value, status: &Value) -> Value {
        let mut run = json!({"metadata": metadata, "spec": spec, "status": status});
        run["metadata"]["name"] = "a".into();
        run["metadata"]["namespace"] = "n".into();
        run
    }

    fn said(answer: Result<(), Refusal>) -> String {
        answer
            .err()
            .map_or_else(String::new, |refusal| refusal.message)
    }

    #[test]
    fn apply_account_is_claimed_by_a_restoring_attempt_only() {
        let pod = User::pod("n", "a-1", "u1");
        let sum = "sha256:1";
        let claim = |spec: &Value, attempt: Value, number: u32| {
            let adopted = json!({"attempt": number, "podUID": "u1", "nonce": "x"});
            let old = json!({"phase": "AwaitingApproval", "attempt": attempt, "adopted": adopted, "plan": {"checksum": sum, "attempt": 1},
                "approval": {"checksum": sum}});
            let mut new = old.clone();
            new["phase"] = "Apply".into();
            new["claim"] =
                json!({"checksum": sum, "attempt": number, "podUID": "u1", "nonce": "x"});
            let annotations = json!({"annotations": {names::APPROVE: sum}});
            let old = run(&annotations, spec, &old);
            said(admit(
                &pod,
                Some(&old),
                &run(&annotations, spec, &new),
                true,
            ))
        };
        let first = json!({"number": 1, "open": true, "podUID": "u1"});
        let restores = json!({"number": 2, "open": true, "podUID": "u1", "restores": 1});
        let two = json!({"runner": {"planServiceAccountName": "reader"}});
        assert_eq!(claim(&json!({}), first.clone(), 1), "");
        assert!(claim(&two, first, 1).contains("is applied by an attempt that restores it"));
        assert_eq!(claim(&two, restores, 2), "");
    }

    #[test]
    fn run_needs_its_creators_rights_to_what_it_uses() {
        let author = User::with("eva", &["create"]);
        let create = |user: &User, spec: &Value| {
            said(admit(
                user,
                None,
                &run(&json!({}), spec, &Value::Null),
                false,
            ))
        };
        let accounts =
            json!({"runner": {"serviceAccountName": "writer", "planServiceAccountName": "reader"}});
        assert_eq!(create(&author, &json!({})), "");
        assert!(
            create(&author, &accounts)
                .contains("naming the ServiceAccount writer or reader needs the verb use on it")
        );
        assert_eq!(
            create(&User::with("eva", &["create", "use"]), &accounts),
            ""
        );
        for kind in ["configMap", "secret"] {
            let spec = json!({"outputs": {kind: {"name": "net"}}});
            assert_eq!(create(&author, &spec), "");
            assert!(
                create(&User::with("max", &["use"]), &spec).contains("needs the verb create on it")
            );
        }
        let annotate = |user: &User, key: &str, value: &str, status: &Value| {
            let old = run(&json!({}), &json!({}), status);
            said(admit(
                user,
                Some(&old),
                &run(&json!({"annotations": {key: value}}), &json!({}), status),
                false,
            ))
        };
        let failed = json!({"phase": "Failed", "result": "Failed", "claim": {"attempt": 1}});
        let unclaimed = json!({"phase": "Failed", "result": "Failed"});
        assert_eq!(annotate(&author, names::RECOVER, "true", &failed), "");
        for (user, value, status, text) in [
            (&author, "yes", &failed, "is set to true, or not at all"),
            (
                &User::with("max", &[]),
                "true",
                &failed,
                "needs the verb create",
            ),
            (
                &author,
                "true",
                &unclaimed,
                "a recovery needs a run that failed",
            ),
        ] {
            assert!(
                annotate(user, names::RECOVER, value, status).contains(text),
                "{text}"
            );
        }
        for key in [names::RERUN_OF, names::RECOVERY_OF] {
            assert!(annotate(&author, key, "b", &failed).contains("is written by the controller"));
            assert_eq!(
                annotate(&User::with("c", &[names::VERB_CONTROL]), key, "b", &failed),
                ""
            );
        }
    }
}
