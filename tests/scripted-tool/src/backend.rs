//! The location of the state: an `http` backend, read, written and locked like by the real tools, or a local file without a lock.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::http;
use super::record::hostname;
use super::resource::random_uuid;
use super::script::Diagnostic;
use super::view::View;
use ledger::LockInfo;

/// The file with the agent's backend block. Blocks in other files are not read.
pub const BACKEND_FILE: &str = "zz_pawl_override.tf.json";

/// A backend block: its type and its attributes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Config {
    #[serde(rename = "type")]
    kind: String,
    config: Map<String, Value>,
}

impl Config {
    /// The backend block of a work directory.
    pub(super) fn find(dir: &Path) -> anyhow::Result<Option<Self>> {
        let Some(json) = read_json(&dir.join(BACKEND_FILE))? else {
            return Ok(None);
        };
        let (kind, config) = json["terraform"]["backend"]
            .as_object()
            .and_then(|blocks| blocks.iter().next())
            .context("no backend block")?;
        anyhow::ensure!(
            kind == "http",
            "backend type \"{kind}\" is not played by this tool"
        );
        Ok(Some(Self {
            kind: kind.clone(),
            config: config.as_object().cloned().unwrap_or_default(),
        }))
    }

    /// Writes it to the data directory, as `init` does.
    pub(super) fn initialize(&self, data_dir: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(data_dir).context("failed to create the data directory")?;
        let json =
            json!({"version": 3, "backend": {"type": self.kind, "config": self.config, "hash": 1}});
        std::fs::write(data_dir.join("terraform.tfstate"), json.to_string())
            .context("failed to write the data directory")
    }

    /// Reads the block that `init` wrote.
    pub(super) fn initialized(data_dir: &Path) -> anyhow::Result<Option<Self>> {
        let json = read_json(&data_dir.join("terraform.tfstate"))?;
        json.map(|json| {
            serde_json::from_value(json["backend"].clone()).context("no backend is initialized")
        })
        .transpose()
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.config.get(key).and_then(Value::as_str)
    }
}

fn read_json(path: &Path) -> anyhow::Result<Option<Value>> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .with_context(|| format!("`{}` is not JSON", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("failed to read `{}`", path.display())),
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Backend {
    Http(Config),
    Local(PathBuf),
}

impl Backend {
    /// Opens the location that a backend block configures; without one, a file of the work directory.
    pub(super) fn open(config: Option<Config>, dir: &Path) -> Self {
        config.map_or_else(|| Self::Local(dir.join("terraform.tfstate")), Self::Http)
    }

    /// The newest state, or null.
    pub(super) fn read(&self) -> anyhow::Result<Value> {
        let http = match self {
            Self::Local(path) => return Ok(read_json(path)?.unwrap_or_default()),
            Self::Http(http) => http,
        };
        let answer = http::request(
            "GET",
            http.get("address")
                .context("address argument is required")?,
            b"",
        )?;
        match answer.status {
            200 if !answer.body.is_empty() => {
                serde_json::from_slice(&answer.body).context("the state is not JSON")
            }
            200 | 204 | 404 => Ok(Value::Null),
            401 => bail!("HTTP remote state endpoint requires auth"),
            403 => bail!("HTTP remote state endpoint invalid auth"),
            500 => bail!("HTTP remote state internal server error"),
            other => bail!("Unexpected HTTP response code {other}"),
        }
    }

    /// Writes the state, with the lock's id if held.
    pub(super) fn write(&self, state: &Value, lock_id: Option<&str>) -> anyhow::Result<()> {
        let http = match self {
            Self::Local(path) => {
                return std::fs::write(path, state.to_string())
                    .context("failed to write the state");
            }
            Self::Http(http) => http,
        };
        let address = http
            .get("address")
            .context("address argument is required")?;
        let url = lock_id.map_or(address.to_owned(), |id| format!("{address}?ID={id}"));
        match http::request(
            http.get("update_method").unwrap_or("POST"),
            &url,
            state.to_string().as_bytes(),
        )?
        .status
        {
            200 | 201 | 204 => Ok(()),
            other => bail!("HTTP error: {other}"),
        }
    }

    /// Takes the lock; returns its id, or none if the backend has no locks.
    pub(super) fn lock(&self, operation: &str, view: &View) -> Result<Option<String>, LockFailure> {
        let Self::Http(http) = self else {
            return Ok(None);
        };
        let Some(url) = http.get("lock_address") else {
            return Ok(None);
        };
        let user = std::env::var("USER").unwrap_or_else(|_| nix::unistd::getuid().to_string());
        let info = LockInfo {
            id: random_uuid(),
            operation: operation.to_owned(),
            who: format!("{user}@{}", hostname()),
            version: view.version.clone(),
            created: jiff::Timestamp::now().to_string(),
            ..LockInfo::default()
        };
        let answer = http::request(
            http.get("lock_method").unwrap_or("LOCK"),
            url,
            json!(info).to_string().as_bytes(),
        );
        let answer = answer.map_err(LockFailure::Other)?;
        match answer.status {
            200 => Ok(Some(info.id)),
            409 | 423 => Err(LockFailure::Held(Box::new(
                serde_json::from_slice(&answer.body).unwrap_or_default(),
            ))),
            other => Err(LockFailure::Other(anyhow::anyhow!(
                "Unexpected HTTP response code {other}"
            ))),
        }
    }

    pub(super) fn unlock(&self, id: &str, version: &str) -> anyhow::Result<()> {
        let Self::Http(http) = self else {
            return Ok(());
        };
        let Some(url) = http.get("unlock_address") else {
            return Ok(());
        };
        let who = format!("@{}", hostname());
        let info = LockInfo {
            id: id.to_owned(),
            who,
            version: version.to_owned(),
            ..LockInfo::default()
        };
        let method = http.get("unlock_method").unwrap_or("UNLOCK");
        match http::request(method, url, json!(info).to_string().as_bytes())?.status {
            200 => Ok(()),
            other => bail!("Unexpected HTTP response code {other}"),
        }
    }
}

#[derive(Debug)]
pub(super) enum LockFailure {
    Held(Box<LockInfo>),
    Other(anyhow::Error),
}

impl LockFailure {
    pub(super) fn diagnostic(self, name: &str) -> Diagnostic {
        let message = match self {
            Self::Held(held) => format!(
                "HTTP remote state already locked: ID={id}\nLock Info:\n  ID:        {id}\n  Path:      {}\n  Operation: {}\n  Who:       {}\n  Version:   {}\n  Created:   {}\n  Info:      {}\n",
                held.path,
                held.operation,
                held.who,
                held.version,
                go_time(&held.created),
                held.info,
                id = held.id,
            ),
            Self::Other(error) => format!("{error:#}"),
        };
        let detail = format!(
            "Error message: {message}\n\n{name} acquires a state lock to protect the state from being written\nby multiple users at the same time. Please resolve the issue above and try\nagain. For most commands, you can disable locking with the \"-lock=false\"\nflag, but this is not recommended."
        );
        Diagnostic::error("Error acquiring the state lock", &detail)
    }
}

/// Formats a time like Go.
fn go_time(rfc3339: &str) -> String {
    rfc3339
        .strip_suffix('Z')
        .unwrap_or(rfc3339)
        .replacen('T', " ", 1)
        + " +0000 UTC"
}
