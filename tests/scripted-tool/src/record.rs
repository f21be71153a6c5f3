//! The tool's client of the ledger: the server stores every entry before the tool continues.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::http;
use ledger::{Ack, Entry};

/// How long a ledger may be unreachable. An effect without its entry would make every check worthless, so the tool fails after that.
const PATIENCE: Duration = Duration::from_secs(30);

/// Writes entries with this process, its command and its script.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    /// URL of the ledger; without it entries are dropped.
    url: Option<String>,
    who: String,
    common: Value,
}

impl Recorder {
    pub(super) fn new(url: Option<&str>, script: &str, command: &str) -> Self {
        let common = json!({"script": script, "command": command, "pid": std::process::id()});
        Self {
            url: url.map(str::to_owned),
            who: hostname(),
            common,
        }
    }

    /// Writes an entry and waits until it is stored.
    pub(super) fn note(&self, what: &str, detail: Value) -> anyhow::Result<Ack> {
        let mut entry = Entry::new(&self.who, what, self.common.clone());
        if let Value::Object(detail) = detail {
            entry.detail.extend(detail);
        }
        self.url
            .as_ref()
            .map_or(Ok(Ack { seq: 0, nth: 1 }), |url| post(url, &entry))
    }
}

fn post(url: &str, entry: &Entry) -> anyhow::Result<Ack> {
    let begun = Instant::now();
    loop {
        // Retries only if there was no connection: the entry must not be stored twice.
        match http::request("POST", url, entry.line().as_bytes()) {
            Ok(answer) if answer.status == 200 => {
                return serde_json::from_slice(&answer.body)
                    .context("the ledger's answer is not understood");
            }
            Ok(answer) => bail!("the ledger answered {}", answer.status),
            Err(error)
                if begun.elapsed() > PATIENCE || !format!("{error:#}").contains("dial tcp") =>
            {
                return Err(error.context("the ledger did not take an entry"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// The host's name, which in a pod is the pod's.
pub(super) fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
