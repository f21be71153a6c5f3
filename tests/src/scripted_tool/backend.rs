//! Where the state is: an `http` backend or a local file, found and locked as the real tools do.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::http;
use super::plan::random_uuid;
use super::record::hostname;
use super::script::Diagnostic;
use crate::servers::state::LockInfo;

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

fn name_of(path: &Path) -> String {
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

/// A place for a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Http { address: String, lock: Option<(String, String)>, unlock: Option<(String, String)>, user: Option<(String, String)> },
    Local { path: PathBuf },
}

impl Backend {
    /// The place that a backend block means; without one, a file of the work directory.
    pub(super) fn open(config: Option<&Config>, dir: &Path, workspace: &str) -> anyhow::Result<Self> {
        let env = |name: &str| std::env::var(format!("TF_HTTP_{name}")).ok();
        let of = |key: &str| {
            let set = config.and_then(|config| config.config.get(key)).and_then(Value::as_str).map(str::to_owned);
            set.filter(|value| !value.is_empty())
        };
        match config.map(|config| config.kind.as_str()) {
            None | Some("local") => {
                let file = of("path").unwrap_or_else(|| "terraform.tfstate".to_owned());
                let path = match workspace {
                    "default" => dir.join(file),
                    other => dir.join("terraform.tfstate.d").join(other).join("terraform.tfstate"),
                };
                Ok(Self::Local { path })
            }
            Some("http") => {
                let address = of("address").or_else(|| env("ADDRESS")).context("address argument is required")?;
                let method = |key: &str, default: &str| of(key).unwrap_or_else(|| default.to_owned());
                let lock = of("lock_address").or_else(|| env("LOCK_ADDRESS"));
                let unlock = of("unlock_address").or_else(|| env("UNLOCK_ADDRESS"));
                let user = of("username").or_else(|| env("USERNAME"));
                Ok(Self::Http {
                    address,
                    lock: lock.map(|url| (method("lock_method", "LOCK"), url)),
                    unlock: unlock.map(|url| (method("unlock_method", "UNLOCK"), url)),
                    user: user.map(|user| (user, of("password").or_else(|| env("PASSWORD")).unwrap_or_default())),
                })
            }
            Some(other) => bail!("backend type \"{other}\" is not played by this tool"),
        }
    }

    /// The newest state, or null.
    pub(super) fn read(&self) -> anyhow::Result<Value> {
        match self {
            Self::Local { path } => match std::fs::read(path) {
                Ok(bytes) => serde_json::from_slice(&bytes).context("the state is not JSON"),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(Value::Null),
                Err(error) => Err(error).context("failed to read the state"),
            },
            Self::Http { address, .. } => {
                let answer = self.ask("GET", address, b"")?;
                match answer.status {
                    200 if !answer.body.is_empty() => serde_json::from_slice(&answer.body).context("the state is not JSON"),
                    200 | 204 | 404 => Ok(Value::Null),
                    401 => bail!("HTTP remote state endpoint requires auth"),
                    403 => bail!("HTTP remote state endpoint invalid auth"),
                    500 => bail!("HTTP remote state internal server error"),
                    other => bail!("Unexpected HTTP response code {other}"),
                }
            }
        }
    }

    /// Writes the state, under a lock if one is held.
    pub(super) fn write(&self, state: &Value, lock_id: Option<&str>) -> anyhow::Result<()> {
        match self {
            Self::Local { path } => {
                if let Some(parent) = path.parent() {
                    std::fs::create_dir_all(parent).context("failed to create the state's folder")?;
                }
                std::fs::write(path, state.to_string()).context("failed to write the state")
            }
            Self::Http { address, .. } => {
                let mark = if address.contains('?') { '&' } else { '?' };
                let url = lock_id.map_or(address.clone(), |id| format!("{address}{mark}ID={id}"));
                match self.ask("POST", &url, state.to_string().as_bytes())?.status {
                    200 | 201 | 204 => Ok(()),
                    other => bail!("HTTP error: {other}"),
                }
            }
        }
    }

