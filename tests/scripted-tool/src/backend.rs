//! Where the state is: an `http` backend or a local file, read, written and locked as the real tools do.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

use super::backend_config::{Config, name_of};
use super::http;
use super::plan::random_uuid;
use super::record::hostname;
use super::script::Diagnostic;
use super::view::{Flavor, View};
use ledger::LockInfo;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Http {
        address: String,
        /// The method of writes.
        update: String,
        lock: Option<(String, String)>,
        unlock: Option<(String, String)>,
        user: Option<(String, String)>,
    },
    Local {
        path: PathBuf,
    },
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
                    update: method("update_method", "POST"),
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
            Self::Http { address, update, .. } => {
                let mark = if address.contains('?') { '&' } else { '?' };
                let url = lock_id.map_or(address.clone(), |id| format!("{address}{mark}ID={id}"));
                match self.ask(update, &url, state.to_string().as_bytes())?.status {
                    200 | 201 | 204 => Ok(()),
                    other => bail!("HTTP error: {other}"),
                }
            }
        }
    }

    /// Takes the lock; the id of it, or none where the backend does not lock.
    pub(super) fn lock(&self, operation: &str, view: &View) -> Result<Option<String>, LockFailure> {
        let user = std::env::var("USER").unwrap_or_else(|_| nix::unistd::getuid().to_string());
        let info = LockInfo {
            id: random_uuid(),
            operation: operation.to_owned(),
            who: format!("{user}@{}", hostname()),
            version: view.version.clone(),
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
                        // Terraform tells of its own lock where OpenTofu tells of the one in its way (1.11.4, 1.10.6).
                        let told = if view.flavor == Flavor::Tofu { held } else { info };
                        Err(LockFailure::Held(message, Box::new(told)))
                    }
                    401 => Err(LockFailure::Other(anyhow::anyhow!("HTTP remote state endpoint requires auth"))),
                    403 => Err(LockFailure::Other(anyhow::anyhow!("HTTP remote state endpoint invalid auth"))),
                    other => Err(LockFailure::Other(anyhow::anyhow!("Unexpected HTTP response code {other}"))),
                }
            }
        }
    }

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

#[derive(Debug)]
pub(super) enum LockFailure {
    Held(String, Box<LockInfo>),
    Other(anyhow::Error),
}

impl LockFailure {
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
    use serde_json::json;

    use super::*;

    #[test]
    fn a_local_state_is_locked_by_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let backend = Backend::open(None, dir.path(), "default").unwrap();
        let view = View { flavor: Flavor::Tofu, version: "1".to_owned(), json: true, dir: dir.path().to_owned() };
        assert_eq!(backend.read().unwrap(), Value::Null);
        let id = backend.lock("OperationTypeApply", &view).unwrap().unwrap();
        assert!(matches!(backend.lock("OperationTypePlan", &view), Err(LockFailure::Held(_, held)) if held.id == id));
        backend.write(&json!({"serial": 1}), Some(&id)).unwrap();
        backend.unlock(&id, "1").unwrap();
        assert!(backend.lock("OperationTypePlan", &view).is_ok());
        assert_eq!(backend.read().unwrap()["serial"], 1);
    }
}
