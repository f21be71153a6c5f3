//! Mocks of outputs that Terragrunt takes without a word: of disabled dependencies, and those merged into outputs.

use std::{ffi::OsStr, path::Path};

use crds::Failure;
use serde_json::Value;

use super::{PhaseRunner, Shell};
use crate::{files, tool::wrapped};

/// The first version that prints its evaluated configuration.
const SINCE: (u64, u64) = (0, 78);
/// Levels of Terragrunt's log with which it shows warnings.
const LEVELS: [&str; 4] = ["warn", "info", "debug", "trace"];

/// Whether a variable would hide the warnings by which Terragrunt tells that it takes mocks.
pub(super) fn hides(name: &OsStr, value: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let setting = name
        .strip_prefix("TG_")
        .or_else(|| name.strip_prefix("TERRAGRUNT_"));
    match setting {
        Some("LOG_DISABLE" | "LOG_CUSTOM_FORMAT") => true,
        Some("LOG_LEVEL") => !LEVELS.contains(&&*value.to_string_lossy().to_lowercase()),
        _ => false,
    }
}

impl PhaseRunner {
    /// The mocks in a plan that Terragrunt does not report, with the remedy of each.
    pub(super) async fn silent_mocks(&self, shell: &Shell) -> Result<Vec<String>, Failure> {
        if !shell.tool.found.version.at_least(SINCE.0, SINCE.1) {
            return Ok(by_text(&shell.stack).into_iter().collect());
        }
        let (notices, _unseen) = tokio::sync::mpsc::unbounded_channel();
        let config = self.configuration(shell, &notices).await?;
        let mut found = Vec::new();
        find(&config, &mut found);
        Ok(found)
    }
}

/// The same for versions without `render`, by the words of the unit's own file.
fn by_text(stack: &Path) -> Option<String> {
    let text = files::code(&stack.join("terragrunt.hcl")).unwrap_or_default();
    let has = |word: &str| text.contains(word);
    let may = has("mock_outputs_merge") || has("mock_outputs") && has("enabled");
    may.then(|| {
        let (major, minor) = SINCE;
        format!("use Terragrunt {major}.{minor} or later, which shows whether the mocks of terragrunt.hcl are taken")
    })
}

/// Searches the configuration, with those that it reads, for dependencies whose mocks are in a plan and would be in its apply. Where they
/// are allowed for the plan alone, the apply gets other values, which is noticed by itself.
fn find(config: &Value, found: &mut Vec<String>) {
    let Value::Object(fields) = config else {
        if let Value::Array(all) = config {
            for one in all {
                find(one, found);
            }
        }
        return;
    };
    for one in fields.values() {
        find(one, found);
    }
    let has_mocks = config["mock_outputs"]
        .as_object()
        .is_some_and(|mocks| !mocks.is_empty());
    if !has_mocks || !fields.contains_key("config_path") {
        return;
    }
    let name = config["name"].as_str().unwrap_or_default();
    if config["enabled"] == false {
        found.push(format!(
            "dependency {name} is disabled and has mock_outputs: remove them, or enable it"
        ));
        return;
    }
    let merges = match &config["mock_outputs_merge_strategy_with_state"] {
        Value::String(strategy) => strategy != "no_merge",
        _ => config["mock_outputs_merge_with_state"] == true,
    };
    let commands = config["mock_outputs_allowed_terraform_commands"].as_array();
    let allowed = |name: &str| {
        commands.is_none_or(|all| all.is_empty() || all.iter().any(|command| command == name))
    };
    if merges && config["skip"] != true && allowed("plan") && allowed(wrapped::ASK) {
        found.push(format!(
            "dependency {name} merges mock_outputs into the outputs: allow them for the plan alone, by \
             mock_outputs_allowed_terraform_commands = [\"plan\"]"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const BY: &str = "mock_outputs_merge_strategy_with_state";
    const FOR: &str = "mock_outputs_allowed_terraform_commands";

    #[test]
    fn settings_that_hide_warnings_are_known() {
        for (pair, hidden) in [
            ("TG_LOG_LEVEL=error", true),
            ("TERRAGRUNT_LOG_LEVEL=stderr", true),
            ("TG_LOG_LEVEL=WARN", false),
            ("TG_LOG_LEVEL=debug", false),
            ("TG_LOG_DISABLE=true", true),
            ("TERRAGRUNT_LOG_CUSTOM_FORMAT=%level", true),
            ("TG_LOG_FORMAT=json", false),
            ("TF_LOG_LEVEL=error", false),
        ] {
            let (name, value) = pair.split_once('=').unwrap();
            assert_eq!(hides(name.as_ref(), value.as_ref()), hidden, "{pair}");
        }
    }

    #[test]
    fn mocks_without_a_warning_are_found() {
        let found = |fields: Value| {
            let mut one = json!({"config_path": "../a", "name": "a", "mock_outputs": {"x": 1}});
            one.as_object_mut()
                .unwrap()
                .append(&mut fields.as_object().unwrap().clone());
            let mut all = Vec::new();
            find(
                &json!({"locals": {"read": {"dependency": {"a": one}}}}),
                &mut all,
            );
            all.len() == 1
        };
        for (fields, is_found) in [
            (json!({"enabled": false}), true),
            (json!({"enabled": false, FOR: ["plan"]}), true),
            (json!({"enabled": false, "mock_outputs": {}}), false),
            (json!({"enabled": true}), false),
            (json!({BY: "shallow"}), true),
            (json!({BY: "deep_map_only", FOR: []}), true),
            (
                json!({BY: "no_merge", "mock_outputs_merge_with_state": true}),
                false,
            ),
            (
                json!({BY: null, "mock_outputs_merge_with_state": true}),
                true,
            ),
            (json!({BY: "shallow", FOR: ["plan", "validate"]}), false),
            (json!({BY: "shallow", FOR: ["plan", "refresh"]}), true),
            (json!({BY: "shallow", FOR: ["refresh"]}), false),
            (json!({BY: "shallow", "skip": true}), false),
            (json!({BY: "shallow", "mock_outputs": null}), false),
        ] {
            assert_eq!(found(fields.clone()), is_found, "{fields}");
        }
    }

    #[test]
    fn old_versions_go_by_the_words_of_the_unit() {
        let dir = tempfile::tempdir().unwrap();
        for (text, is_found) in [
            ("mock_outputs = {}", false),
            ("mock_outputs = {}\nenabled = false", true),
            ("mock_outputs_merge_with_state = true", true),
        ] {
            std::fs::write(dir.path().join("terragrunt.hcl"), text).unwrap();
            assert_eq!(by_text(dir.path()).is_some(), is_found, "{text}");
        }
    }
}