    /// Takes the lock; the id of it, or none where the backend does not lock.
    pub(super) fn lock(&self, operation: &str, version: &str) -> Result<Option<String>, LockFailure> {
        let user = std::env::var("USER").unwrap_or_else(|_| nix::unistd::getuid().to_string());
        let info = LockInfo {
            id: random_uuid().map_err(LockFailure::Other)?,
            operation: operation.to_owned(),
            who: format!("{user}@{}", hostname()),
            version: version.to_owned(),
            created: jiff::Timestamp::now().to_string(),
            ..LockInfo::default()
        };
        let body = serde_json::to_vec(&info).map_err(|error| LockFailure::Other(error.into()))?;
        match self {
            Self::Local { path } => {
                let file = lock_file(path);
                if let Some(parent) = file.parent() {
                    std::fs::create_dir_all(parent).map_err(|error| LockFailure::Other(error.into()))?;
                }
                match OpenOptions::new().write(true).create_new(true).open(&file).and_then(|mut out| out.write_all(&body)) {
                    Ok(()) => Ok(Some(info.id)),
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                        let held = std::fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
                        Err(LockFailure::Held("resource temporarily unavailable".to_owned(), Box::new(held.unwrap_or_default())))
                    }
                    Err(error) => Err(LockFailure::Other(error.into())),
                }
            }
            Self::Http { lock: None, .. } => Ok(None),
            Self::Http { lock: Some((method, url)), .. } => {
                let answer = self.ask(method, url, &body).map_err(LockFailure::Other)?;
                match answer.status {
                    200 => Ok(Some(info.id)),
                    409 | 423 => {
                        let held: LockInfo = serde_json::from_slice(&answer.body).unwrap_or_default();
                        let message = format!("HTTP remote state already locked: ID={}", held.id);
                        Err(LockFailure::Held(message, Box::new(held)))
                    }
                    401 => Err(LockFailure::Other(anyhow::anyhow!("HTTP remote state endpoint requires auth"))),
                    403 => Err(LockFailure::Other(anyhow::anyhow!("HTTP remote state endpoint invalid auth"))),
                    other => Err(LockFailure::Other(anyhow::anyhow!("Unexpected HTTP response code {other}"))),
                }
            }
        }
    }

    /// Gives the lock back.
    pub(super) fn unlock(&self, id: &str, version: &str) -> anyhow::Result<()> {
        match self {
            Self::Local { path } => std::fs::remove_file(lock_file(path)).context("failed to remove the lock"),
            Self::Http { unlock: None, .. } => Ok(()),
            Self::Http { unlock: Some((method, url)), .. } => {
                let who = format!("@{}", hostname());
                let info = LockInfo { id: id.to_owned(), who, version: version.to_owned(), ..LockInfo::default() };
                match self.ask(method, url, &serde_json::to_vec(&info)?)?.status {
                    200 => Ok(()),
                    other => bail!("Unexpected HTTP response code {other}"),
                }
            }
        }
    }

    fn ask(&self, method: &str, url: &str, body: &[u8]) -> anyhow::Result<http::Answer> {
        let user = match self {
            Self::Http { user: Some((user, password)), .. } => Some((user.as_str(), password.as_str())),
            _ => None,
        };
        http::request(method, url, user, body)
    }
}

fn lock_file(state: &Path) -> PathBuf {
    state.with_file_name(format!(".{}.lock.info", name_of(state)))
}

/// Why there is no lock.
#[derive(Debug)]
pub(super) enum LockFailure {
    /// Someone has it.
    Held(String, Box<LockInfo>),
    /// Anything else.
    Other(anyhow::Error),
}

impl LockFailure {
    /// The tool's words for it.
    pub(super) fn diagnostic(self, name: &str) -> Diagnostic {
        let message = match self {
            Self::Held(message, held) => format!(
                "{message}\nLock Info:\n  ID:        {}\n  Path:      {}\n  Operation: {}\n  Who:       {}\n  Version:   {}\n  Created:   {}\n  Info:      {}\n",
                held.id,
                held.path,
                held.operation,
                held.who,
                held.version,
                go_time(&held.created),
                held.info
            ),
            Self::Other(error) => format!("{error:#}"),
        };
        let detail = format!(
            "Error message: {message}\n\n{name} acquires a state lock to protect the state from being written\nby multiple users at the same time. Please resolve the issue above and try\nagain. For most commands, you can disable locking with the \"-lock=false\"\nflag, but this is not recommended."
        );
        Diagnostic::error("Error acquiring the state lock", &detail)
    }
}

/// A time as Go prints it.
fn go_time(rfc3339: &str) -> String {
    rfc3339.strip_suffix('Z').unwrap_or(rfc3339).replacen('T', " ", 1) + " +0000 UTC"
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

    #[test]
    fn a_local_state_is_locked_by_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let backend = Backend::open(None, dir.path(), "default").unwrap();
        assert_eq!(backend.read().unwrap(), Value::Null);
        let id = backend.lock("OperationTypeApply", "1").unwrap().unwrap();
        assert!(matches!(backend.lock("OperationTypePlan", "1"), Err(LockFailure::Held(_, held)) if held.id == id));
        backend.write(&json!({"serial": 1}), Some(&id)).unwrap();
        backend.unlock(&id, "1").unwrap();
        assert!(backend.lock("OperationTypePlan", "1").is_ok());
        assert_eq!(backend.read().unwrap()["serial"], 1);
    }
}
