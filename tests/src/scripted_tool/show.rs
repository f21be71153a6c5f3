//! `show` and `output`: plans and states for programs and for people.

use std::fmt::Write as _;

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::Tool;
use super::address::Address;
use super::plan::{Act, Change, Counts, Plan};
use super::script::Diagnostic;
use super::tool_state::{ToolState, outputs_json};
use super::view::{View, line};

pub(super) fn show(tool: &Tool) -> Result<i32, Diagnostic> {
    let json = tool.args.has("json");
    if let Some(file) = tool.args.words.first() {
        let bytes = std::fs::read(tool.dir.join(file)).with_context(|| format!("failed to read \"{file}\""))?;
        let plan = Plan::read(&bytes)?;
        if json {
            line(&plan_json(&plan).to_string());
        } else {
            print_plan(&tool.view, &plan);
        }
        return Ok(0);
    }
    let state = ToolState::from_json(&tool.backend()?.read()?);
    if json {
        let resources =
            state.resources.iter().map(|(address, known)| resource_value(address, &values(Some(&known.id), &known.input)));
        let root = json!({"resources": resources.collect::<Vec<_>>()});
        let values = json!({"outputs": outputs_json(&state.outputs, true), "root_module": root});
        line(&json!({"format_version": "1.0", "terraform_version": tool.view.version, "values": values}).to_string());
    } else {
        state.resources.keys().for_each(|address| line(&format!("# {address}:")));
    }
    Ok(0)
}

/// `state pull`.
pub(super) fn pull(tool: &Tool) -> Result<i32, Diagnostic> {
    let verb = tool.args.words.first().map_or("", String::as_str);
    if verb != "pull" {
        return Err(Diagnostic::error(&format!("the command \"state {verb}\" is not played by this tool"), ""));
    }
    let state = tool.backend()?.read()?;
    if !state.is_null() {
        line(&state.to_string());
    }
    Ok(0)
}

pub(super) fn output(tool: &Tool) -> Result<i32, Diagnostic> {
    let state = ToolState::from_json(&tool.backend()?.read()?);
    if tool.args.has("json") {
        line(&serde_json::to_string_pretty(&outputs_json(&state.outputs, true)).context("no outputs")?);
        return Ok(0);
    }
    for (name, output) in &state.outputs {
        line(&if output.sensitive { format!("{name} = <sensitive>") } else { format!("{name} = {}", output.value) });
    }
    Ok(0)
}

fn values(id: Option<&str>, input: &Value) -> Value {
    let mut values = json!({"input": input, "triggers_replace": null});
    if let Some(id) = id {
        values["id"] = json!(id);
        values["output"] = input.clone();
    }
    values
}

fn resource_value(address: &str, values: &Value) -> Value {
    let mut resource = head(address);
    resource["schema_version"] = json!(0);
    resource["values"] = values.clone();
    resource["sensitive_values"] = json!({});
    resource
}

fn head(address: &str) -> Value {
    let parts = Address::parse(address);
    let mut head = Map::new();
    head.insert("address".to_owned(), json!(address));
    if !parts.module.is_empty() {
        head.insert("module_address".to_owned(), json!(parts.module));
    }
    head.insert("mode".to_owned(), json!("managed"));
    head.insert("type".to_owned(), json!(parts.kind));
    head.insert("name".to_owned(), json!(parts.name));
    if !parts.key.is_null() {
        head.insert("index".to_owned(), parts.key.clone());
    }
    head.insert("provider_name".to_owned(), json!(parts.provider_name()));
    Value::Object(head)
}

/// The plan in format 1.2.
pub(super) fn plan_json(plan: &Plan) -> Value {
    let planned = plan.changes.iter().filter(|change| change.act != Act::Delete).map(|change| {
        let id = change.id.as_deref().filter(|_| change.act != Act::Replace);
        resource_value(&change.address, &values(id, &change.after))
    });
    let planned: Vec<Value> = planned.collect();
    let changes: Vec<Value> = plan.changes.iter().map(resource_change).collect();
    let drift: Vec<Value> = plan
        .drift
        .iter()
        .map(|address| {
            let mut drift = head(address);
            drift["change"] = json!({
                "actions": ["update"], "before": {"input": "x"}, "after": {"input": "drifted"}, "after_unknown": {},
                "before_sensitive": {}, "after_sensitive": {},
            });
            drift
        })
        .collect();
    let mut json = json!({
        "format_version": "1.2", "terraform_version": plan.version,
        "planned_values": {
            "outputs": outputs_json(&plan.outputs, true),
            "root_module": if planned.is_empty() { json!({}) } else { json!({"resources": planned}) },
        },
    });
    if !drift.is_empty() {
        json["resource_drift"] = json!(drift);
    }
    json["resource_changes"] = json!(changes);
    json["output_changes"] = output_changes(plan);
    json["prior_state"] = json!({"format_version": "1.0", "terraform_version": plan.version, "values": {"root_module": {}}});
    json["configuration"] = json!({"root_module": {}});
    json["timestamp"] = json!(plan.created);
    json["applyable"] = json!(plan.applyable());
    json["complete"] = json!(!plan.errored);
    json["errored"] = json!(plan.errored);
    json
}

