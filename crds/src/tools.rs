//! What an operator says about tools: where they come from, what proves them, which one is the default, and where they are kept. It
//! reaches the controller by the chart's `runner.tools`, and each pod as it is, without credentials: those are Secrets of the runs'
//! namespaces.

use std::{collections::BTreeMap, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::ToolName;

/// What an operator says about tools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ToolSettings {
    /// The network is never used for tools: a run has what its image and the cache hold, or fails.
    pub offline: bool,
    /// What counts when neither the run nor its code says anything.
    pub default: DefaultTool,
    /// Where tools come from, when not from where their projects publish; one a tool at most.
    pub mirrors: Vec<ToolMirror>,
    /// Where they are kept.
    pub cache: ToolCache,
}

/// The default tool, and the default version of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DefaultTool {
    /// The tool; OpenTofu when it is not given.
    pub name: Option<ToolName>,
    /// A version or constraint for each tool; the newest release of one that is not here.
    pub versions: BTreeMap<ToolName, String>,
}

/// Where a tool comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolMirror {
    /// The tool.
    pub tool: ToolName,
    /// The base below which releases lie as its project publishes them: `https://…`, `http://…`, or a directory of the image.
    pub url: String,
    /// The list of versions: HashiCorp's `index.json`, OpenTofu's `api.json`, or GitHub's `…/releases`. What the mirror lists of
    /// itself when it is not given.
    #[serde(default)]
    pub list_url: Option<String>,
    /// A Secret of the run's namespace with `username` and `password`, or `token`.
    #[serde(default)]
    pub secret_name: Option<String>,
    /// Certificate authorities besides the system's, PEM.
    #[serde(default)]
    pub ca: Option<String>,
    /// OpenPGP keys, armored, in place of the project's own; with `fingerprints`.
    #[serde(default)]
    pub keys: Option<String>,
    /// Fingerprints of those keys which may sign, of 40 or 64 hexadecimal digits.
    #[serde(default)]
    pub fingerprints: Vec<String>,
    /// What proves a version.
    #[serde(default)]
    pub verification: ToolVerification,
}

/// What proves a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolVerification {
    /// A signature over the sums, and the sum.
    #[default]
    Signature,
    /// The sum alone. Every status and log says so.
    Sums,
    /// Nothing. Every status and log says so.
    None,
}

/// Where tools and providers are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ToolCache {
    /// MiB of tools above which those that were used longest ago go.
    #[serde(rename = "maxSizeMiB")]
    pub max_size_mib: u64,
    /// A PersistentVolumeClaim of the run's namespace; an emptyDir of the pod when neither this nor a path is given.
    pub claim_name: Option<String>,
    /// A directory of the node, which exists and belongs to the runner's user. It is mounted in namespaces whose Pod Security is
    /// `privileged`, and nowhere else.
    pub host_path: Option<String>,
    /// Group of the volume, for pods whose run names none. Volumes belong to root otherwise.
    pub fs_group: Option<i64>,
    /// Whether a cache that outlives the pod keeps providers as well.
    pub providers: bool,
}

impl Default for ToolCache {
    fn default() -> Self {
        Self { max_size_mib: 4096, claim_name: None, host_path: None, fs_group: None, providers: true }
    }
}

impl FromStr for ToolSettings {
    type Err = String;

    /// Reads JSON; empty text is the default.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let settings: Self = serde_json::from_str(text).map_err(|error| format!("the settings of tools: {error}"))?;
        settings.check().map(|()| settings)
    }
}

impl ToolSettings {
    /// Says what can be seen to be wrong without trying it.
    fn check(&self) -> Result<(), String> {
        let mut seen = Vec::new();
        for ToolMirror { tool, url, secret_name, keys, fingerprints, .. } in &self.mirrors {
            let name = tool.as_str();
            let wrong = |what: &str| Err(format!("the mirror of {name} {what}"));
            if seen.contains(tool) {
                return wrong("is given twice");
            }
            seen.push(*tool);
            if *tool == ToolName::Unknown {
                return Err("a mirror is of a tool that is none of OpenTofu, Terraform and Terragrunt".to_owned());
            }
            if !["https://", "http://", "file:///", "/"].iter().any(|begin| url.starts_with(begin)) {
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
            return Err("the default names a tool that is none of OpenTofu, Terraform and Terragrunt".to_owned());
        }
        if self.cache.claim_name.is_some() && self.cache.host_path.is_some() {
            return Err("the cache is either a claim or a directory of the node".to_owned());
        }
        Ok(())
    }

    /// As text that [`FromStr`] reads.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_the_chart_writes_it() {
        assert_eq!("".parse(), Ok(ToolSettings::default()));
        let text = r#"{"offline":false,"default":{"name":"Terraform","versions":{"Terraform":"~> 1.5"}},"mirrors":[
            {"tool":"OpenTofu","url":"https://m/x","secretName":"mirror","keys":"K","fingerprints":["F"],"verification":"Sums"}],
            "cache":{"claimName":"tools","fsGroup":65532}}"#;
        let settings: ToolSettings = text.parse().unwrap();
        assert_eq!(settings.default.versions[&ToolName::Terraform], "~> 1.5");
        assert_eq!(settings.mirrors[0].verification, ToolVerification::Sums);
        assert_eq!((settings.cache.claim_name.as_deref(), settings.cache.max_size_mib), (Some("tools"), 4096));
        assert_eq!(settings.to_json().parse(), Ok(settings));
    }

    #[test]
    fn what_makes_no_sense_is_said_before_any_run() {
        let mirror = |rest: &str| format!(r#"{{"mirrors":[{{"tool":"OpenTofu",{rest}}}]}}"#);
        for (text, says) in [
            ("{".to_owned(), "the settings of tools"),
            (r#"{"ofline":true}"#.to_owned(), "ofline"),
            (mirror(r#""url":"m.example.org""#), "https://"),
            (mirror(r#""url":"https://m","keys":"K""#), "fingerprints together"),
            (mirror(r#""url":"https://m","secretName":"""#), "secretName"),
            (r#"{"mirrors":[{"tool":"Pulumi","url":"/m"}]}"#.to_owned(), "none of OpenTofu"),
            (r#"{"mirrors":[{"tool":"OpenTofu","url":"/m"},{"tool":"OpenTofu","url":"/n"}]}"#.to_owned(), "twice"),
            (r#"{"default":{"name":"Pulumi"}}"#.to_owned(), "the default"),
            (r#"{"cache":{"claimName":"a","hostPath":"/b"}}"#.to_owned(), "either"),
        ] {
            let error = text.parse::<ToolSettings>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
