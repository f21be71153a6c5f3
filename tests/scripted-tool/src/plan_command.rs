//! `plan`, and the making of a plan for an `apply` without one.

use super::Tool;
use super::plan::{Mode, Plan, changes, random_uuid};
use super::script::Diagnostic;
use super::tool_state::ToolState;
use super::view::line;

pub(super) fn plan(tool: &Tool) -> Result<i32, Diagnostic> {
    let backend = tool.backend()?;
    let lock = tool.lock(&backend, "OperationTypePlan")?;
    let made = backend.read().map_err(Diagnostic::from).and_then(|state| make(tool, &ToolState::from_json(&state)));
    tool.unlock(&backend, lock.as_deref())?;
    let plan = made?;
    if let Some(out) = tool.args.value("out") {
        plan.write(&tool.dir.join(out))?;
        if !tool.view.json {
            let command = tool.view.command();
            line(&format!(
                "\nSaved the plan to: {out}\n\nTo perform exactly these actions, run the following command to apply:\n    {command} apply \"{out}\""
            ));
        }
    }
    Ok(if tool.args.has("detailed-exitcode") && plan.applyable() { 2 } else { 0 })
}

/// Plans on a state, and says so as the tool does.
pub(super) fn make(tool: &Tool, state: &ToolState) -> Result<Plan, Diagnostic> {
    let mode = match () {
        () if tool.args.has("destroy") => Mode::Destroy,
        () if tool.args.has("refresh-only") => Mode::RefreshOnly,
        () => Mode::Normal,
    };
    if tool.args.value("refresh") != Some("false") {
        state.resources.iter().for_each(|(address, known)| tool.view.refresh(address, &known.id));
    }
    let plan = Plan {
        nonce: random_uuid(),
        tool: tool.view.command().to_owned(),
        version: tool.view.version.clone(),
        mode,
        serial: state.serial,
        lineage: state.lineage.clone(),
        workspace: tool.workspace(),
        backend: tool.initialized()?,
        changes: changes(&tool.script, state, mode),
        created: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    };
    if tool.view.json {
        plan.changes.iter().for_each(|change| tool.view.planned_change(change));
        tool.view.planned(plan.counts());
    } else {
        super::show::print_plan(&tool.view, &plan);
    }
    Ok(plan)
}
