//! What the definition of a run refuses: shapes, and the CEL rules at the root of its schema. `tests/api/cel.rs` holds the rules
//! themselves against the tables in `crds`.

use crds::{
    ApprovalMode, FailureClass, Operation, Phase, RunResult, TerraformRunSpec, TerraformRunStatus, ToolName, names::MAX_RUN_NAME,
};
use serde::Deserialize;
use serde_json::Value;

use super::Refusal;

/// Brings spec and status into the shape that is stored: defaults of the spec, nothing unknown.
///
/// # Errors
/// 422 for a value of another type, or an unknown word.
pub fn shape(run: &mut Value) -> Result<(), Refusal> {
    let spec: TerraformRunSpec =
        serde_json::from_value(run["spec"].take()).map_err(|error| Refusal::invalid(format!("spec: {error}")))?;
    let unknown = spec.operation == Operation::Unknown
        || spec.approval.mode == ApprovalMode::Unknown
        || spec.tool.name == Some(ToolName::Unknown);
    if unknown {
        return Err(Refusal::invalid("spec: unsupported value"));
    }
    run["spec"] = serde_json::to_value(spec).map_err(|error| Refusal::invalid(format!("spec: {error}")))?;
    shape_status(run).map(drop)
}

/// The status alone; returns it.
///
/// # Errors
/// 422 for a value of another type, or an unknown word.
pub fn shape_status(run: &mut Value) -> Result<Option<TerraformRunStatus>, Refusal> {
    let Some(status) = run.get_mut("status").filter(|status| !status.is_null()) else { return Ok(None) };
    let typed: TerraformRunStatus =
        serde_json::from_value(status.take()).map_err(|error| Refusal::invalid(format!("status: {error}")))?;
    let unknown = typed.phase == Some(Phase::Unknown)
        || typed.result == Some(RunResult::Unknown)
        || typed.failure.as_ref().is_some_and(|failure| failure.class == FailureClass::Unknown);
    if unknown {
        return Err(Refusal::invalid("status: unsupported value"));
    }
    *status = serde_json::to_value(&typed).map_err(|error| Refusal::invalid(format!("status: {error}")))?;
    Ok(Some(typed))
}

/// The status of a stored run.
///
/// # Errors
/// Never for a run that was stored.
pub fn read_status(run: &Value) -> Result<Option<TerraformRunStatus>, Refusal> {
    let Some(status) = run.get("status") else { return Ok(None) };
    TerraformRunStatus::deserialize(status).map(Some).map_err(|error| Refusal::invalid(format!("status: {error}")))
}

fn phase(status: Option<&TerraformRunStatus>) -> Option<Phase> {
    status.and_then(|status| status.phase)
}

/// The rules that look at one version of a run.
///
/// # Errors
/// 422 with the rule's words.
pub fn holds(name: &str, status: Option<&TerraformRunStatus>) -> Result<(), Refusal> {
    let no = |text: &str| Err(Refusal::invalid(text));
    if name.len() > MAX_RUN_NAME {
        return no("the name of a run has at most 52 characters");
    }
    let Some(status) = status else { return Ok(()) };
    if status.phase == Some(Phase::Apply) && status.claim.is_none() {
        return no("phase Apply needs a claim");
    }
    match (status.phase, status.result) {
        (Some(phase), Some(result)) if result.phase() != phase => {
            return no("a terminal phase has a result of its own, any other phase has none");
        }
        (None, Some(_)) => return no("a terminal phase has a result of its own, any other phase has none"),
        (Some(phase), None) if phase.is_terminal() => {
            return no("a terminal phase has a result of its own, any other phase has none");
        }
        (Some(_), Some(_) | None) | (None, None) => {}
    }
    let unclaimed = matches!(status.result, Some(RunResult::NoChanges | RunResult::Planned | RunResult::Drifted))
        || status.result.is_some() && status.phase == Some(Phase::Canceled);
    let wrong = match &status.claim {
        Some(_) => unclaimed,
        None => status.result.is_some_and(RunResult::needs_claim),
    };
    if wrong {
        return no("only a claimed run was applied, and a claimed run is never Canceled");
    }
    Ok(())
}

/// The rules that look at two versions of a run.
///
/// # Errors
/// 422 with the rule's words.
pub fn follows(old: Option<&TerraformRunStatus>, new: Option<&TerraformRunStatus>) -> Result<(), Refusal> {
    let no = |text: &str| Err(Refusal::invalid(text));
    if old.is_some() && new.is_none() {
        return no("status cannot be removed");
    }
    match (phase(old), phase(new)) {
        (None, Some(phase)) if phase != Phase::Pending => return no("the first phase is Pending"),
        (Some(_), None) => return no("illegal change of phase"),
        (Some(from), Some(to)) if !from.may_become(to) => return no("illegal change of phase"),
        (None | Some(_), Some(_)) | (None, None) => {}
    }
    let (Some(old), new) = (old, new) else { return settled(None, new) };
    let of_new = |same: &dyn Fn(&TerraformRunStatus) -> bool| new.is_some_and(same);
    if old.claim.is_some() && !of_new(&|new| new.claim == old.claim) {
        return no("a claim never changes");
    }
    if old.result.is_some() && !of_new(&|new| new.result == old.result) {
        return no("a result never changes");
    }
    settled(Some(old), new)
}

fn settled(old: Option<&TerraformRunStatus>, new: Option<&TerraformRunStatus>) -> Result<(), Refusal> {
    let Some(new) = new else { return Ok(()) };
    let fine = match old.and_then(|old| old.settled.as_ref()) {
        Some(before) => new.settled.as_ref() == Some(before),
        None => new.settled.is_none() || new.result == Some(RunResult::Indeterminate),
    };
    if fine { Ok(()) } else { Err(Refusal::invalid("what settled an Indeterminate run never changes")) }
}
