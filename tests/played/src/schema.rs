//! Validation by the CRD of a run: types, and the CEL rules at the root of its schema. `tests/api/cel.rs` compares the rules with the
//! tables in `crds`.

use std::sync::LazyLock;

use cel::Program;
use crds::{
    ApprovalMode, FailureClass, Operation, Phase, RunResult, TerraformRunSpec, TerraformRunStatus,
    ToolName, crd::root_rules,
};
use serde_json::Value;

use super::{
    Refusal,
    cel::{compile, context, is_true},
    memo,
};

/// Brings spec and status into their stored form: sets defaults of the spec, and drops unknown fields.
///
/// # Errors
/// 422 for a value of a wrong type, or an unknown enum value.
pub fn shape(run: &mut Value) -> Result<(), Refusal> {
    let spec: TerraformRunSpec = serde_json::from_value(run["spec"].take())
        .map_err(|error| Refusal::invalid(format!("spec: {error}")))?;
    let unknown = spec.operation == Operation::Unknown
        || spec.approval.mode == ApprovalMode::Unknown
        || spec.tool.name == Some(ToolName::Unknown);
    if unknown {
        return Err(Refusal::invalid("spec: unsupported value"));
    }
    run["spec"] =
        serde_json::to_value(spec).map_err(|error| Refusal::invalid(format!("spec: {error}")))?;
    shape_status(run)
}

/// Like [`shape`], for the status only.
///
/// # Errors
/// 422 for a value of a wrong type, or an unknown enum value.
pub fn shape_status(run: &mut Value) -> Result<(), Refusal> {
    let Some(status) = run.get_mut("status").filter(|status| !status.is_null()) else {
        return Ok(());
    };
    let typed: TerraformRunStatus = serde_json::from_value(status.take())
        .map_err(|error| Refusal::invalid(format!("status: {error}")))?;
    let unknown = typed.phase == Some(Phase::Unknown)
        || typed.result == Some(RunResult::Unknown)
        || typed
            .failure
            .as_ref()
            .is_some_and(|failure| failure.class == FailureClass::Unknown);
    if unknown {
        return Err(Refusal::invalid("status: unsupported value"));
    }
    *status = serde_json::to_value(&typed)
        .map_err(|error| Refusal::invalid(format!("status: {error}")))?;
    Ok(())
}

/// A parsed rule at the root of the schema.
struct Rule {
    holds: Program,
    message: &'static str,
    /// Whether it uses `oldSelf` and so does not apply to a creation.
    looks_back: bool,
}

static RULES: LazyLock<Result<Vec<Rule>, String>> = LazyLock::new(|| {
    let rule = |rule: crds::crd::RootRule| {
        Ok(Rule {
            holds: compile(&rule.rule)?,
            message: rule.message,
            looks_back: rule.rule.contains("oldSelf"),
        })
    };
    root_rules().into_iter().map(rule).collect()
});

/// Evaluates the root rules for a creation or an update.
///
/// # Errors
/// 422 with the message of the first violated rule.
pub fn rules(old: Option<&Value>, new: &Value) -> Result<(), Refusal> {
    memo::answer(&("rules", old, new), || evaluated(old, new))
}

fn evaluated(old: Option<&Value>, new: &Value) -> Result<(), Refusal> {
    let rules = RULES.as_ref().map_err(Refusal::invalid)?;
    let none = Value::Null;
    let context = context(&[("self", new), ("oldSelf", old.unwrap_or(&none))]);
    for rule in rules
        .iter()
        .filter(|rule| old.is_some() || !rule.looks_back)
    {
        if !is_true(&rule.holds, &context)
            .map_err(|error| Refusal::invalid(format!("{}: {error}", rule.message)))?
        {
            return Err(Refusal::invalid(rule.message));
        }
    }
    Ok(())
}
