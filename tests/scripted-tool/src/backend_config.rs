//! The backend block of a work directory: found as the real tools find it, and what `init` leaves of it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Attributes of the `http` backend, in the order of the real tool's `.terraform/terraform.tfstate`.
const HTTP_ATTRIBUTES: &[&str] = &[
    "address",
    "client_ca_certificate_pem",
    "client_certificate_pem",
    "client_private_key_pem",
    "headers",
    "lock_address",
    "lock_method",
    "password",
    "retry_max",
    "retry_wait_max",
    "retry_wait_min",
    "skip_cert_verification",
    "unlock_address",
    "unlock_method",
    "update_method",
    "username",
];

/// A backend block: its type and its attributes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Config {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) config: Map<String, Value>,
}

impl Config {
    /// The backend block that the configuration of a work directory has: in `*.tf.json`, where override files win, or what
    /// the script says. `-backend-config=KEY=VALUE` is laid over it.
    pub(super) fn find(dir: &Path, script_state: Option<&str>, overlay: &[&str]) -> anyhow::Result<Option<Self>> {
        let mut found = script_state.map(|url| {
            let config = json!({"address": url, "lock_address": url, "unlock_address": url});
            Self { kind: "http".to_owned(), config: config.as_object().cloned().unwrap_or_default() }
        });
        let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
            .with_context(|| format!("failed to read `{}`", dir.display()))?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| name_of(path).ends_with(".tf.json"))
            .collect();
        // Overrides last, so that they win.
        files.sort_by_key(|path| (is_override(&name_of(path)), name_of(path)));
        for file in files {
            let text = std::fs::read_to_string(&file).with_context(|| format!("failed to read `{}`", file.display()))?;
            let json: Value = serde_json::from_str(&text).with_context(|| format!("`{}` is not JSON", name_of(&file)))?;
            for block in blocks(&json["terraform"]).into_iter().flat_map(|terraform| blocks(&terraform["backend"])) {
                for (kind, body) in block.as_object().into_iter().flatten() {
                    let config = blocks(body).first().and_then(|body| body.as_object().cloned()).unwrap_or_default();
                    found = Some(Self { kind: kind.clone(), config });
                }
            }
        }
        if let Some(found) = &mut found {
            for (key, value) in overlay.iter().filter_map(|pair| pair.split_once('=')) {
                found.config.insert(key.to_owned(), value.into());
            }
        }
        Ok(found)
    }

    /// What `init` leaves in the data directory; attributes that are not set are null there.
    pub(super) fn initialized(&self) -> Value {
        let mut config: Map<String, Value> = match self.kind.as_str() {
            "http" => HTTP_ATTRIBUTES.iter().map(|name| ((*name).to_owned(), Value::Null)).collect(),
            "local" => ["path", "workspace_dir"].iter().map(|name| ((*name).to_owned(), Value::Null)).collect(),
            _ => Map::new(),
        };
        config.extend(self.config.clone());
        json!({"version": 3, "backend": {"type": self.kind, "config": config, "hash": 1}})
    }

    /// Reads what `init` left.
    pub(super) fn read_initialized(text: &str) -> anyhow::Result<Self> {
        let json: Value = serde_json::from_str(text).context("the initialized backend is not JSON")?;
        let mut config: Self = serde_json::from_value(json["backend"].clone()).context("no backend is initialized")?;
        config.config.retain(|_, value| !value.is_null());
        Ok(config)
    }
}

pub(super) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_override(name: &str) -> bool {
    name == "override.tf.json" || name.ends_with("_override.tf.json")
}

/// JSON syntax allows a block to be an object or a list of them.
fn blocks(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Null => Vec::new(),
        other => vec![other],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn override_files_win() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, url: &str| {
            let json = json!({"terraform": [{"backend": {"http": {"address": url}}}]});
            std::fs::write(dir.path().join(name), json.to_string()).unwrap();
        };
        let found = || Config::find(dir.path(), Some("http://s/"), &["retry_max=1"]).unwrap().unwrap();
        assert_eq!((found().kind.as_str(), &found().config["address"]), ("http", &json!("http://s/")));
        write("pawl_override.tf.json", "http://o/");
        write("z.tf.json", "http://z/");
        assert_eq!(found().config["address"], "http://o/");
        assert_eq!(found().config["retry_max"], "1");
        let left = Config::read_initialized(&found().initialized().to_string()).unwrap();
        assert_eq!(left, found());
        std::fs::remove_file(dir.path().join("pawl_override.tf.json")).unwrap();
        assert_eq!(found().config["address"], "http://z/");
    }
}
