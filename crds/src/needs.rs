//! What an agent has to know of a run's spec. One of an older image does not see a field that came after it, and would do without it what
//! was asked for with it: so it is not let in (`design/0014-upgrades.md`).
//!
//! The pod's command line names the fields, which an agent that knows the word too little refuses at once; and the admission policy
//! `pawl-status` refuses the adoption of an agent that does not say what it speaks, whoever made its pod.

use crate::{Operation, TerraformRunSpec};

/// What this version's agent says with its adoption: it knows all [`FIELDS`].
pub const SPEAKS: u32 = 1;
/// The word of the pod's command line, before the fields with commas between them.
pub const OPTION: &str = "--needs=";
/// Fields of the spec that an agent which says nothing does not know, or values of them. The policy lists them as well.
pub const FIELDS: [&str; 12] = [
    "RefreshOnly",
    "arguments",
    "credentials",
    "envFrom",
    "files",
    "hooks",
    "outputs",
    "parallelism",
    "refresh",
    "replace",
    "targets",
    "variableFiles",
];

/// Which of them a spec uses.
pub fn of(spec: &TerraformRunSpec) -> Vec<&'static str> {
    let used = [
        spec.operation == Operation::RefreshOnly,
        !spec.arguments.is_empty(),
        !spec.credentials.is_empty(),
        !spec.env_from.is_empty(),
        !spec.files.is_empty(),
        !spec.hooks.is_empty(),
        spec.outputs.is_some(),
        spec.parallelism.is_some(),
        spec.refresh.is_some(),
        !spec.replace.is_empty(),
        !spec.targets.is_empty(),
        !spec.variable_files.is_empty(),
    ];
    FIELDS.into_iter().zip(used).filter_map(|(name, used)| used.then_some(name)).collect()
}

/// Those that this version's agent does not know.
pub fn unknown<'a>(needs: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    needs.into_iter().filter(|name| !FIELDS.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_spec_needs_what_it_uses_and_one_without_it_nothing() {
        let of = |more: &Value| {
            let mut spec = json!({"source": {"inline": {"files": {}}}});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            super::of(&serde_json::from_value(spec).unwrap())
        };
        assert_eq!(of(&json!({"operation": "Destroy", "targets": [], "env": [{"name": "A", "value": "b"}]})), [""; 0]);
        let hook = json!({"name": "a", "when": "AfterPlan", "inline": ""});
        let rows = [
            (json!({"hooks": [hook]}), "hooks"),
            (json!({"operation": "RefreshOnly"}), "RefreshOnly"),
            (json!({"refresh": true}), "refresh"),
            (json!({"parallelism": 1}), "parallelism"),
            (json!({"variableFiles": [{"path": "a"}]}), "variableFiles"),
            (json!({"arguments": {"plan": ["-a"]}}), "arguments"),
            (json!({"outputs": {}}), "outputs"),
            (json!({"replace": ["a.b"]}), "replace"),
        ];
        for (more, name) in rows {
            assert_eq!(of(&more), [name]);
        }
        assert_eq!(of(&json!({"targets": ["a"], "envFrom": [{"secretRef": {"name": "a"}}]})), ["envFrom", "targets"]);
        assert_eq!(unknown(["hooks", "of.next.year"]), ["of.next.year"]);
    }
}
