//! The operator's tool settings: sources, verification, defaults and cache of tools. The chart's `runner.tools` passes
//! them to the controller, which passes them unchanged to each pod. They contain no credentials: those are Secrets of
//! the runs' namespaces.

use std::{collections::BTreeMap, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::ToolName;

/// The operator's tool settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ToolSettings {
    /// Forbids network access for tools: a run uses its image and the cache, or fails.
    pub offline: bool,
    /// Used when neither the run nor its code selects a tool or version.
    pub default: DefaultTool,
    /// Replacements of the projects' download servers; at most one per tool.
    pub mirrors: Vec<ToolMirror>,
    /// Storage of tools.
    pub cache: ToolCache,
}

/// The default tool, and the default version of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DefaultTool {
    /// The tool; OpenTofu when unset.
    pub name: Option<ToolName>,
    /// A version or constraint per tool; the newest release for tools that are not listed.
    pub versions: BTreeMap<ToolName, String>,
}

/// The download server of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolMirror {
    /// The tool.
    pub tool: ToolName,
    /// The base URL with releases in the project's own layout: `https://…`, `http://…`, or a directory of the image.
    pub url: String,
    /// The list of versions: HashiCorp's `index.json`, OpenTofu's `api.json`, or GitHub's `…/releases`. When unset, the
    /// mirror's own list.
    #[serde(default)]
    pub list_url: Option<String>,
    /// A Secret of the run's namespace with `username` and `password`, or `token`.
    #[serde(default)]
    pub secret_name: Option<String>,
    /// Certificate authorities in addition to the system's, PEM.
    #[serde(default)]
    pub ca: Option<String>,
    /// OpenPGP keys, armored, that replace the project's; requires `fingerprints`.
    #[serde(default)]
    pub keys: Option<String>,
    /// Fingerprints of the keys that may sign, 40 or 64 hexadecimal digits.
    #[serde(default)]
    pub fingerprints: Vec<String>,
    /// How a version is verified.
    #[serde(default)]
    pub verification: ToolVerification,
}

/// How a version is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolVerification {
    /// A signature over the checksums, and the checksum.
    #[default]
    Signature,
    /// The checksum only. Every status and log mentions it.
    Sums,
    /// Not at all. Every status and log mentions it.
    None,
}

/// Storage of tools and providers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ToolCache {
    /// Maximum size of tools in MiB. Above it, the least recently used ones are evicted.
    #[serde(rename = "maxSizeMiB")]
    pub max_size_mib: u64,
    /// A PersistentVolumeClaim of the run's namespace. Without this and `host_path`, the pod uses an emptyDir.
    pub claim_name: Option<String>,
    /// A directory of the node that exists and belongs to the runner's user. It is mounted only in namespaces with Pod
    /// Security level `privileged`.
    pub host_path: Option<String>,
    /// Group of the volume for pods whose run sets none. Otherwise volumes belong to root.
    pub fs_group: Option<i64>,
    /// Whether a cache that outlives the pod also stores providers.
    pub providers: bool,
}

impl Default for ToolCache {
    fn default() -> Self {
        Self {
            max_size_mib: 4096,
            claim_name: None,
            host_path: None,
            fs_group: None,
            providers: true,
        }
    }
}

impl FromStr for ToolSettings {
    type Err = String;

    /// Parses JSON; an empty text gives the defaults.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let settings: Self = serde_json::from_str(text)
            .map_err(|error| format!("the settings of tools: {error}"))?;
        settings.check().map(|()| settings)
    }
}

impl ToolSettings {
    /// Rejects settings that are invalid by inspection alone.
    fn check(&self) -> Result<(), String> {
        let mut seen = Vec::new();
        for ToolMirror {
            tool,
            url,
            secret_name,
            keys,
            fingerprints,
            ..
        } in &self.mirrors
        {
            let name = tool.as_str();
            let wrong = |what: &str| Err(format!("the mirror of {name} {what}"));
            if seen.contains(tool) {
                return wrong("is given twice");
            }
            seen.push(*tool);
            if *tool == ToolName::Unknown {
                return Err(
                    "a mirror is of a tool that is none of OpenTofu, Terraform and Terragrunt"
                        .to_owned(),
                );
            }
            if !["https://", "http://", "file:///", "/"]
                .iter()
                .any(|begin| url.starts_with(begin))
            {
                return wrong("has a url that is none: https://…, http://…, file:///… or /…");
            }
            if secret_name.as_ref().is_some_and(String::is_empty) {
                return wrong("has a secretName without a name");
            }
            if keys.is_some() == fingerprints.is_empty() {
                return wrong("needs keys and their fingerprints together");
            }
        }
        let names = self.default.name.iter().chain(self.default.versions.keys());
        if names.into_iter().any(|name| *name == ToolName::Unknown) {
            return Err(
                "the default names a tool that is none of OpenTofu, Terraform and Terragrunt"
                    .to_owned(),
            );
        }
        if self.cache.claim_name.is_some() && self.cache.host_path.is_some() {
            return Err("the cache is either a claim or a directory of the node".to_owned());
        }
        Ok(())
    }

    /// Serializes to the text that [`FromStr`] parses.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_chart_are_parsed() {
        assert_eq!("".parse(), Ok(ToolSettings::default()));
        let text = r#"{"offline":false,"default":{"name":"Terraform","versions":{"Terraform":"~> 1.5"}},"mirrors":[
            {"tool":"OpenTofu","url":"https://m/x","secretName":"mirror","keys":"K","fingerprints":["F"],"verification":"Sums"}],
            "cache":{"claimName":"tools","fsGroup":65532}}"#;
        let settings: ToolSettings = text.parse().unwrap();
        assert_eq!(settings.default.versions[&ToolName::Terraform], "~> 1.5");
        assert_eq!(settings.mirrors[0].verification, ToolVerification::Sums);
        assert_eq!(
            (
                settings.cache.claim_name.as_deref(),
                settings.cache.max_size_mib
            ),
            (Some("tools"), 4096)
        );
        assert_eq!(settings.to_json().parse(), Ok(settings));
    }

    #[test]
    fn invalid_tool_settings_are_rejected_at_start() {
        let mirror = |rest: &str| format!(r#"{{"mirrors":[{{"tool":"OpenTofu",{rest}}}]}}"#);
        for (text, says) in [
            ("{".to_owned(), "the settings of tools"),
            (r#"{"ofline":true}"#.to_owned(), "ofline"),
            (mirror(r#""url":"m.example.org""#), "https://"),
            (
                mirror(r#""url":"https://m","keys":"K""#),
                "fingerprints together",
            ),
            (mirror(r#""url":"https://m","secretName":"""#), "secretName"),
            (
                r#"{"mirrors":[{"tool":"Pulumi","url":"/m"}]}"#.to_owned(),
                "none of OpenTofu",
            ),
            (
                r#"{"mirrors":[{"tool":"OpenTofu","url":"/m"},{"tool":"OpenTofu","url":"/n"}]}"#
                    .to_owned(),
                "twice",
            ),
            (r#"{"default":{"name":"Pulumi"}}"#.to_owned(), "the default"),
            (
                r#"{"cache":{"claimName":"a","hostPath":"/b"}}"#.to_owned(),
                "either",
            ),
        ] {
            let error = text.parse::<ToolSettings>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
