//! `show` of plans for programs and for people, and `state pull`.

use std::fmt::Write as _;

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::Tool;
use super::address::Address;
use super::plan::{Act, Change, Counts, Plan};
use super::script::Diagnostic;
use super::view::{View, line};

pub(super) fn show(tool: &Tool) -> Result<i32, Diagnostic> {
    let Some(file) = tool.args.words.first() else {
        return Err(Diagnostic::error("a `show` without a plan file is not played by this tool", ""));
    };
    let bytes = std::fs::read(tool.dir.join(file)).with_context(|| format!("failed to read \"{file}\""))?;
    let plan = Plan::read(&bytes)?;
    if tool.args.has("json") {
        line(&plan_json(&plan).to_string());
    } else {
        print_plan(&tool.view, &plan);
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
    let planned = plan
        .changes
        .iter()
        .filter(|change| change.act != Act::Delete)
        .map(|change| resource_value(&change.address, &values(change.id.as_deref(), &change.input)));
    let planned: Vec<Value> = planned.collect();
    let changes: Vec<Value> = plan.changes.iter().map(resource_change).collect();
    let mut json = json!({
        "format_version": "1.2", "terraform_version": plan.version,
        "planned_values": {
            "outputs": {},
            "root_module": if planned.is_empty() { json!({}) } else { json!({"resources": planned}) },
        },
    });
    json["resource_changes"] = json!(changes);
    json["output_changes"] = json!({});
    json["prior_state"] = json!({"format_version": "1.0", "terraform_version": plan.version, "values": {"root_module": {}}});
    json["configuration"] = json!({"root_module": {}});
    json["timestamp"] = json!(plan.created);
    json["applyable"] = json!(plan.applyable());
    json["complete"] = json!(true);
    json["errored"] = json!(false);
    json
}

fn resource_change(change: &Change) -> Value {
    let actions: &[&str] = match change.act {
        Act::NoOp => &["no-op"],
        Act::Create => &["create"],
        Act::Delete => &["delete"],
    };
    let before = change.id.as_deref().map_or(Value::Null, |id| values(Some(id), &change.input));
    let after = match change.act {
        Act::Delete => Value::Null,
        Act::NoOp | Act::Create => values(change.id.as_deref(), &change.input),
    };
    let unknown = match change.act {
        Act::Create => json!({"id": true, "output": true}),
        _ => json!({}),
    };
    let hidden = |value: &Value| if value.is_null() { json!(false) } else { json!({}) };
    let mut json = head(&change.address);
    json["change"] = json!({
        "actions": actions, "before": before, "after": after, "after_unknown": unknown,
        "before_sensitive": hidden(&before), "after_sensitive": hidden(&after),
    });
    json
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
        let input = &change.input;
        let (mark, fate, input) = match change.act {
            Act::Create | Act::NoOp => ('+', "will be created", format!("+ input = {input}")),
            Act::Delete => ('-', "will be destroyed", format!("- input = {input} -> null")),
        };
        let Address { kind, name, .. } = Address::parse(&change.address);
        let _ =
            writeln!(text, "\n  # {} {fate}\n  {mark} resource \"{kind}\" \"{name}\" {{\n      {input}\n    }}", change.address);
    }
    let Counts { add, remove } = plan.counts();
    let _ = write!(text, "\nPlan: {add} to add, 0 to change, {remove} to destroy.");
    line(&text);
}
