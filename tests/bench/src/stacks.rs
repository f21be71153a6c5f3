//! The stacks: their files for a run, and the script of a bare pod that writes them.

use serde_json::{Value, json};

/// A stack, and the tool that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// Real OpenTofu on one `terraform_data`.
    Tiny,
    /// The scripted tool with almost no work, to measure the overhead.
    Nothing,
    /// The scripted tool, busy for three seconds.
    ThreeSeconds,
}

/// The version of the scripted tool in the tests' runner.
const SCRIPTED: &str = "0.0.1";
const TINY: &str = "resource \"terraform_data\" \"a\" {\n  input = \"a\"\n}\n";

impl Stack {
    /// Name in the table.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tiny => "OpenTofu, tiny stack",
            Self::Nothing => "scripted tool, 0 s",
            Self::ThreeSeconds => "scripted tool, 3 s",
        }
    }

    /// The version of its tool; `tofu` is that of real OpenTofu.
    pub(super) const fn version(self, tofu: &str) -> &str {
        match self {
            Self::Tiny => tofu,
            Self::Nothing | Self::ThreeSeconds => SCRIPTED,
        }
    }

    /// Its files; `name` is that of its script, and `ledger` the URL of the script's ledger.
    pub(super) fn files(self, name: &str, ledger: &str) -> Vec<(&'static str, String)> {
        let script = |more: Value| {
            let mut script = json!({"name": name, "ledger": ledger, "resources": 1});
            if let (Some(script), Value::Object(more)) = (script.as_object_mut(), more) {
                script.extend(more);
            }
            vec![("main.tf", "# played by a script\n".to_owned()), ("pawl-script.json", script.to_string())]
        };
        match self {
            Self::Tiny => vec![("main.tf", TINY.to_owned())],
            Self::Nothing => script(json!({})),
            Self::ThreeSeconds => script(json!({"apply_ms": 1500, "commands": {"plan": [{"sleep_ms": 1500}]}})),
        }
    }
}

/// The commands of a bare pod, as a user without Pawl would write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commands {
    /// init, plan, apply.
    Plain,
    /// As above, and the plan shown as text and as JSON, as the agent does for reviewers and counts.
    WithShow,
}

impl Commands {
    /// The script for `sh -e -c`; `$TOOL` is the tool, and each file is in `$FILE_n`.
    pub(super) fn script(self, work: &str, files: &[(&str, String)]) -> String {
        let mut lines = vec![format!("mkdir -p {work}/stack"), format!("cd {work}/stack")];
        for (n, (path, _)) in files.iter().enumerate() {
            lines.push(format!("printf %s \"$FILE_{n}\" > {path}"));
        }
        lines.push("\"$TOOL\" init -input=false -no-color".to_owned());
        lines.push("\"$TOOL\" plan -input=false -no-color -out=plan.bin".to_owned());
        if self == Self::WithShow {
            lines.push("\"$TOOL\" show -json plan.bin > plan.json".to_owned());
            lines.push("\"$TOOL\" show -no-color plan.bin".to_owned());
        }
        lines.push("\"$TOOL\" apply -input=false -no-color plan.bin".to_owned());
        lines.join("\n")
    }
}