fn resource_change(change: &Change) -> Value {
    let actions: &[&str] = match change.act {
        Act::NoOp => &["no-op"],
        Act::Create => &["create"],
        Act::Update => &["update"],
        Act::Replace => &["delete", "create"],
        Act::Delete => &["delete"],
    };
    let before = change.id.as_deref().map_or(Value::Null, |id| values(Some(id), &change.before));
    let after = match change.act {
        Act::Delete => Value::Null,
        Act::Create | Act::Replace => values(None, &change.after),
        Act::NoOp | Act::Update => values(change.id.as_deref(), &change.after),
    };
    let unknown = match change.act {
        Act::Create | Act::Replace => json!({"id": true, "output": true}),
        _ => json!({}),
    };
    let hidden = |value: &Value| if value.is_null() { json!(false) } else { json!({}) };
    let mut json = head(&change.address);
    json["change"] = json!({
        "actions": actions, "before": before, "after": after, "after_unknown": unknown,
        "before_sensitive": hidden(&before), "after_sensitive": hidden(&after),
    });
    if change.act == Act::Replace {
        json["change"]["replace_paths"] = json!([["triggers_replace"]]);
        json["action_reason"] = json!("replace_because_cannot_update");
    }
    json
}

fn output_changes(plan: &Plan) -> Value {
    let mut changes = Map::new();
    let names = plan.outputs.keys().chain(plan.outputs_before.keys());
    for name in names {
        let (before, after) = (plan.outputs_before.get(name), plan.outputs.get(name));
        let action = match (before, after) {
            (None, _) => "create",
            (_, None) => "delete",
            _ if before == after => "no-op",
            _ => "update",
        };
        let sensitive = before.into_iter().chain(after).any(|output| output.sensitive);
        let change = json!({
            "actions": [action], "before": before.map(|output| &output.value), "after": after.map(|output| &output.value),
            "after_unknown": false, "before_sensitive": sensitive, "after_sensitive": sensitive,
        });
        changes.insert(name.clone(), change);
    }
    Value::Object(changes)
}

/// The plan for people.
pub(super) fn print_plan(view: &View, plan: &Plan) {
    let name = view.name();
    if !plan.applyable() {
        line(&format!(
            "\nNo changes. Your infrastructure matches the configuration.\n\n{name} has compared your real infrastructure against your configuration\nand found no differences, so no changes are needed."
        ));
        return;
    }
    let mut text = format!(
        "\n{name} used the selected providers to generate the following execution\nplan. Resource actions are indicated with the following symbols:\n\n{name} will perform the following actions:\n"
    );
    for change in plan.changes.iter().filter(|change| change.act != Act::NoOp) {
        let (mark, fate) = match change.act {
            Act::Create | Act::NoOp => ("  +", "will be created"),
            Act::Update => ("  ~", "will be updated in-place"),
            Act::Replace => ("-/+", "must be replaced"),
            Act::Delete => ("  -", "will be destroyed"),
        };
        let Address { kind, name, .. } = Address::parse(&change.address);
        let (before, after) = (&change.before, &change.after);
        let input = match change.act {
            Act::Create => format!("+ input = {after}"),
            Act::Delete => format!("- input = {before} -> null"),
            _ => format!("~ input = {before} -> {after}"),
        };
        let _ =
            writeln!(text, "\n  # {} {fate}\n{mark} resource \"{kind}\" \"{name}\" {{\n      {input}\n    }}", change.address);
    }
    let Counts { add, change, remove } = plan.counts();
    let _ = write!(text, "\nPlan: {add} to add, {change} to change, {remove} to destroy.");
    line(&text);
}
