//! The plan in a run's status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The waiting plan, or the last one.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// The digest that a reviewer approves: `sha256:` and 64 hexadecimal digits.
    #[schemars(length(min = 71, max = 71), regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub checksum: String,
    /// The attempt that made it. The plan changes only with the attempt.
    pub attempt: u32,
    /// The counts in short: `+2 ~0 -1, 1 output`.
    #[schemars(length(max = 210))]
    pub summary: String,
    /// Counts of changes.
    #[serde(flatten)]
    pub counts: Changes,
    /// Tool and version: `OpenTofu 1.10.6`.
    #[schemars(length(max = 64))]
    pub tool: String,
    /// The commit, where the source has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub revision: Option<String>,
    /// When it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    /// Operating system and architecture: `linux_amd64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub platform: Option<String>,
    /// Digest of the stored plan in the datastore: plan file, lock file and work directory. Empty when the plan exists
    /// only in its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 71, max = 71), regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub bundle: Option<String>,
    /// Digest that identifies the plan's state: backend (without credentials) and workspace. Runs with the same key
    /// apply one after the other, within a namespace and the namespaces that share its states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 71, max = 71), regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub state_key: Option<String>,
    /// One line per change, destroys first; the last line counts those left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 51), inner(length(max = 256)))]
    pub changes: Vec<String>,
    /// Digest of the changes by address and action: 16 hexadecimal digits. Equal digests are the same changes, with whatever values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub changes_digest: Option<String>,
}

/// Digest of the lines of a plan's changes; `None` without any. It does not cover values: a clock changes the same attribute each time.
pub fn changes_digest(lines: &[String]) -> Option<String> {
    let digest = Sha256::digest(lines.join("\n"));
    (!lines.is_empty()).then(|| hex::encode(&digest[..8]))
}

/// The number of changes in a plan, in Terraform's terms. A replaced resource counts in `replace`, `add` and `destroy`,
/// as in the tools.
///
/// `moved`, `drifted` and `invoke` are omitted when they are 0, `unread`, `otherState` and `again` when they are false.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Changes {
    /// Created, including the new instances of replaced resources.
    pub add: u32,
    /// Updated in place.
    pub change: u32,
    /// Destroyed, including the old instances of replaced resources.
    pub destroy: u32,
    /// Imported.
    pub import: u32,
    /// Replaced.
    pub replace: u32,
    /// Forgotten: removed from the state only.
    pub forget: u32,
    /// Outputs that change.
    pub outputs: u32,
    /// Resources with a changed address.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub moved: u32,
    /// Resources that were changed or deleted outside the code since the last apply.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drifted: u32,
    /// Actions that are invoked (Terraform 1.14 and later).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub invoke: u32,
    /// Whether the agent could not read the plan file, for example because it is encrypted: all figures are then what the tool printed.
    /// Also set where the plan has parts that the agent does not know. A person has to approve such a plan, whatever the mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
    /// Whether the plan's state differs from that of the last apply of this stack and workspace, is an older version of it, or is empty. A
    /// person has to approve the plan, whatever the mode. Its apply makes this state that of the stack.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub other_state: bool,
    /// Whether a layer's drift check found the same changes that were applied last at this commit: they come again each time, and a
    /// person has to approve the plan, whatever the mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Changes {
    /// Operations whose ends an apply reports. A replacement counts in `add` and `destroy`. The tools report no import, forget or
    /// move.
    pub const fn operations(&self) -> u32 {
        self.add + self.change + self.destroy + self.invoke
    }

    /// Changes of the state that the tools make without a report: imports, forgets, moves, outputs, and what drifted.
    pub const fn is_silent(&self) -> bool {
        (self.import | self.forget | self.moved | self.outputs | self.drifted) > 0
    }

    /// Whether only values of outputs change.
    pub const fn only_outputs(&self) -> bool {
        self.outputs > 0 && self.operations() == 0 && (self.import | self.forget | self.moved) == 0
    }

    /// The counts in short: `+2 ~0 -1`, with other counts only when they are not 0; at most 210 characters.
    pub fn summary(&self) -> String {
        let mut text = format!("+{} ~{} -{}", self.add, self.change, self.destroy);
        for (count, word) in [
            (self.replace, "replaced"),
            (self.import, "imported"),
            (self.forget, "forgotten"),
            (self.moved, "moved"),
            (
                self.outputs,
                if self.outputs == 1 {
                    "output"
                } else {
                    "outputs"
                },
            ),
            (self.drifted, "drifted"),
            (self.invoke, "invoked"),
        ] {
            if count > 0 {
                text = format!("{text}, {count} {word}");
            }
        }
        for (is, words) in [
            (self.unread, ", unread"),
            (self.other_state, ", another state"),
            (self.again, ", again"),
        ] {
            if is {
                text.push_str(words);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn summary_omits_zero_counts_and_fits() {
        let counts = |value: serde_json::Value| {
            let mut whole = json!({"add": 0, "change": 0, "destroy": 0, "import": 0, "replace": 0, "forget": 0, "outputs": 0});
            whole
                .as_object_mut()
                .unwrap()
                .extend(value.as_object().unwrap().clone());
            serde_json::from_value::<Changes>(whole).unwrap()
        };
        for (value, text) in [
            (json!({}), "+0 ~0 -0"),
            (json!({"outputs": 1}), "+0 ~0 -0, 1 output"),
            (json!({"outputs": 2}), "+0 ~0 -0, 2 outputs"),
            (json!({"moved": 1}), "+0 ~0 -0, 1 moved"),
            (json!({"import": 1, "change": 1}), "+0 ~1 -0, 1 imported"),
            (
                json!({"add": 2, "destroy": 1, "replace": 1, "forget": 3, "drifted": 4}),
                "+2 ~0 -1, 1 replaced, 3 forgotten, 4 drifted",
            ),
        ] {
            assert_eq!(counts(value).summary(), text);
        }
        let names = [
            "add", "change", "destroy", "import", "replace", "forget", "outputs", "moved",
            "drifted", "invoke",
        ];
        let mut all = counts(
            names
                .iter()
                .map(|name| ((*name).to_owned(), json!(u32::MAX)))
                .collect(),
        );
        (all.unread, all.other_state, all.again) = (true, true, true);
        assert!(all.summary().len() <= 210, "{}", all.summary());
    }

    #[test]
    fn zero_moved_and_drifted_are_omitted() {
        let written = serde_json::to_value(Changes {
            outputs: 1,
            ..Changes::default()
        })
        .unwrap();
        let first = json!({"add": 0, "change": 0, "destroy": 0, "import": 0, "replace": 0, "forget": 0, "outputs": 1});
        assert_eq!(written, first);
        let written = serde_json::to_value(Changes {
            moved: 1,
            drifted: 2,
            ..Changes::default()
        })
        .unwrap();
        assert_eq!(
            (&written["moved"], &written["drifted"]),
            (&json!(1), &json!(2))
        );
    }
}
