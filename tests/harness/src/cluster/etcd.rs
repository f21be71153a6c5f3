//! Direct access to etcd, to restore an object to an earlier state, which the API server would reject.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::whole::{Cluster, ETCD};

impl Cluster {
    /// Restores an object to its state at a revision (a former resourceVersion). Watchers see it as an ordinary update.
    pub fn restore_object(&self, key: &str, revision: &str) -> Result<()> {
        let key = serde_json::to_value(ByteString(key.as_bytes().to_vec()))?;
        let read = self.etcd("range", &json!({"key": key, "revision": revision}))?;
        let value = read["kvs"][0]["value"]
            .as_str()
            .with_context(|| format!("nothing at revision {revision}: {read}"))?;
        self.etcd("put", &json!({"key": key, "value": value}))
            .map(drop)
    }

    /// Sends a request to etcd's JSON gateway, which listens only in the cluster's network. Bytes are base64 there.
    fn etcd(&self, what: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        let request = format!(
            "POST /v3/kv/{what} HTTP/1.0\r\nHost: etcd\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{ETCD}; cat >&3; cat <&3");
        let mut child = Command::new("nsenter")
            .arg(format!("--net={}", self.network().netns().display()))
            .args(["--", "bash", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot enter the cluster's network")?;
        child
            .stdin
            .take()
            .context("no standard input")?
            .write_all(request.as_bytes())?;
        let output = child.wait_with_output()?;
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .with_context(|| format!("no answer of etcd: {answer}"))?;
        ensure!(
            head.lines()
                .next()
                .is_some_and(|line| line.contains(" 200 ")),
            "etcd refuses: {answer}"
        );
        serde_json::from_str(body).context("the answer of etcd is not JSON")
    }
}
